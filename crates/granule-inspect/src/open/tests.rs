//! Which source of trees is trusted, and the reasons for there being none.

use super::*;
use granule_testing::dumps::{elf_core, note};
use std::io::Write;

const LINUX: &[u8] = b"OSRELEASE=6.1.0\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffff800081000000\n\
    NUMBER(VA_BITS)=48\nNUMBER(kimage_voffset)=0xffff800040000000\n";

fn opened(core: &[u8], options: &Options) -> Result<Opened, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(core).unwrap();
    open(&Source::File(file.path().into()), options).map_err(|error| error.to_string())
}

#[test]
fn options_come_before_what_linux_says_and_that_before_a_guess() {
    let core = elf_core(
        &[(0x4000_0000, vec![0; 8192])],
        &note("VMCOREINFO", 0, LINUX),
    );
    let found = opened(&core, &Options::default()).unwrap();
    assert_eq!(found.trees[0].root.0, 0x4100_0000);
    assert_eq!(found.trees[0].origin, Origin::Vmcoreinfo);
    assert_eq!(found.trees[0].memory_types, None);
    let unread = |note: &String| note.starts_with("processes are not read");
    assert!(found.notes.iter().any(unread));

    let mair = Options {
        mair: Some(0xff),
        ..Options::default()
    };
    let found = opened(&core, &mair).unwrap();
    assert_eq!(found.trees[0].memory_types, Some(Mair(0xff)));

    let options = Options {
        ttbr1: Some(0x4000_1000),
        tcr: Some(25 << 16 | 0b10 << 30 | 1 << 7),
        ..Options::default()
    };
    let found = opened(&core, &options).unwrap();
    assert_eq!((found.trees.len(), found.trees[0].root.0), (1, 0x4000_1000));
    assert_eq!(found.trees[0].origin, Origin::Options);
}

#[test]
fn the_reference_kernel_is_named_and_its_processes_are_not_looked_for() {
    let info = [
        LINUX,
        b"GRANULE(table_root)=0x40001000\nGRANULE(tcr)=0x580190010\nGRANULE(mair)=0x4ff\n",
    ]
    .concat();
    let core = elf_core(
        &[(0x4000_0000, vec![0; 8192])],
        &note("VMCOREINFO", 0, &info),
    );
    let found = opened(&core, &Options::default()).unwrap();
    assert_eq!((found.trees.len(), found.trees[0].root.0), (1, 0x4000_1000));
    assert_eq!(found.trees[0].memory_types, Some(Mair(0x4ff)));
    assert_eq!(
        found.notes,
        ["the kernel is Granule, 6.1.0; its programs are not looked for"]
    );
}

const BASE: u64 = 0x4000_0000;

