//! Trees that are made of firmware's tables, against what the tables were built to say. The trees are read
//! with another crate, and what is RAM is decided a second time, page by page.

// What is tested here has no unsafe code, and Miri has nothing to find.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used)]

use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use dtoolkit::{Node as _, Property as _};
use granule_boot::acpi::Fault;
use granule_boot::efi::{Map, MapError, Physical};
use granule_boot::expand::{ExpandError, Expanded, Note, Request, expand};
use granule_boot::tree::{Range, Tree, WriteError};
use granule_boot::words::{self, Acpi};
use granule_testing::cases::config;
use granule_testing::firmware as firm;
use granule_testing::firmware::{RUNTIME, SP, WB};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4 << 10;
/// Where the tables lie.
const TABLES: u64 = 0x7f00_0000;
/// Where the map lies.
const MAP: u64 = 0x7e00_0000;

struct Ram(firm::Memory);

impl Physical for Ram {
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        self.0.read(start, bytes)
    }
}

/// A machine as firmware leaves it.
#[derive(Clone)]
struct Machine {
    memory: firm::Memory,
    map: Vec<u8>,
    step: u32,
    system: u64,
}

/// Kind, start, pages and attributes.
type Descriptor = (u32, u64, u64, u64);

fn map(all: &[Descriptor], step: usize) -> Vec<u8> {
    let all = all.iter();
    all.flat_map(|(kind, start, pages, attributes)| {
        firm::descriptor(*kind, *start, *pages, *attributes, step)
    })
    .collect()
}

/// A gigabyte of RAM with two ranges that firmware keeps, as EDK2 leaves it.
fn usual() -> Vec<Descriptor> {
    let pages = |bytes: u64| bytes / PAGE;
    vec![
        (7, 0x4000_0000, pages(0x3000_0000), WB),
        (4, 0x7000_0000, pages(8 * MIB), WB),
        (5, 0x7080_0000, pages(MIB), WB | RUNTIME),
        (6, 0x7090_0000, pages(MIB), WB | RUNTIME),
        (2, 0x70a0_0000, pages(TABLES - 0x70a0_0000), WB),
        (9, TABLES, pages(MIB), WB),
        (10, TABLES + MIB, pages(MIB), WB),
        (0, TABLES + 2 * MIB, pages(MIB), WB),
        (7, TABLES + 3 * MIB, pages(13 * MIB), WB),
        (11, 0x900_0000, 1, RUNTIME),
    ]
}

/// The tables of a machine with a GICv3, CPUs in two domains, and a PL011.
fn tables() -> Vec<Vec<u8>> {
    vec![
        firm::fadt(3),
        firm::madt(&[
            firm::gicd(0x800_0000, 3),
            firm::gicc(0, 0, 1, 0, 0),
            firm::gicc(1, 1, 1, 0, 0),
            firm::gicc(7, 0x1_0000_0203, 1, 0, 0),
            // Plugged in later, and none at all.
            firm::gicc(8, 4, 8, 0, 0),
            firm::gicc(9, 5, 0, 0, 0),
            firm::gicr(0x80a_0000, 0xf6_0000),
        ]),
        firm::gtdt([(29, 0), (30, 0), (27, 2), (26, 1)]),
        firm::spcr(3, 32, 3, 0x900_0000),
        firm::srat(&[
            firm::near_memory(0x4000_0000, 0x2000_0000, 0),
            firm::near_memory(0x6000_0000, 0x2000_0000, 5),
            firm::near_cpu(0, 0),
            firm::near_cpu(7, 5),
        ]),
    ]
}

fn machine(map_of: &[Descriptor], tables: &[Vec<u8>]) -> Machine {
    let mut memory = firm::Memory::new(TABLES);
    let all: Vec<_> = tables.iter().map(|table| memory.put(table)).collect();
    let xsdt = memory.put(&firm::xsdt(&all));
    let rsdp = memory.put(&firm::rsdp(xsdt));
    let system = firm::system(&mut memory, &[([1; 16], 7), (firm::ACPI_20, rsdp)]);
    Machine {
        memory,
        map: map(map_of, 48),
        step: 48,
        system,
    }
}

