//! Trees with interrupt controllers, as the kernel meets them, and broken ones.

use super::*;
use crate::made_trees::{ONE_CELL, Properties, TWO_CELLS, cells, node, tree};
use dtoolkit::model::DeviceTreeNode;

fn with_root(children: impl IntoIterator<Item = DeviceTreeNode>) -> Vec<u8> {
    tree(node("", &TWO_CELLS, children), &[])
}

/// The controller; an error must name its node.
fn read(child: DeviceTreeNode) -> Result<Controller, NodeError> {
    read_all([child])
}

fn read_all(children: impl IntoIterator<Item = DeviceTreeNode>) -> Result<Controller, NodeError> {
    controller(&Tree::new(&with_root(children)).unwrap()).map_err(|error| {
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

fn v3(more: Properties<'_>, reg: &[u32]) -> DeviceTreeNode {
    let reg = cells(reg);
    let own = [("compatible", &b"arm,gic-v3\0"[..]), ("reg", &reg)];
    node("intc@8000000", &[&own, more].concat(), [])
}

/// A GICv3 with one region of redistributors.
fn v3_with(distributor: Range<u64>, redistributor: Range<u64>) -> Result<Controller, NodeError> {
    let redistributors = ArrayVec::from_iter([redistributor]);
    Ok(Controller::GicV3 {
        distributor,
        redistributors,
        stride: None,
    })
}

const VIRT: [u32; 8] = [0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000];

#[test]
fn both_controllers_of_qemu_are_found() {
    let made = read(v3(&[("#redistributor-regions", &[0, 0, 0, 1])], &VIRT));
    assert_eq!(
        made,
        v3_with(0x800_0000..0x801_0000, 0x80a_0000..0x900_0000)
    );
    let reg = cells(&[0, 0x800_0000, 0, 0x1_0000, 0, 0x801_0000, 0, 0x1_0000]);
    let compatible = b"arm,cortex-a15-gic\0";
    let properties = [("compatible", &compatible[..]), ("reg", &reg)];
    let v2 = node("intc@8000000", &properties, []);
    assert_eq!(
        read_all([node("chosen", &[], []), v2]),
        Ok(Controller::GicV2 {
            distributor: 0x800_0000..0x801_0000,
            cpu_interface: 0x801_0000..0x802_0000,
        })
    );
}

#[test]
fn a_gic_on_a_bus_is_where_the_ranges_say() {
    let on_bus = |ranges: Option<&[u32]>, reg: &[u32]| {
        let ranges = ranges.map(cells);
        let ranges = ranges.iter().map(|ranges| ("ranges", &ranges[..]));
        let bus: Vec<_> = ONE_CELL.into_iter().chain(ranges).collect();
        read(node("soc", &bus, [v3(&[], reg)]))
    };
    let reg = [0x800_0000, 0x1_0000, 0x80a_0000, 0x4_0000];
    let high: &[u32] = &[0x800_0000, 1, 0x800_0000, 0x1000_0000];
    let there = v3_with(0x1_0800_0000..0x1_0801_0000, 0x1_080a_0000..0x1_080e_0000);
    assert_eq!(on_bus(Some(high), &reg), there);
    let outside = [0x2800_0000, 0x1_0000, 0x280a_0000, 0x4_0000];
    assert_eq!(on_bus(Some(high), &outside), Err(NodeError::BadReg));
    // No ranges: the CPU cannot reach it. Empty ranges: the same addresses.
    assert_eq!(on_bus(None, &reg), Err(NodeError::BadReg));
    let same = v3_with(0x800_0000..0x801_0000, 0x80a_0000..0x80e_0000);
    assert_eq!(on_bus(Some(&[]), &reg), same);
}

/// The property has one cell or two. Its binding demands whole frames of 64K; a redistributor has two.
#[test]
fn a_stride_is_taken_as_its_binding_defines_it() {
    for (value, expected) in [
        (&[0x2_0000][..], Some(0x2_0000)),
        (&[0, 0x2_0000], Some(0x2_0000)),
        (&[0, 0x3_0000], Some(0x3_0000)),
        (&[1, 0], Some(1 << 32)),
        (&[0, 0], None),
        (&[0x1_0000], None),
        (&[0x2_1000], None),
        (&[0, 0, 0x2_0000], None),
        (&[], None),
    ] {
        let made = read(v3(&[("redistributor-stride", &cells(value))], &VIRT));
        match made {
            Ok(Controller::GicV3 { stride, .. }) => assert_eq!(stride, expected, "{value:x?}"),
            refused => assert_eq!((refused, expected), (Err(NodeError::Stride), None)),
        }
    }
}

/// A tree in which no node is an interrupt controller that is known.
fn assert_none(tree: &[u8]) {
    let none = controller(&Tree::new(tree).unwrap());
    assert!(matches!(none, Err(ControllerError::None)), "{none:?}");
}

#[test]
fn an_unusable_interrupt_controller_is_refused_with_the_reason() {
    assert_none(&tree(node("", &[], []), &[]));
    let regions = |count: u32| count.to_be_bytes();
    let many: Vec<u32> = VIRT.repeat(MOST_REGIONS / 2 + 1);
    let odd = [0, 0x800_0004, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000];
    let most = regions(MOST_REGIONS as u32 + 1);
    const REGIONS: &str = "#redistributor-regions";
    for (more, reg, error) in [
        (&[][..], &VIRT[..4], NodeError::BadReg),
        (&[], &VIRT[..7], NodeError::BadReg),
        (&[(REGIONS, &regions(2)[..])], &VIRT, NodeError::BadReg),
        (&[(REGIONS, &regions(0))], &VIRT, NodeError::BadReg),
        (&[(REGIONS, &most)], &many, NodeError::TooManyRegions),
        (&[], &odd, NodeError::BadReg),
    ] {
        assert_eq!(read(v3(more, reg)), Err(error), "{more:?} {reg:x?}");
    }
    let no_reg = node("intc", &[("compatible", b"arm,gic-v3\0")], []);
    assert_eq!(read(no_reg), Err(NodeError::BadReg));
}

/// The Raspberry Pi 3's, on its bus, behind other nodes.
fn pi_3(
    behind: impl IntoIterator<Item = DeviceTreeNode>,
    more: Properties<'_>,
    reg: &[u32],
) -> DeviceTreeNode {
    let reg = cells(reg);
    let own = [
        ("compatible", &b"brcm,bcm2836-l1-intc\0"[..]),
        ("reg", &reg),
    ];
    let ranges = cells(&[0x4000_0000, 0, 0x4000_0000, 0x1000]);
    let bus = [&ONE_CELL[..], &[("ranges", &ranges)]].concat();
    let intc = node("intc@8000000", &[&own, more].concat(), []);
    node("soc", &bus, behind.into_iter().chain([intc]))
}

const TAKES_INTERRUPTS: [(&str, &[u8]); 2] = [
    ("interrupt-controller", &[]),
    ("#interrupt-cells", &[0, 0, 0, 2]),
];

const PI_3: [u32; 2] = [0x4000_0000, 0x100];

#[test]
fn the_controller_of_the_raspberry_pi_3_is_found() {
    let made = |behind: Option<&[u32]>| {
        let behind = behind.map(|reg| {
            let (compatible, reg) = (b"brcm,bcm2836-armctrl-ic\0", cells(reg));
            let properties = [("compatible", &compatible[..]), ("reg", &reg)];
            node("interrupt-controller@7e00b200", &properties, [])
        });
        read(pi_3(behind, &TAKES_INTERRUPTS, &PI_3))
    };
    for (behind, shared) in [
        (None, None),
        (
            Some(&[0x4000_0200, 0x200][..]),
            Some(0x4000_0200..0x4000_0400),
        ),
        // One that cannot be used is none: nothing else needs it.
        (Some(&[0x4000_0200, 0x1fc]), None),
        (Some(&[0x5000_0200, 0x200]), None),
    ] {
        let registers = 0x4000_0000..0x4000_0100;
        let expected = Controller::Bcm2836 { registers, shared };
        assert_eq!(made(behind), Ok(expected), "{behind:x?}");
    }
    for reg in [&PI_3[..1], &[0x4000_0000, 0xff], &[0x4000_0080, 0x100]] {
        let made = read(pi_3([], &TAKES_INTERRUPTS, reg));
        assert_eq!(made, Err(NodeError::BadReg), "{reg:x?}");
    }
}

#[test]
fn a_gic_has_the_interrupts_where_both_are() {
    let made = read_all([pi_3([], &TAKES_INTERRUPTS, &PI_3), v3(&[], &VIRT)]);
    assert!(matches!(made, Ok(Controller::GicV3 { .. })), "{made:?}");
    // The Raspberry Pi 4's node, which is none.
    assert_none(&with_root([pi_3([], &[], &PI_3)]));
}

fn timer_of(interrupts: &[u32], interrupt_cells: u32, at_el2: bool) -> Option<u32> {
    let gic = v3(
        &[("#interrupt-cells", &interrupt_cells.to_be_bytes())],
        &VIRT,
    );
    timer_with(gic, b"arm,armv8-timer\0", interrupts, at_el2)
}

fn timer_with(
    controller: DeviceTreeNode,
    compatible: &[u8],
    interrupts: &[u32],
    at_el2: bool,
) -> Option<u32> {
    let interrupts = cells(interrupts);
    let properties = [("compatible", compatible), ("interrupts", &interrupts)];
    let tree = with_root([node("timer", &properties, []), controller]);
    timer(&Tree::new(&tree).unwrap(), at_el2)
}

#[test]
fn the_timer_of_the_raspberry_pi_3_has_a_number_and_flags() {
    let of = |interrupts: &[u32], at_el2| {
        let controller = pi_3([], &TAKES_INTERRUPTS, &PI_3);
        timer_with(controller, b"arm,armv7-timer\0", interrupts, at_el2)
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
fn the_timer_interrupt_is_that_of_the_exception_level() {
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
