//! The tasks there are: a table of fixed size, which is the limit of fork bombs, and what each owns.
//!
//! What others may look at lies in the table, as atomics. What only the task itself uses ([`Own`]) is
//! in frames of its own and reached through [`Current`], of which there is one while the task is in
//! the kernel; what the scheduler saves of it ([`Saved`]) lies beside that.

use super::MOST_TASKS;
use super::memory::{AddressSpace, SpaceRef};
use super::owned::Boxed;
use super::stack::Stack;
use super::switch::{Context, FpState};
use super::turn::Turn;
use crate::arch::frame::Frame;
use crate::lock::Lock;
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use granule_linux_abi::abi::process::Status;
use granule_linux_abi::abi::signal::SIGKILL;
use granule_linux_abi::processes::{Reaped, Relation, Selection};

pub(super) mod builder;

/// Nobody's.
const FREE: u32 = 0;
/// Being made.
const MADE: u32 = 1;
/// It runs, or will.
const ALIVE: u32 = 2;
/// It has ended, and its parent has not asked how.
const ZOMBIE: u32 = 3;

/// The first process, whose end is the end of all.
pub(crate) const INIT: u32 = 1;
/// The largest number of a process.
const MOST_PID: u32 = 32_767;

/// What everyone may know of a task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(super) turn: Turn,
    life: AtomicU32,
    /// The process's number.
    pub(crate) pid: AtomicU32,
    /// That of its parent.
    pub(crate) parent: AtomicU32,
    /// Its process group.
    pub(crate) group: AtomicU32,
    /// How it ended, in the word that `wait4` gives.
    status: AtomicU32,
    /// It is to end, whatever it does, with this status.
    killed: AtomicU32,
    /// Something is to be looked at before it goes back to EL0, and ends a sleep: a signal.
    pub(crate) notified: AtomicBool,
    /// When its sleep ends at the latest, by the timer's counter.
    pub(super) deadline: AtomicU64,
    /// After `vfork`, the parent whose memory it has until it has its own; the parent sleeps.
    vfork_parent: AtomicU32,
    body: AtomicPtr<Body>,
}

/// How a process that is ended from outside ended.
pub(super) const KILLED: u32 = Status::Killed {
    signal: SIGKILL,
    core: false,
}
.word();

/// In `killed`: it is not.
const NOT_KILLED: u32 = u32::MAX;

/// What is in a task's own frames.
struct Body {
    saved: UnsafeCell<Saved>,
    own: UnsafeCell<Own>,
    stack: Stack,
}

/// What the scheduler keeps of a task that does not run.
pub(super) struct Saved {
    pub(super) context: Context,
    pub(super) fp: FpState,
    /// TPIDR_EL0.
    pub(super) thread_pointer: u64,
    /// The address space that it runs in, which [`Own::memory`] keeps.
    pub(super) space: Option<SpaceRef>,
}

/// What a task has for itself.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// `None` only while the task ends.
    pub(super) memory: Option<AddressSpace>,
    /// The heap that `brk` moves the end of.
    pub(crate) heap: core::ops::Range<u64>,
    /// Where a zero goes when it ends (`set_tid_address`).
    pub(crate) clear_child_tid: u64,
}

static TASKS: [Task; MOST_TASKS] = [const { Task::new() }; MOST_TASKS];

/// Who is whose child, and who is alive: changed and looked at under this lock where both matter.
static FAMILY: Lock<Family> = Lock::new(Family {
    last_pid: 0,
    made: 0,
    closed: false,
});

/// Behind the lock.
struct Family {
    last_pid: u32,
    /// Tasks that were made.
    made: u64,
    /// Nobody is to be made any more.
    closed: bool,
}

