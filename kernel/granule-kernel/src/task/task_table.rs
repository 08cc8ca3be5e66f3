//! The table of tasks, whose size limits fork bombs, and the state of each task.
//!
//! The size follows from the free memory before the first process; the table is made then and never
//! freed. State visible to others lies in the table, as atomics. State that only the task itself
//! uses ([`Own`]) lies in its own frames; [`Current`] gives access to it, once for the time the
//! task is in the kernel. The scheduler's [`Thread`] lies beside it.

#![allow(unsafe_code, reason = "data of a task that only the task reaches")]

use super::address_space::{AddressSpace, SpaceRef};
use super::owned::{Array, Boxed, PageFrames};
use crate::exception::vectors;
use crate::lock::Lock;
use crate::mm::pages::Pages;
use crate::percpu::per_cpu;
use crate::sched::table::Table;
use crate::sched::thread::Thread;
use crate::sched::{self, Entity};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use granule_kcore::exception_frame::Frame;
use granule_kcore::frames::tables::Source;
use granule_linux_abi::abi::process::Status;
use granule_linux_abi::abi::signal::SIGKILL;
use granule_linux_abi::processes::{
    Numbers, Places, Reaped, Relation, Rings, Selection, places_for,
};

pub(super) mod builder;

/// The place is free.
const FREE: u32 = 0;
/// The task is being made.
const MADE: u32 = 1;
/// The task runs, or will.
const ALIVE: u32 = 2;
/// The task has ended, and its parent has not reaped it.
const ZOMBIE: u32 = 3;

/// The first process, whose end ends all others.
pub(crate) const INIT: u32 = 1;

/// The state of a task visible to others.
#[derive(Debug)]
pub(crate) struct Task {
    life: AtomicU32,
    place: u16,
    /// The process's number.
    pub(crate) pid: AtomicU32,
    /// The parent's number.
    pub(crate) parent: AtomicU32,
    /// The process group.
    pub(crate) group: AtomicU32,
    /// The exit status, as the word that `wait4` returns.
    status: AtomicU32,
    /// The status with which the task must end, whatever it does.
    killed: AtomicU32,
    /// Pending work before the return to EL0, such as a signal; it also ends a sleep.
    pub(crate) notified: AtomicBool,
    /// After `vfork`, the sleeping parent whose memory the task uses until it has its own.
    vfork_parent: AtomicU32,
    body: AtomicPtr<Body>,
}

/// The status of a process that is ended from outside.
pub(super) const KILLED: u32 = Status::Killed {
    signal: SIGKILL,
    core: false,
}
.word();

/// A sleep ended because the task is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// The value of `killed` for a task that goes on.
const NOT_KILLED: u32 = u32::MAX;

/// The contents of a task's own frames.
struct Body {
    thread: Thread,
    /// The address space of the task; [`Own::memory`] keeps it alive.
    space: UnsafeCell<Option<SpaceRef>>,
    own: UnsafeCell<Own>,
}

/// The state that only the task itself uses.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// `None` only while the task ends.
    pub(super) memory: Option<AddressSpace>,
    /// The heap; `brk` moves its end.
    pub(crate) heap: core::ops::Range<u64>,
    /// The address that gets a zero when the task ends (`set_tid_address`).
    pub(crate) clear_child_tid: u64,
}

static TASKS: Table<Task> = Table::new();

per_cpu! {
    /// The task that this CPU took up last; null before the first.
    static TAKEN_UP: AtomicPtr<Task> = AtomicPtr::new(core::ptr::null_mut());
}

/// Places that are not free.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Guards changes and checks that involve the relations and life states of several tasks. `None` before [`open`].
static TABLE: Lock<Option<Kin>> = Lock::new(None);

/// The state behind the lock.
struct Kin {
    free: Places,
    numbers: Numbers<PageFrames>,
    /// For each place the list of its task's children, from the oldest on.
    children: Rings<PageFrames>,
    /// Tasks made so far.
    made: u64,
    /// Whether no more tasks may be made.
    closed: bool,
}

