//! The reader of the memory attributes table, against tables built from the specification.

use granule_boot::efi::{AttributesError, Map, MemoryAttributes, Physical, Tables};
use granule_boot::tree::Range;
use granule_testing::firmware as firm;
use granule_testing::firmware::{RO, RUNTIME, XP};

const START: u64 = 0x4000_0000;

struct Ram(firm::Memory);

impl Physical for Ram {
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        self.0.read(start, bytes)
    }
}

fn table() -> Vec<u8> {
    let all = [
        firm::descriptor(5, 0x1000, 2, RO | RUNTIME, 48),
        firm::descriptor(5, 0x3000, 1, XP | RUNTIME, 48),
        firm::descriptor(6, 0x4000, 7, RO | XP | RUNTIME, 48),
    ];
    firm::attributes(&all, 48)
}

/// A range, whether it is read-only and whether never executed.
type Entry = (Range, bool, bool);

/// The memory of the table, and its entries.
fn read(table: &[u8]) -> Result<(Range, Vec<Entry>), AttributesError> {
    let mut memory = firm::Memory::new(START);
    let at = memory.put(table);
    let system = firm::system(&mut memory, &[([9; 16], 5), (firm::ATTRIBUTES, at)]);
    let memory = Ram(memory);
    let map = firm::descriptor(7, START, 16, 8, 48);
    let map = Map::new(&map, 48, 1).unwrap();
    let tables = Tables::read(&memory, map, system).unwrap();
    assert_eq!(tables.attributes, Some(at));
    let read = MemoryAttributes::read(&memory, at)?;
    let all = read.descriptors.map(|one| {
        assert!(one.is_for_runtime());
        let range = one.range().unwrap();
        (range, one.is_read_only(), one.is_never_executed())
    });
    Ok((read.range, all.collect()))
}

#[test]
fn every_descriptor_is_read() {
    let range = |start, bytes| Range { start, bytes };
    let all = vec![
        (range(0x1000, 0x2000), true, false),
        (range(0x3000, 0x1000), false, true),
        (range(0x4000, 0x7000), true, true),
    ];
    let expected = (range(START, 16 + 3 * 48), all);
    assert_eq!(read(&table()), Ok(expected.clone()));
    // Version 2 has flags in the reserved word.
    let mut second = table();
    second[0] = 2;
    second[12] = 1;
    assert_eq!(read(&second), Ok(expected));
}

#[test]
fn a_table_that_cannot_be_used_is_refused() {
    let with = |at: usize, word: u32| {
        let mut table = table();
        table[at..at + 4].copy_from_slice(&word.to_le_bytes());
        read(&table).map(|_| ())
    };
    for version in [0, 3, u32::MAX] {
        assert_eq!(with(0, version), Err(AttributesError::Version));
    }
    for (at, words) in [(4, [0, 1 << 20, u32::MAX]), (8, [0, 44, u32::MAX])] {
        for word in words {
            assert_eq!(with(at, word), Err(AttributesError::Size), "{at} {word}");
        }
    }
    // More than there is memory for.
    assert_eq!(with(4, 9999), Err(AttributesError::Unlisted));
    let empty = Ram(firm::Memory::new(START));
    for at in [0, START, u64::MAX] {
        let refused = MemoryAttributes::read(&empty, at).map(|_| ());
        assert_eq!(refused, Err(AttributesError::Unlisted));
    }
    for error in [
        AttributesError::Version,
        AttributesError::Size,
        AttributesError::Unlisted,
    ] {
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