/// Memory with two kernels that describe themselves, each with a root at an address of the first column, which maps
/// itself at the second, and whose description is at the third.
fn two_kernels(kernels: [(u64, u64, u64); 2]) -> Vec<u8> {
    let mut memory = vec![0; 1 << 20];
    for (root, va, text) in kernels {
        let mut put = |table: u64, level: u32, word: u64| {
            let at = (table - BASE + 8 * (va >> (39 - 9 * level) & 511)) as usize;
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        for level in 0..3 {
            put(
                root + u64::from(level) * 4096,
                level,
                root + u64::from(level + 1) * 4096 + 3,
            );
        }
        put(root + 3 * 4096, 3, root | 0x703);
        let offset = va.wrapping_sub(root);
        let info = format!(
            "OSRELEASE=6.{text}\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)={va:x}\nNUMBER(VA_BITS)=48\n\
             NUMBER(kimage_voffset)=0x{offset:x}\n"
        );
        let at = (text - BASE) as usize;
        memory[at..at + info.len()].copy_from_slice(info.as_bytes());
    }
    memory
}

/// A kernel that left by kexec is still in the memory, at a lower address than the one that runs.
#[test]
fn the_kernel_that_maps_where_the_cpus_execute_is_the_running_one() {
    let (dead, runs) = (0xffff_8000_8000_0000, 0xffff_a000_1234_0000);
    let (first, second) = (BASE + 0x1_0000, BASE + 0x4_0000);
    let kernels = [
        (first, dead, BASE + 0x8000),
        (second, runs, BASE + 0x9_0000),
    ];
    let memory = two_kernels(kernels);
    let (one, other) = (format!("{first:#x}"), format!("{second:#x}"));
    let note = |at: usize| {
        let start = (kernels[at].2 - BASE) as usize;
        let text = memory[start..].split(|&byte| byte == 0).next().unwrap();
        note("VMCOREINFO", 0, text)
    };
    type Case<'a> = (&'a [u64], Vec<u8>, Option<u64>, &'a [&'a str]);
    let cases: [Case<'_>; 8] = [
        (
            &[runs + 8],
            vec![],
            Some(second),
            &[
                &one,
                "is passed over, because its tables do not map 0xffffa00012340008, where a CPU executes",
            ],
        ),
        (
            &[dead + 8],
            vec![],
            Some(first),
            &[&other, "is passed over"],
        ),
        // The second CPU runs a guest.
        (
            &[runs, dead + (1 << 40)],
            vec![],
            Some(second),
            &["is passed over"],
        ),
        (
            &[],
            vec![],
            Some(first),
            &["nothing tells them apart: for another give --ttbr1 and --tcr"],
        ),
        // A program.
        (&[0x40_0000], vec![], Some(first), &[&other, "is not used"]),
        (&[runs], note(1), Some(second), &[]),
        // The notes of a hypervisor that has them from the first kernel.
        (
            &[runs],
            note(0),
            Some(second),
            &["(VMCOREINFO of the notes) is passed over", "is used"],
        ),
        (
            &[dead + (1 << 40)],
            vec![],
            None,
            &["passed over", "0xffff810080000000, where a CPU executes"],
        ),
    ];
    for (pcs, notes, root, words) in cases {
        let cpus = pcs
            .iter()
            .flat_map(|&pc| granule_testing::dumps::cpu_note(0, pc, 0x3c5));
        let core = elf_core(&[(BASE, memory.clone())], &[cpus.collect(), notes].concat());
        let (found, line) = match opened(&core, &Options::default()) {
            Ok(found) => (Some(found.trees[0].root.0), found.notes.join("; ")),
            Err(error) => (None, error),
        };
        assert_eq!(found, root, "{pcs:x?}: {line}");
        assert!(
            words.iter().all(|words| line.contains(words)),
            "{pcs:x?}: {line}"
        );
        assert_eq!(
            line.contains("describe themselves"),
            !words.is_empty(),
            "{line}"
        );
    }
    // Without a program counter the tables decide that are whole.
    let mut overwritten = memory.clone();
    overwritten[(first - BASE) as usize..][..4096].fill(0);
    let core = elf_core(&[(BASE, overwritten)], &[]);
    let found = opened(&core, &Options::default()).unwrap();
    assert_eq!(found.trees[0].root.0, second);
    // What nothing else is found for is shown, with a line.
    let notes = [
        granule_testing::dumps::cpu_note(0, u64::MAX, 0x3c5),
        note(0),
    ]
    .concat();
    let found = opened(&elf_core(&[(BASE, memory)], &notes), &Options::default()).unwrap();
    assert_eq!(found.trees[0].root.0, first);
    assert!(
        found.notes.join("; ").contains("is shown all the same"),
        "{:?}",
        found.notes
    );
}

#[test]
fn a_base_address_is_of_raw_images_alone() {
    let core = elf_core(&[(0x4000_0000, vec![0; 8192])], &[]);
    let options = Options {
        base: Some(0x8000_0000),
        ttbr1: Some(0x4000_1000),
        tcr: Some(25 << 16 | 0b10 << 30 | 1 << 7),
        ..Options::default()
    };
    let found = opened(&core, &options).unwrap();
    assert_eq!(
        found.memory.ranges().first(),
        Some(&(0x4000_0000..0x4000_2000))
    );
    assert!(found.notes[0].contains("ignoring the base address"));
    // Memory that begins with a program.
    let mut program = core;
    program[16] = 2;
    let found = opened(&program, &options).unwrap();
    assert_eq!(found.memory.ranges()[0].start, 0x8000_0000);
    assert!(found.notes.is_empty(), "{:?}", found.notes);
}

