//! Damage to the properties that name the EFI memory map and the system table, and to the list of
//! memory to keep.

use super::machine::{Machine, Ram, TABLES, bare, expanded, machine, map, notes, tables, usual};
use dtoolkit::fdt::Fdt;
use dtoolkit::model::DeviceTree;
use granule_boot::acpi::{AcpiError, Fault};
use granule_boot::efi::{Map, MapError, SystemError};
use granule_boot::expand::{ExpandError, Note, Request, expand};
use granule_boot::tree::{Range, Tree, WriteError};
use granule_boot::words::Acpi;
use granule_testing::firmware as firm;
use granule_testing::firmware::{RUNTIME, WB};

#[test]
fn a_map_that_cannot_be_is_refused() {
    let good = machine(&usual(), &tables());
    let with = |change: &dyn Fn(&mut Machine)| {
        let mut machine = good.clone();
        change(&mut machine);
        expanded(&machine, &bare(&machine), None).err()
    };
    let step = |step: u32| with(&move |machine| machine.step = step);
    let wrong = |error| Some(ExpandError::Map(error));
    for size in [0, 1, 39, 44, 520, u32::MAX] {
        assert_eq!(step(size), wrong(MapError::DescriptorSize), "{size}");
    }
    // Twelve descriptors of 40 bytes without sensible contents.
    assert_eq!(step(40), Some(ExpandError::NoMemory));
    assert_eq!(step(56), wrong(MapError::Size));
    assert_eq!(with(&|machine| machine.map.clear()), wrong(MapError::Size));
    assert_eq!(
        with(&|machine| machine.map.truncate(47)),
        wrong(MapError::Size)
    );
    let huge = with(&|machine| machine.map.resize((1 << 20) + 32, 0));
    assert_eq!(huge, wrong(MapError::Size));
    let none = [(5, 0x4000_0000, 16, WB), (7, 0x5000_0000, 16, 0)];
    let none = with(&move |machine| machine.map = map(&none, 48));
    assert_eq!(none, Some(ExpandError::NoMemory));
    for name in [
        "-mmap-start",
        "-mmap-size",
        "-mmap-desc-size",
        "-mmap-desc-ver",
        "-system-table",
    ] {
        let mut tree = bare(&good);
        let chosen = tree.root.child_mut("chosen").unwrap();
        chosen.remove_property(&format!("linux,uefi{name}"));
        assert_eq!(
            expanded(&good, &tree, None).err(),
            Some(ExpandError::Incomplete)
        );
    }
    let tree = DeviceTree::new().to_dtb();
    assert_eq!(Request::of(&Tree::new(&tree).unwrap()), Ok(None));
    // No room: an error, whatever the room.
    let old = bare(&good).to_dtb();
    let tree = Tree::new(&old).unwrap();
    let request = Request::of(&tree).unwrap().unwrap();
    let ram = Ram(good.memory.clone());
    let map = Map::new(&good.map, 48, 1).unwrap();
    for room in 0..1000 {
        let mut into = vec![0; room];
        let made = expand(&tree, &request, map, &ram, None, &mut into);
        let full = ExpandError::Tree(WriteError::Full { room });
        assert_eq!(made.err(), Some(full));
    }
}

/// The memory that is reserved beside the map's and that of ACPI's tables.
fn reserved(machine: &Machine) -> (Vec<(u64, u64)>, Vec<Note>) {
    let (bytes, made) = expanded(machine, &bare(machine), Some(Acpi::Off)).unwrap();
    let tree = Fdt::new(&bytes).unwrap();
    let all = tree.memory_reservations();
    let all = all.map(|it| (it.address(), it.size()));
    (all.skip(2).collect(), notes(&made))
}

/// Tables that a next kernel reads are reserved wherever firmware has put them, unless they are not as the
/// specification has them.
#[test]
fn tables_for_a_next_kernel_are_kept() {
    const SERVICES: [u8; 16] = [
        0x8a, 0x91, 0x66, 0xeb, 0xef, 0x7e, 0x2a, 0x40, 0x84, 0x2e, 0x93, 0x1d, 0x21, 0xc3, 0x8a,
        0xe9,
    ];
    let kept = |guid, table: &[u8]| {
        let mut machine = machine(&usual(), &[]);
        let at = machine.memory.put(table);
        machine.system = firm::system(&mut machine.memory, &[(guid, at)]);
        let (all, reported) = reserved(&machine);
        assert_eq!(reported, []);
        let bytes: Vec<u64> = all
            .iter()
            .map(|(start, bytes)| {
                assert_eq!(*start, at);
                *bytes
            })
            .collect();
        bytes
    };
    // GetVariable and ResetSystem.
    assert_eq!(kept(SERVICES, &[1, 0, 8, 0, 0x10, 2, 0, 0]), [8]);
    for other in [[2, 0, 8, 0, 0, 0, 0, 0], [1, 0, 9, 0, 0, 0, 0, 0], [0; 8]] {
        assert_eq!(kept(SERVICES, &other), [0; 0], "{other:?}");
    }
    let one = firm::descriptor(5, 0x7080_0000, 1, RUNTIME, 48);
    let mut attributes = firm::attributes(&[one], 48);
    let whole = attributes.len() as u64;
    assert_eq!(kept(firm::ATTRIBUTES, &attributes), [whole]);
    // The version, the number of descriptors, and their size.
    for (at, byte) in [(0, 7), (6, 255), (7, 255), (11, 255)] {
        let mut wrong = attributes.clone();
        wrong[at] = byte;
        assert_eq!(kept(firm::ATTRIBUTES, &wrong), [0; 0], "byte {at}");
    }
    attributes[0] = 2;
    assert_eq!(kept(firm::ATTRIBUTES, &attributes), [whole]);
    let resources = |count: u32| {
        let table = firm::Fields::default().at(0, count.to_le_bytes());
        let table = table.at(4, 9_u32.to_le_bytes()).at(8, 1_u64.to_le_bytes());
        table.long(16 + 2 * 40).0
    };
    for (count, expected) in [
        (2, &[16 + 2 * 40][..]),
        (0, &[16]),
        (1 << 20, &[]),
        (u32::MAX, &[]),
    ] {
        assert_eq!(
            kept(firm::RESOURCES, &resources(count)),
            expected,
            "{count}"
        );
    }
}

