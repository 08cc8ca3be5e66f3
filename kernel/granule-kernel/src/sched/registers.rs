//! The registers of a CPU that permit or forbid actions of programs while user space exists: FP and
//! SIMD, cache maintenance by address, the counter, and the shape of walks from TTBR0.

#![allow(unsafe_code, reason = "EL0's registers and vectors")]

use crate::arch::cpu;
use crate::percpu::per_cpu;
use crate::trace::bring_up;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::PhysicalAddress;
use granule::arch::registers::{Tcr, Ttbr};

/// SCTLR bits for EL0 under the Linux ABI: DC ZVA (DZE), CTR_EL0 (UCT), WFI and WFE (nTWI, nTWE), cache
/// maintenance by address (UCI). SA0 makes a misaligned stack pointer fault there too.
const SCTLR_USER: u64 = 1 << 4 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 18 | 1 << 26;
/// SCTLR.SPAN: exceptions leave PSTATE.PAN unchanged.
const SCTLR_SPAN: u64 = 1 << 23;
/// CPACR.FPEN: FP and SIMD instructions do not trap.
const CPACR_FP: u64 = 0b11 << 20;
/// CNTKCTL.EL0VCTEN: EL0 may read the virtual counter, as the ABI allows. With E2H and TGE set the name
/// accesses CNTHCTL_EL2, where the bit is the same.
const CNTKCTL_COUNTER: u64 = 1 << 1;

per_cpu! {
    /// TCR of the CPU while user space is open: that of the space that it entered last.
    static TCR: AtomicU64 = AtomicU64::new(0);
}

/// The values of TCR and TTBR0 at the start of user space. `EMPTY` is a TTBR0 with an empty root, whatever page
/// size TCR gives the lower half; 0 outside of user space.
static USER_TCR: AtomicU64 = AtomicU64::new(0);
static EMPTY: AtomicU64 = AtomicU64::new(0);
static EMPTY_ROOT: AtomicU64 = AtomicU64::new(0);
/// The values before user space.
static KERNEL_TCR: AtomicU64 = AtomicU64::new(0);
static KERNEL_TTBR0: AtomicU64 = AtomicU64::new(0);

/// Whether TLBIs and their DSBs are issued twice.
static REPEAT: AtomicBool = AtomicBool::new(false);

/// Sets the values that CPUs take when they open user space. `empty` is a TTBR0 whose root, at `frame`, is
/// empty. `repeat` issues a switch's TLBI and DSB twice, for an erratum.
pub(crate) fn prepare(tcr: Tcr, empty: u64, frame: PhysicalAddress, repeat: bool) {
    EMPTY_ROOT.store(frame.0, Ordering::Relaxed);
    REPEAT.store(repeat, Ordering::Relaxed);
    USER_TCR.store(tcr.0, Ordering::Relaxed);
    EMPTY.store(empty, Ordering::Relaxed);
    KERNEL_TCR.store(cpu::tcr_el1(), Ordering::Relaxed);
    KERNEL_TTBR0.store(ttbr0_el1(), Ordering::Relaxed);
}

