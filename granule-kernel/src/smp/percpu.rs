//! What each CPU owns: a static slot, found through TPIDR_EL1.
//!
//! TPIDR_EL1 serves at EL2 too: E2H does not redirect its name, but the register is there and EL1,
//! whose it is, runs nothing beside this kernel. So the vectors need not ask where they run.
//!
//! All fields are atomics, most of them written by their own CPU only.

use super::jobs::Job;
use crate::cpu;
use crate::image;
use crate::ipi::Call;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::set::CpuSet;

/// Not started, or not a CPU at all.
pub(crate) const STATE_OFF: u32 = 0;
/// The boot CPU waits for it.
pub(crate) const STATE_STARTING: u32 = 1;
/// It runs the kernel.
pub(crate) const STATE_UP: u32 = 2;
/// It came up and found that it cannot take interrupts.
pub(crate) const STATE_FAILED: u32 = 3;
/// The boot CPU gave it up; should it come, or not have gone, it must go.
pub(crate) const STATE_GIVEN_UP: u32 = 4;

/// It was told to go off, and could not.
pub(crate) const STATE_STAYS: u32 = 5;

/// One CPU's own. Alone in its cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct PerCpu {
    /// The top of the stack for exceptions that cannot use the one they came from. Like this slot
    /// it lies in memory whose mapping is never split.
    exception_stack_top: AtomicU64,
    /// The affinity fields of MPIDR_EL1.
    pub(crate) affinity: AtomicU64,
    /// One of the states above.
    pub(crate) state: AtomicU32,
    /// Its bit among GICv2's CPU interfaces.
    pub(crate) gic_interface: AtomicU32,
    /// The call that another CPU wants answered.
    pub(crate) inbox: AtomicPtr<Call<'static>>,
    /// What to do outside of interrupts.
    pub(crate) job: AtomicPtr<Job<'static>>,
    /// Calls answered.
    pub(crate) calls: AtomicU64,
    /// Interrupts taken.
    pub(crate) interrupts: AtomicU64,
    /// Times it was parked, and came back.
    pub(crate) parkings: AtomicU64,
    /// TLB conflict aborts dealt with.
    pub(crate) tlb_conflicts: AtomicU64,
    /// Translation faults that were none any more.
    pub(crate) spurious_faults: AtomicU64,
    /// Whether it is dealing with a TLB conflict abort.
    pub(crate) in_tlb_conflict: AtomicBool,
}

/// For the vectors.
pub(crate) const EXCEPTION_STACK_TOP: usize = offset_of!(PerCpu, exception_stack_top);

static SLOTS: [PerCpu; MOST_CPUS] = [const { PerCpu::new() }; MOST_CPUS];

/// The CPUs that answer calls.
static ONLINE: AtomicU64 = AtomicU64::new(0);

impl PerCpu {
    const fn new() -> Self {
        Self {
            exception_stack_top: AtomicU64::new(0),
            affinity: AtomicU64::new(0),
            state: AtomicU32::new(STATE_OFF),
            gic_interface: AtomicU32::new(0),
            inbox: AtomicPtr::new(core::ptr::null_mut()),
            job: AtomicPtr::new(core::ptr::null_mut()),
            calls: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            parkings: AtomicU64::new(0),
            tlb_conflicts: AtomicU64::new(0),
            spurious_faults: AtomicU64::new(0),
            in_tlb_conflict: AtomicBool::new(false),
        }
    }

    /// The CPU's number; the boot CPU's is 0.
    pub(crate) fn number(&self) -> usize {
        let offset = (&raw const *self as usize).wrapping_sub(SLOTS.as_ptr() as usize);
        offset / size_of::<Self>()
    }

    /// Prepares the slot of a CPU that is about to be started.
    pub(super) fn prepare(&self, affinity: u64, exception_stack_top: u64) {
        self.affinity.store(affinity, Ordering::Relaxed);
        self.exception_stack_top
            .store(exception_stack_top, Ordering::Relaxed);
        self.state.store(STATE_STARTING, Ordering::Release);
    }
}

/// The slot of CPU `number`.
pub(crate) fn of(number: usize) -> Option<&'static PerCpu> {
    SLOTS.get(number)
}

/// The slot of the CPU that asks.
pub(crate) fn this() -> &'static PerCpu {
    let slot = cpu::tpidr_el1() as *const PerCpu;
    // SAFETY: `init_boot_cpu` and `take` set the register to a slot, as the first thing that each
    // CPU does in the kernel, and nothing else writes it.
    unsafe { &*slot }
}

/// Makes the first slot the boot CPU's. The first thing the kernel does at its virtual address.
pub(crate) fn init_boot_cpu() {
    let [slot, ..] = &SLOTS;
    slot.affinity.store(
        cpu::mpidr_el1() & granule_kcore::cpus::AFFINITY,
        Ordering::Relaxed,
    );
    slot.exception_stack_top
        .store(image::exception_stack_top(), Ordering::Relaxed);
    slot.state.store(STATE_UP, Ordering::Relaxed);
    ONLINE.store(1, Ordering::Relaxed);
    take(slot);
}

/// Makes `slot` this CPU's.
pub(super) fn take(slot: &'static PerCpu) {
    // SAFETY: the register is ours alone, and the slot lives for ever.
    unsafe { cpu::set_tpidr_el1(&raw const *slot as u64) };
}

/// TLB conflict aborts that all CPUs have dealt with.
pub(crate) fn tlb_conflicts() -> u64 {
    SLOTS
        .iter()
        .map(|cpu| cpu.tlb_conflicts.load(Ordering::Relaxed))
        .sum()
}

/// Translation faults of all CPUs that were none any more.
pub(crate) fn spurious_faults() -> u64 {
    SLOTS
        .iter()
        .map(|cpu| cpu.spurious_faults.load(Ordering::Relaxed))
        .sum()
}

/// The CPUs that answer calls, this one among them.
pub(crate) fn online() -> CpuSet {
    CpuSet(ONLINE.load(Ordering::Acquire))
}

/// Adds a CPU to those that answer calls.
pub(super) fn now_online(number: usize) {
    ONLINE.fetch_or(CpuSet::one(number).0, Ordering::AcqRel);
}

/// Takes a CPU out of those that answer calls.
pub(super) fn now_offline(number: usize) {
    ONLINE.fetch_and(!CpuSet::one(number).0, Ordering::AcqRel);
}
