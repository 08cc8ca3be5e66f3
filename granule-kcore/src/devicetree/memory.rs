//! The memory in the device tree: banks, reservations and the initial ramdisk, read into a
//! [`Memblock`].
//!
//! A tree that cannot be used is described in one line, with the node. A piece of memory that has no
//! effect is left out and told as a [`Warning`]. Devices are not looked up here.

use crate::line::Line;
use core::fmt::{self, Write};
use core::ops::Range;
use granule_boot::memblock::{self, Memblock, Region};
use granule_boot::tree::{self, Node, Path, Reg, Tree};

/// The most ranges of each kind in early memory.
pub const MOST_RANGES: usize = 128;

/// This kernel's early memory.
pub type Memory = Memblock<MOST_RANGES>;

/// The path of a node, cut off if it is very long. Errors outlive the tree, so they own it.
type OwnPath = Line<80>;

/// Of a memory node: what another kernel leaves of its `reg` to this one.
const USABLE: &str = "linux,usable-memory";
/// Of `/chosen`: what another kernel leaves of all memory to this one.
const USABLE_RANGE: &str = "linux,usable-memory-range";

/// Why a tree cannot be used.
#[derive(Clone, Debug)]
pub enum MemoryNodeError {
    /// The header is wrong.
    Header(tree::TreeError),
    /// The tree is damaged in this node.
    Damaged(tree::TreeError, OwnPath),
    /// The property of this node is not whole pairs of address and size.
    BadReg(OwnPath, &'static str),
    /// The tree has no memory.
    NoMemory,
    /// The ranges do not fit into early memory.
    Ranges(memblock::Error),
}

impl fmt::Display for MemoryNodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(error) => write!(f, "{error}"),
            Self::Damaged(error, node) => write!(f, "{error}, in {}", node.text()),
            Self::BadReg(node, property) => write!(
                f,
                "the device tree's {} has a {property} that is not whole pairs of address and size of at most 64 bits",
                node.text()
            ),
            Self::NoMemory => f.write_str(
                "the device tree names no memory: it needs a node with device_type = \"memory\" and a reg",
            ),
            Self::Ranges(error) => write!(f, "the device tree's memory cannot be used: {error}"),
        }
    }
}

impl From<memblock::Error> for MemoryNodeError {
    fn from(error: memblock::Error) -> Self {
        Self::Ranges(error)
    }
}

/// Memory in the tree that has no effect, or less than its `reg` says.
#[derive(Clone, Copy, Debug)]
pub enum Warning<'a> {
    /// A bank reaches the end of the address space, where no RAM is.
    EndlessBank(Path<'a>, tree::Range),
    /// A reservation reaches the end of the address space.
    EndlessReservation(tree::Range),
    /// Another kernel leaves only a part of the node's memory.
    Usable(Path<'a>),
    /// Another kernel leaves only these bytes, of these that banks have.
    UsableRange(u64, u64),
}

impl fmt::Display for Warning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndlessBank(node, tree::Range { start, bytes }) => write!(
                f,
                "the device tree's {node} has {bytes:#x} bytes at {start:#x}, which reach the end of the address space; left out"
            ),
            Self::EndlessReservation(tree::Range { start, bytes }) => write!(
                f,
                "the device tree reserves {bytes:#x} bytes at {start:#x}, which reach the end of the address space; ignored outside RAM"
            ),
            Self::Usable(node) => write!(
                f,
                "the device tree's {node} has {USABLE}; other memory in its reg is left out"
            ),
            Self::UsableRange(used, all) => write!(
                f,
                "{USABLE_RANGE} leaves {used} bytes of {all} bytes of RAM; the others are left out"
            ),
        }
    }
}

