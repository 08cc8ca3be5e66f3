//! Typed reads of the system registers that the kernel uses, and the short system instructions.
//!
//! One macro makes one island of assembly per register. Under VHE the EL1 names access the EL2
//! registers, so one set of names serves both levels.

#![allow(unsafe_code, reason = "system registers and instructions")]

use core::arch::asm;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{FaultStatus, Regime};
use granule::space::switch::Registers;
use granule_kcore::timeout::Timeout;

macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident = $register:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name() -> u64 {
            let value: u64;
            // SAFETY: reads a register that exists at every level the kernel runs at, without an
            // effect on memory. Not `pure`, because counters advance.
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
    /// Implementer and model of the CPU.
    midr_el1 = "midr_el1";
    /// Affinity fields: which CPU of the machine this is.
    mpidr_el1 = "mpidr_el1";
    /// The kernel's per-CPU pointer: see `percpu`.
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
    /// BTI, SSBS, MTE.
    id_aa64pfr1_el1 = "id_aa64pfr1_el1";
    /// Atomics, TLBI by range.
    id_aa64isar0_el1 = "id_aa64isar0_el1";
    /// PMU version.
    id_aa64dfr0_el1 = "id_aa64dfr0_el1";
    /// Cache line sizes.
    ctr_el0 = "ctr_el0";
    /// Translation control of both VA ranges.
    tcr_el1 = "tcr_el1";
    /// The memory types of both VA ranges.
    mair_el1 = "mair_el1";
    /// The root of the upper VA range.
    ttbr1_el1 = "ttbr1_el1";
    /// MMU, caches and alignment checks of the kernel's own exception level.
    sctlr_el1 = "sctlr_el1";
    /// The virtual counter, unordered: see [`counter_now`].
    cntvct_el0 = "cntvct_el0";
    /// Ticks of the counter in a second.
    cntfrq_el0 = "cntfrq_el0";
}

/// The virtual counter, read after everything before this call. Without the ISB the read may happen
/// early.
pub(crate) fn counter_now() -> u64 {
    isb();
    cntvct_el0()
}

/// A wait for another CPU that begins now; it is over after so many seconds in which this CPU ran.
pub(crate) fn timeout(seconds: u64) -> Timeout {
    Timeout::new(seconds, cntfrq_el0(), counter_now())
}

/// Converts ticks of the counter to microseconds.
pub(crate) fn microseconds(ticks: u64) -> u64 {
    let microseconds = u128::from(ticks) * 1_000_000 / u128::from(cntfrq_el0().max(1));
    u64::try_from(microseconds).unwrap_or(u64::MAX)
}

/// Translates a read of `address` with the CPU's own stage 1 walker. Returns the physical address,
/// or PAR's fault status.
// Not inlined: the retry after a conflict makes it long, and it has many callers.
#[inline(never)]
pub(crate) fn translate(address: u64) -> Result<u64, u64> {
    asked(address, address_translation)
}

/// As [`translate`], for a write.
#[cfg(feature = "test-image")]
pub(crate) fn translate_to_write(address: u64) -> Result<u64, u64> {
    asked(address, address_translation_to_write)
}

fn asked(address: u64, ask: fn(u64) -> u64) -> Result<u64, u64> {
    let mut par = ask(address);
    // A TLB conflict during address translation is reported in PAR and is not an exception. One retry
    // suffices, because the TLB is empty then.
    if FaultStatus::of_par(par).is_some_and(FaultStatus::is_tlb_conflict) {
        tlbi_vmalle1_local();
        par = ask(address);
    }
    match FaultStatus::of_par(par) {
        None => Ok((par & 0x000f_ffff_ffff_f000) | (address & 0xfff)),
        Some(status) => Err(status.0),
    }
}

