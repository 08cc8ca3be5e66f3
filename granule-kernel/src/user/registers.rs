//! What each CPU has to let programs do and what not, while there are any: FP and SIMD, cache
//! maintenance by address, the counter, and walks from TTBR0 in the shape of user space.

use crate::arch::cpu;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::PhysicalAddress;

/// SCTLR: what the Linux ABI lets EL0 do. DC ZVA (DZE), CTR_EL0 (UCT), WFI and WFE (nTWI, nTWE),
/// cache maintenance by address (UCI). And that a misaligned stack pointer faults there too (SA0).
const SCTLR_USER: u64 = 1 << 4 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 18 | 1 << 26;
/// SCTLR.SPAN: exceptions leave PSTATE.PAN as it is.
const SCTLR_SPAN: u64 = 1 << 23;
/// CPACR.FPEN: no FP or SIMD instruction traps.
const CPACR_FP: u64 = 0b11 << 20;
/// CNTKCTL.EL0VCTEN: EL0 reads the virtual counter, as the ABI lets it. With E2H and TGE set the
/// name reaches CNTHCTL_EL2, where the bit is the same.
const CNTKCTL_COUNTER: u64 = 1 << 1;

/// The values of TCR and TTBR0 while there is user space, and TTBR0 with nothing mapped.
static USER_TCR: AtomicU64 = AtomicU64::new(0);
static NOBODY: AtomicU64 = AtomicU64::new(0);
/// That root's frame.
static NOBODY_FRAME: AtomicU64 = AtomicU64::new(0);
/// The values before.
static KERNEL_TCR: AtomicU64 = AtomicU64::new(0);
static KERNEL_TTBR0: AtomicU64 = AtomicU64::new(0);

/// From here on CPUs take these values when they let programs run: `nobody` is a TTBR0 whose root,
/// the page `frame`, has nothing in it.
pub(super) fn prepare(tcr: u64, nobody: u64, frame: PhysicalAddress) {
    NOBODY_FRAME.store(frame.0, Ordering::Relaxed);
    USER_TCR.store(tcr, Ordering::Relaxed);
    NOBODY.store(nobody, Ordering::Relaxed);
    KERNEL_TCR.store(cpu::tcr_el1(), Ordering::Relaxed);
    KERNEL_TTBR0.store(ttbr0_el1(), Ordering::Relaxed);
}

/// Lets programs run on this CPU.
pub(crate) fn open() {
    // SAFETY: nothing of the kernel depends on what is let EL0 do here; no FP register is anybody's.
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
    // The activity monitors' counters are not EL0's either, where there are any (AMU).
    if cpu::id_aa64pfr0_el1() >> 44 & 0xf != 0 {
        // SAFETY: AMUSERENR_EL0 (S3_3_C13_C2_3) exists.
        unsafe { asm!("msr s3_3_c13_c2_3, xzr", options(nostack, preserves_flags)) };
    }
    // PMUVer: 0 none, 15 an implementation's own. EL0 is not to count, nor to stop our counting.
    if !matches!(cpu::id_aa64dfr0_el1() >> 8 & 0xf, 0 | 15) {
        // SAFETY: the PMU exists.
        unsafe { asm!("msr pmuserenr_el0, xzr", options(nostack, preserves_flags)) };
    }
    shape(
        NOBODY.load(Ordering::Relaxed),
        USER_TCR.load(Ordering::Relaxed),
        NOBODY.load(Ordering::Relaxed),
    );
}

/// The registers of this CPU as they were before [`open`].
pub(crate) fn close() {
    shape(
        NOBODY.load(Ordering::Relaxed),
        KERNEL_TCR.load(Ordering::Relaxed),
        KERNEL_TTBR0.load(Ordering::Relaxed),
    );
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

/// Whether the CPU has PAN. The kernel never uses a program's address itself: with PAN set from each
/// exception on, one that slips in is a fault.
fn has_pan() -> bool {
    cpu::id_aa64mmfr1_el1() >> 20 & 0xf != 0
}

/// Sets and clears bits of SCTLR.
fn set_sctlr(set: u64, clear: u64) {
    let value = (cpu::sctlr_el1() | set) & !clear;
    // SAFETY: bits that say what EL0 may do and what exceptions from there do.
    unsafe { asm!("msr sctlr_el1, {}", "isb", in(reg) value, options(nostack, preserves_flags)) };
}

/// The page of the root without anything in it, once no CPU uses it any more.
pub(super) fn take_nobody() -> PhysicalAddress {
    PhysicalAddress(NOBODY_FRAME.load(Ordering::Relaxed))
}

/// Changes the shape of the lower half. T0SZ must not change under a half in use, so TTBR0 has
/// nothing in it meanwhile, whatever the level at which a walk of it begins; and T0SZ may be cached
/// in the TLB (RVNRFW).
fn shape(nobody: u64, tcr: u64, ttbr0: u64) {
    let masked = cpu::mask_interrupts();
    // SAFETY: the kernel reaches nothing through the lower half, and the upper half's fields are
    // the same in both values of TCR.
    unsafe {
        cpu::set_ttbr0_el1(nobody);
        cpu::tlbi_vmalle1_local();
        asm!("msr tcr_el1, {}", "isb", in(reg) tcr, options(nostack, preserves_flags));
        cpu::tlbi_vmalle1_local();
        cpu::set_ttbr0_el1(ttbr0);
    }
    cpu::restore_interrupts(masked);
}

/// This CPU walks no program's tables from here on.
pub(super) fn leave_space() {
    // SAFETY: nothing is mapped there, and the kernel reaches nothing through the lower half.
    unsafe { cpu::set_ttbr0_el1(NOBODY.load(Ordering::Relaxed)) };
}

/// TPIDR_EL0, which is the program's.
pub(super) fn thread_pointer() -> u64 {
    let value: u64;
    // SAFETY: reads a register that the kernel does not use.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets TPIDR_EL0.
pub(super) fn set_thread_pointer(value: u64) {
    // SAFETY: writes a register that the kernel does not use.
    unsafe { asm!("msr tpidr_el0, {}", in(reg) value, options(nomem, nostack, preserves_flags)) };
}

fn ttbr0_el1() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, ttbr0_el1", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}