/// Lets programs run on this CPU.
pub(crate) fn open() {
    // SAFETY: the kernel depends on none of the permissions of EL0 set here, and no FP register is in
    // use.
    unsafe {
        asm!(
            "msr cpacr_el1, {cpacr}",
            "msr cntkctl_el1, {cntkctl}",
            "msr tpidr_el0, xzr",
            "isb",
            cpacr = in(reg) CPACR_FP,
            cntkctl = in(reg) CNTKCTL_COUNTER,
            options(nostack, preserves_flags)
        );
    }
    set_sctlr(SCTLR_USER, 0);
    if has_pan() {
        set_sctlr(0, SCTLR_SPAN);
    }
    // EL0 must not read the counters of the activity monitors (AMU) either, if they exist.
    if cpu::id_aa64pfr0_el1() >> 44 & 0xf != 0 {
        // SAFETY: AMUSERENR_EL0 (S3_3_C13_C2_3) exists.
        unsafe { asm!("msr s3_3_c13_c2_3, xzr", options(nostack, preserves_flags)) };
    }
    // PMUVer: 0 is none, 15 is implementation defined. EL0 must neither count nor stop the kernel's
    // counters.
    if !matches!(cpu::id_aa64dfr0_el1() >> 8 & 0xf, 0 | 15) {
        // SAFETY: the PMU exists.
        unsafe { asm!("msr pmuserenr_el0, xzr", options(nostack, preserves_flags)) };
    }
    // SAFETY: `prepare` was given values for the same upper half, and the kernel accesses nothing through the lower
    // one.
    unsafe {
        shape(
            USER_TCR.load(Ordering::Relaxed),
            EMPTY.load(Ordering::Relaxed),
        );
    }
    TCR.this()
        .store(USER_TCR.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Restores the registers of this CPU to their values before [`open`].
pub(crate) fn close() {
    // SAFETY: as in `open`, to what was before.
    unsafe {
        shape(
            KERNEL_TCR.load(Ordering::Relaxed),
            KERNEL_TTBR0.load(Ordering::Relaxed),
        );
    }
    // SAFETY: as in `open`; FP traps again.
    unsafe {
        asm!(
            "msr cpacr_el1, xzr",
            "msr cntkctl_el1, xzr",
            "isb",
            options(nostack, preserves_flags)
        );
    }
    set_sctlr(SCTLR_SPAN, SCTLR_USER);
}

/// Whether the CPU has PAN. The kernel never dereferences a program's address; with PAN set by each
/// exception, an accidental access faults.
fn has_pan() -> bool {
    cpu::id_aa64mmfr1_el1() >> 20 & 0xf != 0
}

fn set_sctlr(set: u64, clear: u64) {
    let value = (cpu::sctlr_el1() | set) & !clear;
    // SAFETY: the bits only control the permissions of EL0 and exceptions from EL0.
    unsafe { bring_up::set_sctlr_el1(value) };
}

/// Takes back the empty root's memory, once no CPU uses it any more.
pub(crate) fn take_empty_root() -> PhysicalAddress {
    EMPTY.store(0, Ordering::Relaxed);
    PhysicalAddress(EMPTY_ROOT.load(Ordering::Relaxed))
}

/// Changes the shape of the lower half, whose last shape may be that of any program, HA and HD of both, and E0PD1. HA
/// and HD may change in use: the kernel's entries have the access flag, and none is managed by hardware (DBM). E0PD1
/// concerns EL0 only. A TLB may hold all these fields (RVNRFW), and roots of the kernel share ASID 0, so nothing stays in it.
///
/// # Safety
///
/// `ttbr0` must have tables of the shape that `tcr` encodes, and nothing may access an address in
/// the lower half that they do not map. The fields of the upper half but HA, HD and E0PD1 must stay as they are.
pub(crate) unsafe fn shape(tcr: u64, ttbr0: u64) {
    let masked = cpu::mask_interrupts();
    let repeat = REPEAT.load(Ordering::Relaxed);
    // SAFETY: the caller keeps the rules.
    unsafe {
        let ttbr0 = Ttbr::from_bits(ttbr0);
        bring_up::switch(Tcr(cpu::tcr_el1()), Tcr(tcr), ttbr0, repeat);
    }
    cpu::restore_interrupts(masked);
}

/// Moves this CPU to a program's tables, which `tcr` describes. Interrupts must be masked.
///
/// # Safety
///
/// `ttbr0` must have the tables of a program, published and with their own ASID, and `tcr` must differ from that of
/// other programs in fields of the lower half alone. This CPU must [leave](leave_space) before the tables are freed.
#[inline]
pub(crate) unsafe fn enter_space(tcr: Tcr, ttbr0: Ttbr) {
    let now = TCR.this();
    let from = now.load(Ordering::Relaxed);
    // SAFETY: the caller keeps the rules; the kernel accesses nothing through the lower half.
    unsafe {
        if from == tcr.0 {
            bring_up::set_ttbr0_el1(ttbr0.bits());
        } else {
            now.store(tcr.0, Ordering::Relaxed);
            bring_up::switch(Tcr(from), tcr, ttbr0, REPEAT.load(Ordering::Relaxed));
        }
    }
}

/// Stops this CPU's walks of any program's tables. TCR stays as the program had it: the next one often has the
/// same page size, and the empty root is one for every size.
pub(crate) fn leave_space() {
    // SAFETY: the root is empty, and the kernel accesses nothing through the lower half.
    unsafe { bring_up::set_ttbr0_el1(EMPTY.load(Ordering::Relaxed)) };
}

/// TPIDR_EL0, which belongs to the program.
pub(crate) fn thread_pointer() -> u64 {
    let value: u64;
    // SAFETY: the kernel does not use this register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets TPIDR_EL0.
pub(crate) fn set_thread_pointer(value: u64) {
    // SAFETY: the kernel does not use this register.
    unsafe { asm!("msr tpidr_el0, {}", in(reg) value, options(nomem, nostack, preserves_flags)) };
}

pub(crate) fn ttbr0_el1() -> u64 {
    let value: u64;
    // SAFETY: reading TTBR0_EL1 has no side effect.
    unsafe { asm!("mrs {}, ttbr0_el1", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