/// Makes the table, unless it is there. `None` if memory is exhausted.
pub(super) fn open() -> Option<()> {
    if !TASKS.all().is_empty() {
        return Some(());
    }
    let free_bytes = Pages.with(|frames| frames.free_frames() << frames.page_size().shift());
    let places = places_for(free_bytes);
    let tasks = Array::new(places, Task::new)?;
    let entities = Array::new(places, |_| Entity::new())?;
    let numbers = Numbers::new(places)?;
    let children = Rings::new(places, places)?;
    TABLE.with(|table| {
        let kin = table.insert(Kin {
            free: Places::new(),
            numbers,
            children,
            made: 0,
            closed: false,
        });
        (0..places).for_each(|place| kin.free.insert(place));
    });
    sched::ENTITIES.open(entities.leak());
    if sched::stack::are_pieces() {
        vectors::IS_BELOW_STACK.call_once(|| sched::has_left_its_stack);
    }
    TASKS.open(tasks.leak());
    Some(())
}

pub(super) fn places() -> usize {
    TASKS.all().len()
}

/// Calls `what` with the state behind the lock; `None` before [`open`].
fn with_kin<R>(what: impl FnOnce(&mut Kin) -> R) -> Option<R> {
    TABLE.with(|table| table.as_mut().map(what))
}

impl Kin {
    /// The running process with this number.
    fn find(&self, pid: u32) -> Option<&'static Task> {
        at(self.numbers.place(pid)?).filter(|task| task.is_alive())
    }

    fn children(&self, task: &Task) -> impl Iterator<Item = &'static Task> {
        self.children.iter(task.place()).filter_map(at)
    }

    /// The first child of a task, of those that `which` chooses.
    fn child(&self, task: &Task, which: impl Fn(&Task) -> bool) -> Option<&'static Task> {
        self.children(task).find(|child| which(child))
    }

    /// Frees the place of a task that has ended and is reaped, or never began.
    fn forget(&mut self, task: &Task) {
        self.numbers.take(task.pid());
        self.numbers.leave(task.group.load(Ordering::Relaxed));
        self.children.remove(task.place());
        task.life.store(FREE, Ordering::Release);
        self.free.insert(task.place());
        IN_USE.fetch_sub(1, Ordering::SeqCst);
    }

    /// An ended child of `parent`, or whether there are others.
    fn ended_child(&self, parent: &Task, which: Selection) -> Result<&'static Task, Reaped> {
        let one = match which {
            Selection::Process(pid) => Some(self.numbers.place(pid).and_then(at)),
            Selection::Any | Selection::Group(_) => None,
        };
        let all = one.is_none().then(|| self.children(parent));
        let mut others = Reaped::NoChildren;
        for child in one.flatten().into_iter().chain(all.into_iter().flatten()) {
            let life = child.life.load(Ordering::Acquire);
            let relation = child.relation();
            if life < ALIVE || relation.parent != parent.pid() || !which.has(&relation) {
                continue;
            }
            if life == ZOMBIE {
                return Ok(child);
            }
            others = Reaped::None;
        }
        Err(others)
    }
}

