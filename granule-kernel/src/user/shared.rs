//! What all processes share, behind its lock, and the table of tasks as the family that they are.
//!
//! The lock is that of short work: it masks interrupts, and is taken before those of tasks, pages and
//! the console. There is something behind it from before the first process begins until after the
//! last has ended.

use super::abi::process::Status;
use super::files::Files;
use super::files::tree::{Node, NodeId, Tree, TreeError, nodes_needed};
use super::owned::Array;
use super::task::{self, Children, Ended, Task, Zombie};
use super::world::family::Reaped;
use super::world::{Family, Place, Relation, Selection, World, take_typed};
use super::{MOST_TASKS, sched};
use crate::dev::console;
use crate::lock::Lock;
use core::sync::atomic::Ordering;

type Kernels = World<'static, Table>;

static WORLD: Lock<Option<Kernels>> = Lock::new(None);

/// The table of tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table;

impl Family for Table {
    fn relation(&self, place: Place) -> Option<Relation> {
        let task = task::at(place).filter(|task| task.is_known())?;
        Some(Relation {
            pid: task.pid(),
            parent: task.parent.load(Ordering::Relaxed),
            group: task.group.load(Ordering::Relaxed),
            session: task.session.load(Ordering::Relaxed),
        })
    }

    fn set_group(&mut self, place: Place, group: u32) {
        if let Some(task) = task::at(place) {
            task.group.store(group, Ordering::Relaxed);
        }
    }

    fn set_session(&mut self, place: Place, session: u32) {
        if let Some(task) = task::at(place) {
            task.session.store(session, Ordering::Relaxed);
        }
    }

    fn can_reap(&self, parent: Place, which: Selection) -> bool {
        let parent = task::at(parent);
        parent.is_none_or(|parent| task::look(parent, children(which)) != Ended::Running)
    }

    fn reap(&mut self, parent: Place, which: Selection) -> Reaped {
        let Some(parent) = task::at(parent) else {
            return Reaped::NoChildren;
        };
        match task::reap(parent, children(which)) {
            Ended::None => Reaped::NoChildren,
            Ended::Running => Reaped::None,
            Ended::One { pid, status } => Reaped::One { pid, status },
        }
    }
}

const fn children(which: Selection) -> Children {
    match which {
        Selection::Any => Children::Any,
        Selection::Process(pid) => Children::Pid(pid),
        Selection::Group(group) => Children::Group(group),
    }
}

/// Opens the files of `archive`; there are no processes yet.
pub(super) fn open(archive: &'static [u8]) -> Result<(), TreeError> {
    let nodes = nodes_needed(archive)?;
    let nodes = Array::new(nodes, |_| Node::EMPTY).ok_or(TreeError::NoRoom)?;
    let files = Files::new(Tree::build(archive, nodes)?).ok_or(TreeError::NoRoom)?;
    let world = World::new(files, Table).ok_or(TreeError::NoRoom)?;
    WORLD.with(|slot| *slot = Some(world));
    Ok(())
}

/// Gives all of it back: there are no processes any more.
pub(super) fn close() {
    let world = WORLD.with(Option::take);
    drop(world);
}

/// Calls `work` with what all share, then wakes whom that is to wake.
pub(crate) fn with<R>(work: impl FnOnce(&mut Kernels) -> R) -> R {
    let (mut work, mut result) = (Some(work), None);
    with_all(&mut |world| result = work.take().map(|work| work(world)));
    let Some(result) = result else {
        panic!("a process without what all share: it was closed before the last process ended");
    };
    result
}

// Once, not in each of the hundred system calls: lock and waking are some 800 bytes.
#[inline(never)]
fn with_all(work: &mut dyn FnMut(&mut Kernels)) {
    let done = WORLD.with(|slot| {
        let world = slot.as_mut()?;
        work(world);
        let woken = world.take_woken();
        let mut signalled = [0_u64; MOST_TASKS / 64];
        for place in woken.places() {
            if !world.own(place).is_ok_and(|own| own.signals.has_work()) {
                continue;
            }
            // Before anybody has the lock: who finds there what a signal came for, a child that has
            // ended, deals with the signal before it goes back to EL0.
            if let Some(task) = task::at(place) {
                task.notified.store(true, Ordering::Release);
            }
            if let Some(word) = signalled.get_mut(place / 64) {
                *word |= 1 << (place % 64);
            }
        }
        Some((woken, signalled))
    });
    let Some((woken, signalled)) = done else {
        return;
    };
    for place in woken.places() {
        let Some(task) = task::at(place) else {
            continue;
        };
        if signalled
            .get(place / 64)
            .is_some_and(|word| word >> (place % 64) & 1 != 0)
        {
            sched::interrupt(task);
        } else {
            sched::wake(task);
        }
    }
}

/// Where a path leads, from the root, and the content of the file that is there.
pub(super) fn program(path: &[u8]) -> Option<(NodeId, &'static [u8])> {
    with(|world| {
        let last = super::files::path::Last::Follow;
        let node = world.files.find(NodeId::ROOT, path, last, None).ok()?;
        let is_file = world.files.tree.kind(node) == super::files::tree::Kind::File;
        is_file.then(|| (node, world.files.tree.content(node)))
    })
}

/// The process has ended: what it had beside memory is given back.
pub(super) fn ended(task: &Task) {
    with(|world| world.end(task.place()));
}

/// Tells the parent of a child that it can ask after once `zombie` is called, which gives it; the child
/// is forgotten if the parent will not ask. False if there is none.
///
/// All of that is one step to whoever looks: SIGCHLD comes before the parent could have asked.
// Once: it is some kilobyte.
#[inline(never)]
pub(super) fn tell_parent(zombie: &mut dyn FnMut() -> Option<Zombie>) -> bool {
    with(|world| {
        let Some(child) = zombie() else {
            return false;
        };
        let status = Status::from_word(child.status);
        if !world.child_ended(child.parent, child.pid, status) {
            task::forget(child.task, child.pid);
        }
        true
    })
}

/// Takes what was typed at the console meanwhile.
pub(super) fn take_input() {
    let show = |echo: &[u8]| console::write_user(echo, false);
    take_typed(|work| with(work), console::read, show);
}