fn node(name: &str, properties: &[(&str, &[u8])]) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(name);
    for (name, value) in properties {
        node.add_property(DeviceTreeProperty::new_unchecked(*name, *value));
    }
    node
}

/// `/chosen` as the EFI stub writes it.
fn chosen(machine: &Machine) -> DeviceTreeNode {
    node(
        "chosen",
        &[
            ("bootargs", b"words\0"),
            ("linux,uefi-system-table", &machine.system.to_be_bytes()),
            ("linux,uefi-mmap-start", &MAP.to_be_bytes()),
            (
                "linux,uefi-mmap-size",
                &(machine.map.len() as u32).to_be_bytes(),
            ),
            ("linux,uefi-mmap-desc-size", &machine.step.to_be_bytes()),
            ("linux,uefi-mmap-desc-ver", &1_u32.to_be_bytes()),
        ],
    )
}

fn bare(machine: &Machine) -> DeviceTree {
    let mut tree = DeviceTree::new();
    tree.root.add_child(chosen(machine));
    tree
}

/// The new tree and what was said of it.
fn expanded(
    machine: &Machine,
    old: &DeviceTree,
    acpi: Option<Acpi>,
) -> Result<(Vec<u8>, Expanded), ExpandError> {
    let old = old.to_dtb();
    let tree = Tree::new(&old).unwrap();
    let request = Request::of(&tree)?.unwrap();
    let map = Map::new(&machine.map, request.descriptor, request.version)?;
    let ram = Ram(machine.memory.clone());
    let mut into = vec![0xa5; 1 << 18];
    let made = expand(&tree, &request, map, &ram, acpi, &mut into)?;
    into.truncate(made.bytes);
    assert_eq!(Tree::new(&into).unwrap().damage(), None);
    for note in made.notes.iter() {
        assert_eq!(note.to_string().lines().count(), 1);
    }
    Ok((into, made))
}

fn notes(made: &Expanded) -> Vec<Note> {
    assert_eq!(made.notes.more(), 0);
    made.notes.iter().collect()
}

fn value(node: &FdtNode<'_>, name: &str) -> Option<Vec<u8>> {
    Some(node.property(name)?.value().to_vec())
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let numbers = bytes.chunks_exact(8);
    assert!(numbers.remainder().is_empty());
    numbers
        .map(|it| u64::from_be_bytes(it.try_into().unwrap()))
        .collect()
}

/// The entries of the nodes' `reg`: start, bytes, and the node's NUMA domain.
fn memory(tree: &Fdt<'_>) -> Vec<(u64, u64, Option<Vec<u8>>)> {
    let nodes = tree.root().children();
    let nodes = nodes.filter(|node| node.name().starts_with("memory@"));
    nodes
        .flat_map(|node| {
            assert!(node.property("granule,from-efi").is_some());
            let domain = value(&node, "numa-node-id");
            let reg = numbers(&value(&node, "reg").unwrap());
            let pairs: Vec<_> = reg.chunks(2).map(|it| (it[0], it[1])).collect();
            pairs
                .into_iter()
                .map(move |(start, bytes)| (start, bytes, domain.clone()))
        })
        .collect()
}

