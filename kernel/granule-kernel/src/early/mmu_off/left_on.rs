//! Devices that write memory and that the last owner of the machine left on. They are looked at before this kernel uses
//! any memory: LPIs are turned off, and SMMUs are reported, because the devices behind one that is turned off would write
//! elsewhere. No code here drives other devices, so whoever ran before must have stopped them.

use crate::handover::LeftOn;
use granule_boot::tree::{Node, Tree};
use granule_kcore::devicetree::intc;

/// Bytes of a redistributor's two frames.
const FRAMES: u64 = 0x2_0000;
/// GICR_CTLR, its EnableLPIs and its RWP: a write is pending.
const CTLR: u64 = 0;
const ENABLE_LPIS: u32 = 1;
const WRITES: u32 = 1 << 3;
/// The lower half of GICR_TYPER, with its PLPIS, VLPIS and Last.
const TYPER: u64 = 8;
const HAS_LPIS: u32 = 1;
const HAS_VIRTUAL_LPIS: u32 = 1 << 1;
const LAST: u32 = 1 << 4;
/// The most reads until a redistributor has finished a write.
const PATIENCE: u32 = 1_000_000;

/// SMMU_CR0 of an SMMUv3, and its SMMUEN.
const SMMU_CR0: u64 = 0x20;
const SMMU_ENABLED: u32 = 1;

/// Turns off and counts what is on. `limit` is the end of the physical addresses.
pub(super) fn stop(tree: &Tree<'_>, limit: u64) -> LeftOn {
    let mut left_on = LeftOn::default();
    let smmus = tree.nodes().filter(|node| {
        // One with a power domain of its own may be off, and then does not answer.
        node.is_compatible(b"arm,smmu-v3") && node.property(b"power-domains").is_none()
    });
    for smmu in smmus.filter(Node::is_usable) {
        let first = smmu.reg().and_then(|mut reg| reg.next().flatten());
        let start = first.and_then(|first| smmu.to_cpu(first.start));
        let start = start.filter(|start| start & 3 == 0 && *start < limit);
        if start.is_some_and(|start| read(start.wrapping_add(SMMU_CR0)) & SMMU_ENABLED != 0) {
            left_on.smmus = left_on.smmus.wrapping_add(1);
        }
    }
    let Some((regions, stride)) = intc::redistributors(tree) else {
        return left_on;
    };
    for region in regions.iter().filter(|region| region.end <= limit) {
        let mut at = region.start;
        while at < region.end && region.end.wrapping_sub(at) >= FRAMES {
            let kind = read(at.wrapping_add(TYPER));
            if kind & HAS_LPIS != 0 && read(at) & ENABLE_LPIS != 0 {
                let count = if stop_lpis(at) {
                    &mut left_on.lpis
                } else {
                    &mut left_on.lpis_stay
                };
                *count = count.wrapping_add(1);
            }
            if kind & LAST != 0 {
                break;
            }
            let own = FRAMES << u32::from(kind & HAS_VIRTUAL_LPIS != 0);
            at = at.saturating_add(stride.unwrap_or(own));
        }
    }
    left_on
}

/// Turns the LPIs of the redistributor at `at` off, and waits until it writes no more. Some cannot be turned off.
fn stop_lpis(at: u64) -> bool {
    let control = at.wrapping_add(CTLR) as *mut u32;
    // SAFETY: the register of a redistributor that the tree names. The bit does not affect this CPU.
    unsafe { control.write_volatile(control.read_volatile() & !ENABLE_LPIS) };
    for _ in 0..PATIENCE {
        if read(at.wrapping_add(CTLR)) & (ENABLE_LPIS | WRITES) == 0 {
            return true;
        }
    }
    false
}

fn read(at: u64) -> u32 {
    // SAFETY: a 32-bit register of a device that the tree names, aligned and below the end of the physical addresses.
    // With the MMU off its address is the pointer, and the access that of a device. Reading it has no effect.
    unsafe { (at as *const u32).read_volatile() }
}