#[test]
fn a_search_tells_how_far_it_is() {
    let core = elf_core(&[(0x4000_0000, vec![0; 3 << 20])], &[]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&core).unwrap();
    let mut steps_seen = Vec::new();
    let source = Source::File(file.path().into());
    let found = open_telling(&source, &Options::default(), &mut |done, all| {
        steps_seen.push((done, all));
    });
    assert!(found.is_err());
    // Nothing is found, so everything is looked at.
    let all = 4 * (3 << 20);
    let steps = (1..=12).map(|step| (step << 20, all));
    assert!(steps_seen.iter().copied().eq(steps), "{steps_seen:?}");
}

#[test]
fn options_of_each_exception_level() {
    let core = elf_core(&[(0x4000_0000, vec![0; 8192])], &[]);
    let both = Options {
        ttbr0: Some(0x4000_0000),
        ttbr1: Some(0x4000_1000),
        tcr: Some(16 | 16 << 16 | 0b10 << 30),
        ..Options::default()
    };
    let roots = |options: &Options| -> Vec<u64> {
        let found = opened(&core, options).unwrap();
        found.trees.iter().map(|tree| tree.root.0).collect()
    };
    assert_eq!(roots(&both), [0x4000_1000, 0x4000_0000]);
    let vhe = Options {
        el: Some(2),
        vhe: true,
        ..both.clone()
    };
    assert_eq!(roots(&vhe), [0x4000_1000, 0x4000_0000]);
    for el in [2, 3] {
        let one = Options {
            el: Some(el),
            ttbr1: None,
            ..both.clone()
        };
        assert_eq!(roots(&one), [0x4000_0000]);
    }
    let guest = Options {
        vttbr: Some(0x4000_0000),
        vtcr: Some(24 | 1 << 6),
        ..Options::default()
    };
    assert_eq!(roots(&guest), [0x4000_0000]);
    for (mmfr1, by_privilege) in [(None, false), (Some(1 << 28), true)] {
        let options = Options {
            mmfr1,
            ..guest.clone()
        };
        let found = opened(&core, &options).unwrap();
        let Shape::Stage2(shape) = found.trees[0].shape else {
            panic!("{:?}", found.trees);
        };
        assert_eq!(shape.shape().execute_by_privilege(), by_privilege);
    }
}

#[test]
fn a_missing_register_is_reported_in_one_line() {
    let core = elf_core(&[(0x4000_0000, vec![0; 8192])], &[]);
    const ROOT: Option<u64> = Some(0x4000_0000);
    type Case = (fn(&mut Options), &'static str);
    let cases: [Case; 11] = [
        (
            |_| {},
            "no page tables were found (no register has a root, there is no VMCOREINFO, and no page looks \
             like a root); give TTBR1 or TTBR0, and TCR (--ttbr1",
        ),
        (|it| it.ttbr0 = ROOT, "give TCR too (--tcr)"),
        (|it| it.vttbr = ROOT, "give VTCR too"),
        (|it| it.el = Some(0), "give 1, 2 or 3"),
        // Options that would be ignored silently.
        (|it| it.vhe = true, "VHE is of EL2: give --el 2"),
        (
            |it| (it.el, it.ttbr1, it.tcr) = (Some(2), ROOT, Some(25 << 16 | 0b10 << 30)),
            "EL2 has no TTBR1: give --ttbr0, or --vhe",
        ),
        (
            |it| (it.el, it.ttbr1, it.tcr) = (Some(3), ROOT, Some(25)),
            "EL3 has no TTBR1: give --ttbr0",
        ),
        (
            |it| it.tcr = Some(25),
            "TCR alone names no root: give TTBR0 or TTBR1 too",
        ),
        (
            |it| it.vtcr = Some(25),
            "VTCR alone names no root: give VTTBR too",
        ),
        (
            |it| (it.ttbr1, it.tcr) = (ROOT, Some(0)),
            "TCR_EL1 of CPU 0 cannot be used: TCR.TG1 is 0x0",
        ),
        (
            |it| (it.ttbr1, it.tcr) = (ROOT, Some(25 << 16 | 0b10 << 30 | 1 << 23 | 1 << 7)),
            "ignoring TTBR1_EL1: EPD1 in TCR_EL1, 0x80990080, disables its walks; to read it \
             all the same, give TCR 0x80190080",
        ),
    ];
    for (set, words) in cases {
        let mut options = Options::default();
        set(&mut options);
        let error = opened(&core, &options).err().unwrap();
        assert!(
            error.contains(words) && error.lines().count() == 1,
            "{error}"
        );
    }
}
