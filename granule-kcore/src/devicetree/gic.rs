//! The interrupt controller in the device tree: its version and the addresses of its registers.
//!
//! Addresses are those that the CPU uses.

use super::{OwnPath, own};
use arrayvec::ArrayVec;
use core::fmt;
use core::ops::Range;
use granule_boot::tree::{Node, Tree};

/// The most redistributor regions.
pub const MOST_REGIONS: usize = 32;

/// The least size of a distributor or of a GICv2's CPU interface.
const FRAME: u64 = 0x1000;

/// Compatible strings of controllers that are driven as a GICv2.
const V2: [&[u8]; 7] = [
    b"arm,gic-400",
    b"arm,cortex-a15-gic",
    b"arm,cortex-a9-gic",
    b"arm,cortex-a7-gic",
    b"arm,pl390",
    b"qcom,msm-8660-qgic",
    b"qcom,msm-qgic2",
];

/// The compatible string of version 3 and later.
const V3: &[u8] = b"arm,gic-v3";

/// A GIC, with the physical addresses of its registers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the boot has one, on its stack")]
pub enum Gic {
    /// Version 2: distributor and CPU interface.
    V2 {
        /// The distributor.
        distributor: Range<u64>,
        /// The CPU interface.
        cpu_interface: Range<u64>,
    },
    /// Version 3 or 4: distributor and redistributors; the CPU interface is system registers.
    V3 {
        /// The distributor.
        distributor: Range<u64>,
        /// The regions of redistributors.
        redistributors: ArrayVec<Range<u64>, MOST_REGIONS>,
    },
}

/// Why there is no usable GIC.
#[derive(Clone, Debug)]
pub enum GicTreeError {
    /// No node is compatible with a GIC.
    None,
    /// This node is one, and cannot be used.
    Node(OwnPath, GicNodeError),
}

/// Why the node of a GIC cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GicNodeError {
    /// A `reg`, or the `ranges` of a bus above it, cannot be read or leads nowhere.
    BadReg,
    /// The GIC has more redistributor regions than there is room for.
    TooManyRegions,
    /// The GIC has its own `redistributor-stride`.
    Stride,
}

impl fmt::Display for GicTreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(
                "the device tree names no interrupt controller that is known (arm,gic-v3, arm,gic-400, arm,cortex-a15-gic)",
            ),
            Self::Node(node, error) => {
                write!(f, "the interrupt controller {} {error}", node.text())
            }
        }
    }
}

impl fmt::Display for GicNodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadReg => {
                f.write_str("has a reg that does not lead to addresses that the CPU can reach")
            }
            Self::TooManyRegions => write!(f, "has more than {MOST_REGIONS} redistributor regions"),
            Self::Stride => f.write_str("has a redistributor-stride, which is not supported"),
        }
    }
}

/// The tree's GIC: the first node that is one.
pub fn gic(tree: &Tree<'_>) -> Result<Gic, GicTreeError> {
    let node = node(tree).ok_or(GicTreeError::None)?;
    let gic = if node.is_compatible(V3) {
        version_3(&node)
    } else {
        version_2(&node)
    };
    gic.map_err(|error| GicTreeError::Node(own(node.path()), error))
}

fn node<'a>(tree: &Tree<'a>) -> Option<Node<'a>> {
    let is_gic = |node: &Node<'_>| {
        let compatible = node.strings(b"compatible");
        compatible.has(V3) || V2.iter().any(|name| compatible.has(name))
    };
    tree.nodes().find(is_gic)
}

/// The interrupt number of the physical timer of a kernel at EL1, or at EL2 with VHE: a private
/// interrupt of each CPU.
///
/// `interrupts` of the timer's node names five interrupts. The second is the physical timer of the
/// Non-secure state, the fourth that of EL2. Each takes as many cells as the interrupt controller
/// says: kind (1 is private), number among its kind, flags.
pub fn timer(tree: &Tree<'_>, at_el2: bool) -> Option<u32> {
    let timer = tree
        .root()?
        .children()
        .find(|node| node.is_compatible(b"arm,armv8-timer"))?;
    let cells = match node(tree) {
        Some(gic) => gic.number(b"#interrupt-cells")?,
        None => 3,
    };
    let which: usize = if at_el2 { 3 } else { 1 };
    let (words, _) = timer.property(b"interrupts")?.as_chunks::<4>();
    let interrupt = words.get(which.checked_mul(usize::try_from(cells).ok()?)?..)?;
    let [kind, number, ..] = *interrupt else {
        return None;
    };
    let number = u32::from_be_bytes(number);
    // Private interrupts are 16 to 31.
    (u32::from_be_bytes(kind) == 1 && number < 16).then(|| 16 + number)
}

fn version_2(node: &Node<'_>) -> Result<Gic, GicNodeError> {
    let mut regions = regions(node)?;
    match (regions.next().flatten(), regions.next().flatten()) {
        (Some(distributor), Some(cpu_interface)) => Ok(Gic::V2 {
            distributor,
            cpu_interface,
        }),
        _ => Err(GicNodeError::BadReg),
    }
}

