//! Device trees for the tests of their readers.

use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

/// Properties by name.
pub(crate) type Properties<'a> = &'a [(&'a str, &'a [u8])];

/// Addresses and sizes of one cell each.
pub(crate) const ONE_CELL: [(&str, &[u8]); 2] = [
    ("#address-cells", &[0, 0, 0, 1]),
    ("#size-cells", &[0, 0, 0, 1]),
];

/// Addresses and sizes of two cells each.
pub(crate) const TWO_CELLS: [(&str, &[u8]); 2] = [
    ("#address-cells", &[0, 0, 0, 2]),
    ("#size-cells", &[0, 0, 0, 2]),
];

/// Makes a node.
pub(crate) fn node(
    name: &str,
    properties: Properties<'_>,
    children: impl IntoIterator<Item = DeviceTreeNode>,
) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(name);
    for (name, value) in properties {
        node.add_property(DeviceTreeProperty::new_unchecked(*name, *value));
    }
    for child in children {
        node.add_child(child);
    }
    node
}

/// Makes a tree with this root and these reservations, start and bytes.
pub(crate) fn tree(root: DeviceTreeNode, reservations: &[(u64, u64)]) -> Vec<u8> {
    let mut tree = DeviceTree::new();
    tree.root = root;
    let reservations = reservations.iter();
    tree.memory_reservations = reservations
        .map(|(start, bytes)| MemoryReservation::new(*start, *bytes))
        .collect();
    tree.to_dtb()
}

/// Encodes numbers of one cell.
pub(crate) fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

/// Encodes numbers of two cells.
pub(crate) fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_be_bytes()).collect()
}