#[test]
fn a_machine_without_a_tree_is_described_by_its_tables() {
    let machine = machine(&usual(), &tables());
    let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
    assert!(made.is_acpi);
    assert_eq!(notes(&made), []);
    let tree = Fdt::new(&bytes).unwrap();
    let domain = |domain: u8| Some(vec![0, 0, 0, domain]);
    assert_eq!(
        memory(&tree),
        [
            (0x4000_0000, 0x2000_0000, domain(0)),
            (0x6000_0000, 0x1080_0000, domain(5)),
            (0x70a0_0000, 0x7f10_0000 - 0x70a0_0000, domain(5)),
            (0x7f30_0000, 0xd0_0000, domain(5)),
        ]
    );
    let reserved: Vec<_> = tree
        .memory_reservations()
        .map(|it| (it.address(), it.size()))
        .collect();
    let map = (MAP, machine.map.len() as u64);
    assert_eq!(reserved, [map, (TABLES, MIB)]);
    let at = |path: &str| tree.find_node(path).unwrap_or_else(|| panic!("{path}"));
    for (path, start, bytes) in [
        ("efi-runtime@70800000", 0x7080_0000, MIB),
        ("efi-runtime@70900000", 0x7090_0000, MIB),
        ("efi-runtime@9000000", 0x900_0000, PAGE),
    ] {
        let node = at(&format!("/reserved-memory/{path}"));
        assert_eq!(numbers(&value(&node, "reg").unwrap()), [start, bytes]);
        assert!(node.property("no-map").is_some());
    }
    let text = |path: &str, name: &str| value(&at(path), name).unwrap();
    assert_eq!(text("/chosen", "bootargs"), b"words\0");
    assert_eq!(text("/chosen", "stdout-path"), b"/serial@9000000\0");
    assert_eq!(
        text("/serial@9000000", "compatible"),
        b"arm,pl011\0arm,primecell\0"
    );
    assert_eq!(text("/psci", "method"), b"hvc\0");
    let cpus: Vec<_> = at("/cpus")
        .children()
        .map(|cpu| {
            assert_eq!(value(&cpu, "enable-method").unwrap(), b"psci\0");
            assert_eq!(value(&cpu, "device_type").unwrap(), b"cpu\0");
            let domain = value(&cpu, "numa-node-id");
            (numbers(&value(&cpu, "reg").unwrap())[0], domain)
        })
        .collect();
    assert_eq!(
        cpus,
        [(0, domain(0)), (1, None), (0x1_0000_0203, domain(5))]
    );
    let gic = at("/interrupt-controller@8000000");
    assert_eq!(value(&gic, "compatible").unwrap(), b"arm,gic-v3\0");
    assert_eq!(
        numbers(&value(&gic, "reg").unwrap()),
        [0x800_0000, 0x1_0000, 0x80a_0000, 0xf6_0000]
    );
    let cells: Vec<_> = text("/timer", "interrupts")
        .as_chunks()
        .0
        .iter()
        .map(|it| u32::from_be_bytes(*it))
        .collect();
    assert_eq!(cells, [1, 13, 4, 1, 14, 4, 1, 11, 8, 1, 10, 1]);
}

/// Each of a machine's tables with a fault: what is said, and that the rest is used.
#[test]
fn a_lie_of_a_table_is_told_and_costs_that_table_alone() {
    let broken = |place: usize, at: usize, xor: u8| {
        let mut tables = tables();
        tables[place][at] ^= xor;
        tables
    };
    let summed = |place: usize, at: usize, value: &[u8]| {
        let mut tables = tables();
        tables[place][at..at + value.len()].copy_from_slice(value);
        firm::sum_up(&mut tables[place], 9);
        tables
    };
    let fault = |tables: &[Vec<u8>]| {
        let machine = machine(&usual(), tables);
        let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
        let all = notes(&made);
        let tree = Fdt::new(&bytes).unwrap();
        let has = |path: &str| tree.find_node(path).is_some();
        let parts = [
            has("/cpus/cpu@1"),
            has("/timer"),
            has("/psci"),
            has("/serial@9000000"),
        ];
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        (all.join("; "), parts)
    };
    let no_cpus = [false; 4];
    for (tables, words, parts) in [
        (broken(1, 50, 1), "APIC has a wrong checksum", no_cpus),
        (broken(1, 0, 1), "APIC is missing", no_cpus),
        (summed(1, 4, &[0; 4]), "APIC is too short", no_cpus),
        (summed(1, 4, &[0xff; 4]), "APIC is too short", no_cpus),
        // Behind the memory that firmware lists.
        (
            summed(1, 4, &[0, 0, 8, 0]),
            "APIC does not lie in memory",
            no_cpus,
        ),
        // An entry without a length ends the list; here at the third.
        (
            summed(1, 44 + 24 + 80 + 1, &[0]),
            "APIC has an entry",
            [false, true, true, true],
        ),
        (
            summed(1, 44 + 24 + 80 + 80 + 1, &[1]),
            "APIC has an entry",
            [true; 4],
        ),
        (
            broken(2, 50, 1),
            "GTDT has a wrong checksum",
            [true, false, true, true],
        ),
        (
            summed(0, 129, &[0]),
            "FACP has no PSCI",
            [true, true, false, true],
        ),
        (
            broken(0, 40, 1),
            "FACP has a wrong checksum",
            [true, true, false, true],
        ),
        (
            summed(3, 36, &[9]),
            "SPCR has a console of an unknown kind",
            [true, true, true, false],
        ),
        (
            summed(3, 40, &[1]),
            "SPCR has a console of an unknown kind",
            [true, true, true, false],
        ),
        (broken(4, 60, 1), "SRAT has a wrong checksum", [true; 4]),
        (tables()[..1].to_vec(), "APIC is missing", no_cpus),
    ] {
        let (told, found) = fault(&tables);
        assert!(told.contains(words), "{told:?} for {words}");
        assert_eq!(found, parts, "{words}");
    }
    let mut twice = tables();
    twice.extend(tables());
    assert_eq!(fault(&twice), (String::new(), [true; 4]));
}

