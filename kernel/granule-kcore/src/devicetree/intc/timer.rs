//! The interrupt of the CPUs' timers, as the driver of the interrupt controller numbers it.

use super::{ControllerKind, find};
use crate::bcm2836;
use granule_boot::tree::Tree;

/// The private interrupt of the physical timer of a kernel at EL1, or at EL2 with VHE.
///
/// `interrupts` of the timer's node names up to five interrupts. The second is the physical timer of the
/// Non-secure state, the fourth that of EL2. Each takes the number of cells that the interrupt controller
/// gives. A GIC's are kind (1 is private), number among its kind, flags; those of the other
/// controller are number and flags.
pub fn timer(tree: &Tree<'_>, at_el2: bool) -> Option<u32> {
    // Trees that also serve kernels of 32 bits name the older timer, which is described likewise.
    let timer = tree.root()?.children().find(|node| {
        let compatible = node.strings(b"compatible");
        compatible.has(b"arm,armv8-timer") || compatible.has(b"arm,armv7-timer")
    })?;
    let (cells, kind) = match find(tree) {
        Some((node, kind)) => (node.number(b"#interrupt-cells")?, kind),
        None => (3, ControllerKind::GicV3),
    };
    let which: usize = if at_el2 { 3 } else { 1 };
    let (words, _) = timer.property(b"interrupts")?.as_chunks::<4>();
    let interrupt = words.get(which.checked_mul(usize::try_from(cells).ok()?)?..)?;
    match (kind, interrupt) {
        (ControllerKind::GicV2 | ControllerKind::GicV3, [kind, number, ..]) => {
            let number = u32::from_be_bytes(*number);
            // Private interrupts are 16 to 31.
            (u32::from_be_bytes(*kind) == 1 && number < 16).then(|| 16 + number)
        }
        (ControllerKind::Bcm2836, [number, ..]) => {
            let number = u32::from_be_bytes(*number);
            // A level's own timer is never the first, which is that of the Secure state.
            (number != 0 && bcm2836::is_timer(number)).then_some(number)
        }
        _ => None,
    }
}
