//! The scheduler: all CPUs take tasks from one queue, first come, first served, each for one turn of the
//! timer.
//!
//! A CPU without a task runs its loop ([`jobs::serve`](crate::cpu::jobs); the boot CPU runs
//! `user::init`'s), which calls [`run_one`]. A task leaves its CPU when it sleeps, ends, or returns to
//! EL0 after its turn. Kernel code is never preempted, so a lock's holder keeps running. A task leaves
//! to the loop that took it; the loop saves the remaining state before any CPU can take the task again
//! (see [`granule_kcore::sched::task_state`]).

use super::switch::{Context, load_fp, save_fp, switch_context};
use super::task::{self, Task};
use super::{MOST_TASKS, memory, registers};
use crate::arch::cpu;
use crate::cpu::{ipi, parking};
use crate::dev::{gic, timer};
use crate::lock::Lock;
use crate::percpu;
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::sched::idle_cpus::IdleCpus;
use granule_kcore::sched::run_queue::RunQueue;
use granule_kcore::sched::task_state::SwitchedOut;
use granule_kcore::sched::waiters::Waiters;

/// The task of one CPU.
struct Runs {
    task: AtomicPtr<Task>,
    /// The turn is over, or the task has pending work.
    again: AtomicBool,
    /// The context of the loop that took the task.
    context: UnsafeCell<Context>,
}

// SAFETY: only its own CPU uses `context`, with interrupts masked.
unsafe impl Sync for Runs {}

static CPUS: [Runs; MOST_CPUS] = [const {
    Runs {
        task: AtomicPtr::new(core::ptr::null_mut()),
        again: AtomicBool::new(false),
        context: UnsafeCell::new(Context::empty()),
    }
}; MOST_CPUS];

static READY: Lock<RunQueue<MOST_TASKS>> = Lock::new(RunQueue::new());
/// CPUs that may be waiting for an interrupt.
static IDLE: IdleCpus = IdleCpus::new();
/// Lets a CPU that was off and is up again run programs, if user space exists.
pub(crate) fn admit(number: usize) {
    if is_open() {
        ipi::call(CpuSet::one(number), &|_| registers::open());
    }
}

/// Whether there is user space.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Whether CPUs take up no tasks although user space exists.
static FROZEN: AtomicBool = AtomicBool::new(false);
/// Tasks whose sleep has a deadline.
static TIMED: Waiters<{ MOST_TASKS / 64 }> = Waiters::new();
/// Tasks that are being buried and reported to their parents.
static BURYING: AtomicUsize = AtomicUsize::new(0);
/// How often a CPU took up a task.
static SWITCHES: AtomicU64 = AtomicU64::new(0);

/// Buries a task and tells its parent, in one step under the process table's lock.
pub(super) static TELL_PARENT: spin::Once<fn(&'static Task)> = spin::Once::new();

/// A sleep ended because the task is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// Lets CPUs take tasks, or stops them.
pub(super) fn open(open: bool) {
    OPEN.store(open, Ordering::SeqCst);
    parking::programs_run(open);
    // A CPU that went to sleep earlier is not in the set of idle CPUs, so nothing else would wake it.
    gic::send(percpu::online().without(percpu::this().number()));
}

/// Whether there is user space.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// Makes running tasks leave their CPUs as at the end of a turn, and stops CPUs from taking any up. The
/// caller then wakes the boot CPU ([`wake_boot_cpu`]), whose loop waits until no task runs.
pub(crate) fn freeze() {
    FROZEN.store(true, Ordering::SeqCst);
}

/// Lets CPUs take up tasks again.
pub(crate) fn thaw() {
    FROZEN.store(false, Ordering::SeqCst);
    gic::send(percpu::online().without(percpu::this().number()));
}

fn is_frozen() -> bool {
    FROZEN.load(Ordering::SeqCst)
}

/// Wakes the boot CPU's loop.
pub(crate) fn wake_boot_cpu() {
    gic::send(CpuSet::one(0));
}

/// Ends the turn of every running task. Returns the first of them and its CPU, if any. While tasks are
/// frozen, `None` means that no task runs and none will.
pub(crate) fn still_runs() -> Option<(usize, &'static Task)> {
    let mut first = None;
    for (number, runs) in CPUS.iter().enumerate() {
        let task = runs.task.load(Ordering::SeqCst);
        if task.is_null() {
            continue;
        }
        runs.again.store(true, Ordering::SeqCst);
        gic::send(CpuSet::one(number));
        // SAFETY: a task of the table, which is static.
        first.get_or_insert((number, unsafe { &*task }));
    }
    first
}

/// How often a CPU took up a task.
pub(crate) fn switches() -> u64 {
    SWITCHES.load(Ordering::Relaxed)
}

fn this() -> Option<&'static Runs> {
    CPUS.get(percpu::this().number())
}