impl Task {
    const fn new(place: usize) -> Self {
        Self {
            life: AtomicU32::new(FREE),
            place: place as u16,
            pid: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            group: AtomicU32::new(0),
            status: AtomicU32::new(0),
            killed: AtomicU32::new(NOT_KILLED),
            notified: AtomicBool::new(false),
            vfork_parent: AtomicU32::new(0),
            body: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The task's place in the table.
    pub(crate) const fn place(&self) -> usize {
        self.place as usize
    }

    /// The process number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The relations of the process to others.
    pub(super) fn relation(&self) -> Relation {
        Relation {
            pid: self.pid(),
            parent: self.parent.load(Ordering::Relaxed),
            group: self.group.load(Ordering::Relaxed),
        }
    }

    /// Whether the task runs, or will.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.load(Ordering::Acquire) == ALIVE
    }

    /// Whether the process number is in use: the task runs, or its parent has not reaped it.
    pub(crate) fn is_known(&self) -> bool {
        self.life.load(Ordering::Acquire) >= ALIVE
    }

    /// Whether the task has ended, and its parent has not reaped it.
    fn is_zombie(&self) -> bool {
        self.life.load(Ordering::Acquire) == ZOMBIE
    }

    /// The status with which the task must end, if any.
    pub(crate) fn killed(&self) -> Option<u32> {
        match self.killed.load(Ordering::Acquire) {
            NOT_KILLED => None,
            status => Some(status),
        }
    }

    /// Ends the task with `status` before its next instruction at EL0. The caller must wake it, too.
    pub(super) fn set_killed(&self, status: u32) {
        // The first reason stands.
        let _ =
            self.killed
                .compare_exchange(NOT_KILLED, status, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn zombie_of(&'static self, parent: u32) -> Zombie {
        Zombie {
            parent,
            task: self,
            pid: self.pid(),
            status: self.status.load(Ordering::Relaxed),
        }
    }

    fn body(&self) -> Option<NonNull<Body>> {
        NonNull::new(self.body.load(Ordering::Acquire))
    }

    /// The address space that a CPU enters before it runs the task.
    ///
    /// # Safety
    ///
    /// This CPU has taken the task from the queue, so that the task does not change its space.
    pub(super) unsafe fn space(&self) -> Option<SpaceRef> {
        let body = self.body()?;
        // SAFETY: the body stays until its task is buried, and the caller guarantees that the task does
        // not run.
        unsafe { *body.as_ref().space.get() }
    }

    /// Sleeps until `ready` returns a value; the task itself calls this. Code that makes the condition
    /// true wakes the task afterwards. `ready` must not sleep.
    pub(crate) fn sleep_until<R>(
        &self,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<R, Interrupted> {
        sched::sleep_until(self.place(), || self.ready_or_killed(&mut ready))
    }

    /// As [`Self::sleep_until`], but no longer than until `deadline` by the timer's counter; then returns
    /// `Ok(None)`.
    pub(crate) fn sleep_until_time<R>(
        &self,
        deadline: u64,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Interrupted> {
        sched::sleep_until_time(self.place(), deadline, || self.ready_or_killed(&mut ready))
            .transpose()
    }

    fn ready_or_killed<R>(
        &self,
        ready: &mut impl FnMut() -> Option<R>,
    ) -> Option<Result<R, Interrupted>> {
        let killed = || self.killed().map(|_| Err(Interrupted));
        ready().map(Ok).or_else(killed)
    }
}

/// A task in the kernel: the subject of a system call or a fault.
pub(crate) struct Current<'a> {
    /// The registers of the entry, used for the return.
    pub(crate) frame: &'a mut Frame,
    pub(crate) task: &'static Task,
    pub(crate) own: &'a mut Own,
}

impl<'a> Current<'a> {
    /// The task that runs on this CPU.
    ///
    /// # Safety
    ///
    /// The caller runs on the CPU on which `task` has just entered the kernel with `frame`. It calls
    /// this once until the task leaves the kernel, so that nothing else has the task's own state.
    pub(super) unsafe fn new(task: &'static Task, frame: &'a mut Frame) -> Option<Self> {
        let body = task.body()?;
        // SAFETY: the body stays until its task is buried, and nothing else has the task's own state.
        let own = unsafe { &mut *body.as_ref().own.get() };
        Some(Self { frame, task, own })
    }

    /// The task's address space; `None` only while the task ends.
    pub(crate) fn memory(&self) -> Option<&AddressSpace> {
        self.own.memory.as_ref()
    }

    /// Makes the task run in `space`. Returns the old space.
    pub(super) fn set_memory(&mut self, space: Option<AddressSpace>) -> Option<AddressSpace> {
        if let Some(body) = self.task.body() {
            let reference = space.as_ref().map(AddressSpace::reference);
            // SAFETY: others read the field only while the task does not run.
            unsafe { body.as_ref().space.get().write(reference) };
        }
        core::mem::replace(&mut self.own.memory, space)
    }
}

pub(crate) fn at(place: usize) -> Option<&'static Task> {
    TASKS.all().get(place)
}

/// Records that this CPU takes up `task`, with interrupts masked.
pub(super) fn take_up(task: &'static Task) {
    let task = core::ptr::from_ref(task).cast_mut();
    TAKEN_UP.this().store(task, Ordering::Relaxed);
}

/// The task that this CPU took up last, with interrupts masked. It runs here if this is called for an entry from EL0.
#[inline]
pub(super) fn taken_up() -> Option<&'static Task> {
    let task = TAKEN_UP.this().load(Ordering::Relaxed);
    // SAFETY: null, or what `take_up` stored.
    unsafe { task.as_ref() }
}

/// All tasks that run or will.
pub(crate) fn alive() -> impl Iterator<Item = &'static Task> {
    TASKS.all().iter().filter(|task| task.is_alive())
}

/// The place of the process with this number, if it runs or is a zombie.
pub(super) fn place_of(pid: u32) -> Option<usize> {
    let place = with_kin(|kin| kin.numbers.place(pid)).flatten();
    place.filter(|place| at(*place).is_some_and(Task::is_known))
}

/// Moves a process to a group.
pub(super) fn set_group(task: &Task, group: u32) {
    with_kin(|kin| {
        kin.numbers.join(group);
        kin.numbers.leave(task.group.swap(group, Ordering::Relaxed));
    });
}

/// Whether no task is left, not even a zombie.
pub(super) fn none_left() -> bool {
    IN_USE.load(Ordering::SeqCst) == 0
}

/// The number of tasks made so far.
pub(super) fn made() -> u64 {
    with_kin(|kin| kin.made).unwrap_or(0)
}

/// Stops the making of tasks.
pub(super) fn close() {
    with_kin(|kin| kin.closed = true);
}

/// Ends the sharing of memory after `vfork`. Returns the parent, which the caller must wake.
pub(super) fn end_vfork(task: &Task) -> Option<&'static Task> {
    let parent = task.vfork_parent.swap(0, Ordering::AcqRel);
    if parent == 0 {
        return None;
    }
    with_kin(|kin| kin.find(parent)).flatten()
}