impl Task {
    const fn new() -> Self {
        Self {
            turn: Turn::new(),
            life: AtomicU32::new(FREE),
            pid: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            group: AtomicU32::new(0),
            status: AtomicU32::new(0),
            killed: AtomicU32::new(NOT_KILLED),
            notified: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            vfork_parent: AtomicU32::new(0),
            body: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Its place in the table.
    pub(crate) fn place(&self) -> usize {
        let offset = (&raw const *self as usize).wrapping_sub(TASKS.as_ptr() as usize);
        offset / size_of::<Self>()
    }

    /// Its process's number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// How its process is related to others.
    pub(super) fn relation(&self) -> Relation {
        Relation {
            pid: self.pid(),
            parent: self.parent.load(Ordering::Relaxed),
            group: self.group.load(Ordering::Relaxed),
        }
    }

    /// Whether it runs, or will.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.load(Ordering::Acquire) == ALIVE
    }

    /// Whether there is a process of its number: it runs, or its parent has not asked how it ended.
    pub(crate) fn is_known(&self) -> bool {
        self.life.load(Ordering::Acquire) >= ALIVE
    }

    /// How it is to end, if it is to end whatever it does.
    pub(crate) fn killed(&self) -> Option<u32> {
        match self.killed.load(Ordering::Acquire) {
            NOT_KILLED => None,
            status => Some(status),
        }
    }

    /// Ends it with this status, before its next instruction at EL0. Who calls wakes it, too.
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

    /// What the scheduler keeps of it.
    pub(super) fn saved(&self) -> Option<*mut Saved> {
        // SAFETY: a body stays until its task is buried, which is nobody's before that.
        self.body().map(|body| unsafe { body.as_ref() }.saved.get())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body with {:?}", self.stack)
    }
}

/// A task in the kernel: what a system call or a fault works on.
pub(crate) struct Current<'a> {
    /// The registers that it came with and goes back by.
    pub(crate) frame: &'a mut Frame,
    pub(crate) task: &'static Task,
    pub(crate) own: &'a mut Own,
}

impl<'a> Current<'a> {
    /// The task that runs on this CPU.
    ///
    /// # Safety
    ///
    /// To be called where `task` has just entered the kernel by `frame`, on that CPU, and once until
    /// it leaves: then nobody else has what it owns.
    pub(super) unsafe fn new(task: &'static Task, frame: &'a mut Frame) -> Option<Self> {
        let body = task.body()?;
        // SAFETY: the body stays until its task is buried; nobody else has what the task owns.
        let own = unsafe { &mut *body.as_ref().own.get() };
        Some(Self { frame, task, own })
    }

    /// Its address space. It has one until it ends.
    pub(crate) fn memory(&self) -> Option<&AddressSpace> {
        self.own.memory.as_ref()
    }

    /// Runs in `space` from here on; gives the one it had.
    pub(super) fn set_memory(&mut self, space: Option<AddressSpace>) -> Option<AddressSpace> {
        if let Some(saved) = self.task.saved() {
            let reference = space.as_ref().map(AddressSpace::reference);
            // SAFETY: the scheduler reads it when the task does not run.
            unsafe { (&raw mut (*saved).space).write(reference) };
        }
        core::mem::replace(&mut self.own.memory, space)
    }
}

impl fmt::Debug for Current<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.task.pid())
    }
}

/// The task at `place`.
pub(crate) fn at(place: usize) -> Option<&'static Task> {
    TASKS.get(place)
}

/// All tasks that run or will.
pub(crate) fn alive() -> impl Iterator<Item = &'static Task> {
    TASKS.iter().filter(|task| task.is_alive())
}

/// The process with this number, if it runs.
pub(crate) fn find(pid: u32) -> Option<&'static Task> {
    alive().find(|task| task.pid() == pid)
}

/// Whether nobody is left, not even to be asked how it ended.
pub(super) fn none_left() -> bool {
    TASKS
        .iter()
        .all(|task| task.life.load(Ordering::Acquire) == FREE)
}

/// Tasks that were made so far.
pub(super) fn made() -> u64 {
    FAMILY.with(|family| family.made)
}

/// From here on nobody is made any more.
pub(super) fn close() {
    FAMILY.with(|family| family.closed = true);
}

/// Ends the sharing of memory that `vfork` began; gives the parent, which is to be woken.
pub(super) fn end_vfork(task: &Task) -> Option<&'static Task> {
    find(task.vfork_parent.swap(0, Ordering::AcqRel))
}

/// Whether the child of a `vfork` still has its parent's memory.
pub(super) fn is_in_vfork(pid: u32) -> bool {
    find(pid).is_some_and(|task| task.vfork_parent.load(Ordering::Acquire) != 0)
}

