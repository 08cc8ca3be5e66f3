//! Device trees as the kernel reads them once its MMU is on: memory, CPUs, interrupt controller.
//!
//! Trees with the names that the readers look for, and any values, so that a case reaches more than the
//! parser; then some of their bytes are changed.

use crate::bytes::{Bytes, one_line};
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use granule::arch::PageSize;
use granule_boot::tree::{Node, Range, Tree};
use granule_kcore::cpus::AFFINITY;
use granule_kcore::devicetree::cpus::{EnableMethod, Found, NotStarted, Other, cpus, has_psci};
use granule_kcore::devicetree::intc::{Controller, MOST_REGIONS, controller, timer};
use granule_kcore::devicetree::memory::{Memory, memory as read_memory};

/// The most nodes of a tree: more than the kernel has room for, of each kind.
const MOST_NODES: usize = 80;
/// The deepest nesting: more than the buses that the readers follow above a device.
const MOST_DEPTH: usize = 12;

/// A property: its name and value.
type Fixed = (&'static str, &'static [u8]);

/// Names of nodes, and properties that a node has besides the drawn ones.
const NODES: [(&str, &[Fixed]); 14] = [
    ("cpus", &[]),
    ("cpu", &[("device_type", b"cpu\0")]),
    (
        "cpu",
        &[("device_type", b"cpu\0"), ("enable-method", b"psci\0")],
    ),
    ("memory", &[("device_type", b"memory\0")]),
    ("reserved-memory", &[("ranges", b"")]),
    ("region", &[]),
    ("region", &[("no-map", b"")]),
    ("chosen", &[]),
    ("psci", &[("compatible", b"arm,psci-0.2\0")]),
    ("soc", &[("ranges", b"")]),
    ("intc", &[("compatible", b"arm,gic-v3\0")]),
    ("intc", &[("compatible", b"arm,gic-400\0")]),
    (
        "intc",
        &[
            ("compatible", b"brcm,bcm2836-l1-intc\0"),
            ("interrupt-controller", b""),
        ],
    ),
    ("timer", &[("compatible", b"arm,armv8-timer\0")]),
];

/// Properties of a few cells of any value.
const CELLS: [&str; 13] = [
    "linux,usable-memory",
    "linux,usable-memory-range",
    "reg",
    "reg",
    "ranges",
    "#address-cells",
    "#size-cells",
    "#redistributor-regions",
    "redistributor-stride",
    "linux,initrd-start",
    "linux,initrd-end",
    "interrupts",
    "#interrupt-cells",
];

/// Properties with one of these texts, or with another.
const TEXTS: [Fixed; 9] = [
    ("status", b"okay\0"),
    ("status", b"disabled\0"),
    ("enable-method", b"spin-table\0"),
    ("enable-method", b"psci\0spin-table\0"),
    ("cpu-release-addr", &[0, 0, 0, 0, 0, 0, 0, 0xe0]),
    ("cpu-release-addr", &[0, 0, 0, 0xe4]),
    ("device_type", b"cpu"),
    ("compatible", b"arm,psci\0arm,gic-v3\0"),
    ("no-map", b""),
];

fn cell(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.below(10) {
        0..=2 => 0,
        3 | 4 => u32::from(bytes.byte() % 8),
        5 => 0x4000_0000,
        6 => 0x800_0000 + (u32::from(bytes.byte()) << 16),
        7 => 0x1000 << bytes.below(16),
        8 => u32::MAX,
        _ => bytes.word() as u32,
    }
}

fn property(node: &mut DeviceTreeNode, bytes: &mut Bytes<'_>) {
    let (name, value) = match bytes.below(4) {
        0 => {
            let (name, text) = TEXTS[bytes.below(TEXTS.len())];
            (name, text.to_vec())
        }
        _ => {
            let name = CELLS[bytes.below(CELLS.len())];
            let cells = if name.starts_with('#') {
                vec![u32::from(bytes.byte() % 4)]
            } else {
                (0..bytes.below(9)).map(|_| cell(bytes)).collect()
            };
            let value = cells.into_iter().flat_map(u32::to_be_bytes);
            (name, value.collect())
        }
    };
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}

