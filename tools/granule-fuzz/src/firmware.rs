//! Targets for firmware's tables: the EFI memory map, ACPI's tables, and the device tree that is made of
//! both.
//!
//! A case is raw bytes, or tables that are built from the specifications (`granule_testing::firmware`) and
//! then damaged. The tree is read with another crate, and its memory compared with the descriptors byte by
//! byte of their fields.

use crate::bytes::{Bytes, one_line};
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use granule_boot::acpi::{Console, Madt, Srat, Tables, timers};
use granule_boot::efi::{self, Map, MemoryReservations, Physical};
use granule_boot::expand::{Expanded, Request, expand};
use granule_boot::tree::{Range, Tree, Writer};
use granule_boot::words::Acpi;
use granule_testing::firmware as firm;

/// Where the tables of a case lie.
const START: u64 = 0x4000_0000;

struct Ram(firm::Memory);

impl Physical for Ram {
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        self.0.read(start, bytes)
    }
}

pub(crate) fn efi_map(bytes: &[u8]) {
    let mut given = Bytes(bytes);
    let (step, version) = (u32::from(given.byte()), u32::from(given.byte() % 3));
    let range = Range {
        start: given.word(),
        bytes: given.word(),
    };
    look(given.0, step, version, range);
    // A map as firmware writes it.
    look(bytes, 48, 1, range);
}

fn look(bytes: &[u8], step: u32, version: u32, range: Range) {
    let map = match Map::new(bytes, step, version) {
        Ok(map) => map,
        Err(error) => return one_line(&error.to_string()),
    };
    assert_eq!(map.count(), bytes.len() / step as usize);
    for (one, bytes) in map.zip(bytes.chunks(step as usize)) {
        // The fields by their offsets in the specification.
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 8]));
        assert_eq!((one.start, one.pages), (number(8), number(24)));
        if let Some(range) = one.range() {
            assert_eq!(u128::from(range.bytes), u128::from(one.pages) * 4096);
            // The first byte is readable only if no descriptor over it forbids that.
            let first = Range { bytes: 1, ..range };
            assert!(!map.is_readable(first) || range.bytes == 0 || one.is_readable());
        }
    }
    if map.is_readable(range) && range.bytes > 0 {
        let mut all = map;
        assert!(all.any(|one| one.is_readable() && one.start <= range.start));
    }
}

pub(crate) fn acpi_tables(bytes: &[u8]) {
    let (madt, srat) = (Madt::new(bytes), Srat::new(bytes));
    let most = bytes.len() / 2;
    assert!(madt.entries().count() <= most && srat.entries().count() <= most);
    assert!(madt.cpus().count() <= most && madt.redistributors().count() <= most);
    let _ = (madt.distributor(), timers(bytes), Console::read(bytes));
    for near in srat.memory() {
        assert!(near.range.start.checked_add(near.range.bytes).is_some());
    }
    assert!(srat.cpus().count() <= most);
    // Firmware's memory is these bytes, and every byte may be where its root lies.
    let memory = firm::Memory {
        start: START,
        bytes: bytes.to_vec(),
    };
    let memory = Ram(memory);
    // Firmware's addresses at run time lie anywhere, and these bytes are the map too.
    let descriptor = firm::descriptor(6, START, 16, firm::WB | firm::RUNTIME, 48);
    let whole = bytes.len() / 48 * 48;
    let map = Map::new(&bytes[..whole], 48, 1).or_else(|_| Map::new(&descriptor, 48, 1));
    let Ok(map) = map else {
        panic!("a map that was built is refused")
    };
    for at in 0..bytes.len().min(64) as u64 {
        match Tables::new(&memory, START + at) {
            Ok(tables) => {
                let _ = tables
                    .find(*b"APIC")
                    .map_err(|error| one_line(&error.to_string()));
            }
            Err(error) => one_line(&error.to_string()),
        }
        if let Err(error) = efi::Tables::read(&memory, map, START + at) {
            one_line(&error.to_string());
        }
        let tables = efi::Tables {
            attributes: Some(START + at),
            resources: Some(START + at),
            properties: Some(START + at),
            ..efi::Tables::default()
        };
        let ranges = [
            tables.attributes_range(&memory),
            tables.resources_range(&memory),
            tables.properties_range(&memory),
        ];
        for range in ranges.into_iter().flatten() {
            assert!(range.bytes <= bytes.len() as u64);
        }
        // A list that names itself ends.
        let list = MemoryReservations::new(&memory, Some(START + at));
        assert!(list.count() <= 64 * bytes.len());
        assert_eq!(map.physical(START + at), physical(map, START + at));
    }
}