/// Whether a `vfork` child still uses its parent's memory.
pub(super) fn is_in_vfork(pid: u32) -> bool {
    let task = with_kin(|kin| kin.find(pid)).flatten();
    task.is_some_and(|task| task.vfork_parent.load(Ordering::Acquire) != 0)
}

/// An ended child and the number of the parent to notify. That is the first process if the child's own
/// parent has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zombie {
    pub(super) parent: u32,
    pub(super) task: &'static Task,
    pub(super) pid: u32,
    pub(super) status: u32,
}

/// Records the end of a task: sets `status` and gives its children to the first process. Returns an
/// ended child about which the first process must be notified; the caller then calls this again.
pub(super) fn end(task: &Task, status: u32) -> Option<Zombie> {
    let zombie = with_kin(|kin| {
        task.status.store(status, Ordering::Relaxed);
        if task.pid() == INIT {
            // They are its own already.
            return None;
        }
        let init = kin.find(INIT);
        while let Some(child) = kin.child(task, |_| true) {
            child.parent.store(INIT, Ordering::Relaxed);
            let is_zombie = child.is_zombie();
            match init {
                Some(init) => {
                    kin.children.append(init.place(), child.place());
                    if is_zombie {
                        return Some(child.zombie_of(INIT));
                    }
                }
                // No process is left to reap it.
                None if is_zombie => kin.forget(child),
                None => kin.children.remove(child.place()),
            }
        }
        None
    });
    zombie.flatten()
}

/// Frees the frames of a task that will never run again.
pub(super) fn free_body(task: &Task) {
    let body = task.body.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if let Some(body) = NonNull::new(body) {
        // SAFETY: the pointer comes from `TaskBuilder::begin` and was swapped out, and its task never
        // runs again.
        drop(unsafe { Boxed::from_pointer(body) });
    }
}

/// Makes a task that has left its CPU for good, and whose frames are freed, a zombie. Returns it with
/// the parent to notify. Without a parent the task is forgotten.
pub(super) fn bury(task: &'static Task) -> Option<Zombie> {
    let zombie = with_kin(|kin| {
        // Only the first process still has children at this point. Nobody reaps those that have ended.
        while let Some(child) = kin.child(task, Task::is_zombie) {
            kin.forget(child);
        }
        let number = task.parent.load(Ordering::Relaxed);
        let parent = kin.find(number).filter(|_| number != task.pid());
        if parent.is_none() {
            kin.forget(task);
            return None;
        }
        task.life.store(ZOMBIE, Ordering::Release);
        Some(task.zombie_of(number))
    });
    zombie.flatten()
}

/// Finds a zombie child of `parent` and forgets it.
pub(super) fn reap(parent: &Task, which: Selection) -> Reaped {
    let reaped = with_kin(|kin| match kin.ended_child(parent, which) {
        Ok(child) => {
            let ended = Reaped::One {
                pid: child.pid(),
                status: child.status.load(Ordering::Relaxed),
            };
            kin.forget(child);
            ended
        }
        Err(others) => others,
    });
    reaped.unwrap_or(Reaped::NoChildren)
}

/// Whether [`reap`] would find a child, or no such child exists.
pub(super) fn can_reap(parent: &Task, which: Selection) -> bool {
    let found = with_kin(|kin| kin.ended_child(parent, which).err());
    found.flatten() != Some(Reaped::None)
}

/// Forgets a zombie that its parent does not reap, if it still exists.
pub(super) fn forget(task: &Task, pid: u32) {
    with_kin(|kin| {
        if task.is_zombie() && task.pid() == pid {
            kin.forget(task);
        }
    });
}

/// The exit status of the first process.
pub(super) fn status_of(task: &Task) -> u32 {
    task.status.load(Ordering::Relaxed)
}
