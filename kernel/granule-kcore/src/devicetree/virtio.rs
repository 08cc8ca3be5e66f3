//! Virtio devices that the device tree describes, by their registers.

use super::intc::regions;
use core::ops::Range;
use granule_boot::tree::Tree;

/// Bytes of a transport's registers that are used, the first of the device's own among them. They begin at a multiple.
pub const REGISTERS: u64 = 0x200;

/// The registers of each MMIO transport, at the CPU's addresses. Most transports of a virtual machine have no device.
pub fn transports(tree: &Tree<'_>) -> impl Iterator<Item = Range<u64>> {
    tree.nodes()
        .filter(|node| node.is_compatible(b"virtio,mmio") && node.is_usable())
        .filter_map(|node| regions(&node, REGISTERS).ok()?.next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_trees::{TWO_CELLS, cells, node, tree};

    #[test]
    fn transports_are_found_by_what_they_are_compatible_with() {
        let transport = |at: u32, bytes, compatible: &str, status: &str| {
            let reg = cells(&[0, at, 0, bytes]);
            let text = |text: &str| format!("{text}\0").into_bytes();
            let (compatible, status) = (text(compatible), text(status));
            let own = [
                ("compatible", &compatible[..]),
                ("reg", &reg),
                ("status", &status),
            ];
            node(&format!("device@{at:x}"), &own, [])
        };
        let children = [
            transport(0xa00_0000, 0x200, "virtio,mmio", "okay"),
            transport(0xa00_0200, 0x200, "virtio,other", "okay"),
            transport(0xa00_0400, 0x200, "virtio,mmio", "disabled"),
            transport(0xa00_0600, 0x100, "virtio,mmio", "okay"),
            transport(0xa00_0810, 0x200, "virtio,mmio", "okay"),
            transport(0xa00_1000, 0x1000, "virtio,mmio", "okay"),
        ];
        let bytes = tree(node("", &TWO_CELLS, children), &[]);
        let found: Vec<_> = transports(&Tree::new(&bytes).unwrap()).collect();
        assert_eq!(found, [0xa00_0000..0xa00_0200, 0xa00_1000..0xa00_2000]);
    }
}
