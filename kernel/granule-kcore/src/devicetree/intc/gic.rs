//! The GIC: its version, and the regions of its registers.

use super::{Controller, ControllerKind, NodeError, regions};
use arrayvec::ArrayVec;
use granule_boot::tree::Node;

/// The most redistributor regions.
pub const MOST_REGIONS: usize = 32;

/// The least size of a distributor or of a GICv2's CPU interface.
const FRAME: u64 = 0x1000;
/// The size of each frame of a GICv3.
const FRAME_3: u64 = 0x1_0000;

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
pub(super) const V3: &[u8] = b"arm,gic-v3";

/// The kind of a node that is a GIC.
pub(super) fn kind(node: &Node<'_>) -> Option<ControllerKind> {
    let compatible = node.strings(b"compatible");
    if compatible.has(V3) {
        return Some(ControllerKind::GicV3);
    }
    V2.iter()
        .any(|name| compatible.has(name))
        .then_some(ControllerKind::GicV2)
}

pub(super) fn version_2(node: &Node<'_>) -> Result<Controller, NodeError> {
    let mut regions = regions(node, FRAME)?;
    match (regions.next().flatten(), regions.next().flatten()) {
        (Some(distributor), Some(cpu_interface)) => Ok(Controller::GicV2 {
            distributor,
            cpu_interface,
        }),
        _ => Err(NodeError::BadReg),
    }
}

pub(super) fn version_3(node: &Node<'_>) -> Result<Controller, NodeError> {
    let stride = match node.property(b"redistributor-stride") {
        None => None,
        Some(_) => {
            let stride = node.number(b"redistributor-stride");
            // A redistributor has two frames, and the binding demands whole ones.
            let fits = |stride: &u64| *stride >= 2 * FRAME_3 && stride.is_multiple_of(FRAME_3);
            Some(stride.filter(fits).ok_or(NodeError::Stride)?)
        }
    };
    let count = match node.property(b"#redistributor-regions") {
        None => 1,
        Some(_) => node
            .number(b"#redistributor-regions")
            .ok_or(NodeError::BadReg)?,
    };
    let mut regions = regions(node, FRAME)?;
    let distributor = regions.next().flatten().ok_or(NodeError::BadReg)?;
    let mut redistributors = ArrayVec::new();
    for _ in 0..count {
        let region = regions.next().flatten().ok_or(NodeError::BadReg)?;
        redistributors
            .try_push(region)
            .map_err(|_| NodeError::TooManyRegions)?;
    }
    if redistributors.is_empty() {
        return Err(NodeError::BadReg);
    }
    Ok(Controller::GicV3 {
        distributor,
        redistributors,
        stride,
    })
}
