//! A kernel with processes made by hand, whole, cut off and damaged. Real kernels are read by the
//! checks beside Debian's.

use super::*;
use crate::source::raw;
use granule_testing::linux::{
    BASE, FUNCTION, MODULE, MODULE_FUNCTION, NODE, SYMBOLS, TASK_BYTES, TASKS, USER_ROOTS, VIRTUAL,
    count_from_places, memory, vmcoreinfo,
};

type Found = Result<(Vec<Tree>, Vec<String>), String>;

fn found(memory: Vec<u8>, info: &str) -> Found {
    let (memory, _) = raw::open(memory, BASE);
    let info = Vmcoreinfo(info);
    processes(&*memory, &info.kernel(0)?, info, None)
}

#[test]
fn processes_by_name_number_and_root() {
    let (trees, notes) = found(memory(), &vmcoreinfo()).unwrap();
    let listed: Vec<_> = trees
        .iter()
        .map(|tree| (tree.owner.to_string(), tree.root.0))
        .collect();
    let expected = [
        ("process 1 (init)", USER_ROOTS[0]),
        ("process 77 (a??b)", USER_ROOTS[1]),
    ];
    assert_eq!(listed, expected.map(|(name, root)| (name.into(), root)));
    assert!(notes.is_empty(), "{notes:?}");
    let Shape::Stage1(shape) = trees[0].shape else {
        panic!("{:?}", trees[0]);
    };
    assert_eq!((shape.va_bits(), shape.base().0), (39, 0));
}

#[test]
fn symbols_whose_addresses_count_from_their_own_places() {
    let info = vmcoreinfo().replace("SYMBOL(kallsyms_relative_base)", "X");
    let mut newer = memory();
    count_from_places(&mut newer);
    let roots = |found: Found| -> Vec<u64> {
        let (trees, _) = found.unwrap();
        trees.iter().map(|tree| tree.root.0).collect()
    };
    assert_eq!(roots(found(newer.clone(), &info)), USER_ROOTS);
    // Each form in the place of the other is reported.
    for error in [found(memory(), &info), found(newer, &vmcoreinfo())] {
        let error = error.unwrap_err();
        assert!(error.contains("_stext is not at"), "{error}");
    }
}

#[test]
fn symbols_that_something_else_was_stored_over_are_reported() {
    let mut memory = memory();
    // `do_fault`, the fourth symbol.
    memory[SYMBOLS + 0x10c..][..4].copy_from_slice(&0x9000_0001_u32.to_le_bytes());
    let error = found(memory, &vmcoreinfo()).unwrap_err();
    assert!(error.contains("not in the order of addresses"), "{error}");
}

#[test]
fn a_list_that_never_ends_and_one_that_leads_nowhere_are_reported() {
    let last = TASKS + 3 * TASK_BYTES + NODE;
    for (next, words) in [
        (VIRTUAL + (TASKS + TASK_BYTES + NODE) as u64, "never ends"),
        (0x1234, "ends early: nothing is mapped at 0x1234"),
        (VIRTUAL + (1 << 29), "ends early: no memory at"),
    ] {
        let mut memory = memory();
        memory[last..last + 8].copy_from_slice(&next.to_le_bytes());
        let (trees, notes) = found(memory, &vmcoreinfo()).unwrap();
        assert_eq!(trees.len(), 2);
        assert!(notes.len() == 1 || notes.len() == 2, "{notes:?}");
        assert!(notes.last().unwrap().contains(words), "{notes:?}");
    }
}

#[test]
fn tasks_that_cannot_be_read_are_reported_up_to_a_number() {
    let mut memory = memory();
    // Fifteen more tasks, whose memory is at an address that is none.
    memory[0x100..0x1000].fill(0x11);
    let nodes = (0..15).map(|number| 0x180 + 0x80 * number);
    let mut before = TASKS + 3 * TASK_BYTES + NODE;
    for node in nodes.chain([TASKS + NODE]) {
        let next = VIRTUAL + node as u64;
        memory[before..before + 8].copy_from_slice(&next.to_le_bytes());
        before = node;
    }
    let (trees, notes) = found(memory, &vmcoreinfo()).unwrap();
    assert_eq!((trees.len(), notes.len()), (2, 11), "{notes:?}");
    assert!(notes[9].starts_with("the task at "), "{notes:?}");
    assert_eq!(notes[10], "5 more tasks cannot be read");
}

