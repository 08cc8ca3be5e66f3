//! Turning translation on.

#![allow(unsafe_code, reason = "the registers that turn translation on")]

use crate::arch::registers::Ttbr;
use crate::arch::stage2::{Vtcr, Vttbr};
use crate::arch::{CpuFeatures, Geometry, Regime, Stage2Geometry, Translation, TranslationError};
use core::arch::asm;

/// Turns translation by the tables of the lower half, the upper half, or both, on, with the caches, and
/// returns the registers that it wrote: those of [`Translation::new`].
///
/// The order is: MAIR, TCR and TTBRs; ISB; TLBI of all of the regime's entries of this CPU and DSB
/// NSH, because turning an MMU off does not empty the TLB; ISB; SCTLR; ISB; IC IALLU, because
/// instructions were fetched Non-cacheable until here; DSB NSH; ISB.
///
/// [The module](super#from-mmu-off-to-on) shows what comes before.
///
/// # Errors
///
/// Those of [`Translation::new`]; nothing was written then.
///
/// # Safety
///
/// - The CPU is at the exception level of the regime: for [`Regime::El2`] with HCR_EL2.E2H clear,
///   because TCR_EL2 has another layout with it, or for [`Regime::El1And0`] at EL2 with E2H and TGE
///   set. Its MMU is off.
/// - TCR2_ELx is 0 where the CPU has it (FEAT_TCR2). A kernel that was started by another one may
///   find bits in it that give permissions another meaning (PIE).
/// - The tables map the code that runs, its stack and all data that it uses to their own addresses,
///   with the rights that each needs. They stay in place as long as the translation is on.
/// - All memory that was written with the MMU off has been invalidated to the point of coherency
///   ([`cache::invalidate`](super::cache::invalidate)), tables, data and stack, and had no dirty
///   line before ([`cache::clean_and_invalidate`](super::cache::clean_and_invalidate)).
/// - No reference to memory exists that the tables map otherwise.
pub unsafe fn enable(
    cpu: &CpuFeatures,
    lower: Option<(&Geometry, Ttbr)>,
    upper: Option<(&Geometry, Ttbr)>,
) -> Result<Translation, TranslationError> {
    let translation = Translation::new(cpu, lower, upper)?;
    // SAFETY: the caller keeps the conditions.
    unsafe { switch(&translation) };
    Ok(translation)
}

/// Writes the registers. `Translation::new` made them, so the regime has tables of stage 1.
///
/// # Safety
///
/// As for [`enable`].
#[inline(never)]
unsafe fn switch(translation: &Translation) {
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
                    ttbr0 = in(reg) translation.ttbr0.bits(),
                    $(ttbr1 = in(reg) { let _ = $ttbr1; translation.ttbr1.bits() },)?
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
/// FWB of HCR_EL2 as `geometry` needs them, and a TLBI of all entries of its VMID on this CPU. The
/// first use of a VMID takes [`invalidate_all`](crate::table::Live::invalidate_all) besides, which
/// reaches other CPUs. Guests with the same `geometry` and `vtcr` need only another VTTBR_EL2.
///
/// `vtcr` is [`Vtcr::new`], or that with further bits, such as [`Vtcr::HA`].
///
/// # Safety
///
/// - The CPU is at EL2, and HCR_EL2.{E2H, TGE} are not both set: EL1&0 is a guest's.
/// - `vtcr` is for tables of `geometry`, and the tables that `vttbr` names have it. They give the
///   guest no memory that is not its own, and stay in place.
/// - If they were written with the MMU off, they have been invalidated to the point of coherency
///   ([`cache::invalidate`](super::cache::invalidate)).
/// - No other CPU runs a guest of the same VMID with another VTCR_EL2.
pub unsafe fn enable_stage2(geometry: &Stage2Geometry, vtcr: Vtcr, vttbr: Vttbr) {
    // SAFETY: the caller keeps the conditions above. No guest runs until an ERET.
    unsafe {
        asm!(
            "dsb sy",
            "msr vtcr_el2, {vtcr}",
            "msr vttbr_el2, {vttbr}",
            "mrs {hcr}, hcr_el2",
            "bic {hcr}, {hcr}, {mask}",
            "orr {hcr}, {hcr}, {set}",
            "msr hcr_el2, {hcr}",
            "isb",
            "tlbi vmalls12e1",
            "dsb nsh",
            "isb",
            vtcr = in(reg) vtcr.0,
            vttbr = in(reg) vttbr.bits(),
            mask = in(reg) Stage2Geometry::HCR_VM | Stage2Geometry::HCR_FWB,
            set = in(reg) geometry.hcr(),
            hcr = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
}
