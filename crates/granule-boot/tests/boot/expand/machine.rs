//! Machines as firmware leaves them, the step over them, and a reader of what comes out. No test is here.

pub(crate) use crate::trees::leaf as node;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::model::{DeviceTree, DeviceTreeNode};
use dtoolkit::{Node as _, Property as _};
use granule_boot::efi::{Map, Physical};
use granule_boot::expand::{ExpandError, Expanded, Note, Request, expand};
use granule_boot::tree::Tree;
use granule_boot::words::Acpi;
use granule_testing::firmware as firm;
use granule_testing::firmware::{RUNTIME, WB};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u64 = 4 << 10;
/// Where the tables lie.
pub(crate) const TABLES: u64 = 0x7f00_0000;
/// Where the map lies.
pub(crate) const MAP: u64 = 0x7e00_0000;

pub(crate) struct Ram(pub(crate) firm::Memory);

impl Physical for Ram {
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        self.0.read(start, bytes)
    }
}

/// A machine as firmware leaves it.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) memory: firm::Memory,
    pub(crate) map: Vec<u8>,
    pub(crate) step: u32,
    pub(crate) system: u64,
}

/// Kind, start, pages and attributes.
pub(crate) type Descriptor = (u32, u64, u64, u64);

pub(crate) fn map(all: &[Descriptor], step: usize) -> Vec<u8> {
    let all = all.iter();
    all.flat_map(|(kind, start, pages, attributes)| {
        firm::descriptor(*kind, *start, *pages, *attributes, step)
    })
    .collect()
}

/// A gigabyte of RAM with two ranges that firmware keeps, as EDK2 leaves it.
pub(crate) fn usual() -> Vec<Descriptor> {
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
pub(crate) fn tables() -> Vec<Vec<u8>> {
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

pub(crate) fn machine(map_of: &[Descriptor], tables: &[Vec<u8>]) -> Machine {
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

/// `/chosen` as the EFI stub writes it.
pub(crate) fn chosen(machine: &Machine) -> DeviceTreeNode {
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

pub(crate) fn bare(machine: &Machine) -> DeviceTree {
    let mut tree = DeviceTree::new();
    tree.root.add_child(chosen(machine));
    tree
}

/// Returns the new tree and its result.
pub(crate) fn expanded(
    machine: &Machine,
    old: &DeviceTree,
    acpi: Option<Acpi>,
) -> Result<(Vec<u8>, Expanded), ExpandError> {
    let mut into = vec![0xa5; 1 << 18];
    let made = expanded_into(machine, old, acpi, &mut into)?;
    into.truncate(made.bytes);
    Ok((into, made))
}

/// Returns the result of the new tree, which fits into memory of the caller's.
pub(crate) fn expanded_into(
    machine: &Machine,
    old: &DeviceTree,
    acpi: Option<Acpi>,
    into: &mut [u8],
) -> Result<Expanded, ExpandError> {
    let old = old.to_dtb();
    let tree = Tree::new(&old).unwrap();
    let request = Request::of(&tree)?.unwrap();
    let map = Map::new(&machine.map, request.descriptor, request.version)?;
    let ram = Ram(machine.memory.clone());
    let made = expand(&tree, &request, map, &ram, acpi, into)?;
    assert_eq!(Tree::new(&into[..made.bytes]).unwrap().damage(), None);
    for note in made.notes.iter() {
        assert_eq!(note.to_string().lines().count(), 1);
    }
    Ok(made)
}

pub(crate) fn notes(made: &Expanded) -> Vec<Note> {
    assert_eq!(made.notes.more(), 0);
    made.notes.iter().collect()
}

pub(crate) fn value(node: &FdtNode<'_>, name: &str) -> Option<Vec<u8>> {
    Some(node.property(name)?.value().to_vec())
}

pub(crate) fn numbers(bytes: &[u8]) -> Vec<u64> {
    let numbers = bytes.chunks_exact(8);
    assert!(numbers.remainder().is_empty());
    numbers
        .map(|it| u64::from_be_bytes(it.try_into().unwrap()))
        .collect()
}

/// The entries of the nodes' `reg`: start, bytes, and the node's NUMA domain.
pub(crate) fn memory(tree: &Fdt<'_>) -> Vec<(u64, u64, Option<Vec<u8>>)> {
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
