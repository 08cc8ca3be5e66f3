//! The interrupt controller of the Raspberry Pi 2 and 3. Its registers are in `granule_kcore::bcm2836`.

use super::{Controller, ControllerKind, NodeError, regions};
use crate::bcm2836::{BYTES, SHARED_BYTES};
use core::ops::Range;
use granule_boot::tree::{Node, Tree};

/// The kind of a node that is one. The tree of the Raspberry Pi 4 names the same registers for other uses, with
/// a node that is not an interrupt controller.
pub(super) fn kind(node: &Node<'_>) -> Option<ControllerKind> {
    let takes_interrupts = node.property(b"interrupt-controller").is_some();
    (takes_interrupts && node.is_compatible(b"brcm,bcm2836-l1-intc"))
        .then_some(ControllerKind::Bcm2836)
}

pub(super) fn read(tree: &Tree<'_>, node: &Node<'_>) -> Result<Controller, NodeError> {
    let registers = regions(node, BYTES)?.next().flatten();
    let registers = registers.ok_or(NodeError::BadReg)?;
    let shared = shared(tree);
    Ok(Controller::Bcm2836 { registers, shared })
}

/// The registers of the controller of the devices' interrupts, if the tree has it.
fn shared(tree: &Tree<'_>) -> Option<Range<u64>> {
    let mut all = tree.nodes();
    let node = all.find(|node| node.is_compatible(b"brcm,bcm2836-armctrl-ic"))?;
    regions(&node, SHARED_BYTES).ok()?.next().flatten()
}