#[test]
fn a_root_that_lies_leaves_the_memory_alone() {
    let wrong = |damage: &dyn Fn(&mut Machine, u64, u64)| {
        let mut made = machine(&usual(), &[]);
        let pointer = made.memory.put(&[]);
        let list = firm::xsdt(&[pointer + 64, pointer + 64, 0, u64::MAX, 8]);
        let rsdp = made.memory.put(&firm::rsdp(pointer + 64));
        made.memory
            .bytes
            .resize((pointer + 64 - TABLES) as usize, 0);
        assert_eq!(made.memory.put(&list), pointer + 64);
        made.system = firm::system(&mut made.memory, &[(firm::ACPI_20, rsdp)]);
        let at = (rsdp - TABLES, pointer + 64 - TABLES);
        damage(&mut made, at.0, at.1);
        let tree = bare(&made);
        assert!(matches!(
            expanded(&made, &tree, Some(Acpi::Force)),
            Err(ExpandError::Acpi(_))
        ));
        let (bytes, expanded) = expanded(&made, &tree, None).unwrap();
        assert!(!expanded.is_acpi);
        assert_eq!(memory(&Fdt::new(&bytes).unwrap()).len(), 3);
        notes(&expanded)
    };
    let fault = |notes: Vec<Note>| match notes[..] {
        [Note::Acpi(error)] => (error.table, error.fault),
        _ => panic!("{notes:?}"),
    };
    // The list names itself, twice, and addresses that hold no table.
    assert_eq!(fault(wrong(&|_, _, _| {})), (*b"APIC", Fault::Unlisted));
    let byte = |at: u64, value: u8| {
        fault(wrong(&move |machine, rsdp, _| {
            machine.memory.bytes[(rsdp + at) as usize] = value;
        }))
    };
    assert_eq!(byte(0, b'X'), (*b"RSDP", Fault::Signature));
    assert_eq!(byte(15, 1), (*b"RSDP", Fault::Revision));
    assert_eq!(byte(20, 35), (*b"RSDP", Fault::Length));
    assert_eq!(byte(10, 1), (*b"RSDP", Fault::Checksum));
    assert_eq!(byte(33, 1), (*b"RSDP", Fault::Checksum));
    assert_eq!(
        fault(wrong(&|machine, _, list| {
            machine.memory.bytes[list as usize + 12] ^= 1;
        })),
        (*b"XSDT", Fault::Checksum)
    );
    assert_eq!(
        wrong(&|machine, _, _| machine.system = 8)[0].to_string(),
        "the EFI system table does not lie in memory of the EFI memory map; not read"
    );
    let none = wrong(&|machine, _, _| {
        let at = (machine.system - TABLES) as usize;
        machine.memory.bytes[at + 104..at + 112].copy_from_slice(&u64::MAX.to_le_bytes());
    });
    assert!(none[0].to_string().contains("1024 at most"), "{none:?}");
}

