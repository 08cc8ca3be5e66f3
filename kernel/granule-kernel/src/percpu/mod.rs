//! Per-CPU data: each CPU's own values, found through TPIDR_EL1.
//!
//! The linker gathers the statics that [`per_cpu`] declares, in any part of the kernel, in one
//! section. The section itself is the boot CPU's copy, and each other CPU has a copy in memory that
//! is allocated when the CPU is started. In every copy a value has the same distance from the CPU's
//! slot, [`PerCpu`], whose address is in TPIDR_EL1. All copies begin as zero bytes. The slot does
//! not depend on the values.
//!
//! TPIDR_EL1 serves at EL2 too: E2H does not redirect its name, but the register is accessible, and
//! nothing runs at EL1 beside this kernel. So the vectors do not depend on the exception level.

pub(crate) mod stacks;
pub(crate) mod stop;

use crate::arch::{cpu, image};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use granule_kcore::cpus::AFFINITY;
use granule_kcore::cpus::set::{AtomicCpuSet, CpuSet};

/// One CPU's slot, alone in its cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct PerCpu {
    /// The top of the stack for exceptions that cannot use the interrupted stack. Like this slot, that stack
    /// lies in memory whose mapping is never split.
    exception_stack_top: AtomicU64,
    /// The affinity fields of MPIDR_EL1.
    pub(crate) affinity: AtomicU64,
    number: AtomicUsize,
}

/// Offset for the vectors.
pub(crate) const EXCEPTION_STACK_TOP: usize = offset_of!(PerCpu, exception_stack_top);

/// The number of CPUs that have their data. They are the first ones.
static READY: AtomicUsize = AtomicUsize::new(1);

/// The CPUs that answer calls.
static ONLINE: AtomicCpuSet = AtomicCpuSet::new();