macro_rules! address_translations {
    ($($(#[$doc:meta])* $name:ident = $instruction:literal;)*) => {$(
        $(#[$doc])*
        fn $name(address: u64) -> u64 {
            let par: u64;
            // An interrupt handler may translate too and would overwrite PAR_EL1.
            let masked = mask_interrupts();
            // SAFETY: address translation changes PAR_EL1 only. With E2H and TGE set the
            // instruction uses the EL2&0 regime, in which the kernel runs.
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
    /// PAR_EL1 after translating a read of `address`.
    address_translation = "s1e1r";
    /// PAR_EL1 after translating a write of `address`.
    #[cfg(feature = "test-image")]
    address_translation_to_write = "s1e1w";
}

/// ISB: later instructions see the effects of earlier register writes.
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
    // SAFETY: the caller answers for the vectors.
    unsafe { asm!("msr vbar_el1, {}", "isb", in(reg) vectors, options(nostack, preserves_flags)) };
}

/// Sets TPIDR_EL1.
///
/// # Safety
///
/// Only `percpu` may call this, because it reads the register as a pointer.
pub(crate) unsafe fn set_tpidr_el1(value: u64) {
    // SAFETY: `percpu` passes a valid pointer.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Sets TTBR0. The caller handles the TLB entries of the earlier tables.
///
/// # Safety
///
/// `value` must name tables of the shape that TCR describes, and nothing may access an address in
/// the lower VA range that they do not map.
pub(crate) unsafe fn set_ttbr0_el1(value: u64) {
    // SAFETY: the caller answers for the tables.
    unsafe { asm!("msr ttbr0_el1, {}", "isb", in(reg) value, options(nostack, preserves_flags)) };
}

/// Sets SCTLR.
///
/// # Safety
///
/// The value must differ from the present one only in bits that concern EL0 and exceptions from it, or in A: the
/// target has no unaligned access.
pub(crate) unsafe fn set_sctlr_el1(value: u64) {
    // SAFETY: the caller answers for the bits.
    unsafe { asm!("msr sctlr_el1, {}", "isb", in(reg) value, options(nostack, preserves_flags)) };
}

/// The single instructions of a switch to another program's tables, without any barrier of their own.
#[derive(Debug)]
pub(crate) struct Bare;

impl Registers for Bare {
    unsafe fn write_tcr(&mut self, value: Tcr) {
        // SAFETY: the caller answers for the fields.
        unsafe { asm!("msr tcr_el1, {}", in(reg) value.0, options(nostack, preserves_flags)) };
    }

    unsafe fn write_ttbr0(&mut self, value: Ttbr) {
        // SAFETY: the caller answers for the tables.
        unsafe {
            asm!("msr ttbr0_el1, {}", in(reg) value.bits(), options(nostack, preserves_flags))
        };
    }

    fn isb(&mut self) {
        granule::hw::isb();
    }

    fn tlbi_all_local(&mut self) {
        // SAFETY: removed entries are fetched again from the tables. At EL2 under VHE it is the TLB of EL2&0.
        unsafe { asm!("tlbi vmalle1", options(nostack, preserves_flags)) };
    }

    fn dsb_nsh(&mut self) {
        granule::hw::dsb_nsh();
    }
}

/// Invalidates this CPU's whole TLB: that of EL2&0 if the kernel runs at EL2.
pub(crate) fn tlbi_vmalle1_local() {
    granule::hw::invalidate_local(Regime::El1And0);
}

/// Invalidates the whole TLB of every CPU, after earlier stores are visible to their walkers.
#[cfg(feature = "test-image")]
pub(crate) fn tlbi_vmalle1_all() {
    // SAFETY: removed entries are fetched again from the tables.
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

/// Masks IRQs. Returns the earlier state, for [`restore_interrupts`].
pub(crate) fn mask_interrupts() -> u64 {
    let daif: u64;
    // SAFETY: no interrupt is taken from here on. The assembly is a compiler barrier, so protected
    // accesses stay after it.
    unsafe {
        asm!("mrs {}, daif", "msr daifset, #2", out(reg) daif, options(nostack, preserves_flags));
    }
    daif
}

/// The present interrupt mask, in the form that [`mask_interrupts`] returns.
pub(crate) fn interrupts() -> u64 {
    let daif: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, daif", out(reg) daif, options(nomem, nostack, preserves_flags)) };
    daif
}

/// Restores the state before [`mask_interrupts`].
pub(crate) fn restore_interrupts(daif: u64) {
    // SAFETY: the value was read from the register.
    unsafe { asm!("msr daif, {}", in(reg) daif, options(nostack, preserves_flags)) };
}

/// Unmasks IRQs, and FIQs, which [`mask_interrupts`] does not mask again: see [`unmask_fiqs`].
pub(crate) fn unmask_interrupts() {
    // SAFETY: the vectors are set, and save every register that they use.
    unsafe { asm!("msr daifclr, #3", options(nostack, preserves_flags)) };
}

/// Unmasks FIQs, by which a CPU that panics stops the others. Nothing returns from one, so it may come anywhere.
pub(crate) fn unmask_fiqs() {
    // SAFETY: the vectors are set.
    unsafe { asm!("msr daifclr, #1", options(nomem, nostack, preserves_flags)) };
}

/// Waits for an interrupt, masked or not.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: only waits. The DSB completes earlier stores first, because another CPU may wait for
    // them.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
}

/// Wakes CPUs that wait for an event, after earlier stores are visible.
pub(crate) fn send_event() {
    // SAFETY: a barrier and a hint.
    unsafe { asm!("dsb ishst", "sev", options(nostack, preserves_flags)) };
}

/// One round of a loop that waits for another CPU. Issues YIELD in addition to `spin_loop`'s ISB:
/// an emulator that runs all CPUs in one thread then switches to the next CPU.
pub(crate) fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
    core::hint::spin_loop();
}

/// Waits for interrupts for ever.
pub(crate) fn halt() -> ! {
    loop {
        // SAFETY: only waits.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) };
    }
}