/// The properties that make the readers use a node of its kind: addresses and sizes of two cells each, as
/// the root defines, except for CPUs.
fn plausible(name: &str, bytes: &mut Bytes<'_>) -> Vec<(&'static str, Vec<u32>)> {
    let small = u32::from(bytes.byte() % 8);
    let page = small * 0x1_0000;
    match name {
        "" => vec![("#address-cells", vec![2]), ("#size-cells", vec![2])],
        "cpus" => vec![("#address-cells", vec![1]), ("#size-cells", vec![0])],
        "reserved-memory" | "soc" => vec![("#address-cells", vec![2]), ("#size-cells", vec![2])],
        "cpu" => vec![("reg", vec![small])],
        "memory" => vec![("reg", vec![small / 4, 0x4000_0000 + page, 0, 0x1000_0000])],
        "region" => vec![("reg", vec![0, 0x4000_0000 + page, 0, 0x8000])],
        "intc" => {
            // At the limits of mappable addresses, and beyond.
            let size = [0x1_0000, 0x1_0000, 0x1000, 0xfff][bytes.below(4)];
            let regions = [0, 0x800_0000 + page, 0, size];
            vec![("reg", regions.repeat(2 + bytes.below(3)))]
        }
        _ => vec![],
    }
}

fn cells(node: &mut DeviceTreeNode, name: &str, cells: &[u32]) {
    let value: Vec<u8> = cells.iter().copied().flat_map(u32::to_be_bytes).collect();
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}

fn node(bytes: &mut Bytes<'_>, left: &mut usize, depth: usize) -> DeviceTreeNode {
    let (kind, fixed) = NODES[bytes.below(NODES.len())];
    let name = if bytes.below(4) == 0 {
        kind.to_owned()
    } else {
        // A different name for each, so that none replaces another.
        format!("{kind}@{left:x}")
    };
    let mut made = DeviceTreeNode::new_unchecked(name);
    for (name, value) in fixed {
        made.add_property(DeviceTreeProperty::new_unchecked(*name, value.to_vec()));
    }
    fill(&mut made, kind, bytes, left, depth);
    made
}

/// Gives a node its properties and children.
fn fill(
    into: &mut DeviceTreeNode,
    kind: &str,
    bytes: &mut Bytes<'_>,
    left: &mut usize,
    depth: usize,
) {
    if bytes.below(8) > 0 {
        for (name, value) in plausible(kind, bytes) {
            cells(into, name, &value);
        }
    }
    // Most values stay unchanged.
    for _ in 0..bytes.below(6).saturating_sub(3) {
        property(into, bytes);
    }
    while !bytes.is_empty() && *left > 0 && depth < MOST_DEPTH && bytes.below(3) > 0 {
        *left -= 1;
        into.add_child(node(bytes, left, depth + 1));
    }
}

/// A tree from a fuzzer's bytes, and a number for its reader.
pub(crate) fn tree(bytes: &[u8]) -> (Vec<u8>, u64) {
    let mut bytes = Bytes(bytes);
    // Half of the trees stay undamaged.
    let (number, damage) = (bytes.word(), bytes.below(6).saturating_sub(2));
    let places: Vec<_> = (0..damage).map(|_| (bytes.word(), bytes.byte())).collect();
    let mut tree = DeviceTree::new();
    let mut left = MOST_NODES;
    // The nodes in which the kernel looks for CPUs, memory and reserved ranges are always there.
    for kind in ["cpus", "memory", "reserved-memory"] {
        if bytes.below(4) > 0 {
            let mut made = DeviceTreeNode::new_unchecked(kind);
            if kind == "memory" {
                made.add_property(DeviceTreeProperty::new_unchecked("device_type", "memory"));
            }
            fill(&mut made, kind, &mut bytes, &mut left, 1);
            tree.root.add_child(made);
        }
    }
    fill(&mut tree.root, "", &mut bytes, &mut left, 0);
    let mut written = tree.to_dtb();
    for (place, byte) in places {
        // A tree has a header, so it is never empty.
        let place = place as usize % written.len();
        written[place] = byte;
    }
    (written, number)
}

/// Reads the bytes as a tree, and the tree that is made of them.
fn both(bytes: &[u8], read: impl Fn(&[u8], u64)) {
    let (made, number) = tree(bytes);
    read(bytes, number);
    read(&made, number);
}

pub(crate) fn device_tree_memory(bytes: &[u8]) {
    both(bytes, memory);
}

fn memory(tree: &[u8], number: u64) {
    let page_size = PageSize::ALL[number as usize % 3];
    let mut memory = Memory::new(page_size);
    match read_memory(tree, None, &mut memory, |warning| {
        one_line(&warning.to_string())
    }) {
        Ok(()) => {
            assert!(!memory.banks().is_empty());
            // What is used is not another kernel's by the look before the MMU is on either. Two nodes may
            // name the same bank and disagree, so nodes must not have the property.
            let read = Tree::new(tree).ok().filter(|tree| {
                let has_own = |node: Node<'_>| node.property(b"linux,usable-memory").is_some();
                !tree.nodes().any(has_own)
            });
            for bank in memory.banks() {
                let (start, bytes) = (bank.start(), bank.len());
                let other = |tree: &Tree<'_>| tree.is_another_kernels(Range { start, bytes });
                assert!(!read.as_ref().is_some_and(other), "{bank}");
            }
            let ram = memory.totals();
            assert_eq!(ram.ram, ram.edges + ram.no_map + ram.mapped);
            for piece in memory.mapped() {
                let aligned = (piece.start() | piece.end()).is_multiple_of(page_size.bytes());
                let kept_off = |other: &&granule_boot::memblock::Region| {
                    other.inside(piece.start(), piece.end()).is_none()
                };
                assert!(aligned && memory.no_map().iter().all(|one| kept_off(&one)));
            }
        }
        Err(error) => one_line(&error.to_string()),
    }
}

