//! The scheduler: all CPUs take tasks from one queue, first come, first served, each for one
//! time slice.
//!
//! A task is its place in the table of tasks; its meaning belongs to the module `task` above, which the
//! scheduler reaches through [`TaskCalls`] only. The scheduler has a task's [`thread`] (the kernel
//! [`stack`] and the saved registers), the [`switch`] between stacks, and the [`registers`] that let
//! programs run on a CPU. Its decisions are in [`granule_kcore::sched`].
//!
//! A CPU without a task runs its loop ([`jobs::serve`](crate::cpu::jobs); the boot CPU runs
//! `task::user_space`'s), which calls [`run_one`]. A task leaves its CPU when it sleeps, ends, or returns to
//! EL0 after its time slice. Kernel code is never preempted, so a lock's holder keeps running. A task leaves
//! to the loop that took it; the loop saves the remaining state before any CPU can take the task again
//! (see [`granule_kcore::sched::task_state`]).

pub(crate) mod hook;
pub(crate) mod registers;
pub(crate) mod stack;
pub(crate) mod switch;
pub(crate) mod table;
pub(crate) mod thread;

use crate::arch::cpu;
use crate::cpu::{ipi, parking};
use crate::dev::{intc, timer};
use crate::lock::Lock;
use crate::percpu::{self, per_cpu};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::sched::idle_cpus::IdleCpus;
use granule_kcore::sched::run_queue::RunQueue;
use granule_kcore::sched::task_state::{SwitchedOut, TaskState};
use granule_kcore::sched::waiters::Waiters;
use switch::{Context, load_fp, save_fp, switch_context};
use table::Table;
use thread::{Saved, Thread};

/// The most tasks of any machine: as many as the process table has places.
pub(crate) const MOST_TASKS: usize = granule_linux_abi::processes::MOST_PROCESSES;

/// The scheduler's calls to the tasks above it.
pub(crate) struct TaskCalls {
    /// Makes this CPU enter the address space of the task at a place, with interrupts masked.
    ///
    /// # Safety
    ///
    /// This CPU has taken the task from the queue and leaves the space before it hands the task on.
    pub(crate) enter_space: unsafe fn(usize),
    /// The task at a place has left its CPU for good, and its thread is unused.
    pub(crate) bury: fn(usize),
}

/// The tasks' functions, set before the first task begins.
pub(crate) static TASK_CALLS: spin::Once<TaskCalls> = spin::Once::new();

/// The scheduler's part of a task.
pub(crate) struct Entity {
    state: TaskState,
    /// The deadline of its sleep, by the timer's counter.
    deadline: AtomicU64,
    /// Null if the task has not begun, or has ended.
    thread: AtomicPtr<Thread>,
}

/// The tasks by place, set before the first task begins.
pub(crate) static ENTITIES: Table<Entity> = Table::new();

#[allow(unsafe_code, reason = "a thread stays until its task is buried")]
impl Entity {
    pub(crate) const fn new() -> Self {
        Self {
            state: TaskState::new(),
            deadline: AtomicU64::new(0),
            thread: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Returns the thread of the task. The task itself calls this, or the CPU that took it out of
    /// the queue.
    fn thread(&self) -> Option<&Thread> {
        let thread = NonNull::new(self.thread.load(Ordering::Acquire))?;
        // SAFETY: the caller of `begin` keeps the thread until its task is buried, and the pointer is
        // cleared before that.
        Some(unsafe { thread.as_ref() })
    }

    /// The saved registers of the task.
    fn saved(&self) -> Option<*mut Saved> {
        Some(self.thread()?.saved())
    }
}

fn entity(place: usize) -> &'static Entity {
    let entities = ENTITIES.all();
    let Some(entity) = entities.get(place) else {
        panic!(
            "there is no task at place {place}: the table has {}",
            entities.len()
        );
    };
    entity
}

struct Cpu {
    /// One more than the task's place, or 0 while the CPU runs no task.
    task: AtomicUsize,
    /// The time slice is over, or the task has pending work.
    reschedule: AtomicBool,
    /// The context of the loop that took the task.
    context: UnsafeCell<Context>,
}

#[allow(unsafe_code, reason = "only its own CPU uses a context")]
// SAFETY: only its own CPU uses `context`, with interrupts masked.
unsafe impl Sync for Cpu {}

impl Cpu {
    fn task(&self, order: Ordering) -> Option<usize> {
        self.task.load(order).checked_sub(1)
    }