#[test]
fn controllers_and_consoles_of_each_kind_have_their_binding() {
    let made = |madt: &[Vec<u8>], spcr: Vec<u8>| {
        let machine = machine(&usual(), &[firm::madt(madt), spcr]);
        let (bytes, _) = expanded(&machine, &bare(&machine), None).unwrap();
        bytes
    };
    let gic = |madt: &[Vec<u8>]| {
        let bytes = made(madt, firm::spcr(3, 32, 3, 0x900_0000));
        let tree = Fdt::new(&bytes).unwrap();
        let node = tree.find_node("/interrupt-controller@8000000");
        node.map(|node| {
            let kind = value(&node, "compatible").unwrap();
            (kind, numbers(&value(&node, "reg").unwrap()))
        })
    };
    let v2 = |reg: &[u64]| Some((b"arm,gic-400\0".to_vec(), reg.to_vec()));
    let v3 = |reg: &[u64]| Some((b"arm,gic-v3\0".to_vec(), reg.to_vec()));
    let cpu = |mpidr, interface, redistributor| firm::gicc(0, mpidr, 1, interface, redistributor);
    let reg_2 = [0x800_0000, 0x1000, 0x801_0000, 0x2000];
    for version in [0, 1, 2] {
        let madt = [firm::gicd(0x800_0000, version), cpu(0, 0x801_0000, 0)];
        assert_eq!(gic(&madt), v2(&reg_2), "{version}");
    }
    for (version, step) in [(0, 0x2_0000), (3, 0x2_0000), (4, 0x4_0000)] {
        let madt = [
            cpu(1, 0, 0x80a_0000 + step),
            cpu(0, 0, 0x80a_0000),
            cpu(2, 0, 0x900_0000),
            firm::gicd(0x800_0000, version),
        ];
        let reg = [0x800_0000, 0x1_0000, 0x80a_0000, 2 * step, 0x900_0000, step];
        assert_eq!(gic(&madt), v3(&reg), "{version}");
    }
    assert_eq!(gic(&[cpu(0, 0x801_0000, 0)]), None);
    assert_eq!(gic(&[firm::gicd(0x800_0000, 2), cpu(0, 0, 0)]), None);
    assert_eq!(
        gic(&[firm::gicd(0x800_0000, 3), cpu(0, 0x801_0000, 0)]),
        None
    );
    for (kind, width, access, compatible, shape) in [
        (0xe, 32, 3, &b"arm,sbsa-uart\0"[..], None),
        (0xd, 32, 3, b"arm,sbsa-uart\0", None),
        (0x10, 32, 3, b"brcm,bcm2835-aux-uart\0", None),
        (0, 8, 1, b"ns16550a\0ns16550\0", Some([0, 1])),
        (0x12, 32, 3, b"ns16550a\0ns16550\0", Some([2, 4])),
        (0x12, 32, 0, b"ns16550a\0ns16550\0", Some([2, 4])),
        (0x12, 32, 1, b"ns16550a\0ns16550\0", Some([2, 1])),
    ] {
        let bytes = made(&[], firm::spcr(kind, width, access, 0xfe21_5040));
        let tree = Fdt::new(&bytes).unwrap();
        let node = tree.find_node("/serial@fe215040").unwrap();
        assert_eq!(value(&node, "compatible").unwrap(), compatible);
        let cell = |name| value(&node, name).map(|it| it[3]);
        let found = cell("reg-shift").zip(cell("reg-io-width"));
        assert_eq!(found.map(|(shift, width)| [shift, width]), shape);
    }
}