/// Memory that an earlier kernel has the next one keep; a list that names itself ends.
#[test]
fn the_list_of_reserved_memory_ends() {
    let mut machine = machine(&usual(), &[]);
    let part = |room: u32, used: u32, next: u64, ranges: &[(u64, u64)]| {
        let mut part = firm::Fields::default()
            .at(0, room.to_le_bytes())
            .at(4, used.to_le_bytes())
            .at(8, next.to_le_bytes())
            .0;
        let ranges = ranges.iter();
        part.extend(
            ranges.flat_map(|(start, bytes)| [start.to_le_bytes(), bytes.to_le_bytes()].concat()),
        );
        part
    };
    let last = machine.memory.put(&part(4, 1, 0, &[(0x5000_0000, 0x1000)]));
    let first = machine.memory.put(&part(
        2,
        2,
        last,
        &[(0x4100_0000, 0x3000), (0x4200_0000, 1)],
    ));
    machine.system = firm::system(&mut machine.memory, &[(firm::MEMRESERVE, first)]);
    // The parts lie in free memory, and the next kernel reads them too, and writes what room they have.
    let all = [
        (first, 16 + 2 * 16),
        (0x4100_0000, 0x3000),
        (0x4200_0000, 1),
        (last, 16 + 4 * 16),
        (0x5000_0000, 0x1000),
    ];
    assert_eq!(reserved(&machine), (all.to_vec(), vec![]));
    let at = (last - TABLES) as usize + 8;
    for next in [first, last, 7, u64::MAX] {
        machine.memory.bytes[at..at + 8].copy_from_slice(&next.to_le_bytes());
        let (found, reported) = reserved(&machine);
        assert_eq!(found[..5], all);
        assert_eq!(reported, [Note::Reservations], "{next:#x}");
    }
}

/// A kernel that had firmware change its addresses leaves a system table that names the list of tables by a
/// virtual address, which the memory map explains.
#[test]
fn tables_are_found_by_the_addresses_of_an_earlier_kernel() {
    let firmware = [
        (7, 0x4000_0000, 0x1000, WB),
        (6, TABLES, 0x100, WB | RUNTIME),
    ];
    let made = |pointer: &dyn Fn(u64) -> u64, virtual_start: u64| {
        let mut machine = machine(&firmware, &tables());
        let at = (machine.system - TABLES) as usize + 112;
        let old = u64::from_le_bytes(machine.memory.bytes[at..at + 8].try_into().unwrap());
        machine.memory.bytes[at..at + 8].copy_from_slice(&pointer(old).to_le_bytes());
        machine.map[48 + 16..48 + 24].copy_from_slice(&virtual_start.to_le_bytes());
        let (_, made) = expanded(&machine, &bare(&machine), None).unwrap();
        (made.is_acpi, notes(&made))
    };
    let high = 0xffff_8000_2000_0000_u64;
    let moved = |old: u64| high + (old - TABLES);
    assert_eq!(made(&moved, high), (true, vec![]));
    assert_eq!(made(&|old| old, 0), (true, vec![]));
    // As physical addresses, or those of a map that is flat.
    assert_eq!(made(&|old| old, high), (true, vec![]));
    assert_eq!(made(&|old| old, TABLES), (true, vec![]));
    // Nothing explains it.
    let wrong = (
        false,
        vec![
            Note::System(SystemError::Tables),
            Note::Acpi(AcpiError {
                table: *b"RSDP",
                fault: Fault::Missing,
            }),
        ],
    );
    assert_eq!(made(&moved, 0), wrong);
    assert_eq!(made(&|_| high - 1, high), wrong);
    assert_eq!(made(&|_| high + 0x10_0000, high), wrong);
}

/// A map of many thousand descriptors: whether a long range may be read is known soon.
#[test]
fn a_range_lies_in_a_limited_number_of_descriptors() {
    let pages: Vec<_> = (0..20_000).map(|page| (7, page * 4096, 1, WB)).collect();
    let bytes = map(&pages, 48);
    let map = Map::new(&bytes, 48, 1).unwrap();
    let is_readable = |start, bytes| map.is_readable(Range { start, bytes });
    assert!(is_readable(4095, 1 << 20));
    assert!(!is_readable(0, 20_000 * 4096));
    assert!(!is_readable(19_999 * 4096, 4097));
}