fn version_3(node: &Node<'_>) -> Result<Gic, GicNodeError> {
    if node.property(b"redistributor-stride").is_some() {
        return Err(GicNodeError::Stride);
    }
    let count = match node.property(b"#redistributor-regions") {
        None => 1,
        Some(_) => node
            .number(b"#redistributor-regions")
            .ok_or(GicNodeError::BadReg)?,
    };
    let mut regions = regions(node)?;
    let distributor = regions.next().flatten().ok_or(GicNodeError::BadReg)?;
    let mut redistributors = ArrayVec::new();
    for _ in 0..count {
        let region = regions.next().flatten().ok_or(GicNodeError::BadReg)?;
        redistributors
            .try_push(region)
            .map_err(|_| GicNodeError::TooManyRegions)?;
    }
    if redistributors.is_empty() {
        return Err(GicNodeError::BadReg);
    }
    Ok(Gic::V3 {
        distributor,
        redistributors,
    })
}

/// The node's regions at the CPU's addresses; `None` for a region that the CPU cannot reach.
fn regions<'a>(
    node: &Node<'a>,
) -> Result<impl Iterator<Item = Option<Range<u64>>> + use<'a>, GicNodeError> {
    let regions = node.reg().ok_or(GicNodeError::BadReg)?;
    let node = *node;
    Ok(regions.map(move |region| {
        let region = region?;
        let start = node.to_cpu(region.start)?;
        let end = start.checked_add(region.bytes)?;
        (region.bytes >= FRAME && start.is_multiple_of(FRAME)).then_some(start..end)
    }))
}

#[cfg(test)]
mod tests {
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
    fn read(children: Vec<DeviceTreeNode>) -> Result<Gic, GicNodeError> {
        let mut tree = DeviceTree::new();
        tree.root = node("", &two_cells(), children);
        let bytes = tree.to_dtb();
        gic(&Tree::new(&bytes).unwrap()).map_err(|error| {
            let line = error.to_string();
            let GicTreeError::Node(_, error) = error else {
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
        let Ok(Gic::V3 {
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
            Ok(Gic::V2 {
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
        let Ok(Gic::V3 {
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
        assert_eq!(made, Err(GicNodeError::BadReg));
        // No ranges: the CPU cannot reach it.
        let made = read(vec![node("soc", &bus[1..], vec![v3(&[], &reg)])]);
        assert_eq!(made, Err(GicNodeError::BadReg));
        // Empty ranges: the same addresses.
        bus[0].1.clear();
        let made = read(vec![node("soc", &bus, vec![v3(&[], &reg)])]);
        assert!(matches!(made, Ok(Gic::V3 { distributor, .. }) if distributor.start == 0x800_0000));
    }

    #[test]
    fn an_unusable_interrupt_controller_is_refused_with_the_reason() {
        let none = DeviceTree::new().to_dtb();
        let none = gic(&Tree::new(&none).unwrap());
        assert!(matches!(none, Err(GicTreeError::None)), "{none:?}");
        assert_eq!(read(vec![v3(&[], &VIRT[..4])]), Err(GicNodeError::BadReg));
        assert_eq!(read(vec![v3(&[], &VIRT[..7])]), Err(GicNodeError::BadReg));
        let regions = |n| [("#redistributor-regions", cells(&[n]))];
        assert_eq!(
            read(vec![v3(&regions(2), &VIRT)]),
            Err(GicNodeError::BadReg)
        );
        assert_eq!(
            read(vec![v3(&regions(0), &VIRT)]),
            Err(GicNodeError::BadReg)
        );
        let many: Vec<u32> = VIRT
            .iter()
            .copied()
            .cycle()
            .take(4 * (MOST_REGIONS + 2))
            .collect();
        assert_eq!(
            read(vec![v3(&regions(MOST_REGIONS as u32 + 1), &many)]),
            Err(GicNodeError::TooManyRegions)
        );
        let stride = [("redistributor-stride", cells(&[0, 0x4_0000]))];
        assert_eq!(read(vec![v3(&stride, &VIRT)]), Err(GicNodeError::Stride));
        let odd = [0, 0x800_0004, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000];
        assert_eq!(read(vec![v3(&[], &odd)]), Err(GicNodeError::BadReg));
        let no_reg = node("intc", &[("compatible", b"arm,gic-v3\0".to_vec())], vec![]);
        assert_eq!(read(vec![no_reg]), Err(GicNodeError::BadReg));
    }

    fn timer_of(interrupts: &[u32], interrupt_cells: u32, at_el2: bool) -> Option<u32> {
        let mut tree = DeviceTree::new();
        let gic = v3(&[("#interrupt-cells", cells(&[interrupt_cells]))], &VIRT);
        let properties = [
            ("compatible", b"arm,armv8-timer\0".to_vec()),
            ("interrupts", cells(interrupts)),
        ];
        tree.root = node(
            "",
            &two_cells(),
            vec![node("timer", &properties, vec![]), gic],
        );
        let bytes = tree.to_dtb();
        timer(&Tree::new(&bytes).unwrap(), at_el2)
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
}
