//! Cores made by hand, whole, cut off and damaged.

use super::*;
use granule::arch::PhysicalAddress;
use granule_testing::dumps::{cpu_note, elf_core, note};

fn notes() -> Vec<u8> {
    [
        cpu_note(0x10, 0xffff_8000_0000_1234, 0x3c5),
        note("VMCOREINFO", 0, b"PAGESIZE=4096\n"),
        cpu_note(0x20, 0x1000, 0),
    ]
    .concat()
}

fn core() -> Vec<u8> {
    let page = |byte| vec![byte; 4096];
    elf_core(
        &[
            (0x4000_0000, page(1)),
            (0x4000_1000, page(2)),
            (0x8000_0000, page(3)),
        ],
        &notes(),
    )
}

fn at(memory: &dyn Memory, address: u64) -> Result<u64, String> {
    let mut bytes = [0; 8];
    memory
        .read(PhysicalAddress(address), &mut bytes)
        .map(|()| u64::from_le_bytes(bytes))
        .map_err(|error| error.to_string())
}

#[test]
fn memory_and_notes() {
    let (memory, facts) = open(core()).unwrap();
    assert_eq!(
        memory.ranges(),
        [0x4000_0000..0x4000_2000, 0x8000_0000..0x8000_1000]
    );
    assert_eq!(at(&*memory, 0x4000_0ffc), Ok(0x0202_0202_0101_0101));
    assert_eq!(at(&*memory, 0x8000_0ff8), Ok(0x0303_0303_0303_0303));
    assert_eq!(
        at(&*memory, 0x4000_1ffc),
        Err("no memory at 0x40002000".into())
    );
    assert_eq!(facts.vmcoreinfo.as_deref(), Some("PAGESIZE=4096\n"));
    let pcs: Vec<_> = facts.cpus.iter().map(|cpu| cpu.get("pc")).collect();
    assert_eq!(pcs, [Some(0xffff_8000_0000_1234), Some(0x1000)]);
    assert_eq!(facts.cpus[0].get("cpsr"), Some(0x3c5));
    assert!(facts.notes.is_empty(), "{:?}", facts.notes);
}

#[test]
fn the_headers_give_the_bytes_of_a_core_whatever_the_file_has() {
    let core = core();
    let bytes = core.len() as u64;
    assert_eq!(file_bytes(&core).ok(), Some(bytes));
    let on_a_disk = [core.clone(), vec![0; 5000]].concat();
    assert_eq!(file_bytes(&on_a_disk).ok(), Some(bytes));
    assert_eq!(file_bytes(&core[..1000].to_vec()).ok(), Some(bytes));
    assert!(file_bytes(&vec![0; 5000]).is_err());
}

#[test]
fn a_core_that_is_cut_off_reads_as_far_as_it_goes() {
    let whole = core();
    let headers = 64 + 4 * 56;
    for end in (0..whole.len()).step_by(64) {
        let Ok((memory, facts)) = open(whole[..end].to_vec()) else {
            assert!(end < headers, "{end}");
            continue;
        };
        assert!(end >= headers && facts.notes.iter().any(|note| note.contains("cut off")));
        let first = at(&*memory, 0x4000_0000);
        if end < headers + notes().len() + 8 {
            let why = first.unwrap_err();
            assert!(
                why.starts_with("the memory at 0x40000000 cannot be read"),
                "{why}"
            );
        } else {
            assert_eq!(first, Ok(0x0101_0101_0101_0101));
        }
    }
}

#[test]
fn hostile_numbers_end_in_errors() {
    let whole = core();
    for field in (0..64 + 4 * 56).step_by(4) {
        for hostile in [0, 1, 0x7fff_ffff, u32::MAX, 0xffff] {
            let mut file = whole.clone();
            file[field..field + 4].copy_from_slice(&hostile.to_le_bytes());
            if let Ok((memory, _)) = open(file) {
                for range in memory.ranges() {
                    assert!(range.start < range.end);
                    let _ = at(&*memory, range.start);
                    let _ = at(&*memory, range.end.wrapping_sub(4));
                }
            }
        }
    }
}