/// Reads all memory of `tree` into `memory`, which must be empty. The caller provides it because it is
/// too large to move on a stack. `handed_over` is not reserved, see [`each_reserved`]. `warn` is called
/// for memory that is not used as the tree states it.
pub fn memory(
    tree: &[u8],
    handed_over: Option<Range<u64>>,
    memory: &mut Memory,
    mut warn: impl FnMut(Warning<'_>),
) -> Result<(), MemoryNodeError> {
    let tree = sound(tree)?;
    let chosen = child(&tree, b"chosen");
    let usable = chosen.and_then(|chosen| pairs(&chosen, USABLE_RANGE));
    let nodes = tree.root().into_iter().flat_map(|root| root.children());
    let (mut used, mut all) = (0_u64, 0_u64);
    for node in nodes.filter(|node| is_memory(node) && node.is_usable()) {
        let own = pairs(&node, USABLE);
        if own.is_some() {
            warn(Warning::Usable(node.path()));
        }
        let property = if own.is_some() { USABLE } else { "reg" };
        let Some(banks) = own.or_else(|| node.reg()) else {
            continue;
        };
        for bank in banks {
            let bank = bank.ok_or_else(|| bad_reg(&node, property))?;
            let Some(end) = bank.start.checked_add(bank.bytes) else {
                warn(Warning::EndlessBank(node.path(), bank));
                continue;
            };
            all = all.saturating_add(bank.bytes);
            match (usable, &chosen) {
                (Some(usable), Some(chosen)) => {
                    for part in usable {
                        let part = part.ok_or_else(|| bad_reg(chosen, USABLE_RANGE))?;
                        let start = part.start.max(bank.start);
                        let end = part.start.saturating_add(part.bytes).min(end);
                        used = used.saturating_add(end.saturating_sub(start));
                        memory.add_bank(start, end.saturating_sub(start))?;
                    }
                }
                _ => {
                    memory.add_bank(bank.start, bank.bytes)?;
                }
            }
        }
    }
    if usable.is_some() {
        warn(Warning::UsableRange(used, all));
    }
    if memory.banks().is_empty() {
        return Err(MemoryNodeError::NoMemory);
    }
    for_each_reserved(&tree, handed_over, |range, no_map| {
        let bytes = bytes_before_end(range);
        if bytes < range.bytes {
            warn(Warning::EndlessReservation(range));
        }
        if no_map {
            memory.mark_no_map(range.start, bytes)
        } else {
            memory.reserve(range.start, bytes)
        }
    })?;
    if let Some((start, end)) = chosen.and_then(|chosen| initrd(&chosen)) {
        memory.reserve(start, end.saturating_sub(start))?;
    }
    Ok(())
}

/// The tree, if it has no damage.
fn sound(bytes: &[u8]) -> Result<Tree<'_>, MemoryNodeError> {
    let tree = Tree::new(bytes).map_err(MemoryNodeError::Header)?;
    match tree.damage() {
        Some(error) => Err(MemoryNodeError::Damaged(error, own(tree.damaged_node()))),
        None => Ok(tree),
    }
}

/// The bytes of a range up to the end of the address space. The last byte there is never RAM, and the
/// address behind it is no number of 64 bits.
fn bytes_before_end(range: tree::Range) -> u64 {
    range.bytes.min(u64::MAX - range.start)
}

/// Calls `each` with every range that the tree reserves, for any user, and whether the range must also
/// stay unmapped.
fn for_each_reserved(
    tree: &Tree<'_>,
    handed_over: Option<Range<u64>>,
    mut each: impl FnMut(tree::Range, bool) -> Result<(), memblock::Error>,
) -> Result<(), MemoryNodeError> {
    for entry in tree.reservations().map_err(MemoryNodeError::Header)? {
        let range = entry.start..entry.start.saturating_add(entry.bytes);
        if handed_over.as_ref() != Some(&range) {
            each(entry, false)?;
        }
    }
    let reserved = child(tree, b"reserved-memory");
    for node in reserved.into_iter().flat_map(|node| node.children()) {
        // A child without reg asks for an allocation; nothing here uses one.
        let Some(ranges) = node.reg().filter(|_| node.is_usable()) else {
            continue;
        };
        let no_map = node.property(b"no-map").is_some();
        for range in ranges {
            each(range.ok_or_else(|| bad_reg(&node, "reg"))?, no_map)?;
        }
    }
    Ok(())
}

