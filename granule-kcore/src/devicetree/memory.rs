//! The memory in the device tree, read with the device-tree crate.
//!
//! Reads banks, reservations and the initial ramdisk into a [`Memblock`], and describes an unusable
//! tree in one line. Devices are not looked up here.

use core::fmt;
use core::ops::Range;
use dtoolkit::error::FdtErrorKind;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};
use granule_boot::memblock::{self, Memblock, Region};

/// The most ranges of each kind in early memory.
pub const MOST_RANGES: usize = 128;

/// This kernel's early memory.
pub type Memory = Memblock<MOST_RANGES>;

/// Why a tree cannot be used.
#[derive(Clone, Debug)]
pub enum TreeError {
    /// The crate cannot parse the tree.
    Malformed(dtoolkit::error::FdtParseError),
    /// A memory node or reservation has an unreadable `reg`.
    BadReg(&'static str),
    /// The tree has no memory.
    NoMemory,
    /// The ranges do not fit into early memory.
    Ranges(memblock::Error),
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Valid trees of other systems may have these, so the message names the rule.
            Self::Malformed(error)
                if matches!(
                    error.kind,
                    FdtErrorKind::InvalidNodeName | FdtErrorKind::InvalidPropertyName
                ) =>
            {
                write!(
                    f,
                    "the device tree cannot be read: {error}: the Devicetree Specification (2.2.1, 2.2.4.1) allows 1 to 31 letters, digits and ,._+- (properties ?# too) before the @; rename it in the tree's source"
                )
            }
            Self::Malformed(error) => write!(f, "the device tree is malformed: {error}"),
            Self::BadReg(node) => write!(
                f,
                "the device tree's {node} has a reg that is not whole pairs of address and size of at most 64 bits"
            ),
            Self::NoMemory => f.write_str(
                "the device tree names no memory: it needs a node with device_type = \"memory\" and a reg",
            ),
            Self::Ranges(error) => write!(f, "the device tree's memory cannot be used: {error}"),
        }
    }
}

impl From<memblock::Error> for TreeError {
    fn from(error: memblock::Error) -> Self {
        Self::Ranges(error)
    }
}

/// Reads all memory of `tree` into `memory`, which must be empty. The caller provides it because it is
/// too large to move on a stack. `handed_over` is not reserved, see [`each_reserved`].
pub fn memory(
    tree: &[u8],
    handed_over: Option<Range<u64>>,
    memory: &mut Memory,
) -> Result<(), TreeError> {
    let tree = Fdt::new(tree).map_err(TreeError::Malformed)?;
    let root = tree.root();
    for node in root
        .children()
        .filter(|node| is_memory(node) && is_usable(node))
    {
        for_each_reg(node, "memory node", |start, size| {
            memory.add_bank(start, size).map(|_| ())
        })?;
    }
    if memory.banks().is_empty() {
        return Err(TreeError::NoMemory);
    }
    for_each_reserved(&tree, handed_over, |start, size, no_map| {
        if no_map {
            memory.mark_no_map(start, size)
        } else {
            memory.reserve(start, size)
        }
    })?;
    if let Some((start, end)) = initrd(root) {
        memory.reserve(start, end.saturating_sub(start))?;
    }
    Ok(())
}

/// Calls `each` with every range that the tree reserves, for any user, and whether the range must also
/// stay unmapped.
fn for_each_reserved(
    tree: &Fdt<'_>,
    handed_over: Option<Range<u64>>,
    mut each: impl FnMut(u64, u64, bool) -> Result<(), memblock::Error>,
) -> Result<(), TreeError> {
    for entry in tree.memory_reservations() {
        let (start, size) = (entry.address(), entry.size());
        let range = start..start.saturating_add(size);
        if handed_over.as_ref() != Some(&range) {
            each(start, size, false)?;
        }
    }
    if let Some(reserved) = tree.root().child("reserved-memory") {
        for node in reserved.children().filter(is_usable) {
            // A child without reg asks for an allocation; nothing here uses one.
            let no_map = node.property("no-map").is_some();
            for_each_reg(node, "reserved-memory node", |start, size| {
                each(start, size, no_map)
            })?;
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
) -> Result<(), TreeError> {
    let tree = Fdt::new(tree).map_err(TreeError::Malformed)?;
    for_each_reserved(&tree, handed_over, |start, size, _| {
        each(start, size);
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

fn is_memory(node: &FdtNode<'_>) -> bool {
    node.property("device_type")
        .is_some_and(|kind| kind.value() == b"memory\0")
}

/// Whether the node has no status, or a status that allows its use.
fn is_usable(node: &FdtNode<'_>) -> bool {
    node.property("status")
        .is_none_or(|status| matches!(status.value(), b"okay\0" | b"ok\0"))
}

fn for_each_reg(
    node: FdtNode<'_>,
    what: &'static str,
    mut with: impl FnMut(u64, u64) -> Result<(), memblock::Error>,
) -> Result<(), TreeError> {
    let Some(ranges) = node.reg().map_err(|_| TreeError::BadReg(what))? else {
        return Ok(());
    };
    for range in ranges {
        let start = range
            .address::<u64>()
            .map_err(|_| TreeError::BadReg(what))?;
        let size = range.size::<u64>().map_err(|_| TreeError::BadReg(what))?;
        with(start, size)?;
    }
    Ok(())
}

/// The initial ramdisk's place, as `tree` states it.
pub fn initial_ramdisk(tree: &[u8]) -> Option<Range<u64>> {
    let tree = Fdt::new(tree).ok()?;
    let (start, end) = initrd(tree.root())?;
    (start < end).then_some(start..end)
}

/// The initial ramdisk's first byte, and the byte after its last.
fn initrd(root: FdtNode<'_>) -> Option<(u64, u64)> {
    let chosen = root.child("chosen")?;
    let cell = |name| {
        let property = chosen.property(name)?;
        match *property.value() {
            [a, b, c, d] => Some(u64::from(u32::from_be_bytes([a, b, c, d]))),
            [a, b, c, d, e, f, g, h] => Some(u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            _ => None,
        }
    };
    Some((cell("linux,initrd-start")?, cell("linux,initrd-end")?))
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
            memory(&tree, handed_over, &mut early).unwrap();
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

    #[test]
    fn a_name_that_the_specification_forbids_is_told_with_the_rule() {
        use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
        let refusal = |node: &str, property: &str| {
            let mut child = DeviceTreeNode::new_unchecked(node);
            child.add_property(DeviceTreeProperty::new_unchecked(property, 1u32));
            let mut tree = DeviceTree::new();
            tree.root.add_child(child);
            let mut early = Memory::new(K4);
            memory(&tree.to_dtb(), None, &mut early)
                .unwrap_err()
                .to_string()
        };
        let none = "names no memory";
        let long = "a".repeat(32);
        // The unit address does not count.
        let unit = format!("{}@{long}", &long[1..]);
        assert!(refusal(&unit, &long[1..]).contains(none));
        for (node, property, what) in [
            (&long[..], "reg", "Invalid node name at offset"),
            ("cpu", &long[..], "Invalid property name at offset"),
            ("a b", "reg", "Invalid node name at offset"),
        ] {
            let line = refusal(node, property);
            assert!(line.contains(what) && line.contains("1 to 31"), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
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