/// With both descriptions the tree's counts, but for memory.
#[test]
fn a_tree_of_the_machine_is_kept_but_for_its_memory() {
    let machine = machine(&usual(), &tables());
    let mut old = bare(&machine);
    for (name, value) in [("#address-cells", 2_u32), ("#size-cells", 1)] {
        let value = value.to_be_bytes().to_vec();
        old.root
            .add_property(DeviceTreeProperty::new_unchecked(name, value));
    }
    let lies = [0_u32, 0, 0x10_0000].map(u32::to_be_bytes).concat();
    let ram = [("device_type", &b"memory\0"[..]), ("reg", &lies)];
    old.root.add_child(node("memory@0", &ram));
    let mut kept = node("reserved-memory", &[("ranges", &[])]);
    kept.add_child(node("one@70000000", &[("reg", &lies), ("no-map", &[])]));
    old.root.add_child(kept);
    old.root.add_child(node("cpus", &[("x", b"y")]));
    for acpi in [None, Some(Acpi::Off)] {
        let (bytes, made) = expanded(&machine, &old, acpi).unwrap();
        assert!(!made.is_acpi);
        assert_eq!(notes(&made), []);
        let tree = Fdt::new(&bytes).unwrap();
        let names: Vec<_> = tree
            .root()
            .children()
            .map(|it| it.name().to_owned())
            .collect();
        assert_eq!(
            names,
            ["chosen", "reserved-memory", "cpus", "memory@40000000"]
        );
        // One cell for a size: the first bank is one of less than 4 GiB.
        let reg = value(&tree.find_node("/memory@40000000").unwrap(), "reg").unwrap();
        assert_eq!(
            reg[..12],
            [0_u32, 0x4000_0000, 0x3080_0000]
                .map(u32::to_be_bytes)
                .concat()
        );
        let kept = tree.find_node("/reserved-memory").unwrap();
        let kept: Vec<_> = kept.children().map(|it| it.name().to_owned()).collect();
        assert_eq!(kept.len(), 4);
        // The step is the same over its own result.
        let again = DeviceTree::from_fdt(&tree);
        let (second, _) = expanded(&machine, &again, acpi).unwrap();
        assert_eq!(second.len(), bytes.len());
    }
    let (bytes, made) = expanded(&machine, &old, Some(Acpi::On)).unwrap();
    assert!(made.is_acpi);
    let tree = Fdt::new(&bytes).unwrap();
    assert!(tree.find_node("/cpus/cpu@1").is_some());
    assert!(tree.find_node("/reserved-memory/one@70000000").is_some());
}

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
    // Twelve descriptors of 40 bytes that say nothing sensible.
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

/// Seven hundred descriptors in any order are merged; more separate ranges than there is room for are told.
#[test]
fn a_map_has_hundreds_of_descriptors() {
    let banks = |all: Vec<Descriptor>| {
        let machine = machine(&all, &[]);
        let (bytes, made) = expanded(&machine, &bare(&machine), Some(Acpi::Off)).unwrap();
        (memory(&Fdt::new(&bytes).unwrap()), made.notes)
    };
    let at = |page: u64| 0x80_0000_0000 + page * PAGE;
    let close: Vec<_> = (0..700)
        .rev()
        .map(|page| (1 + (page % 4) as u32, at(page), 1, WB))
        .collect();
    let (merged, told) = banks(close);
    assert_eq!(merged, [(at(0), 700 * PAGE, None)]);
    assert_eq!(told.iter().count(), 0);
    let apart: Vec<_> = (0..700).map(|page| (7, at(2 * page), 1, WB)).collect();
    let (separate, told) = banks(apart);
    assert_eq!(separate.len(), 128);
    assert_eq!(told.iter().count() as u32 + told.more(), 700 - 128);
    assert!(matches!(
        told.iter().next(),
        Some(Note::MapFull(Range { .. }))
    ));
    // A hole that makes one too many takes what is above it.
    let mut full: Vec<_> = (0..128).map(|page| (7, at(8 * page), 5, WB)).collect();
    full.push((5, at(8) + 2 * PAGE, 1, WB));
    let (holed, _) = banks(full);
    assert_eq!(holed[1], (at(8), 2 * PAGE, None));
    assert_eq!(holed.len(), 128);
}

/// Memory that an earlier kernel asks to keep; a list that names itself ends.
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
    let reserved = |machine: &Machine| {
        let (bytes, made) = expanded(machine, &bare(machine), Some(Acpi::Off)).unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        let all: Vec<_> = tree
            .memory_reservations()
            .map(|it| (it.address(), it.size()))
            .collect();
        (all[2..].to_vec(), notes(&made))
    };
    let last = machine.memory.put(&part(4, 1, 0, &[(0x5000_0000, 0x1000)]));
    let first = machine.memory.put(&part(
        2,
        2,
        last,
        &[(0x4100_0000, 0x3000), (0x4200_0000, 1)],
    ));
    machine.system = firm::system(&mut machine.memory, &[(firm::MEMRESERVE, first)]);
    let all = [
        (0x4100_0000, 0x3000),
        (0x4200_0000, 1),
        (0x5000_0000, 0x1000),
    ];
    assert_eq!(reserved(&machine), (all.to_vec(), vec![]));
    let at = (last - TABLES) as usize + 8;
    for next in [first, last, 7, u64::MAX] {
        machine.memory.bytes[at..at + 8].copy_from_slice(&next.to_le_bytes());
        let (found, told) = reserved(&machine);
        assert_eq!(found[..3], all);
        assert_eq!(told, [Note::Reservations], "{next:#x}");
    }
}