    fn set_task(&self, place: Option<usize>) {
        let value = place.map_or(0, |place| place + 1);
        self.task.store(value, Ordering::SeqCst);
    }
}

per_cpu! {
    static CPU: Cpu = Cpu {
        task: AtomicUsize::new(0),
        reschedule: AtomicBool::new(false),
        context: UnsafeCell::new(Context::empty()),
    };
}

static READY: Lock<RunQueue<MOST_TASKS>> = Lock::new(RunQueue::new());
/// CPUs that may be waiting for an interrupt.
static IDLE: IdleCpus = IdleCpus::new();
/// Whether there is user space.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Whether CPUs take up no tasks although user space exists.
static FROZEN: AtomicBool = AtomicBool::new(false);
/// Tasks whose sleep has a deadline.
static TIMED: Waiters<{ MOST_TASKS / 64 }> = Waiters::new();
/// The number of times that a CPU took up a task.
static SWITCHES: AtomicU64 = AtomicU64::new(0);

/// Makes a CPU that was off and is up again run programs, if user space exists.
pub(crate) fn admit(number: usize) {
    if is_open() {
        ipi::call(CpuSet::one(number), &|_| registers::open());
    }
}

/// Makes the task at `place` ready to run `thread`. The caller then queues it ([`enqueue`]).
///
/// # Safety
///
/// The place has no other task, and the thread stays where it is until [`TaskCalls::bury`].
#[allow(unsafe_code, reason = "a thread stays until its task is buried")]
pub(crate) unsafe fn begin(place: usize, thread: NonNull<Thread>) {
    let entity = entity(place);
    entity.thread.store(thread.as_ptr(), Ordering::Release);
    entity.state.begin();
}

/// Lets CPUs take tasks, or stops them.
pub(crate) fn open(open: bool) {
    OPEN.store(open, Ordering::SeqCst);
    parking::programs_run(open);
    // A CPU that went to sleep earlier is not in the set of idle CPUs, so nothing else would wake it.
    intc::send(percpu::online().without(percpu::this().number()));
}

/// Whether there is user space.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// Makes running tasks leave their CPUs as at the end of a time slice, and stops CPUs from taking any up. The
/// caller then wakes the boot CPU ([`wake_boot_cpu`]), whose loop waits until no task runs.
pub(crate) fn freeze() {
    FROZEN.store(true, Ordering::SeqCst);
}

/// Lets CPUs take up tasks again.
pub(crate) fn thaw() {
    FROZEN.store(false, Ordering::SeqCst);
    intc::send(percpu::online().without(percpu::this().number()));
}

fn is_frozen() -> bool {
    FROZEN.load(Ordering::SeqCst)
}

/// Wakes the boot CPU's loop.
pub(crate) fn wake_boot_cpu() {
    intc::send_to(0);
}

/// Ends the time slice of every running task. Returns the first CPU that runs a task, and the task's place.
/// While tasks are frozen, `None` means that no task runs and none will.
pub(crate) fn still_runs() -> Option<(usize, usize)> {
    let mut first = None;
    for (number, cpu) in CPU.all().enumerate() {
        let Some(place) = cpu.task(Ordering::SeqCst) else {
            continue;
        };
        cpu.reschedule.store(true, Ordering::SeqCst);
        intc::send_to(number);
        first.get_or_insert((number, place));
    }
    first
}

/// Returns the number of times that a CPU took up a task.
pub(crate) fn switches() -> u64 {
    SWITCHES.load(Ordering::Relaxed)
}

/// The place of the task that runs on this CPU. The caller must mask interrupts or be that task.
#[inline]
pub(crate) fn current() -> Option<usize> {
    CPU.this().task(Ordering::Relaxed)
}

/// Queues a ready task and wakes a CPU for it.
pub(crate) fn enqueue(place: usize) {
    // A task is queued at most once, so the queue has room.
    READY.with(|queue| queue.push(place));
    wake_idle();
}

/// Wakes an idle CPU for a queued task.
fn wake_idle() {
    if let Some(number) = IDLE.pick() {
        intc::send_to(number);
    }
}

/// Wakes the task at `place` if it sleeps, after its condition may have come true.
pub(crate) fn wake(place: usize) {
    if entity(place).state.wake() {
        enqueue(place);
    }
}

/// Makes the task at `place` handle its pending work before it continues at EL0: ends its sleep, or its
/// time slice on any CPU.
pub(crate) fn interrupt(place: usize) {
    wake(place);
    for (number, cpu) in CPU.all().enumerate() {
        if cpu.task(Ordering::SeqCst) == Some(place) {
            cpu.reschedule.store(true, Ordering::SeqCst);
            if number != percpu::this().number() {
                intc::send_to(number);
            }
        }
    }
}

/// Runs the first task of the queue until it leaves this CPU. False if the queue is empty. The loop of a
/// CPU without a task calls this, with interrupts enabled.
#[allow(unsafe_code, reason = "contexts and registers of the task it took")]
pub(crate) fn run_one() -> bool {
    if !is_open() || is_frozen() {
        return false;
    }
    wake_timed();
    let (first, more) = READY.with(|queue| (queue.pop(), !queue.is_empty()));
    if more {
        wake_idle();
    }
    let Some(place) = first else {
        return false;
    };
    let entity = entity(place);
    let (Some(saved), Some(calls)) = (entity.saved(), TASK_CALLS.get()) else {
        return false;
    };
    let this = CPU.this();
    let masked = cpu::mask_interrupts();
    this.reschedule.store(false, Ordering::Relaxed);
    this.set_task(Some(place));
    // `freeze` may have come since the check above, and its caller may have seen no task here yet. If it
    // comes later, its caller sees this task.
    if is_frozen() {
        this.set_task(None);
        READY.with(|queue| queue.push(place));
        cpu::restore_interrupts(masked);
        return false;
    }
    SWITCHES.fetch_add(1, Ordering::Relaxed);
    entity.state.set_running();
    // SAFETY: the saved registers of a task belong to the CPU that dequeued the task, until
    // `switched_out` hands it on. The CPU leaves the space before that.
    unsafe {
        (calls.enter_space)(place);
        load_fp(&raw const (*saved).fp);
        registers::set_thread_pointer((*saved).thread_pointer);
    }
    timer::begin_time_slice();
    // SAFETY: `leave` filled the task's context, or the context is new. Only this CPU uses its own
    // context, and its stack continues when the task leaves.
    unsafe { switch_context(this.context.get(), &raw const (*saved).context) };
    timer::off();
    // SAFETY: as above; the kernel does not use these registers.
    unsafe {
        save_fp(&raw mut (*saved).fp);
        (*saved).thread_pointer = registers::thread_pointer();
    }
    // Once the task is handed on, another CPU may free its tables.
    registers::leave_space();
    this.set_task(None);
    let next = entity.state.switched_out();
    cpu::restore_interrupts(masked);
    match next {
        // This CPU checks the queue next, so no other need be woken.
        SwitchedOut::Requeue => {
            READY.with(|queue| queue.push(place));
        }
        SwitchedOut::Sleeps => {}
        SwitchedOut::Ended => {
            entity
                .thread
                .store(core::ptr::null_mut(), Ordering::Release);
            (calls.bury)(place);
        }
    }
    true
}

/// The calling task has used more than its stack.
#[cold]
fn overflown(thread: &Thread) -> ! {
    panic!("kernel stack overflow: the last word of a stack changed, {thread:?}");
}

/// Whether `address`, in the slot of the stack that this CPU uses, is in none of that stack's own memory. False for
/// any other stack.
pub(crate) fn has_left_its_stack(address: u64) -> bool {
    let entity = stack::slot(address).and_then(|place| ENTITIES.all().get(place));
    let thread = entity.and_then(Entity::thread);
    thread.is_some_and(|thread| !thread.stack().contains(address))
}

/// Leaves the CPU. Returns when a CPU takes the task up again.
#[allow(unsafe_code, reason = "the context of the task that this CPU runs")]
fn leave(entity: &Entity) {
    let masked = cpu::mask_interrupts();
    if let Some(thread) = entity.thread() {
        if !thread.stack().is_sound() {
            overflown(thread);
        }
        let saved = thread.saved();
        let this = CPU.this();
        // SAFETY: this CPU runs the task, and nothing uses the task's context until it has left. The
        // loop that took the task waits in `run_one`.
        unsafe { switch_context(&raw mut (*saved).context, this.context.get()) };
    }
    cpu::restore_interrupts(masked);
}

/// Whether no task waits for the end of a time slice, and tasks are not frozen.
fn nothing_waits() -> bool {
    READY.with(|queue| queue.is_empty()) && TIMED.is_empty() && !is_frozen()
}

/// Ends the time slice of the calling task, the task at `place`: it leaves its CPU if another task waits.
pub(crate) fn yield_now(place: usize) {
    if nothing_waits() {
        timer::begin_time_slice();
    } else {
        leave(entity(place));
    }
}

/// The calling task leaves its CPU for good.
pub(crate) fn end(place: usize) -> ! {
    let entity = entity(place);
    entity.state.end();
    loop {
        leave(entity);
    }
}

/// The calling task sleeps until `ready` returns a value. Code that makes the condition true calls
/// [`wake`] for this task afterwards. `ready` must not sleep.
pub(crate) fn sleep_until<R>(place: usize, mut ready: impl FnMut() -> Option<R>) -> R {
    let entity = entity(place);
    loop {
        entity.state.prepare_to_sleep();
        if let Some(result) = ready() {
            entity.state.cancel_sleep();
            return result;
        }
        leave(entity);
    }
}

/// As [`sleep_until`], but no longer than until `deadline` by [`timer::now`]; then returns `None`.
pub(crate) fn sleep_until_time<R>(
    place: usize,
    deadline: u64,
    mut ready: impl FnMut() -> Option<R>,
) -> Option<R> {
    entity(place).deadline.store(deadline, Ordering::Relaxed);
    let result = sleep_until(place, || {
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
        let deadline = entity(place).deadline.load(Ordering::Relaxed);
        if deadline <= now {
            TIMED.remove(place);
            wake(place);
        } else {
            next = Some(next.map_or(deadline, |next: u64| next.min(deadline)));
        }
    });
    next
}

/// The timer's interrupt, masked. If nothing waits for the end of the time slice, the next one begins at once.
/// Otherwise a task in a call longer than a time slice would lose its CPU to a task that this very call made ready,
/// such as the child of a fork.
pub(crate) fn tick() {
    timer::off();
    let this = CPU.this();
    if this.task(Ordering::Relaxed).is_some() && nothing_waits() {
        timer::begin_time_slice();
    } else {
        this.reschedule.store(true, Ordering::Relaxed);
    }
}

/// Whether the turn is over, or the task has pending work.
#[inline]
pub(crate) fn needs_reschedule() -> bool {
    CPU.this().reschedule.load(Ordering::SeqCst)
}

/// As [`needs_reschedule`], and clears the mark.
pub(crate) fn take_reschedule() -> bool {
    CPU.this().reschedule.swap(false, Ordering::SeqCst)
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
