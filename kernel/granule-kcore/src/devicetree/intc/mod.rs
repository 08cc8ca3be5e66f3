//! The interrupt controller in the device tree: its kind and the addresses of its registers. What differs by kind is
//! in a file for each, `gic` and `bcm2836`; `timer` reads the interrupt of the CPUs' timers, whose meaning depends on
//! the kind.
//!
//! Addresses are those that the CPU uses.

mod bcm2836;
mod gic;
#[cfg(test)]
mod tests;
mod timer;

pub use gic::MOST_REGIONS;
pub use timer::timer;

use super::{OwnPath, own};
use arrayvec::ArrayVec;
use core::ops::Range;
use granule_boot::tree::{Node, Tree};
use thiserror::Error;

/// An interrupt controller, with the physical addresses of its registers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the boot has one, on its stack")]
pub enum Controller {
    /// A GIC of version 2: distributor and CPU interface.
    GicV2 {
        /// The distributor.
        distributor: Range<u64>,
        /// The CPU interface.
        cpu_interface: Range<u64>,
    },
    /// A GIC of version 3 or 4: distributor and redistributors; the CPU interface is system registers.
    GicV3 {
        /// The distributor.
        distributor: Range<u64>,
        /// The regions of redistributors.
        redistributors: ArrayVec<Range<u64>, MOST_REGIONS>,
        /// The bytes from one redistributor to the next, if not those of its frames.
        stride: Option<u64>,
    },
    /// The controller of the Raspberry Pi 2 and 3, beside its cores.
    Bcm2836 {
        /// All its registers.
        registers: Range<u64>,
        /// Those of the controller behind it, which all devices share.
        shared: Option<Range<u64>>,
    },
}

/// Why there is no usable interrupt controller.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum ControllerError {
    #[error(
        "the device tree names no interrupt controller that is known (arm,gic-v3, arm,gic-400, arm,cortex-a15-gic, \
         brcm,bcm2836-l1-intc)"
    )]
    None,
    #[error("the interrupt controller {node} {1}", node = .0.text())]
    Node(OwnPath, NodeError),
}

/// Why the node of an interrupt controller cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum NodeError {
    #[error("has a reg that does not lead to addresses that the CPU can reach")]
    BadReg,
    #[error("has more than {MOST_REGIONS} redistributor regions")]
    TooManyRegions,
    #[error("has a redistributor-stride that is not a multiple of 0x10000 from 0x20000 on")]
    Stride,
}

/// The kind of the controller that a node describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControllerKind {
    GicV2,
    GicV3,
    Bcm2836,
}

/// The tree's interrupt controller.
pub fn controller(tree: &Tree<'_>) -> Result<Controller, ControllerError> {
    let (node, kind) = find(tree).ok_or(ControllerError::None)?;
    let read = match kind {
        ControllerKind::GicV2 => gic::version_2(&node),
        ControllerKind::GicV3 => gic::version_3(&node),
        ControllerKind::Bcm2836 => bcm2836::read(tree, &node),
    };
    read.map_err(|error| ControllerError::Node(own(node.path()), error))
}

/// The regions of the redistributors of the tree's GICv3, and their own stride. For use with the MMU off: it formats
/// nothing, and reads no table of names.
pub fn redistributors(
    tree: &Tree<'_>,
) -> Option<(ArrayVec<Range<u64>, MOST_REGIONS>, Option<u64>)> {
    let mut all = tree.nodes();
    let node = all.find(|node| node.is_compatible(gic::V3))?;
    match gic::version_3(&node) {
        Ok(Controller::GicV3 {
            redistributors,
            stride,
            ..
        }) => Some((redistributors, stride)),
        _ => None,
    }
}

/// The first GIC, or without one the other controller: the Raspberry Pi 4 has both, and its GIC has the interrupts.
fn find<'a>(tree: &Tree<'a>) -> Option<(Node<'a>, ControllerKind)> {
    let of = |kind: fn(&Node<'_>) -> Option<ControllerKind>| {
        let mut all = tree.nodes();
        all.find_map(|node| Some((node, kind(&node)?)))
    };
    of(gic::kind).or_else(|| of(bcm2836::kind))
}

/// The node's regions at the CPU's addresses; `None` for a region that the CPU cannot reach, that has fewer than
/// `least` bytes, or that does not begin at a multiple of them.
pub(super) fn regions<'a>(
    node: &Node<'a>,
    least: u64,
) -> Result<impl Iterator<Item = Option<Range<u64>>> + use<'a>, NodeError> {
    let regions = node.reg().ok_or(NodeError::BadReg)?;
    let node = *node;
    Ok(regions.map(move |region| {
        let region = region?;
        let start = node.to_cpu(region.start)?;
        let end = start.checked_add(region.bytes)?;
        (region.bytes >= least && start.is_multiple_of(least)).then_some(start..end)
    }))
}