#[test]
fn the_word_of_the_command_line_is_read() {
    use granule_boot::choice::Wish;
    assert_eq!(
        words::acpi(b"x acpi=off acpi=force"),
        Wish::Wanted(Acpi::Force)
    );
    assert_eq!(words::acpi(b"acpi=on"), Wish::Wanted(Acpi::On));
    assert_eq!(words::acpi(b"acpi=off -- acpi=on"), Wish::Wanted(Acpi::Off));
    assert_eq!(words::acpi(b"acpi"), Wish::Absent);
    assert!(matches!(words::acpi(b"acpi=noirq"), Wish::Garbled(_)));
}

/// Descriptors over the first pages of RAM, some of them absurd.
fn descriptors() -> impl Strategy<Value = Vec<Descriptor>> {
    let kind = prop_oneof![0_u32..16, Just(7), Just(7), Just(u32::MAX)];
    let start = (0_u64..64).prop_map(|page| 0x4000_0000 + page * PAGE);
    let start = prop_oneof![9 => start, 1 => prop_oneof![any::<u64>(), Just(u64::MAX - 4095)]];
    let pages = prop_oneof![9 => 0_u64..20, 1 => any::<u64>()];
    let attributes = prop_oneof![6 => Just(WB), 1 => Just(0), 1 => Just(WB | SP), 1 => Just(WB | RUNTIME), 1 => any::<u64>()];
    prop::collection::vec((kind, start, pages, attributes), 1..30)
}

proptest! {
    #![proptest_config(config(400, 0))]

    /// Each page is RAM exactly if a descriptor says that it may be used, and none says otherwise.
    #[test]
    fn ram_is_what_is_usable_and_not_kept(all in descriptors()) {
        let machine = machine(&all, &[]);
        let made = expanded(&machine, &bare(&machine), Some(Acpi::Off));
        // Kinds by the specification: loader, boot services, conventional, ACPI reclaim.
        let is_ram = |&(kind, _, _, attributes): &Descriptor| {
            let kind = [1, 2, 3, 4, 7].contains(&kind) && attributes & SP == 0 || kind == 9;
            kind && attributes & WB != 0 && attributes & RUNTIME == 0
        };
        let ends = |start: u64, pages: u64| (u128::from(start), u128::from(start) + u128::from(pages) * 4096);
        let sane = |&(_, start, pages, _): &Descriptor| {
            start % 4096 == 0 && ends(start, pages).1 <= u128::from(u64::MAX)
        };
        let holds = |one: &Descriptor, page: u64| {
            let (start, end) = ends(one.1, one.2);
            start < u128::from(page) + 4096 && u128::from(page) < end
        };
        let oracle = |page: u64| {
            all.iter().any(|one| is_ram(one) && sane(one) && holds(one, page))
                && !all.iter().any(|one| {
                    let absurd = !sane(one) && u128::from(page) + 4095 >= u128::from(one.1);
                    !is_ram(one) && (holds(one, page) || absurd)
                })
        };
        let pages = (0..90).map(|page| 0x4000_0000 + page * PAGE);
        let expected: Vec<_> = pages.clone().filter(|page| oracle(*page)).collect();
        let (found, ram) = match &made {
            Ok((bytes, _)) => {
                let ram = memory(&Fdt::new(bytes).unwrap());
                let is_in = |page: &u64| ram.iter().any(|(start, bytes, _)| page.wrapping_sub(*start) < *bytes);
                (pages.filter(is_in).collect(), ram)
            }
            Err(ExpandError::NoMemory) => (vec![], vec![]),
            Err(error) => panic!("{error}"),
        };
        prop_assert_eq!(found, expected);
        // Ascending, apart, and nothing that begins or ends inside a page.
        for two in ram.windows(2) {
            prop_assert!(two[0].0 + two[0].1 < two[1].0);
        }
    }
}