/// Calls `each` with every range that `tree` reserves: start and bytes. Ranges that the last kernel
/// hands over by request are excluded. They are reserved so that a kernel that does not know them
/// keeps off, and this kernel learns of them from its command line.
#[cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "for who leaves this kernel")
)]
pub fn each_reserved(
    tree: &[u8],
    handed_over: Option<Range<u64>>,
    mut each: impl FnMut(u64, u64),
) -> Result<(), MemoryNodeError> {
    for_each_reserved(&sound(tree)?, handed_over, |range, _| {
        each(range.start, bytes_before_end(range));
        Ok(())
    })
}

/// The whole pages from `start` to `end` that `firmware` neither reserves nor forbids to map: the part
/// of the kernel's storage that may be given back. `firmware` is the memory as the tree describes it.
/// A merged list cannot answer this, because reserving the image merges with reservations inside the
/// image.
pub fn unreserved(firmware: &Memory, start: u64, end: u64) -> impl Iterator<Item = Region> {
    firmware
        .free_pages()
        .filter_map(move |piece| piece.inside(start, end))
}

fn child<'a>(tree: &Tree<'a>, name: &[u8]) -> Option<Node<'a>> {
    tree.root()?.child(name)
}

fn is_memory(node: &Node<'_>) -> bool {
    node.property(b"device_type") == Some(b"memory\0")
}

/// The entries of a property that has the root's cells, if the node has it.
fn pairs<'a>(node: &Node<'a>, property: &str) -> Option<Reg<'a>> {
    let value = node.property(property.as_bytes())?;
    Some(Reg::new(value, node.cells()))
}

fn bad_reg(node: &Node<'_>, property: &'static str) -> MemoryNodeError {
    MemoryNodeError::BadReg(own(node.path()), property)
}

fn own(path: Path<'_>) -> OwnPath {
    let mut line = OwnPath::new();
    // Text that does not fit is cut off.
    let _ = write!(line, "{path}");
    line
}

/// The initial ramdisk's place, as `tree` states it.
pub fn initial_ramdisk(tree: &[u8]) -> Option<Range<u64>> {
    let chosen = child(&Tree::new(tree).ok()?, b"chosen")?;
    let (start, end) = initrd(&chosen)?;
    (start < end).then_some(start..end)
}