/// The task that runs on this CPU. The caller must mask interrupts or be that task.
pub(crate) fn current() -> Option<&'static Task> {
    let task = this()?.task.load(Ordering::Relaxed);
    // SAFETY: a task of the table, which is static.
    (!task.is_null()).then(|| unsafe { &*task })
}

/// Queues a ready task and wakes a CPU for it.
pub(super) fn enqueue(task: &Task) {
    // A task is queued at most once, so the queue has room.
    READY.with(|queue| queue.push(task.place()));
    wake_idle();
}

/// Wakes an idle CPU for a queued task.
fn wake_idle() {
    if let Some(number) = IDLE.pick() {
        gic::send(CpuSet::one(number));
    }
}

/// Wakes a task if it sleeps, after its condition may have come true.
pub(crate) fn wake(task: &Task) {
    if task.state.wake() {
        enqueue(task);
    }
}

/// Makes `task` handle its pending work before it continues at EL0: ends its sleep, or its turn on any
/// CPU.
pub(crate) fn interrupt(task: &Task) {
    wake(task);
    let pointer = (&raw const *task).cast_mut();
    for (number, runs) in CPUS.iter().enumerate() {
        if runs.task.load(Ordering::SeqCst) == pointer {
            runs.again.store(true, Ordering::SeqCst);
            if number != percpu::this().number() {
                gic::send(CpuSet::one(number));
            }
        }
    }
}

/// Runs the first task of the queue until it leaves this CPU. False if the queue is empty. The loop of a
/// CPU without a task calls this, with interrupts enabled.
pub(crate) fn run_one() -> bool {
    if !is_open() || is_frozen() {
        return false;
    }
    wake_timed();
    let (first, more) = READY.with(|queue| (queue.pop(), !queue.is_empty()));
    if more {
        wake_idle();
    }
    let Some(task) = first.and_then(task::at) else {
        return false;
    };
    let (Some(runs), Some(saved)) = (this(), task.saved()) else {
        return false;
    };
    let masked = cpu::mask_interrupts();
    runs.again.store(false, Ordering::Relaxed);
    runs.task
        .store((&raw const *task).cast_mut(), Ordering::SeqCst);
    // `freeze` may have come since the check above, and its caller may have seen no task here yet. If it
    // comes later, its caller sees this task.
    if is_frozen() {
        runs.task.store(core::ptr::null_mut(), Ordering::SeqCst);
        READY.with(|queue| queue.push(task.place()));
        cpu::restore_interrupts(masked);
        return false;
    }
    SWITCHES.fetch_add(1, Ordering::Relaxed);
    task.state.set_running();
    // SAFETY: the saved state of a task belongs to the CPU that dequeued the task, until
    // `switched_out` hands it on. The task keeps the space alive and has given it to nothing else.
    unsafe {
        if let Some(space) = (*saved).space {
            memory::enter(space);
        }
        load_fp(&raw const (*saved).fp);
        registers::set_thread_pointer((*saved).thread_pointer);
    }
    timer::begin_turn();
    // SAFETY: `leave` filled the task's context, or the context is new. Only this CPU uses its own
    // context, and its stack continues when the task leaves.
    unsafe { switch_context(runs.context.get(), &raw const (*saved).context) };
    timer::off();
    // SAFETY: as above; the kernel does not use these registers.
    unsafe {
        save_fp(&raw mut (*saved).fp);
        (*saved).thread_pointer = registers::thread_pointer();
    }
    // Once the task is handed on, another CPU may free its tables.
    registers::leave_space();
    runs.task.store(core::ptr::null_mut(), Ordering::SeqCst);
    let next = task.state.switched_out();
    cpu::restore_interrupts(masked);
    match next {
        // This CPU checks the queue next, so no other need be woken.
        SwitchedOut::Requeue => {
            READY.with(|queue| queue.push(task.place()));
        }
        SwitchedOut::Sleeps => {}
        SwitchedOut::Ended => bury(task),
    }
    true
}

/// Frees the rest of an ended task and tells its parent.
fn bury(task: &'static Task) {
    // Once the parent can reap, all processes may be gone. User space must not be closed while this code
    // still uses shared state.
    BURYING.fetch_add(1, Ordering::SeqCst);
    task::free_body(task);
    if let Some(tell) = TELL_PARENT.get() {
        tell(task);
    }
    BURYING.fetch_sub(1, Ordering::SeqCst);
    if none_left() {
        // The boot CPU waits for the last task.
        gic::send(CpuSet::one(0));
    }
}