/// The CPUs of a tree.
#[derive(Default)]
struct SeenCpus {
    others: Vec<Other>,
    left_out: usize,
}

impl<'a> Found<'a> for SeenCpus {
    fn is_known(&self, affinity: u64) -> bool {
        self.others.iter().any(|other| other.affinity == affinity)
    }
    fn found(&mut self, other: Other) {
        self.others.push(other);
    }
    fn left_out(&mut self, cpu: NotStarted<'a>) {
        self.left_out += 1;
        one_line(&cpu.to_string());
    }
}

pub(crate) fn device_tree_cpus(bytes: &[u8]) {
    both(bytes, all_cpus);
}

fn all_cpus(tree: &[u8], number: u64) {
    let Ok(tree) = Tree::new(tree) else { return };
    // Usually a name that trees have.
    let boot = if number & 1 == 0 {
        number >> 1 & 7
    } else {
        number & AFFINITY
    };
    let mut seen = SeenCpus::default();
    let expected = cpus(&tree, boot, &mut seen);
    let others = &seen.others;
    for (place, other) in others.iter().enumerate() {
        let affinity = other.affinity;
        assert!(
            affinity != boot && affinity & !AFFINITY == 0,
            "{affinity:#x}"
        );
        let mut before = others[..place].iter();
        assert!(
            before.all(|before| before.affinity != affinity),
            "{affinity:#x} twice"
        );
        if let EnableMethod::SpinTable { release } = other.by {
            assert!(release != 0 && release.is_multiple_of(8), "{release:#x}");
        }
    }
    // Every CPU is started or reported.
    assert_eq!(1 + others.len() + seen.left_out, expected, "{others:?}");
    let _ = has_psci(&tree);
}

pub(crate) fn device_tree_intc(bytes: &[u8]) {
    both(bytes, |tree, _| interrupts(tree));
}

fn interrupts(tree: &[u8]) {
    let Ok(tree) = Tree::new(tree) else { return };
    for at_el2 in [false, true] {
        let number = timer(&tree, at_el2);
        // A private interrupt of a CPU, by either kind of controller.
        assert!(number.is_none_or(|number| matches!(number, 1..4 | 16..32)));
    }
    // Registers are mapped by pages of at least 4K.
    let mut least = 0x1000;
    let regions: Vec<_> = match controller(&tree) {
        Ok(Controller::Bcm2836 { registers, shared }) => {
            least = 0x100;
            std::iter::once(registers).chain(shared).collect()
        }
        Ok(Controller::GicV2 {
            distributor,
            cpu_interface,
        }) => vec![distributor, cpu_interface],
        Ok(Controller::GicV3 {
            distributor,
            redistributors,
            stride,
        }) => {
            assert!(
                stride.is_none_or(|stride| stride >= 0x2_0000 && stride.is_multiple_of(0x1_0000))
            );
            assert!((1..=MOST_REGIONS).contains(&redistributors.len()));
            std::iter::once(distributor).chain(redistributors).collect()
        }
        Err(error) => {
            return one_line(&error.to_string());
        }
    };
    for region in regions {
        assert!(region.start.is_multiple_of(least), "{region:x?}");
        assert!(region.end - region.start >= least, "{region:x?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If no tree reached a reader, every check above would pass.
    #[test]
    fn the_readers_are_reached() {
        let (mut parsed, mut banks, mut others, mut controllers) = (0, 0, 0, 0);
        for bytes in crate::bytes::drawn(4000, 256) {
            let (tree, _) = tree(&bytes);
            banks +=
                u32::from(read_memory(&tree, None, &mut Memory::new(PageSize::K4), |_| {}).is_ok());
            let Ok(tree) = Tree::new(&tree) else { continue };
            parsed += 1;
            let mut seen = SeenCpus::default();
            cpus(&tree, 0, &mut seen);
            others += u32::from(!seen.others.is_empty());
            controllers += u32::from(controller(&tree).is_ok());
        }
        println!(
            "{parsed} parsed, {banks} with banks, {others} with CPUs, {controllers} with an interrupt controller"
        );
        assert!(parsed > 1000 && banks > 100 && others > 40 && controllers > 25);
    }
}