/// Declares a static of which each CPU has a value: a [`Local`]. The value at first must be zero bytes, else the
/// compiler refuses to put it into the section.
macro_rules! per_cpu {
    ($(#[$attribute:meta])* static $name:ident: $value:ty = $first:expr;) => {
        $(#[$attribute])*
        #[allow(unsafe_code, reason = "the macro keeps the rule of `Local`")]
        // SAFETY: the section holds values of `Local` only, whose owner is this module.
        #[unsafe(link_section = ".bss.percpu")]
        static $name: $crate::percpu::Local<$value> =
            // SAFETY: the attribute above.
            unsafe { $crate::percpu::Local::new($first) };
    };
}
pub(crate) use per_cpu;

per_cpu! {
    static SLOT: PerCpu = PerCpu::new();
}

/// One value for each CPU, alone in its cache lines. Their mapping is never split, so exception handlers may use
/// them.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Local<T>(T);

#[allow(unsafe_code, reason = "values in the copies of the section")]
impl<T: Sync> Local<T> {
    /// The boot CPU's value.
    ///
    /// # Safety
    ///
    /// It must be a static in the section of per-CPU data, and its bytes must be zero: [`per_cpu`] declares it.
    pub(crate) const unsafe fn new(first: T) -> Self {
        Self(first)
    }

    /// The value of CPU `number`; `None` if there is no such CPU, or it has no data yet.
    pub(crate) fn of(&'static self, number: usize) -> Option<&'static T> {
        (number < READY.load(Ordering::Acquire)).then(|| self.at(data(number), start()))
    }

    /// The value of the running CPU.
    pub(crate) fn this(&'static self) -> &'static T {
        self.at(cpu::tpidr_el1(), &raw const SLOT as u64)
    }

    /// The values of all CPUs that have their data, by the CPU's number.
    pub(crate) fn all(&'static self) -> impl Iterator<Item = &'static T> {
        (0..ready()).map_while(|number| self.of(number))
    }

    /// The value in the copy that has at `there` what the boot CPU's copy has at `here`.
    fn at(&'static self, there: u64, here: u64) -> &'static T {
        let distance = (&raw const self.0 as u64).wrapping_sub(here);
        let value = there.wrapping_add(distance) as *const T;
        // SAFETY: `new` vouches that this static lies in the section. Each CPU's copy of the section is mapped for
        // good before `READY` counts it and before the CPU runs, and began as zero bytes, as this static did.
        unsafe { &*value }
    }
}

impl Local<AtomicU64> {
    /// The sum over all CPUs.
    pub(crate) fn sum(&'static self) -> u64 {
        self.all().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl PerCpu {
    const fn new() -> Self {
        Self {
            exception_stack_top: AtomicU64::new(0),
            affinity: AtomicU64::new(0),
            number: AtomicUsize::new(0),
        }
    }

    /// The CPU's number; the boot CPU's is 0.
    pub(crate) fn number(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }
}

#[allow(unsafe_code, reason = "the linker's symbols")]
unsafe extern "C" {
    static __percpu_start: u8;
    static __percpu_end: u8;
}

fn start() -> u64 {
    &raw const __percpu_start as u64
}

/// Bytes of a CPU's data.
pub(crate) fn bytes() -> u64 {
    &raw const __percpu_end as u64 - start()
}

/// The address of the data of CPU `number`.
fn data(number: usize) -> u64 {
    if number == 0 {
        start()
    } else {
        stacks::data(number)
    }
}

/// Gives the next CPU its data, and returns its slot.
///
/// # Safety
///
/// The CPU's stacks and data must be mapped at their places for good, and the data must be zero bytes. Only the
/// boot CPU calls this.
#[allow(unsafe_code, reason = "memory that the caller mapped for a CPU")]
pub(crate) unsafe fn add(affinity: u64) -> &'static PerCpu {
    let number = ready();
    let slot = SLOT.at(data(number), start());
    slot.number.store(number, Ordering::Relaxed);
    let exceptions = stacks::bottom(number, 1) + stacks::STACK_BYTES;
    slot.prepare(affinity, exceptions);
    READY.store(number + 1, Ordering::Release);
    slot
}

impl PerCpu {
    fn prepare(&self, affinity: u64, exception_stack_top: u64) {
        self.affinity.store(affinity, Ordering::Relaxed);
        self.exception_stack_top
            .store(exception_stack_top, Ordering::Relaxed);
    }
}

/// The number of CPUs that have their data, whether they run or not.
pub(crate) fn ready() -> usize {
    READY.load(Ordering::Acquire)
}

/// Whether a CPU with this affinity has its data.
pub(crate) fn is_known(affinity: u64) -> bool {
    SLOT.all()
        .any(|slot| slot.affinity.load(Ordering::Relaxed) == affinity)
}

pub(crate) fn of(number: usize) -> Option<&'static PerCpu> {
    SLOT.of(number)
}

/// The slot of the running CPU.
#[allow(unsafe_code, reason = "TPIDR_EL1 has the address of a slot")]
pub(crate) fn this() -> &'static PerCpu {
    let slot = cpu::tpidr_el1() as *const PerCpu;
    // SAFETY: each CPU sets the register to a slot first of all in the kernel (`init_boot_cpu` and `take`),
    // and nothing else writes it.
    unsafe { &*slot }
}

/// Gives the first slot to the boot CPU. The kernel's first action at its virtual address.
pub(crate) fn init_boot_cpu() {
    let Local(slot) = &SLOT;
    slot.prepare(cpu::mpidr_el1() & AFFINITY, image::exception_stack_top());
    now_online(0);
    take(slot);
}

#[allow(unsafe_code, reason = "TPIDR_EL1 has the address of a slot")]
pub(crate) fn take(slot: &'static PerCpu) {
    // SAFETY: only this module writes the register, and the slot is never freed.
    unsafe { cpu::set_tpidr_el1(&raw const *slot as u64) };
}

/// The CPUs that answer calls, including this one.
pub(crate) fn online() -> CpuSet {
    ONLINE.load(Ordering::Acquire)
}

/// Whether CPU `number` is one of these.
pub(crate) fn is_online(number: usize) -> bool {
    ONLINE.contains(number, Ordering::Acquire)
}

/// Adds CPU `number` to the CPUs that answer calls.
pub(crate) fn now_online(number: usize) {
    ONLINE.add(number, Ordering::AcqRel);
}

/// Removes CPU `number` from the CPUs that answer calls.
pub(crate) fn now_offline(number: usize) {
    ONLINE.remove(number, Ordering::AcqRel);
}