/// Whether no task is left, not even a zombie, and no CPU is burying one.
pub(super) fn none_left() -> bool {
    // The order matters: a task counts as buried before its place is free.
    task::none_left() && BURYING.load(Ordering::SeqCst) == 0
}

/// Leaves the CPU. Returns when the task gets its next turn, on any CPU.
fn leave(task: &Task) {
    let masked = cpu::mask_interrupts();
    if let (Some(runs), Some(saved)) = (this(), task.saved()) {
        // SAFETY: this CPU runs the task, and nothing uses the task's context until it has left. The
        // loop that took the task waits in `run_one`.
        unsafe { switch_context(&raw mut (*saved).context, runs.context.get()) };
    }
    cpu::restore_interrupts(masked);
}

/// Ends the task's turn: it leaves its CPU if another task waits.
pub(crate) fn yield_now(task: &Task) {
    if !READY.with(|queue| queue.is_empty()) || !TIMED.is_empty() || is_frozen() {
        leave(task);
    } else {
        timer::begin_turn();
    }
}

/// Leaves the CPU for good.
pub(super) fn end(task: &'static Task) -> ! {
    task.state.end();
    loop {
        leave(task);
    }
}

/// Sleeps until `ready` returns a value. Code that makes the condition true calls [`wake`] for this task
/// afterwards. `ready` must not sleep.
pub(crate) fn sleep_until<R>(
    task: &'static Task,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<R, Interrupted> {
    loop {
        task.state.prepare_to_sleep();
        if let Some(result) = ready() {
            task.state.cancel_sleep();
            return Ok(result);
        }
        if task.killed().is_some() {
            task.state.cancel_sleep();
            return Err(Interrupted);
        }
        leave(task);
    }
}

/// As [`sleep_until`], but no longer than until `deadline` by [`timer::now`]; then returns `Ok(None)`.
pub(crate) fn sleep_until_time<R>(
    task: &'static Task,
    deadline: u64,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<Option<R>, Interrupted> {
    task.deadline.store(deadline, Ordering::Relaxed);
    let place = task.place();
    let result = sleep_until(task, || {
        TIMED.add(place);
        fence(Ordering::SeqCst);
        match ready() {
            Some(result) => Some(Some(result)),
            None if timer::now() >= deadline => Some(None),
            None => None,
        }
    });
    TIMED.remove(place);
    result
}

/// Wakes the tasks whose deadline has passed. Returns the next deadline.
fn wake_timed() -> Option<u64> {
    if TIMED.is_empty() {
        return None;
    }
    let now = timer::now();
    let mut next = None;
    TIMED.each(|place| {
        let Some(task) = task::at(place) else { return };
        let deadline = task.deadline.load(Ordering::Relaxed);
        if deadline <= now {
            TIMED.remove(place);
            wake(task);
        } else {
            next = Some(next.map_or(deadline, |next: u64| next.min(deadline)));
        }
    });
    next
}

/// The timer's interrupt, masked. If nothing waits for the end of the turn, the next turn begins at
/// once. Otherwise a task in a call longer than a turn would lose its CPU to a task that this very call
/// made ready, such as the child of a fork.
pub(crate) fn tick() {
    timer::off();
    let Some(runs) = this() else { return };
    let runs_task = !runs.task.load(Ordering::Relaxed).is_null();
    let nobody_waits = READY.with(|queue| queue.is_empty()) && TIMED.is_empty() && !is_frozen();
    if runs_task && nobody_waits {
        timer::begin_turn();
    } else {
        runs.again.store(true, Ordering::Relaxed);
    }
}

/// Whether the turn is over, or the task has pending work.
#[inline]
pub(super) fn is_wanted_again() -> bool {
    this().is_some_and(|runs| runs.again.load(Ordering::SeqCst))
}

/// As [`is_wanted_again`], and clears the mark.
pub(super) fn take_again() -> bool {
    this().is_some_and(|runs| runs.again.swap(false, Ordering::SeqCst))
}

/// Whether a CPU without a task may wait for an interrupt; interrupts must be masked. Code that makes a
/// task ready afterwards sends one. After the wait [`woke`] must be called.
pub(crate) fn may_sleep() -> bool {
    if !is_open() || is_frozen() {
        return true;
    }
    IDLE.mark(percpu::this().number());
    let next = wake_timed();
    if !READY.with(|queue| queue.is_empty()) {
        return false;
    }
    timer::set(next);
    // Without a timer no interrupt comes at the deadline, so the CPU must not wait.
    next.is_none() || timer::interrupt().is_some()
}

/// Ends the wait that `may_sleep` allowed.
pub(crate) fn woke() {
    if is_open() {
        IDLE.unmark(percpu::this().number());
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runs {:p}", self.task.load(Ordering::Relaxed))
    }
}
