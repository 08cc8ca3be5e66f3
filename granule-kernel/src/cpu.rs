//! Typed reads of the system registers that the kernel looks at.
//!
//! One island of assembly per register, made by one macro. Under VHE the EL1 names
//! reach the EL2 registers, so there is one set of names for both levels.

use core::arch::asm;

macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident = $register:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name() -> u64 {
            let value: u64;
            // SAFETY: reads a register that exists at every level the kernel runs at;
            // no effect on memory. Not `pure`: counters move.
            unsafe {
                asm!(
                    concat!("mrs {}, ", $register),
                    out(reg) value,
                    options(nomem, nostack, preserves_flags)
                );
            }
            value
        }
    )*};
}

readers! {
    /// Who made the CPU and which it is.
    midr_el1 = "midr_el1";
    /// Physical address range, granules.
    id_aa64mmfr0_el1 = "id_aa64mmfr0_el1";
    /// VHE, hardware access flag and dirty state.
    id_aa64mmfr1_el1 = "id_aa64mmfr1_el1";
    /// 52-bit virtual addresses, BBM level, TTL.
    id_aa64mmfr2_el1 = "id_aa64mmfr2_el1";
    /// Permission indirection, TCR2; reads 0 before Armv8.9.
    id_aa64mmfr3_el1 = "S3_0_C0_C7_3";
    /// Exception levels, FP, GIC.
    id_aa64pfr0_el1 = "id_aa64pfr0_el1";
    /// Atomics, TLBI by range.
    id_aa64isar0_el1 = "id_aa64isar0_el1";
    /// PMU version.
    id_aa64dfr0_el1 = "id_aa64dfr0_el1";
    /// Cache line sizes.
    ctr_el0 = "ctr_el0";
    /// MMU, caches, alignment: the kernel's own level's.
    sctlr_el1 = "sctlr_el1";
    /// The virtual counter, unordered: see [`counter_now`].
    cntvct_el0 = "cntvct_el0";
    /// Ticks of the counter in a second.
    cntfrq_el0 = "cntfrq_el0";
}

/// The virtual counter after everything before this call: without the ISB it may
/// be read early.
pub(crate) fn counter_now() -> u64 {
    isb();
    cntvct_el0()
}

/// Ticks of the counter as microseconds.
pub(crate) fn microseconds(ticks: u64) -> u64 {
    let microseconds = u128::from(ticks) * 1_000_000 / u128::from(cntfrq_el0().max(1));
    u64::try_from(microseconds).unwrap_or(u64::MAX)
}

/// What stage 1 makes of reading `address`, from the CPU's own walker: the physical address, or
/// PAR's fault status.
pub(crate) fn translate(address: u64) -> Result<u64, u64> {
    let par: u64;
    // SAFETY: asks the walker; changes PAR_EL1 only. With E2H and TGE set the instruction asks
    // the EL2&0 regime, which is the one we run in.
    unsafe {
        asm!(
            "at s1e1r, {}",
            "isb",
            "mrs {}, par_el1",
            in(reg) address,
            lateout(reg) par,
            options(nostack, preserves_flags)
        );
    }
    if par & 1 == 0 {
        Ok((par & 0x000f_ffff_ffff_f000) | (address & 0xfff))
    } else {
        Err((par >> 1) & 0x3f)
    }
}

/// Makes effects of earlier register writes, and only later instructions, wait.
pub(crate) fn isb() {
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// Sets the exception vectors.
///
/// # Safety
///
/// `vectors` must be the virtual address of a vector table, 2 KiB aligned, mapped
/// executable for as long as it is set.
pub(crate) unsafe fn set_vbar(vectors: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("msr vbar_el1, {}", "isb", in(reg) vectors, options(nostack, preserves_flags)) };
}

/// Waits for an interrupt, for ever.
pub(crate) fn halt() -> ! {
    loop {
        // SAFETY: waits; nothing else.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) };
    }
}