/// The address behind one of firmware's, by numbers that cannot overflow.
fn physical(map: Map<'_>, address: u64) -> u64 {
    let mut all = map.filter(|one| {
        let start = u128::from(one.virtual_start);
        let is_in = (start..start + u128::from(one.pages) * 4096).contains(&address.into());
        one.attributes & firm::RUNTIME != 0 && start != 0 && one.range().is_some() && is_in
    });
    all.next()
        .map_or(address, |one| one.start + (address - one.virtual_start))
}

/// A machine's tables, damaged at a few places.
fn tables(given: &mut Bytes<'_>) -> (firm::Memory, u64) {
    let mut memory = firm::Memory::new(START);
    let mut all = Vec::new();
    let mut cpus = vec![firm::gicd(0x800_0000, given.byte() % 6)];
    for uid in 0..given.below(6) as u32 {
        let redistributor = 0x80a_0000 + 0x2_0000 * u64::from(given.byte() % 8);
        let flags = u32::from(given.byte() % 4);
        let mpidr = u64::from(given.byte()) << [0, 8, 30, 32][given.below(4)];
        cpus.push(firm::gicc(uid, mpidr, flags, 0x801_0000, redistributor));
    }
    for _ in 0..given.below(3) {
        cpus.push(firm::gicr(given.word(), given.word() as u32));
    }
    let mut near = Vec::new();
    for _ in 0..given.below(4) {
        let start = START + 0x1000 * u64::from(given.byte());
        near.push(firm::near_memory(
            start,
            0x1000 * u64::from(given.byte()),
            1,
        ));
        near.push(firm::near_cpu(given.below(6) as u32, 2));
    }
    let timer = |given: &mut Bytes<'_>| (given.below(40) as u32, given.below(4) as u32);
    let each = [
        firm::madt(&cpus),
        firm::fadt(given.below(4).try_into().unwrap_or(0)),
        firm::gtdt([timer(given), timer(given), timer(given), timer(given)]),
        firm::spcr(
            given.byte() % 20,
            given.byte(),
            given.byte() % 6,
            given.word(),
        ),
        firm::srat(&near),
    ];
    for table in each {
        if given.below(5) > 0 {
            all.push(memory.put(&table));
        }
    }
    let xsdt = memory.put(&firm::xsdt(&all));
    let rsdp = memory.put(&firm::rsdp(xsdt));
    let system = firm::system(&mut memory, &[(firm::ACPI_20, rsdp)]);
    for _ in 0..given.below(6).saturating_sub(3) {
        let at = given.word() as usize % memory.bytes.len();
        memory.bytes[at] = given.byte();
    }
    (memory, system)
}

/// Kind, start, pages and attributes.
type Descriptor = (u32, u64, u64, u64);

fn descriptors(given: &mut Bytes<'_>) -> Vec<Descriptor> {
    let mut all = vec![(7, START, 64, firm::WB)];
    for _ in 0..given.below(12) {
        let start = START + 0x1000 * u64::from(given.byte() % 100);
        let kind = [7, 7, 4, 9, 5, 6, 10, 0, 14, 15, 11][given.below(11)];
        let attributes = [firm::WB, firm::WB | firm::RUNTIME, 0, firm::WB | firm::SP];
        let attributes = attributes[given.below(8).saturating_sub(4)];
        let pages = match given.below(9) {
            0 => given.word(),
            _ => u64::from(given.byte() % 30),
        };
        all.push((kind, start, pages, attributes));
    }
    all
}