#[test]
fn other_files_are_refused_in_one_line() {
    let changed = |at: usize, byte: u8| {
        let mut file = core();
        file[at] = byte;
        open(file)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    for (at, byte, words) in [
        (4, 1, "not of a 64-bit machine"),
        (
            5,
            2,
            "of a big-endian machine; those of little-endian arm64",
        ),
        (18, 62, "machine 62"),
        (16, 2, "not a core"),
        (54, 32, "its program headers have another size"),
    ] {
        let error = changed(at, byte);
        assert!(
            error.contains(words) && error.lines().count() == 1,
            "{error}"
        );
    }
}

/// Overwrites a word of a program header.
fn header(file: &mut [u8], number: usize, field: usize, word: u64) {
    let at = 64 + 56 * number + field;
    file[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

const P_VADDR: usize = 16;
const P_PADDR: usize = 24;
const P_FILESZ: usize = 32;
const P_MEMSZ: usize = 40;

#[test]
fn bytes_left_out_of_a_segment_differ_from_no_memory() {
    // The second page of the first segment, and all of the second, are not in the file.
    let mut file = core();
    header(&mut file, 1, P_MEMSZ, 8192);
    header(&mut file, 2, P_PADDR, 0x5000_0000);
    header(&mut file, 2, P_FILESZ, 0);
    let (memory, facts) = open(file).unwrap();
    assert!(facts.notes.is_empty(), "{:?}", facts.notes);
    assert_eq!(
        memory.ranges(),
        [0x4000_0000..0x4000_1000, 0x8000_0000..0x8000_1000]
    );
    for (address, words) in [
        (0x4000_1000, "the memory at 0x40001000 is not in the dump"),
        (0x4000_0ffc, "the memory at 0x40001000 is not in the dump"),
        (0x5000_0008, "the memory at 0x50000008 is not in the dump"),
        (0x4000_2000, "no memory at 0x40002000"),
    ] {
        assert_eq!(at(&*memory, address), Err(words.into()));
    }
}

#[test]
fn notes_in_several_segments_are_read_and_all_of_them_are_bounded() {
    // The second segment becomes notes too.
    let mut file = elf_core(
        &[(0x4000_0000, cpu_note(1, 2, 3)), (0x8000_0000, vec![0; 64])],
        &notes(),
    );
    file[64 + 56..64 + 56 + 4].copy_from_slice(&4_u32.to_le_bytes());
    assert_eq!(open(file).unwrap().1.cpus.len(), 3);
    // A thousand times the same megabyte.
    let again: Vec<_> = (0..1000).map(|_| (0, Vec::new())).collect();
    let mut file = elf_core(&again, &vec![0; 1 << 20]);
    let offset = 64 + 1001 * 56;
    for number in 1..=1000 {
        file[64 + 56 * number..64 + 56 * number + 4].copy_from_slice(&4_u32.to_le_bytes());
        header(&mut file, number, 8, offset);
        header(&mut file, number, P_FILESZ, 1 << 20);
    }
    let (_, facts) = open(file).unwrap();
    let unread = facts
        .notes
        .iter()
        .filter(|note| note.contains("cannot be read"));
    assert_eq!(unread.count(), 1, "{:?}", facts.notes);
}

#[test]
fn the_core_of_a_program_is_refused() {
    let mut file = core();
    for number in 1..=3 {
        header(&mut file, number, P_VADDR, (number as u64) << 40);
        header(&mut file, number, P_PADDR, 0);
    }
    let error = open(file).err().unwrap().to_string();
    assert!(error.contains("it is of a program") && error.lines().count() == 1);
    // The memory of a machine may well begin at 0.
    let (memory, _) = open(elf_core(&[(0, vec![7; 4096])], &[])).unwrap();
    assert_eq!(at(&*memory, 0), Ok(0x0707_0707_0707_0707));
}

#[test]
fn a_core_whose_search_would_not_end_is_refused_or_cut() {
    // A segment of half the address space: only the bytes of the file are searched.
    let mut file = core();
    let size = 64 + 3 * 56 + 32;
    file[size..size + 8].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    let (memory, facts) = open(file).unwrap();
    let searched: u64 = memory
        .searchable()
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    assert!(
        searched <= 3 * 4096 && facts.notes[0].contains("cut off"),
        "{searched:#x}"
    );
    // A hundred segments with the same bytes.
    let page: Vec<_> = (0..100).map(|number| (number << 12, Vec::new())).collect();
    let mut file = elf_core(&page, &[0; 4096]);
    for number in 1..=100 {
        let header = 64 + 56 * number;
        for (field, word) in [(8, 64_u64), (32, 9000)] {
            file[header + field..header + field + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    let error = open(file).err().unwrap().to_string();
    assert!(error.contains("again and again"), "{error}");
}