#[test]
fn missing_symbols_are_the_reason() {
    let info = vmcoreinfo();
    for (from, to, words) in [
        (
            "SYMBOL(kallsyms_names)",
            "X",
            "VMCOREINFO has no SYMBOL(kallsyms_names)",
        ),
        (
            "SYMBOL(_stext)=f",
            "SYMBOL(_stext)=e",
            "no form that is known: _stext is not at",
        ),
    ] {
        let error = found(memory(), &info.replace(from, to)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    for (from, to, words) in [
        (
            &b"init_task"[..],
            &b"init_mask"[..],
            "built without KALLSYMS_ALL",
        ),
        (b"__stop_BTF", b"__step_BTF", "it has no BTF"),
        (b"comm\0", b"komm\0", "its BTF has no task_struct.comm"),
    ] {
        let mut memory = memory();
        let at = memory
            .windows(from.len())
            .position(|window| window == from)
            .unwrap();
        memory[at..at + to.len()].copy_from_slice(to);
        let error = found(memory, &info).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn damage_ends_in_a_reason_or_in_fewer_processes() {
    let (whole, info) = (memory(), vmcoreinfo());
    let one_line = |found: Found| match found {
        Ok((trees, notes)) => {
            assert!(trees.len() <= 3 && notes.iter().all(|it| it.lines().count() == 1))
        }
        Err(why) => assert_eq!(why.lines().count(), 1),
    };
    for end in (0..whole.len()).step_by(64) {
        one_line(found(whole[..end].to_vec(), &info));
    }
    for at in (0x1000..0x9100).step_by(8) {
        for hostile in [0, 1, VIRTUAL, VIRTUAL + TASKS as u64, u64::MAX] {
            let mut memory = whole.clone();
            if memory[at..at + 8] != [0; 8] {
                memory[at..at + 8].copy_from_slice(&hostile.to_le_bytes());
                one_line(found(memory, &info));
            }
        }
    }
}

#[test]
fn a_system_map_serves_where_the_kernel_has_no_such_symbols() {
    // The list of symbols is lost, and the kernel lies where it was not linked to.
    let info = vmcoreinfo().replace("kallsyms", "lost");
    let (memory, _) = raw::open(memory(), BASE);
    let parsed = Vmcoreinfo(&info);
    let find = |map: &str| processes(&*memory, &parsed.kernel(0)?, parsed, Some(map));
    let [task, types] = [TASKS, 0x6000].map(|offset| 0x1000_0000 + offset as u64);
    let map = format!(
        "0000000010000000 T _stext\n0000000010001000 D swapper_pg_dir\n\nodd line\n\
         {types:016x} R __start_BTF\n{:016x} R __stop_BTF\n{task:016x} D init_task\n",
        types + 0x400
    );
    let (trees, notes) = find(&map).unwrap();
    assert_eq!((trees.len(), notes.len()), (2, 0));
    for (from, to, words) in [
        ("T _stext", "T other", "the file of symbols has no _stext"),
        ("10001000 D", "10002000 D", "belongs to another kernel"),
        ("D init_task", "D x", "has no init_task"),
        ("R __stop_BTF", "R x", "it has no BTF"),
    ] {
        let error = find(&map.replace(from, to)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

fn symbols(
    memory: Vec<u8>,
    info: &str,
    file: Option<&str>,
) -> Result<(Symbols, Vec<String>), String> {
    let (memory, _) = raw::open(memory, BASE);
    let info = Vmcoreinfo(info);
    Symbols::of_linux(&*memory, &info.kernel(0)?, info, file)
}

/// The place in words; nothing if no function is there.
fn place(symbols: &Symbols, address: u64) -> String {
    let place = symbols.place(address);
    place.map_or_else(String::new, |place| place.to_string())
}

#[test]
fn functions_of_the_kernel_and_of_its_modules() {
    let (found, notes) = symbols(memory(), &vmcoreinfo(), None).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    let (start, bytes) = FUNCTION;
    let (module, module_bytes) = MODULE_FUNCTION;
    for (address, expected) in [
        (start - 1, ""),
        (start, "do_fault+0x0"),
        (start + 4, "do_fault+0x4"),
        (start + bytes - 1, "do_fault+0x7f"),
        // Data follows.
        (start + bytes, ""),
        (VIRTUAL, "_stext+0x0"),
        (VIRTUAL - 1, ""),
        (0, ""),
        (module - 1, ""),
        (module + 0x10, "act+0x10 [a_module]"),
        (module + module_bytes, ""),
        (u64::MAX, ""),
    ] {
        assert_eq!(place(&found, address), expected, "{address:#x}");
    }
    // The last symbol of the kernel has no end that is known.
    assert_eq!(place(&found, VIRTUAL + 0xf000), "");
}

#[test]
fn a_system_map_names_functions_where_the_kernel_lies() {
    let info = vmcoreinfo().replace("kallsyms", "lost");
    let map = "0000000010000000 T _stext\n0000000010001000 D swapper_pg_dir\n\
               0000000010000100 t $x\n0000000010000100 t __pi_$d.1\n0000000010000100 t in_the_file\n0000000010000140 d x\n";
    let (found, notes) = symbols(memory(), &info, Some(map)).unwrap();
    assert_eq!(place(&found, VIRTUAL + 0x104), "in_the_file+0x4");
    assert_eq!(place(&found, VIRTUAL + 0x140), "");
    assert!(
        notes.len() == 1 && notes[0].contains("no modules"),
        "{notes:?}"
    );
    // Without a kernel in memory the file's own addresses count.
    let linked = Symbols::linked(map);
    assert_eq!(place(&linked, 0x1000_0104), "in_the_file+0x4");
    assert!(Symbols::linked("no symbols\n").is_empty());
}

#[test]
fn damaged_modules_cost_their_own_functions_alone() {
    let of_kernel = |found: &Symbols| assert_eq!(place(found, FUNCTION.0), "do_fault+0x0");
    for at in (MODULE..MODULE + 0x200).step_by(8) {
        for hostile in [0, 1, VIRTUAL, VIRTUAL + MODULE as u64 + 8, u64::MAX] {
            let mut memory = memory();
            memory[at..at + 8].copy_from_slice(&hostile.to_le_bytes());
            let (found, notes) = symbols(memory, &vmcoreinfo(), None).unwrap();
            of_kernel(&found);
            assert!(notes.iter().all(|it| it.lines().count() == 1), "{notes:?}");
        }
    }
    let mut circle = memory();
    circle[MODULE + 8..MODULE + 16].copy_from_slice(&(VIRTUAL + MODULE as u64 + 8).to_le_bytes());
    let (found, notes) = symbols(circle, &vmcoreinfo(), None).unwrap();
    of_kernel(&found);
    assert!(notes[0].contains("never ends"), "{notes:?}");
}