pub(crate) fn firmware_tree(bytes: &[u8]) {
    let (mine, rest) = bytes.split_at(bytes.len().min(200));
    let mut given = Bytes(mine);
    let all = descriptors(&mut given);
    let step = [40, 48, 64][given.below(3)];
    let map: Vec<u8> = all
        .iter()
        .flat_map(|one| firm::descriptor(one.0, one.1, one.2, one.3, step))
        .collect();
    let acpi = [None, Some(Acpi::Off), Some(Acpi::On), Some(Acpi::Force)][given.below(4)];
    let is_bare = given.below(3) > 0;
    let (memory, system) = tables(&mut given);
    let memory = Ram(memory);
    let request = Request {
        system_table: system,
        map: Range {
            start: 0x5000_0000,
            bytes: map.len() as u64,
        },
        descriptor: step as u32,
        version: 1,
    };
    let Ok(map) = Map::new(&map, request.descriptor, request.version) else {
        panic!("a map that was built is refused");
    };
    let old = if is_bare {
        bare()
    } else {
        // Another machine's tree, or bytes that are none.
        crate::nodes::tree(rest).0
    };
    let Ok(tree) = Tree::new(&old) else { return };
    let mut into = vec![0xa5; 1 << 16];
    let made = match expand(&tree, &request, map, &memory, acpi, &mut into) {
        Ok(made) => made,
        Err(error) => {
            one_line(&error.to_string());
            return one_line(error.text());
        }
    };
    assert!(into[made.bytes..].iter().all(|byte| *byte == 0xa5));
    made.notes
        .iter()
        .for_each(|note| one_line(&note.to_string()));
    let new = &into[..made.bytes];
    let read = Tree::new(new);
    assert!(read.is_ok_and(|read| read.damage().is_none()));
    if is_bare {
        check_memory(new, &all);
        again(new, &made, &request, map, &memory, acpi);
    }
}

/// A tree with nothing in it.
fn bare() -> Vec<u8> {
    let mut bytes = vec![0; 128];
    let written = || {
        let mut to = Writer::new(&mut bytes, [])?;
        to.begin(b"")?;
        to.end()?;
        to.finish(0)
    };
    assert!({ written }().is_ok());
    bytes
}

/// Checks that the tree's memory is that of the descriptors, page by page.
fn check_memory(new: &[u8], all: &[Descriptor]) {
    let read = Fdt::new(new).unwrap_or_else(|error| panic!("nobody can read the tree: {error}"));
    let mut banks = Vec::new();
    for node in read.root().children() {
        let is_memory = node.name().starts_with("memory@");
        let reg = node.properties().find(|it| is_memory && it.name() == "reg");
        let value = reg.map(|it| it.value().to_vec()).unwrap_or_default();
        for pair in value.chunks(16) {
            let number =
                |at: usize| u64::from_be_bytes(*pair[at..].first_chunk().unwrap_or(&[0; 8]));
            banks.push((number(0), number(8)));
        }
    }
    for page in (0..140).map(|page| START + 0x1000 * page) {
        let holds = |one: &&Descriptor| {
            u128::from(one.1) <= page.into()
                && u128::from(page) < u128::from(one.1) + u128::from(one.2) * 4096
        };
        let sane =
            |one: &Descriptor| u128::from(one.1) + u128::from(one.2) * 4096 <= u128::from(u64::MAX);
        // One without an end reaches to the next one.
        let next = |one: &Descriptor| {
            let above = all.iter().filter(|other| sane(other) && other.1 > one.1);
            let next = above.map(|other| other.1).min().unwrap_or(u64::MAX);
            if sane(one) { u64::MAX } else { next }
        };
        let usable = |one: &Descriptor| {
            [7, 4].contains(&one.0) && one.3 == firm::WB
                || one.0 == 9 && one.3 & !firm::SP == firm::WB
        };
        let here = || all.iter().filter(holds);
        let is_ram = here().any(|one| usable(one) && sane(one))
            && here().all(|one| usable(one) || page >= next(one));
        let is_bank = banks
            .iter()
            .any(|(start, bytes)| page.wrapping_sub(*start) < *bytes);
        assert_eq!(is_bank, is_ram, "{page:#x} of {banks:x?}, {all:x?}");
    }
}

/// The step over its own result, as a kernel does that an earlier one starts with all of its tree, changes
/// nothing.
fn again(
    new: &[u8],
    made: &Expanded,
    request: &Request,
    map: Map<'_>,
    memory: &Ram,
    acpi: Option<Acpi>,
) {
    let Ok(tree) = Tree::new(new) else { return };
    let acpi = if made.is_acpi { Some(Acpi::On) } else { acpi };
    let acpi = acpi.or(Some(Acpi::Off));
    let mut into = vec![0; 1 << 16];
    let second = expand(&tree, request, map, memory, acpi, &mut into);
    assert!(second.is_ok_and(|second| second.bytes == made.bytes));
}
