//! Typed reads of the system registers that the kernel looks at.
//!
//! One island of assembly per register, made by one macro. Under VHE the EL1 names
//! reach the EL2 registers, so there is one set of names for both levels.

use core::arch::asm;
use granule_kcore::syndrome::FaultStatus;

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
    /// Which CPU of the machine it is.
    mpidr_el1 = "mpidr_el1";
    /// The kernel's own: see `percpu`.
    tpidr_el1 = "tpidr_el1";
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
    /// How both halves are translated.
    tcr_el1 = "tcr_el1";
    /// The upper half's tables.
    ttbr1_el1 = "ttbr1_el1";
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
// Once: with the flush for a conflict it is long, and asked in many places.
#[inline(never)]
pub(crate) fn translate(address: u64) -> Result<u64, u64> {
    asked(address, address_translation)
}

/// As [`translate`], for writing.
#[cfg(feature = "test-image")]
pub(crate) fn translate_to_write(address: u64) -> Result<u64, u64> {
    asked(address, address_translation_to_write)
}

fn asked(address: u64, ask: fn(u64) -> u64) -> Result<u64, u64> {
    let mut par = ask(address);
    // A TLB conflict that the question meets stands in PAR and is no exception. One retry: after
    // it there is nothing left to be in conflict.
    if FaultStatus::of_par(par).is_some_and(FaultStatus::is_tlb_conflict) {
        tlbi_vmalle1_local();
        par = ask(address);
    }
    match FaultStatus::of_par(par) {
        None => Ok((par & 0x000f_ffff_ffff_f000) | (address & 0xfff)),
        Some(status) => Err(status.code()),
    }
}

macro_rules! address_translations {
    ($($(#[$doc:meta])* $name:ident = $instruction:literal;)*) => {$(
        $(#[$doc])*
        fn $name(address: u64) -> u64 {
            let par: u64;
            // An interrupt may ask, too, and PAR_EL1 is one.
            let masked = mask_interrupts();
            // SAFETY: asks the walker; changes PAR_EL1 only. With E2H and TGE set the instruction
            // asks the EL2&0 regime, which is the one we run in.
            unsafe {
                asm!(
                    concat!("at ", $instruction, ", {}"),
                    "isb",
                    "mrs {}, par_el1",
                    in(reg) address,
                    lateout(reg) par,
                    options(nostack, preserves_flags)
                );
            }
            restore_interrupts(masked);
            par
        }
    )*};
}

address_translations! {
    /// PAR_EL1 after asking for a read of `address`.
    address_translation = "s1e1r";
    /// PAR_EL1 after asking for a write of `address`.
    #[cfg(feature = "test-image")]
    address_translation_to_write = "s1e1w";
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

/// Sets TPIDR_EL1.
///
/// # Safety
///
/// Only `percpu` may, which reads it as a pointer.
pub(crate) unsafe fn set_tpidr_el1(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Sets TTBR0. What the TLB holds of the tables before is the caller's affair.
///
/// # Safety
///
/// `value` must name tables of the shape that TCR says, and nothing be reached through the lower
/// half that they do not map.
pub(crate) unsafe fn set_ttbr0_el1(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("msr ttbr0_el1, {}", "isb", in(reg) value, options(nostack, preserves_flags)) };
}

/// Empties this CPU's own TLB.
pub(crate) fn tlbi_vmalle1_local() {
    // SAFETY: what is removed is fetched again from the tables. DSB NSHST: the walker sees what
    // was stored; DSB NSH completes a local TLBI.
    unsafe {
        asm!(
            "dsb nshst",
            "tlbi vmalle1",
            "dsb nsh",
            "isb",
            options(nostack, preserves_flags)
        );
    }
}

/// Empties the TLB of every CPU, once what was stored before is visible to their walkers.
#[cfg(feature = "test-image")]
pub(crate) fn tlbi_vmalle1_all() {
    // SAFETY: what is removed is fetched again from the tables.
    unsafe {
        asm!(
            "dsb ishst",
            "tlbi vmalle1is",
            "dsb ish",
            "isb",
            options(nostack, preserves_flags)
        );
    }
}

/// Masks IRQs; what [`restore_interrupts`] needs to undo it.
pub(crate) fn mask_interrupts() -> u64 {
    let daif: u64;
    // SAFETY: no interrupt is taken from here on; a compiler barrier, so that what is protected
    // stays inside.
    unsafe {
        asm!("mrs {}, daif", "msr daifset, #2", out(reg) daif, options(nostack, preserves_flags));
    }
    daif
}

/// The state of interrupts, as [`mask_interrupts`] returns it.
pub(crate) fn interrupts() -> u64 {
    let daif: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, daif", out(reg) daif, options(nomem, nostack, preserves_flags)) };
    daif
}

/// Goes back to what was before [`mask_interrupts`].
pub(crate) fn restore_interrupts(daif: u64) {
    // SAFETY: a value that was read from the register.
    unsafe { asm!("msr daif, {}", in(reg) daif, options(nostack, preserves_flags)) };
}

/// Lets IRQs in.
pub(crate) fn unmask_interrupts() {
    // SAFETY: the vectors are set and save whatever they use.
    unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
}

/// Waits for an interrupt, masked or not.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: waits; stores before it are made first, so that nobody waits for them.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
}

/// Wakes who waits for an event, once what was stored before is visible.
pub(crate) fn send_event() {
    // SAFETY: a barrier and a hint.
    unsafe { asm!("dsb ishst", "sev", options(nostack, preserves_flags)) };
}

/// Once round a loop that waits for another CPU. YIELD beside `spin_loop`'s ISB: an emulator that
/// runs all CPUs in one thread goes on with the next one.
pub(crate) fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
    core::hint::spin_loop();
}

/// Waits for an interrupt, for ever.
pub(crate) fn halt() -> ! {
    loop {
        // SAFETY: waits; nothing else.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) };
    }
}
