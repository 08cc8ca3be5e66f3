//! Per-CPU data: a static slot for each CPU, found through TPIDR_EL1, and [`Local`], by which any part of the
//! kernel keeps one value a CPU in its own static. A slot does not know these values.
//!
//! TPIDR_EL1 serves at EL2 too: E2H does not redirect its name, but the register is accessible, and nothing
//! runs at EL1 beside this kernel. So the vectors need not know the exception level.

pub(crate) mod stacks;

use crate::arch::{cpu, image};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::cpus::{AFFINITY, MOST_CPUS};

/// One CPU's slot, alone in its cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct PerCpu {
    /// The top of the stack for exceptions that cannot use the interrupted stack. Like this slot, that stack
    /// lies in memory whose mapping is never split.
    exception_stack_top: AtomicU64,
    /// The affinity fields of MPIDR_EL1.
    pub(crate) affinity: AtomicU64,
}

/// Offset for the vectors.
pub(crate) const EXCEPTION_STACK_TOP: usize = offset_of!(PerCpu, exception_stack_top);

static SLOTS: [PerCpu; MOST_CPUS] = [const { PerCpu::new() }; MOST_CPUS];

/// The CPUs that answer calls.
static ONLINE: AtomicU64 = AtomicU64::new(0);

/// A value alone in its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Aligned<T>(pub(crate) T);

/// One value for each CPU. As a static it lies in the image, whose mapping is never split, so exception
/// handlers may use it.
#[derive(Debug)]
pub(crate) struct Local<T>(pub(crate) [Aligned<T>; MOST_CPUS]);

impl<T> Local<T> {
    /// The value of CPU `number`.
    pub(crate) fn of(&self, number: usize) -> Option<&T> {
        self.0.get(number).map(|Aligned(value)| value)
    }

    /// The value of the running CPU.
    pub(crate) fn this(&self) -> &T {
        let [Aligned(first), ..] = &self.0;
        // Every CPU number has a value.
        self.of(this().number()).unwrap_or(first)
    }
}

impl Local<AtomicU64> {
    /// The sum over all CPUs.
    pub(crate) fn sum(&self) -> u64 {
        let counts = self.0.iter();
        counts
            .map(|Aligned(count)| count.load(Ordering::Relaxed))
            .sum()
    }
}

impl PerCpu {
    const fn new() -> Self {
        Self {
            exception_stack_top: AtomicU64::new(0),
            affinity: AtomicU64::new(0),
        }
    }

    /// The CPU's number; the boot CPU's is 0.
    pub(crate) fn number(&self) -> usize {
        let offset = (&raw const *self as usize).wrapping_sub(SLOTS.as_ptr() as usize);
        offset / size_of::<Self>()
    }

    /// Prepares the slot of a CPU that is about to be started.
    pub(crate) fn prepare(&self, affinity: u64, exception_stack_top: u64) {
        self.affinity.store(affinity, Ordering::Relaxed);
        self.exception_stack_top
            .store(exception_stack_top, Ordering::Relaxed);
    }
}

/// The slot of CPU `number`.
pub(crate) fn of(number: usize) -> Option<&'static PerCpu> {
    SLOTS.get(number)
}

/// The slot of the running CPU.
pub(crate) fn this() -> &'static PerCpu {
    let slot = cpu::tpidr_el1() as *const PerCpu;
    // SAFETY: each CPU sets the register to a slot first of all in the kernel (`init_boot_cpu` and `take`),
    // and nothing else writes it.
    unsafe { &*slot }
}

/// Gives the first slot to the boot CPU. The kernel's first action at its virtual address.
pub(crate) fn init_boot_cpu() {
    let [slot, ..] = &SLOTS;
    slot.prepare(cpu::mpidr_el1() & AFFINITY, image::exception_stack_top());
    ONLINE.store(1, Ordering::Relaxed);
    take(slot);
}

/// Gives `slot` to this CPU.
pub(crate) fn take(slot: &'static PerCpu) {
    // SAFETY: only this module writes the register, and the slot is never freed.
    unsafe { cpu::set_tpidr_el1(&raw const *slot as u64) };
}

/// The CPUs that answer calls, including this one.
pub(crate) fn online() -> CpuSet {
    CpuSet(ONLINE.load(Ordering::Acquire))
}

/// Adds CPU `number` to the CPUs that answer calls.
pub(crate) fn now_online(number: usize) {
    ONLINE.fetch_or(CpuSet::one(number).0, Ordering::AcqRel);
}

/// Removes CPU `number` from the CPUs that answer calls.
pub(crate) fn now_offline(number: usize) {
    ONLINE.fetch_and(!CpuSet::one(number).0, Ordering::AcqRel);
}
