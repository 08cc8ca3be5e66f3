//! The handler of TLB conflict aborts, for vectors of a kernel, hypervisor or firmware. What happens
//! on other exceptions is not decided here.

use super::tlb::invalidate_local;
use crate::arch::{FaultStatus, Regime};

/// Removes the cause of the exception with syndrome `esr`, if it is a TLB conflict abort of
/// `regime`. The stack of the handler must lie [where nothing is split](super#tlb-conflict-aborts).
/// Returns true if the interrupted instruction must be retried: the caller restores the registers
/// and issues ERET.
///
/// In a regime with one privilege an abort from a lower exception level is none of its conflicts:
/// the TLBI would not remove their cause. [`Regime::Stage2`] is for the handler at EL2: only aborts
/// of a guest are its conflicts, and VTTBR_EL2 must still be that guest's.
#[inline]
#[must_use]
pub fn resolve_tlb_conflict(regime: Regime, esr: u64) -> bool {
    // Bit 26 distinguishes the class of an abort from the same level from that of one from a lower level.
    let same_level = esr >> 26 & 1 == 1;
    let own = match regime {
        Regime::El1And0 => true,
        Regime::El2 | Regime::El3 => same_level,
        Regime::Stage2 => !same_level,
    };
    let conflict = own && FaultStatus::of_esr(esr).is_some_and(FaultStatus::is_tlb_conflict);
    if conflict {
        invalidate_local(regime);
    }
    conflict
}

/// The start of a vector for synchronous exceptions, as assembly text for `global_asm!`: it handles
/// TLB conflict aborts itself, and branches to a label with all registers as they were for every
/// other exception.
///
/// The arguments are the exception level (`el1`, `el2` or `el3`) or `stage2`, a system register that
/// nothing else uses while exceptions are taken (x0 is kept there), and the label. It is at most 18
/// instructions long and fits a vector. At EL1 it serves the vectors for the current level and for
/// EL0; at EL2 and EL3 those for the current level; `stage2` serves EL2's vector for guests, before
/// VTTBR_EL2 changes.
///
/// The interrupted x0 stays in the register. Where EL0 runs, take one that EL0 cannot read: not
/// `tpidrro_el0`, but for example `tpidr_el1`, if the kernel keeps its per-CPU pointer elsewhere.
///
/// ```no_run,standalone_crate
/// core::arch::global_asm!(
///     ".balign 128",
///     granule::tlb_conflict_vector!(el1, "tpidr_el1", "other_exception"),
/// );
/// # core::arch::global_asm!("other_exception: ret");
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! tlb_conflict_vector {
    (el1, $spare:literal, $otherwise:literal) => {
        // EL0 shares the regime, so the classes of aborts from a lower level count too.
        $crate::tlb_conflict_vector!(
            @ "1", "vmalle1", "orr x0, x0, #1\n", "0x25", $spare, $otherwise
        )
    };
    (el2, $spare:literal, $otherwise:literal) => {
        $crate::tlb_conflict_vector!(@ "2", "alle2", "", "0x25", $spare, $otherwise)
    };
    (el3, $spare:literal, $otherwise:literal) => {
        $crate::tlb_conflict_vector!(@ "3", "alle3", "", "0x25", $spare, $otherwise)
    };
    (stage2, $spare:literal, $otherwise:literal) => {
        $crate::tlb_conflict_vector!(@ "2", "vmalls12e1", "", "0x24", $spare, $otherwise)
    };
    // The status is 0x30. The class is one of 0x21 and 0x25 from the same level, and of 0x20 and 0x24
    // from a lower one: 0x25 or 0x24 after bit 2 is set, and with EL0 bit 0. The flags are in SPSR.
    (
        @ $el:literal, $tlbi:literal, $lower:literal, $class:literal, $spare:literal,
        $otherwise:literal
    ) => {
        concat!(
            "msr ", $spare, ", x0\n",
            "mrs x0, esr_el", $el, "\n",
            "eor x0, x0, #0x30\n",
            "tst x0, #0x3f\n",
            "b.ne 1f\n",
            "ubfx x0, x0, #26, #6\n",
            "orr x0, x0, #4\n",
            $lower,
            "cmp x0, #", $class, "\n",
            "b.ne 1f\n",
            "dsb nshst\n",
            "tlbi ", $tlbi, "\n",
            "dsb nsh\n",
            "isb\n",
            "mrs x0, ", $spare, "\n",
            "eret\n",
            "1: mrs x0, ", $spare, "\n",
            "b ", $otherwise, "\n",
        )
    };
}
