//! Who runs where, and for how long: all CPUs take tasks from one queue, first come, first served,
//! each for a turn of the timer.
//!
//! A CPU that has no task runs the loop it always ran ([`jobs::serve`](crate::cpu::jobs), the boot
//! CPU `user::init`'s), which calls [`run_one`]. A task leaves its CPU where it sleeps, ends, or is
//! about to go back to EL0 after its turn: code of the kernel is never taken off its CPU, so what
//! holds a lock goes on. It leaves to the loop that took it, which saves what is left to save before
//! anybody can take it up again (see [`turn`](super::turn)).

use super::idle::Idle;
use super::queue::Queue;
use super::switch::{Context, load_fp, save_fp, switch_context};
use super::task::{self, Task};
use super::turn::Left;
use super::waiters::Waiters;
use super::{memory, registers};
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

/// What a CPU runs.
struct Runs {
    task: AtomicPtr<Task>,
    /// The turn is over, or somebody wants the task looked at.
    again: AtomicBool,
    /// The loop that took the task.
    context: UnsafeCell<Context>,
}

// SAFETY: `context` is used by its own CPU only, with interrupts masked.
unsafe impl Sync for Runs {}

static CPUS: [Runs; MOST_CPUS] = [const {
    Runs {
        task: AtomicPtr::new(core::ptr::null_mut()),
        again: AtomicBool::new(false),
        context: UnsafeCell::new(Context::empty()),
    }
}; MOST_CPUS];

static READY: Lock<Queue> = Lock::new(Queue::new());
/// CPUs that may be waiting for an interrupt.
static IDLE: Idle = Idle::new();
/// Lets a CPU that was off and is up again run programs, if there are any.
pub(crate) fn admit(number: usize) {
    if is_open() {
        ipi::call(CpuSet::one(number), &|_| registers::open());
    }
}

/// Whether there is user space.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Whether no CPU takes up a task, though there is user space.
static FROZEN: AtomicBool = AtomicBool::new(false);
/// Tasks whose sleep ends at a time.
static TIMED: Waiters = Waiters::new();
/// Tasks that are buried, and whose parents are being told.
static BURYING: AtomicUsize = AtomicUsize::new(0);
/// Times that a CPU took up a task.
static SWITCHES: AtomicU64 = AtomicU64::new(0);

