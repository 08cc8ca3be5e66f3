use dtoolkit::ToPropertyValue;
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

use super::*;

type Properties<'a> = &'a [(&'a str, &'a dyn Value)];

fn node(name: &str, properties: Properties<'_>, children: Vec<DeviceTreeNode>) -> DeviceTreeNode {
    // The root has no name, which a check refuses.
    let mut node = DeviceTreeNode::new_unchecked(name);
    let properties = properties.iter();
    properties.for_each(|(name, value)| node.add_property(value.property(name)));
    children.into_iter().for_each(|it| node.add_child(it));
    node
}

trait Value {
    fn property(&self, name: &str) -> DeviceTreeProperty;
}

impl<T: ToPropertyValue> Value for T {
    fn property(&self, name: &str) -> DeviceTreeProperty {
        DeviceTreeProperty::new(name, self).unwrap()
    }
}

/// Makes a tree with buses above a serial line, and a bank of two pieces, of which the second is
/// not a multiple of a page.
fn tree() -> Vec<u8> {
    let serial = [
        node(
            "serial@5",
            &[("compatible", &"arm,pl011"), ("reg", &[1_u32, 5, 0x10])],
            vec![],
        ),
        node("serial@6", &[("reg", &[0_u32, 5, 0x10])], vec![]),
    ];
    let bus: [(&str, &dyn Value); 3] = [
        ("#address-cells", &2_u32),
        ("#size-cells", &1_u32),
        ("ranges", &[1_u32, 0, 0x2000, 0x100]),
    ];
    let soc: [(&str, &dyn Value); 3] = [
        ("#address-cells", &1_u32),
        ("#size-cells", &1_u32),
        (
            "ranges",
            &[0_u32, 0x4000_0000, 0x1000, 0x2000, 0x5000_0000, 0x1000],
        ),
    ];
    let pieces = [0x8000_0000_u32, 0x1000, 0x8000_1000, 0x1800];
    let mut tree = DeviceTree::new();
    tree.memory_reservations
        .push(MemoryReservation::new(0, 0x1000));
    tree.root = node(
        "",
        &[("#address-cells", &1_u32), ("#size-cells", &1_u32)],
        vec![
            node("aliases", &[("serial0", &"/soc/bus@10/serial@5")], vec![]),
            node("chosen", &[("stdout-path", &"serial0:115200n8")], vec![]),
            node(
                "memory@80000000",
                &[("device_type", &"memory"), ("reg", &pieces)],
                vec![],
            ),
            node("soc", &soc, vec![node("bus@10", &bus, serial.into())]),
        ],
    );
    tree.to_dtb()
}

#[test]
fn a_tree_is_read() {
    let bytes = tree();
    let facts = theirs::facts(&bytes);
    assert_eq!(facts.size[0], 8);
    assert_eq!(facts.banks, [facts::Piece(0x8000_0000, 0x8000_2800)]);
    assert_eq!(facts.console, Some(Ok((0x5000_0005, "pl011", 2, 4))));
    let serial = [
        ("/soc/bus@10/serial@5".to_owned(), Some(0x5000_0005)),
        ("/soc/bus@10/serial@6".to_owned(), None),
    ];
    assert_eq!(facts.serial, serial);
    assert_eq!(facts.cpus, 1);
    let totals = compare(&bytes).unwrap().unwrap().to_string();
    assert!(
        totals.starts_with(
            "1 of them different, banks: 1, bytes of banks: 10240, reserved ranges: 1,"
        ),
        "{totals}"
    );
    assert!(compare(&bytes[..100]).is_err());
}

#[test]
fn the_first_difference_is_reported() {
    let bytes = tree();
    let (one, mut other) = (theirs::facts(&bytes), theirs::facts(&bytes));
    assert_eq!(difference(&one, &other), None);
    other.reserved.clear();
    assert_eq!(
        difference(&one, &other).unwrap(),
        "ours: reserved 0x0 to 0x1000, dtoolkit's: 1 CPUs"
    );
}

#[test]
fn an_apple_machine_without_a_row_is_named() {
    let listed = |compatible: &[&str]| {
        let strings: Vec<u8> = compatible
            .iter()
            .flat_map(|name| [name.as_bytes(), b"\0"].concat())
            .collect();
        let mut tree = DeviceTree::new();
        tree.root = node("", &[("compatible", &strings.as_slice())], vec![]);
        super::listed(&ours::sound(&tree.to_dtb()).unwrap())
    };
    for known in [
        "apple,t8103",
        "apple,t8122",
        "apple,t6030",
        "apple,t6034",
        "apple,t8012",
    ] {
        assert_eq!(
            listed(&["apple,j1", known, "apple,arm-platform"]),
            Ok(()),
            "{known}"
        );
    }
    assert_eq!(listed(&["acme,board"]), Ok(()));
    let line = listed(&["apple,j999", "apple,t9999"]).unwrap_err();
    assert!(
        line.starts_with("apple,j999 is in no row of crates/granule-boot"),
        "{line}"
    );
}

#[test]
fn a_core_in_no_table_is_named() {
    let judged = |compatible: &str| {
        let cpu = node(
            "cpu@0",
            &[("device_type", &"cpu"), ("compatible", &compatible)],
            vec![],
        );
        let mut tree = DeviceTree::new();
        tree.root = node("", &[], vec![node("cpus", &[], vec![cpu])]);
        super::cores::judged(&ours::sound(&tree.to_dtb()).unwrap())
    };
    // By an erratum, by the list of CPUs that split live leaves, by judgement; of another maker.
    for core in [
        "arm,cortex-a78",
        "arm,neoverse-n3",
        "arm,cortex-a53",
        "qcom,kryo485",
        "arm,armv8",
    ] {
        assert_eq!(judged(core), Ok(()), "{core}");
    }
    let line = judged("arm,cortex-a999").unwrap_err();
    assert!(
        line.starts_with("arm,cortex-a999 is in no row of errata.rs"),
        "{line}"
    );
}
