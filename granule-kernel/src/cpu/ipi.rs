//! Calls between CPUs: a function that runs on other CPUs, in their interrupt handler, while the
//! caller waits.
//!
//! Each CPU has an inbox for one call. The caller puts its call, which lies on its own stack, into
//! the inboxes, sends the interrupt, and waits until each CPU has crossed itself off. Whoever waits
//! answers calls to itself meanwhile, so that two CPUs may call each other.
//!
//! What a call runs must not take a lock that a caller may hold, must not call other CPUs itself,
//! and should be short. It runs with interrupts masked.

use crate::arch::cpu;
use crate::dev::gic;
use crate::percpu::{self, Aligned, Local, PerCpu};
use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::set::CpuSet;

/// Seconds that a CPU may take to answer. Answers take microseconds; this is for a machine that is
/// emulated and starved.
const PATIENCE_S: u64 = 10;

/// What to run, and who has not run it yet.
pub(crate) struct Call<'a> {
    work: &'a (dyn Fn(&'static PerCpu) + Sync),
    left: AtomicU64,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call on {}", CpuSet(self.left.load(Ordering::Relaxed)))
    }
}

/// The call that another CPU wants answered.
static INBOXES: Local<AtomicPtr<Call<'static>>> =
    Local([const { Aligned(AtomicPtr::new(core::ptr::null_mut())) }; MOST_CPUS]);

/// Calls that each CPU has answered.
static ANSWERED: Local<AtomicU64> = Local([const { Aligned(AtomicU64::new(0)) }; MOST_CPUS]);

/// Calls that CPU `number` has answered.
pub(crate) fn answered(number: usize) -> u64 {
    ANSWERED
        .of(number)
        .map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Runs `work` on `cpus`, this CPU among them if it is in the set, and returns when all have.
///
/// Panics, naming the CPU, when one does not answer. Interrupts must not be masked here, unless
/// nobody else can be calling.
pub(crate) fn call(cpus: CpuSet, work: &(dyn Fn(&'static PerCpu) + Sync)) {
    let this = percpu::this();
    call_while(cpus.without(this.number()), work, || {
        if cpus.contains(this.number()) {
            work(this);
        }
    });
}

/// Starts `work` on `others`, which this CPU must not be among, runs `meanwhile` here, and returns
/// what that returned when all others are done.
pub(crate) fn call_while<R>(
    others: CpuSet,
    work: &(dyn Fn(&'static PerCpu) + Sync),
    meanwhile: impl FnOnce() -> R,
) -> R {
    debug_assert!(!others.contains(percpu::this().number()));
    let call = Call {
        work,
        left: AtomicU64::new(others.0),
    };
    post(&call, others);
    let result = meanwhile();
    // Not returned from before: the others have pointers to the call, and a panic ends the kernel
    // without unwinding.
    wait(others, || call.left.load(Ordering::Acquire));
    result
}

fn post(call: &Call<'_>, others: CpuSet) {
    // The pointers' lifetime ends when `left` is empty, for which `call_while` waits.
    let pointer = (&raw const *call).cast_mut().cast::<Call<'static>>();
    for number in others.iter() {
        let Some(inbox) = INBOXES.of(number) else {
            continue;
        };
        // Occupied by another CPU's call until this one gets to it.
        wait(CpuSet::one(number), || {
            let put = inbox.compare_exchange(
                core::ptr::null_mut(),
                pointer,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if put.is_ok() {
                0
            } else {
                CpuSet::one(number).0
            }
        });
    }
    if !others.is_empty() {
        gic::send(others);
    }
}

/// Waits until `left` says that nobody is left of `cpus`, answering calls meanwhile.
fn wait(cpus: CpuSet, mut left: impl FnMut() -> u64) {
    if cpus.is_empty() {
        return;
    }
    let this = percpu::this();
    let patience = PATIENCE_S * cpu::cntfrq_el0();
    let mut answered = ANSWERED.this().load(Ordering::Relaxed);
    let mut since = cpu::counter_now();
    loop {
        let waiting_for = left();
        if waiting_for == 0 {
            return;
        }
        answer();
        let now = ANSWERED.this().load(Ordering::Relaxed);
        if now != answered {
            // We were away, maybe parked: the others may have been too.
            answered = now;
            since = cpu::counter_now();
        }
        assert!(
            cpu::counter_now().wrapping_sub(since) < patience,
            "CPU {} did not answer CPU {}'s call within {PATIENCE_S} s",
            CpuSet(waiting_for),
            this.number()
        );
        cpu::relax();
    }
}

/// Runs the call in this CPU's inbox, if there is one: by interrupt, and while waiting.
pub(crate) fn answer() {
    let this = percpu::this();
    let masked = cpu::mask_interrupts();
    let call = INBOXES
        .this()
        .swap(core::ptr::null_mut(), Ordering::Acquire);
    if !call.is_null() {
        // SAFETY: the caller keeps the call alive until this CPU crosses itself off, below.
        let call = unsafe { &*call };
        (call.work)(this);
        ANSWERED.this().fetch_add(1, Ordering::Relaxed);
        call.left
            .fetch_and(!CpuSet::one(this.number()).0, Ordering::Release);
    }
    cpu::restore_interrupts(masked);
}
