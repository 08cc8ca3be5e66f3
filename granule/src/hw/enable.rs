//! Turning translation on.

use crate::arch::{Regime, Translation};
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
        // `Translation::new` refuses stage 2, which has no SCTLR.
        Regime::Stage2 => {}
    }
}
