//! Trees with interrupt controllers, as the kernel meets them, and broken ones.

use super::*;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

fn node(
    name: &str,
    properties: &[(&str, Vec<u8>)],
    children: Vec<DeviceTreeNode>,
) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new(name).unwrap();
    for (name, value) in properties {
        node.add_property(DeviceTreeProperty::new(*name, value.clone()).unwrap());
    }
    for child in children {
        node.add_child(child);
    }
    node
}

fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

fn two_cells() -> [(&'static str, Vec<u8>); 2] {
    [
        ("#address-cells", cells(&[2])),
        ("#size-cells", cells(&[2])),
    ]
}

/// The GIC; an error must name its node.
fn read(children: Vec<DeviceTreeNode>) -> Result<Controller, NodeError> {
    let mut tree = DeviceTree::new();
    tree.root = node("", &two_cells(), children);
    let bytes = tree.to_dtb();
    controller(&Tree::new(&bytes).unwrap()).map_err(|error| {
        let line = error.to_string();
        let ControllerError::Node(_, error) = error else {
            panic!("{line}");
        };
        let paths = ["/intc@8000000", "/soc/intc@8000000", "/intc"];
        let line_of = |path| format!("the interrupt controller {path} {error}");
        assert!(paths.map(line_of).contains(&line), "{line}");
        error
    })
}

fn v3(more: &[(&str, Vec<u8>)], reg: &[u32]) -> DeviceTreeNode {
    let mut properties = vec![
        ("compatible", b"arm,gic-v3\0".to_vec()),
        ("reg", cells(reg)),
    ];
    properties.extend_from_slice(more);
    node("intc@8000000", &properties, vec![])
}

const VIRT: [u32; 8] = [0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000];

#[test]
fn qemu_s_two_are_found() {
    let made = read(vec![v3(&[("#redistributor-regions", cells(&[1]))], &VIRT)]);
    let Ok(Controller::GicV3 {
        distributor,
        redistributors,
    }) = made
    else {
        panic!("{made:?}");
    };
    assert_eq!(distributor, 0x800_0000..0x801_0000);
    assert!(redistributors.iter().eq([&(0x80a_0000..0x900_0000)]));
    let reg = cells(&[0, 0x800_0000, 0, 0x1_0000, 0, 0x801_0000, 0, 0x1_0000]);
    let v2 = node(
        "intc@8000000",
        &[
            ("compatible", b"arm,cortex-a15-gic\0".to_vec()),
            ("reg", reg),
        ],
        vec![],
    );
    assert_eq!(
        read(vec![node("chosen", &[], vec![]), v2]),
        Ok(Controller::GicV2 {
            distributor: 0x800_0000..0x801_0000,
            cpu_interface: 0x801_0000..0x802_0000,
        })
    );
}

#[test]
fn a_gic_on_a_bus_is_where_the_ranges_say() {
    let mut bus = vec![("ranges", cells(&[0x800_0000, 1, 0x800_0000, 0x1000_0000]))];
    bus.extend([
        ("#address-cells", cells(&[1])),
        ("#size-cells", cells(&[1])),
    ]);
    let reg = [0x800_0000, 0x1_0000, 0x80a_0000, 0x4_0000];
    let made = read(vec![node("soc", &bus, vec![v3(&[], &reg)])]);
    let Ok(Controller::GicV3 {
        distributor,
        redistributors,
    }) = made
    else {
        panic!("{made:?}");
    };
    assert_eq!(distributor, 0x1_0800_0000..0x1_0801_0000);
    assert!(redistributors.iter().eq([&(0x1_080a_0000..0x1_080e_0000)]));
    let outside = [0x2800_0000, 0x1_0000, 0x280a_0000, 0x4_0000];
    let made = read(vec![node("soc", &bus, vec![v3(&[], &outside)])]);
    assert_eq!(made, Err(NodeError::BadReg));
    // No ranges: the CPU cannot reach it.
    let made = read(vec![node("soc", &bus[1..], vec![v3(&[], &reg)])]);
    assert_eq!(made, Err(NodeError::BadReg));
    // Empty ranges: the same addresses.
    bus[0].1.clear();
    let made = read(vec![node("soc", &bus, vec![v3(&[], &reg)])]);
    assert!(
        matches!(made, Ok(Controller::GicV3 { distributor, .. }) if distributor.start == 0x800_0000)
    );
}

#[test]
fn an_unusable_interrupt_controller_is_refused_with_the_reason() {
    let none = DeviceTree::new().to_dtb();
    let none = controller(&Tree::new(&none).unwrap());
    assert!(matches!(none, Err(ControllerError::None)), "{none:?}");
    assert_eq!(read(vec![v3(&[], &VIRT[..4])]), Err(NodeError::BadReg));
    assert_eq!(read(vec![v3(&[], &VIRT[..7])]), Err(NodeError::BadReg));
    let regions = |n| [("#redistributor-regions", cells(&[n]))];
    assert_eq!(read(vec![v3(&regions(2), &VIRT)]), Err(NodeError::BadReg));
    assert_eq!(read(vec![v3(&regions(0), &VIRT)]), Err(NodeError::BadReg));
    let many: Vec<u32> = VIRT
        .iter()
        .copied()
        .cycle()
        .take(4 * (MOST_REGIONS + 2))
        .collect();
    assert_eq!(
        read(vec![v3(&regions(MOST_REGIONS as u32 + 1), &many)]),
        Err(NodeError::TooManyRegions)
    );
    let stride = [("redistributor-stride", cells(&[0, 0x4_0000]))];
    assert_eq!(read(vec![v3(&stride, &VIRT)]), Err(NodeError::Stride));
    let odd = [0, 0x800_0004, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000];
    assert_eq!(read(vec![v3(&[], &odd)]), Err(NodeError::BadReg));
    let no_reg = node("intc", &[("compatible", b"arm,gic-v3\0".to_vec())], vec![]);
    assert_eq!(read(vec![no_reg]), Err(NodeError::BadReg));
}

/// The Raspberry Pi 3's, on its bus.
fn pi_3(more: &[(&str, Vec<u8>)], reg: &[u32]) -> DeviceTreeNode {
    pi_3_behind(vec![], more, reg)
}

/// Likewise, behind other nodes.
fn pi_3_behind(
    mut nodes: Vec<DeviceTreeNode>,
    more: &[(&str, Vec<u8>)],
    reg: &[u32],
) -> DeviceTreeNode {
    let mut properties = vec![
        ("compatible", b"brcm,bcm2836-l1-intc\0".to_vec()),
        ("reg", cells(reg)),
    ];
    properties.extend_from_slice(more);
    let bus = [
        ("ranges", cells(&[0x4000_0000, 0, 0x4000_0000, 0x1000])),
        ("#address-cells", cells(&[1])),
        ("#size-cells", cells(&[1])),
    ];
    nodes.push(node("intc@8000000", &properties, vec![]));
    node("soc", &bus, nodes)
}

fn takes_interrupts() -> [(&'static str, Vec<u8>); 2] {
    [
        ("interrupt-controller", vec![]),
        ("#interrupt-cells", cells(&[2])),
    ]
}

#[test]
fn the_raspberry_pi_3_s_is_found() {
    let reg = [0x4000_0000, 0x100];
    assert_eq!(
        read(vec![pi_3(&takes_interrupts(), &reg)]),
        Ok(Controller::Bcm2836 {
            registers: 0x4000_0000..0x4000_0100,
            shared: None,
        })
    );
    let behind = |reg: &[u32]| {
        let compatible = b"brcm,bcm2836-armctrl-ic\0".to_vec();
        let properties = [("compatible", compatible), ("reg", cells(reg))];
        node("interrupt-controller@7e00b200", &properties, vec![])
    };
    for (at, shared) in [
        ([0x4000_0200, 0x200], Some(0x4000_0200..0x4000_0400)),
        // One that cannot be used is none: nothing else needs it.
        ([0x4000_0200, 0x1fc], None),
        ([0x5000_0200, 0x200], None),
    ] {
        let bus = pi_3_behind(vec![behind(&at)], &takes_interrupts(), &reg);
        let registers = 0x4000_0000..0x4000_0100;
        let expected = Controller::Bcm2836 { registers, shared };
        assert_eq!(read(vec![bus]), Ok(expected));
    }
    for reg in [&reg[..1], &[0x4000_0000, 0xff], &[0x4000_0080, 0x100]] {
        let made = read(vec![pi_3(&takes_interrupts(), reg)]);
        assert_eq!(made, Err(NodeError::BadReg), "{reg:x?}");
    }
}

#[test]
fn a_gic_has_the_interrupts_where_both_are() {
    let reg = [0x4000_0000, 0x100];
    let made = read(vec![pi_3(&takes_interrupts(), &reg), v3(&[], &VIRT)]);
    assert!(matches!(made, Ok(Controller::GicV3 { .. })), "{made:?}");
    // The Raspberry Pi 4's node, which is none.
    let mut tree = DeviceTree::new();
    tree.root = node("", &two_cells(), vec![pi_3(&[], &reg)]);
    let bytes = tree.to_dtb();
    let none = controller(&Tree::new(&bytes).unwrap());
    assert!(matches!(none, Err(ControllerError::None)), "{none:?}");
}

fn timer_of(interrupts: &[u32], interrupt_cells: u32, at_el2: bool) -> Option<u32> {
    let gic = v3(&[("#interrupt-cells", cells(&[interrupt_cells]))], &VIRT);
    timer_with(gic, "arm,armv8-timer", interrupts, at_el2)
}

fn timer_with(
    controller: DeviceTreeNode,
    compatible: &str,
    interrupts: &[u32],
    at_el2: bool,
) -> Option<u32> {
    let mut tree = DeviceTree::new();
    let properties = [
        ("compatible", format!("{compatible}\0").into_bytes()),
        ("interrupts", cells(interrupts)),
    ];
    let timer_node = node("timer", &properties, vec![]);
    tree.root = node("", &two_cells(), vec![timer_node, controller]);
    let bytes = tree.to_dtb();
    timer(&Tree::new(&bytes).unwrap(), at_el2)
}

#[test]
fn the_raspberry_pi_3_s_timer_has_a_number_and_flags() {
    let of = |interrupts: &[u32], at_el2| {
        let controller = pi_3(&takes_interrupts(), &[0x4000_0000, 0x100]);
        timer_with(controller, "arm,armv7-timer", interrupts, at_el2)
    };
    let pi = [0, 4, 1, 4, 3, 4, 2, 4];
    assert_eq!(of(&pi, false), Some(1));
    assert_eq!(of(&pi, true), Some(2));
    assert_eq!(of(&pi[..6], true), None);
    // The Secure state's, a mailbox's, none.
    for number in [0, 4, u32::MAX] {
        assert_eq!(of(&[0, 4, number, 4], false), None, "{number}");
    }
}

#[test]
fn the_timer_s_interrupt_is_that_of_the_level() {
    // As in QEMU: secure, physical, virtual, hypervisor.
    let qemu = [1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4];
    assert_eq!(timer_of(&qemu, 3, false), Some(30));
    assert_eq!(timer_of(&qemu, 3, true), Some(26));
    // A fourth cell names the CPUs.
    let wide = [1, 13, 4, 9, 1, 14, 4, 9, 1, 11, 4, 9, 1, 10, 4, 9];
    assert_eq!(timer_of(&wide, 4, false), Some(30));
    assert_eq!(timer_of(&wide, 4, true), Some(26));
}

#[test]
fn a_timer_that_is_no_private_interrupt_is_none() {
    for (interrupts, cells) in [
        (&[][..], 3),
        (&[1, 13, 4], 3),
        (&[1, 13, 4, 0, 14, 4], 3),
        (&[1, 13, 4, 1, 16, 4], 3),
        (&[1, 13, 4, 1, u32::MAX, 4], 3),
        (&[1, 13, 4, 1], 3),
        (&[1, 13, 4, 1, 14, 4], u32::MAX),
    ] {
        assert_eq!(timer_of(interrupts, cells, false), None, "{interrupts:?}");
    }
}