/// The initial ramdisk's first byte, and the byte after its last.
fn initrd(chosen: &Node<'_>) -> Option<(u64, u64)> {
    Some((
        chosen.number(b"linux,initrd-start")?,
        chosen.number(b"linux,initrd-end")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::PageSize::{K4, K64};

    fn pieces(firmware: &Memory, start: u64, end: u64) -> Vec<(u64, u64)> {
        unreserved(firmware, start, end)
            .map(|piece| (piece.start(), piece.end()))
            .collect()
    }

    #[test]
    fn what_firmware_reserved_inside_our_storage_is_not_given_back() {
        let (start, end) = (0x4020_0000, 0x4030_0000);
        let mut firmware = Memory::new(K4);
        firmware.add_bank(0x4000_0000, 0x1000_0000).unwrap();
        assert_eq!(pieces(&firmware, start, end), [(start, end)]);
        // One byte reserves its page, at any place; no-map ranges count alike.
        firmware.reserve(0x4021_0fff, 1).unwrap();
        firmware.mark_no_map(0x4022_0800, 0x1000).unwrap();
        firmware.reserve(0x402f_f000, 0x10_0000).unwrap();
        // A reservation that ends at our storage costs nothing.
        firmware.reserve(start - 0x1000, 0x1000).unwrap();
        assert_eq!(
            pieces(&firmware, start, end),
            [
                (start, 0x4021_0000),
                (0x4021_1000, 0x4022_0000),
                (0x4022_2000, 0x402f_f000),
            ]
        );
        // With the only page reserved nothing is left.
        assert_eq!(pieces(&firmware, 0x4021_0000, 0x4021_1000), []);
        firmware.reserve(start, end - start).unwrap();
        assert_eq!(pieces(&firmware, start, end), []);
    }

    #[test]
    fn what_is_handed_over_is_not_reserved_unless_it_is_another_range() {
        use dtoolkit::memreserve::MemoryReservation;
        use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
        let mut bank = DeviceTreeNode::new_unchecked("memory");
        for (name, value) in [
            ("device_type", b"memory\0".to_vec()),
            (
                "reg",
                [0x4000_0000_u64, 0x1000_0000]
                    .map(u64::to_be_bytes)
                    .concat(),
            ),
        ] {
            bank.add_property(DeviceTreeProperty::new_unchecked(name, value));
        }
        let mut tree = DeviceTree::new();
        tree.root
            .add_property(DeviceTreeProperty::new_unchecked("#address-cells", 2u32));
        tree.root
            .add_property(DeviceTreeProperty::new_unchecked("#size-cells", 2u32));
        tree.root.add_child(bank);
        tree.memory_reservations = vec![
            MemoryReservation::new(0x4100_0000, 0x1000),
            MemoryReservation::new(0x4200_0000, 0x1000),
        ];
        let tree = tree.to_dtb();
        let reserved = |handed_over| {
            let mut early = Memory::new(K4);
            memory(&tree, handed_over, &mut early, |warning| {
                panic!("{warning}")
            })
            .unwrap();
            let starts: Vec<_> = early.reserved().iter().map(|it| it.start()).collect();
            let mut told = Vec::new();
            let handed_over = Some(0x4200_0000..0x4200_1000).filter(|_| starts.len() == 1);
            each_reserved(&tree, handed_over, |start, _| told.push(start)).unwrap();
            assert_eq!(told, starts);
            starts
        };
        let both = [0x4100_0000, 0x4200_0000];
        assert_eq!(reserved(None), both);
        assert_eq!(reserved(Some(0x4200_0000..0x4200_1000)), both[..1]);
        assert_eq!(reserved(Some(0x4200_0000..0x4200_0800)), both);
        assert_eq!(reserved(Some(0x4200_0800..0x4200_1000)), both);
    }

    /// A tree with one memory node, and what early memory makes of it: banks, reserved ranges, warnings.
    struct Read {
        banks: Vec<(u64, u64)>,
        reserved: Vec<(u64, u64)>,
        warnings: Vec<String>,
    }

    type Pairs<'a> = &'a [(u64, u64)];

    fn read(
        reg: Pairs<'_>,
        usable: Option<Pairs<'_>>,
        usable_range: Option<Pairs<'_>>,
        reservations: Pairs<'_>,
    ) -> Result<Read, String> {
        use dtoolkit::memreserve::MemoryReservation;
        use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
        let mut tree = DeviceTree::new();
        for name in ["#address-cells", "#size-cells"] {
            let cells = DeviceTreeProperty::new_unchecked(name, 2u32);
            tree.root.add_property(cells);
        }
        let pairs = |name, pairs: Pairs<'_>| {
            let numbers = pairs.iter().flat_map(|(start, bytes)| [*start, *bytes]);
            let value: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
            DeviceTreeProperty::new_unchecked(name, value)
        };
        let mut bank = DeviceTreeNode::new_unchecked("memory@1000");
        bank.add_property(DeviceTreeProperty::new_unchecked("device_type", "memory"));
        bank.add_property(pairs("reg", reg));
        let mut chosen = DeviceTreeNode::new_unchecked("chosen");
        if let Some(usable) = usable {
            bank.add_property(pairs(USABLE, usable));
        }
        if let Some(usable) = usable_range {
            chosen.add_property(pairs(USABLE_RANGE, usable));
        }
        tree.root.add_child(bank);
        tree.root.add_child(chosen);
        tree.memory_reservations = reservations
            .iter()
            .map(|(start, bytes)| MemoryReservation::new(*start, *bytes))
            .collect();
        let mut early = Memory::new(K4);
        let mut warnings = Vec::new();
        let warn = |warning: Warning<'_>| warnings.push(warning.to_string());
        memory(&tree.to_dtb(), None, &mut early, warn).map_err(|error| error.to_string())?;
        let list = |list: &[Region]| list.iter().map(|it| (it.start(), it.end())).collect();
        Ok(Read {
            banks: list(early.banks()),
            reserved: list(early.reserved()),
            warnings,
        })
    }

    #[test]
    fn another_kernel_s_memory_is_left_out() {
        let reg = &[(0x1000, 0x8000), (0x2_0000, 0x8000)];
        let both = read(reg, None, None, &[]).unwrap();
        assert_eq!(both.banks, [(0x1000, 0x9000), (0x2_0000, 0x2_8000)]);
        assert!(both.warnings.is_empty());
        // Ranges in any order; what is in no bank, empty or endless adds nothing that is no RAM.
        let usable: Pairs<'_> = &[
            (0x2_4000, u64::MAX),
            (0x4000, 0x1000),
            (0xa000, 0x1_0000),
            (0x5000, 0),
        ];
        let cut = read(reg, None, Some(usable), &[]).unwrap();
        assert_eq!(cut.banks, [(0x4000, 0x5000), (0x2_4000, 0x2_8000)]);
        let line = "linux,usable-memory-range leaves 20480 bytes of 65536 bytes of RAM; the others are left out";
        assert_eq!(cut.warnings, [line]);
        let own = read(reg, Some(&[(0x3000, 0x1000)]), None, &[]).unwrap();
        assert_eq!(own.banks, [(0x3000, 0x4000)]);
        let line = "the device tree's /memory@1000 has linux,usable-memory; other memory in its reg is left out";
        assert_eq!(own.warnings, [line]);
        let both = read(reg, Some(&[(0x3000, 0x2000)]), Some(usable), &[]).unwrap();
        assert_eq!(both.banks, [(0x4000, 0x5000)]);
        // Nothing is left: that is no reason to take it all.
        let none = [
            read(reg, None, Some(&[]), &[]),
            read(reg, None, Some(&[(0x10_0000, 0x1000)]), &[]),
            read(reg, Some(&[]), None, &[]),
        ];
        for none in none {
            let line = none.err().unwrap();
            assert!(line.contains("names no memory"), "{line}");
        }
    }

    #[test]
    fn what_reaches_the_end_of_the_address_space_has_no_effect_there() {
        let end = u64::MAX - 0xfff;
        let reg = &[(0x1000, 0x8000), (end, 0x1000), (0x1000, u64::MAX)];
        let read = read(reg, None, None, &[(end, 0x1000), (0x8000, u64::MAX)]).unwrap();
        assert_eq!(read.banks, [(0x1000, 0x9000)]);
        assert_eq!(read.reserved, [(0x8000, u64::MAX)]);
        let [bank, wraps, last, most] = &read.warnings[..] else {
            panic!("{:?}", read.warnings);
        };
        assert!(
            bank.contains(
                "/memory@1000 has 0x1000 bytes at 0xfffffffffffff000, which reach the end"
            )
        );
        assert!(wraps.contains("0xffffffffffffffff bytes at 0x1000"));
        assert!(last.contains("reserves 0x1000 bytes at 0xfffffffffffff000"));
        assert!(most.contains("reserves 0xffffffffffffffff bytes at 0x8000"));
    }

    #[test]
    fn edges_are_whole_pages_of_any_size() {
        let mut firmware = Memory::new(K64);
        firmware.add_bank(0x4000_0000, 0x1000_0000).unwrap();
        firmware.reserve(0x4003_4000, 8).unwrap();
        assert_eq!(
            pieces(&firmware, 0x4002_0000, 0x4006_0000),
            [(0x4002_0000, 0x4003_0000), (0x4004_0000, 0x4006_0000)]
        );
    }
}
