//! Device trees for tests.

use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use granule_boot::peek::Peek;
use granule_boot::tree::Tree;

pub(crate) fn node(
    name: &str,
    properties: &[(&str, &[u8])],
    children: Vec<DeviceTreeNode>,
) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new(name).unwrap();
    for (name, value) in properties {
        node.add_property(DeviceTreeProperty::new(*name, value.to_vec()).unwrap());
    }
    for child in children {
        node.add_child(child);
    }
    node
}

pub(crate) fn leaf(name: &str, properties: &[(&str, &[u8])]) -> DeviceTreeNode {
    node(name, properties, vec![])
}

pub(crate) fn tree(properties: &[(&str, &[u8])], children: Vec<DeviceTreeNode>) -> Vec<u8> {
    let mut tree = DeviceTree::new();
    tree.root = node("", properties, children);
    tree.to_dtb()
}

pub(crate) fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

pub(crate) const TWO_CELLS: [(&str, &[u8]); 2] = [
    ("#address-cells", &[0, 0, 0, 2]),
    ("#size-cells", &[0, 0, 0, 2]),
];

/// A tree like that of QEMU's `virt` machine.
pub(crate) fn virt() -> Vec<u8> {
    let [address, size] = TWO_CELLS;
    tree(
        &[
            address,
            size,
            ("compatible", b"linux,dummy-virt\0"),
            ("interrupt-parent", &[0; 4]),
        ],
        vec![
            leaf(
                "psci",
                &[
                    ("method", b"hvc\0"),
                    ("compatible", b"arm,psci-1.0\0arm,psci-0.2\0"),
                ],
            ),
            leaf(
                "memory@40000000",
                &[("reg", &cells(&[0, 0x4000_0000, 0, 0x800_0000]))],
            ),
            leaf(
                "pl011@9000000",
                &[
                    ("clock-names", b"uartclk\0apb_pclk\0"),
                    ("reg", &cells(&[0, 0x900_0000, 0, 0x1000])),
                    ("compatible", b"arm,pl011\0arm,primecell\0"),
                ],
            ),
            leaf("aliases", &[("serial0", b"/pl011@9000000\0")]),
            leaf(
                "chosen",
                &[
                    ("bootargs", b"quiet arm64.pagesize=64k\0"),
                    ("stdout-path", b"/pl011@9000000\0"),
                    ("rng-seed", &[0x5a; 32]),
                ],
            ),
        ],
    )
}

pub(crate) fn peek(bytes: &[u8]) -> Peek<'_> {
    Tree::new(bytes).unwrap().peek()
}

pub(crate) fn strings<'a>(list: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    list.map(|string| String::from_utf8_lossy(string).into_owned())
        .collect()
}