/// Buries a task and tells its parent, as one step to all that share the process table.
pub(super) static TELL_PARENT: spin::Once<fn(&'static Task)> = spin::Once::new();

/// A sleep was ended because the task is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// CPUs take tasks, or do so no more.
pub(super) fn open(open: bool) {
    OPEN.store(open, Ordering::SeqCst);
    parking::programs_run(open);
    // Those that went to sleep before this are in no set of idle ones, and nobody would wake them.
    gic::send(percpu::online().without(percpu::this().number()));
}

/// Whether there is user space.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// From here on tasks leave their CPUs as at the end of a turn, and none is taken up: all stay as they
/// are. Who wants that wakes the boot CPU for it ([`wake_boot_cpu`]), whose loop waits for them.
pub(crate) fn freeze() {
    FROZEN.store(true, Ordering::SeqCst);
}

/// Tasks are taken up again.
pub(crate) fn thaw() {
    FROZEN.store(false, Ordering::SeqCst);
    gic::send(percpu::online().without(percpu::this().number()));
}

fn is_frozen() -> bool {
    FROZEN.load(Ordering::SeqCst)
}

/// The boot CPU's loop has something to look at.
pub(crate) fn wake_boot_cpu() {
    gic::send(CpuSet::one(0));
}

/// Ends the turn of every task that runs; gives the first of them and its CPU, if there is one. None
/// while all are frozen: no task runs, and none will.
pub(crate) fn still_runs() -> Option<(usize, &'static Task)> {
    let mut first = None;
    for (number, runs) in CPUS.iter().enumerate() {
        let task = runs.task.load(Ordering::SeqCst);
        if task.is_null() {
            continue;
        }
        runs.again.store(true, Ordering::SeqCst);
        gic::send(CpuSet::one(number));
        // SAFETY: a task of the table, which is there for ever.
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

/// The task that runs on this CPU. Interrupts must be masked, or the asker be that task.
pub(crate) fn current() -> Option<&'static Task> {
    let task = this()?.task.load(Ordering::Relaxed);
    // SAFETY: a task of the table, which is there for ever.
    (!task.is_null()).then(|| unsafe { &*task })
}

/// Puts a task that is ready into the queue and wakes a CPU for it.
pub(super) fn enqueue(task: &Task) {
    // A task is in it once at most, so there is room.
    READY.with(|queue| queue.push(task.place()));
    wake_idle();
}

/// Wakes a CPU without a task for one that is in the queue.
fn wake_idle() {
    if let Some(number) = IDLE.pick() {
        gic::send(CpuSet::one(number));
    }
}

/// Wakes a task if it sleeps: what it may wait for came true.
pub(crate) fn wake(task: &Task) {
    if task.turn.wake() {
        enqueue(task);
    }
}

/// Has `task` look at what there is for it before it goes on at EL0: ends its sleep, or its turn on
/// whatever CPU.
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

/// Takes the first task of the queue and runs it until it leaves this CPU; false if there is none.
/// For the loop of a CPU without one, with interrupts let in.
pub(crate) fn run_one() -> bool {
    if !is_open() || is_frozen() {
        return false;
    }
    wake_timed();
    let (first, more) = READY.with(|queue| (queue.pop(), queue.len() > 0));
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
    // Frozen since, by who may have looked already and found no task here. Or who freezes will see it.
    if is_frozen() {
        runs.task.store(core::ptr::null_mut(), Ordering::SeqCst);
        READY.with(|queue| queue.push(task.place()));
        cpu::restore_interrupts(masked);
        return false;
    }
    SWITCHES.fetch_add(1, Ordering::Relaxed);
    task.turn.run();
    // SAFETY: what is saved of a task is the CPU's that took it out of the queue, until `left` has
    // given it away; the space is kept by the task, which has left nothing of it to anybody.
    unsafe {
        if let Some(space) = (*saved).space {
            memory::enter(space);
        }
        load_fp(&raw const (*saved).fp);
        registers::set_thread_pointer((*saved).thread_pointer);
    }
    timer::begin_turn();
    // SAFETY: the task's context was left by `leave`, or is a new one; this CPU's own is used here
    // only, and its stack goes on when the task leaves.
    unsafe { switch_context(runs.context.get(), &raw const (*saved).context) };
    timer::off();
    // SAFETY: as above; the kernel uses neither register.
    unsafe {
        save_fp(&raw mut (*saved).fp);
        (*saved).thread_pointer = registers::thread_pointer();
    }
    // Another CPU may free its tables as soon as somebody else has it.
    registers::leave_space();
    runs.task.store(core::ptr::null_mut(), Ordering::SeqCst);
    let left = task.turn.left();
    cpu::restore_interrupts(masked);
    match left {
        // This CPU looks at the queue next: nobody need be woken.
        Left::Queue => {
            READY.with(|queue| queue.push(task.place()));
        }
        Left::Sleeps => {}
        Left::Ended => bury(task),
    }
    true
}

/// What is left of a task that has ended goes, and its parent is told.
fn bury(task: &'static Task) {
    // As soon as the parent can ask, both may be gone, and all others: what all share is still used
    // here, and must not be closed meanwhile.
    BURYING.fetch_add(1, Ordering::SeqCst);
    task::free_body(task);
    if let Some(tell) = TELL_PARENT.get() {
        tell(task);
    }
    BURYING.fetch_sub(1, Ordering::SeqCst);
    if none_left() {
        // The boot CPU waits for the last one.
        gic::send(CpuSet::one(0));
    }
}

/// Whether nobody is left, not even to be asked how it ended, and no CPU is at the end of anybody.
pub(super) fn none_left() -> bool {
    // In this order: who is buried is counted before its place is free.
    task::none_left() && BURYING.load(Ordering::SeqCst) == 0
}

/// The task leaves its CPU; comes back when it has its turn again, on whatever CPU.
fn leave(task: &Task) {
    let masked = cpu::mask_interrupts();
    if let (Some(runs), Some(saved)) = (this(), task.saved()) {
        // SAFETY: this CPU runs the task, whose context nobody uses until it has left; the loop that
        // took it waits in `run_one`.
        unsafe { switch_context(&raw mut (*saved).context, runs.context.get()) };
    }
    cpu::restore_interrupts(masked);
}

/// The task's turn is over: it leaves its CPU if somebody else waits.
pub(crate) fn yield_now(task: &Task) {
    if READY.with(|queue| queue.len()) > 0 || !TIMED.is_empty() || is_frozen() {
        leave(task);
    } else {
        timer::begin_turn();
    }
}

/// The task leaves its CPU for good.
pub(super) fn end(task: &'static Task) -> ! {
    task.turn.end();
    loop {
        leave(task);
    }
}

/// Sleeps until `ready` gives something. Whoever makes that come true calls [`wake`] for this task
/// afterwards. `ready` must not sleep.
pub(crate) fn sleep_until<R>(
    task: &'static Task,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<R, Interrupted> {
    loop {
        task.turn.about_to_sleep();
        if let Some(result) = ready() {
            task.turn.stay();
            return Ok(result);
        }
        if task.killed().is_some() {
            task.turn.stay();
            return Err(Interrupted);
        }
        leave(task);
    }
}

/// As [`sleep_until`], but no longer than until `deadline` by [`timer::now`]: `Ok(None)` then.
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

/// Wakes those whose time has come; gives the next one's.
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

/// The timer's interrupt, masked. Where nobody waits for the end of the turn the next one begins at
/// once: else a task whose call takes longer than a turn would have to leave its CPU to whoever that
/// very call made ready, a fork's child for one.
pub(crate) fn tick() {
    timer::off();
    let Some(runs) = this() else { return };
    let runs_task = !runs.task.load(Ordering::Relaxed).is_null();
    let nobody_waits = READY.with(|queue| queue.len()) == 0 && TIMED.is_empty() && !is_frozen();
    if runs_task && nobody_waits {
        timer::begin_turn();
    } else {
        runs.again.store(true, Ordering::Relaxed);
    }
}

/// Whether the turn is over, or the task is to be looked at.
#[inline]
pub(super) fn is_wanted_again() -> bool {
    this().is_some_and(|runs| runs.again.load(Ordering::SeqCst))
}

/// As [`is_wanted_again`], and not any more after this.
pub(super) fn take_again() -> bool {
    this().is_some_and(|runs| runs.again.swap(false, Ordering::SeqCst))
}

/// Before a CPU without a task waits for an interrupt, which must be masked: whether it may. Whoever
/// makes a task ready after this sends one. Then [`woke`] is to be called.
pub(crate) fn may_sleep() -> bool {
    if !is_open() || is_frozen() {
        return true;
    }
    IDLE.about_to_wait(percpu::this().number());
    let next = wake_timed();
    if READY.with(|queue| queue.len()) > 0 {
        return false;
    }
    timer::set(next);
    // Without a timer nobody wakes us when their time comes.
    next.is_none() || timer::interrupt().is_some()
}

/// After the wait.
pub(crate) fn woke() {
    if is_open() {
        IDLE.goes_on(percpu::this().number());
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runs {:p}", self.task.load(Ordering::Relaxed))
    }
}