/// A child that has ended, and its parent's number, who is to be told: the first process is, of those
/// whose parents have ended since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zombie {
    pub(super) parent: u32,
    pub(super) task: &'static Task,
    pub(super) pid: u32,
    pub(super) status: u32,
}

/// What a task says last: its children are the first process's, and `status` is how it ended.
/// Gives one that has ended, if that process has to look after it; then this is to be called again.
pub(super) fn end(task: &Task, status: u32) -> Option<Zombie> {
    FAMILY.with(|_| {
        task.status.store(status, Ordering::Relaxed);
        let init = find(INIT).filter(|init| init.pid() != task.pid());
        for child in &TASKS {
            let theirs = child.parent.load(Ordering::Relaxed) == task.pid();
            let life = child.life.load(Ordering::Acquire);
            if !theirs || life == FREE {
                continue;
            }
            child.parent.store(INIT, Ordering::Relaxed);
            if init.is_some() && life == ZOMBIE {
                return Some(child.zombie_of(INIT));
            }
        }
        if find(INIT).is_none() {
            // Nobody will ask for them.
            forget_children(INIT);
        }
        None
    })
}

/// The frames of a task that runs no more, or never did, go.
pub(super) fn free_body(task: &Task) {
    let body = task.body.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if let Some(body) = NonNull::new(body) {
        // SAFETY: it comes from `TaskBuilder::begin`, was swapped out, and its task never runs again.
        drop(unsafe { Boxed::from_pointer(body) });
    }
}

/// A task that has left its CPU for good, and whose frames have gone, can be asked after by its parent
/// from here on, who is to be told; if there is none, it is forgotten.
pub(super) fn bury(task: &'static Task) -> Option<Zombie> {
    FAMILY.with(|_| {
        let number = task.parent.load(Ordering::Relaxed);
        let parent = find(number).filter(|_| number != task.pid());
        let zombie = parent.map(|_| task.zombie_of(number));
        let life = if zombie.is_some() { ZOMBIE } else { FREE };
        task.life.store(life, Ordering::Release);
        // Only the first process still has any.
        forget_children(task.pid());
        zombie
    })
}

/// Nobody will ask for the dead children of a parent that is gone.
fn forget_children(pid: u32) {
    for child in &TASKS {
        let theirs = child.parent.load(Ordering::Relaxed) == pid;
        if theirs && child.life.load(Ordering::Acquire) == ZOMBIE {
            child.life.store(FREE, Ordering::Release);
        }
    }
}

/// Looks for a child of `parent` that has ended, and forgets it.
pub(super) fn reap(parent: &Task, which: Selection) -> Reaped {
    look_for(parent, which, |child| {
        child.life.store(FREE, Ordering::Release);
    })
}

/// Whether [`reap`] would find a child, or there is no such child at all.
pub(super) fn can_reap(parent: &Task, which: Selection) -> bool {
    look_for(parent, which, |_| ()) != Reaped::None
}

fn look_for(parent: &Task, which: Selection, found: impl FnOnce(&Task)) -> Reaped {
    FAMILY.with(|_| {
        let mut any = Reaped::NoChildren;
        for child in &TASKS {
            let life = child.life.load(Ordering::Acquire);
            let relation = child.relation();
            if life < ALIVE || relation.parent != parent.pid() || !which.has(&relation) {
                continue;
            }
            if life == ZOMBIE {
                let ended = Reaped::One {
                    pid: relation.pid,
                    status: child.status.load(Ordering::Relaxed),
                };
                found(child);
                return ended;
            }
            any = Reaped::None;
        }
        any
    })
}

/// Forgets a task that has ended and that nobody will ask after, if nobody has.
pub(super) fn forget(task: &Task, pid: u32) {
    FAMILY.with(|_| {
        if task.life.load(Ordering::Acquire) == ZOMBIE && task.pid() == pid {
            task.life.store(FREE, Ordering::Release);
        }
    });
}

/// The status that the first process ended with.
pub(super) fn status_of(task: &Task) -> u32 {
    task.status.load(Ordering::Relaxed)
}
