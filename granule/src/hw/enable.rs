//! Turning translation on.

use crate::arch::stage2::{Vtcr, Vttbr};
use crate::arch::{CpuFeatures, Regime, Stage2Geometry, Translation};
use core::arch::asm;

/// Turns the translation of `translation.regime` on, with the caches, and returns.
///
/// The order is: MAIR, TCR and TTBRs; ISB; TLBI of all of the regime's entries of this CPU and DSB
/// NSH, because turning an MMU off does not empty the TLB; ISB; SCTLR; ISB; IC IALLU, because
/// instructions were fetched Non-cacheable until here; DSB NSH; ISB.
///
/// [The module](super#from-mmu-off-to-on) shows what comes before.
///
/// # Safety
///
/// - The CPU is at the exception level of the regime, or for [`Regime::El1And0`] at EL2 with E2H
///   and TGE set. Its MMU is off. The regime is not [`Regime::Stage2`], for which this does nothing.
/// - The tables map the code that runs, its stack and all data that it uses to their own addresses,
///   with the rights that each needs. They stay in place as long as the translation is on.
/// - All memory that was written with the MMU off has been invalidated to the point of coherency
///   ([`cache::invalidate`](super::cache::invalidate)), tables, data and stack, and had no dirty
///   line before ([`cache::clean_and_invalidate`](super::cache::clean_and_invalidate)).
/// - No reference to memory exists that the tables map otherwise.
#[inline(never)]
pub unsafe fn enable(translation: &Translation) {
    macro_rules! switch {
        ($el:literal, $tlbi:literal $(, $ttbr1:literal)?) => {
            // SAFETY: the caller keeps the conditions above, so that the instruction after SCTLR's
            // is fetched from where this one was.
            unsafe {
                asm!(
                    "dsb sy",
                    concat!("msr mair_", $el, ", {mair}"),
                    concat!("msr tcr_", $el, ", {tcr}"),
                    concat!("msr ttbr0_", $el, ", {ttbr0}"),
                    $(concat!("msr ", $ttbr1, ", {ttbr1}"),)?
                    "isb",
                    concat!("tlbi ", $tlbi),
                    "dsb nsh",
                    "isb",
                    concat!("msr sctlr_", $el, ", {sctlr}"),
                    "isb",
                    "ic iallu",
                    "dsb nsh",
                    "isb",
                    mair = in(reg) translation.mair.0,
                    tcr = in(reg) translation.tcr,
                    ttbr0 = in(reg) translation.ttbr0.0,
                    $(ttbr1 = in(reg) { let _ = $ttbr1; translation.ttbr1.0 },)?
                    sctlr = in(reg) translation.sctlr.0,
                    options(nostack, preserves_flags)
                )
            }
        };
    }
    match translation.regime {
        Regime::El1And0 => switch!("el1", "vmalle1", "ttbr1_el1"),
        Regime::El2 => switch!("el2", "alle2"),
        Regime::El3 => switch!("el3", "alle3"),
        // `Translation::new` refuses tables of stage 2.
        Regime::Stage2 => {}
    }
}

/// Turns stage 2 on for the guest whose tables `vttbr` names: VTCR_EL2, VTTBR_EL2, the bits VM and
/// FWB of HCR_EL2, and a TLBI of all entries of its VMID on this CPU. Guests that ran before, with
/// the same `geometry`, need only another VTTBR_EL2.
///
/// # Safety
///
/// - The CPU is at EL2, and HCR_EL2.{E2H, TGE} are not both set: EL1&0 is a guest's.
/// - The tables have `geometry`, give the guest no memory that is not its own, and stay in place.
/// - If they were written with the MMU off, they have been invalidated to the point of coherency
///   ([`cache::invalidate`](super::cache::invalidate)).
/// - No other CPU runs a guest of the same VMID with another VTCR_EL2.
pub unsafe fn enable_stage2(cpu: &CpuFeatures, geometry: &Stage2Geometry, vttbr: Vttbr) {
    let set = Stage2Geometry::HCR_VM
        | if geometry.shape().forced_write_back() {
            Stage2Geometry::HCR_FWB
        } else {
            0
        };
    // SAFETY: the caller keeps the conditions above. No guest runs until an ERET.
    unsafe {
        asm!(
            "dsb sy",
            "msr vtcr_el2, {vtcr}",
            "msr vttbr_el2, {vttbr}",
            "mrs {hcr}, hcr_el2",
            "orr {hcr}, {hcr}, {set}",
            "msr hcr_el2, {hcr}",
            "isb",
            "tlbi vmalls12e1",
            "dsb nsh",
            "isb",
            vtcr = in(reg) Vtcr::new(cpu, geometry).0,
            vttbr = in(reg) vttbr.0,
            set = in(reg) set,
            hcr = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
}
