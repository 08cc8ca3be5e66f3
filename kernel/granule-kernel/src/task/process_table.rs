//! The process table behind its lock, and the table of tasks as the process table sees it.
//!
//! The lock masks interrupts and covers short work only. It is taken before the locks of tasks, pages
//! and the console. The table exists from before the first process until after the last.

use super::owned::{Array, PageFrames};
use super::task_table::{self, Task, Zombie};
use super::{next_kernel, sources};
use crate::lock::Lock;
use crate::sched;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;
use granule_linux_abi::abi::process::Status;
use granule_linux_abi::files::Files;
use granule_linux_abi::files::file_tree::{
    ArchiveError, Node, NodeId, NodeKind, Tree, nodes_needed,
};
use granule_linux_abi::files::path::Last;
use granule_linux_abi::files::source::Source;
use granule_linux_abi::processes::{
    ProcessPlace, Processes, Reaped, Relation, Selection, TaskTable,
};

type Table = Processes<'static, Tasks>;

static TABLE: Lock<Option<Table>> = Lock::new(None);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tasks;

impl TaskTable for Tasks {
    type Frames = PageFrames;

    fn relation(&self, place: ProcessPlace) -> Option<Relation> {
        let task = task_table::at(place).filter(|task| task.is_known())?;
        Some(task.relation())
    }

    fn find(&self, pid: u32) -> Option<ProcessPlace> {
        task_table::place_of(pid)
    }

    fn set_group(&mut self, place: ProcessPlace, group: u32) {
        if let Some(task) = task_table::at(place) {
            task_table::set_group(task, group);
        }
    }

    fn can_reap(&self, parent: ProcessPlace, which: Selection) -> bool {
        let parent = task_table::at(parent);
        parent.is_none_or(|parent| task_table::can_reap(parent, which))
    }

    fn reap(&mut self, parent: ProcessPlace, which: Selection) -> Reaped {
        task_table::at(parent).map_or(Reaped::NoChildren, |parent| task_table::reap(parent, which))
    }
}

/// Opens the files of `archive`, without any process.
pub(super) fn open(archive: &'static [u8]) -> Result<(), ArchiveError> {
    let nodes = nodes_needed(archive)?;
    let nodes = Array::new(nodes, |_| Node::EMPTY).ok_or(ArchiveError::NoRoom)?;
    let mut files = Files::new(Tree::build(archive, nodes)?).ok_or(ArchiveError::NoRoom)?;
    files.machine = next_kernel::tree();
    for source in Source::LATER {
        if let Some(bytes) = sources::bytes(source) {
            let added = files.add_source(source, bytes);
            added.map_err(|_| ArchiveError::NoRoom)?;
        }
    }
    let processes =
        Processes::new(files, Tasks, task_table::places()).ok_or(ArchiveError::NoRoom)?;
    TABLE.with(|slot| *slot = Some(processes));
    Ok(())
}

/// Frees the table. No process may be left.
pub(super) fn close() {
    let processes = TABLE.with(Option::take);
    drop(processes);
}

/// Calls `work` with the process table, then wakes the processes that the table collected.
pub(crate) fn with<R>(work: impl FnOnce(&mut Table) -> R) -> R {
    let (mut work, mut result) = (Some(work), None);
    with_all(&mut |processes| result = work.take().map(|work| work(processes)));
    let Some(result) = result else {
        panic!("a process without a process table: it was closed before the last process ended");
    };
    result
}

/// The most places that are taken out of the process table at once.
const WOKEN_AT_ONCE: usize = 16;

// `inline(never)`: lock and waking are some 800 bytes, too much for each of a hundred system calls.
#[inline(never)]
fn with_all(work: &mut dyn FnMut(&mut Table)) {
    let mut work = Some(work);
    loop {
        let mut woken = ArrayVec::<ProcessPlace, WOKEN_AT_ONCE>::new();
        TABLE.with(|slot| {
            let Some(processes) = slot else {
                return;
            };
            if let Some(work) = work.take() {
                work(processes);
                notify(processes);
            }
            while !woken.is_full()
                && let Some(place) = processes.woken.take_first()
            {
                woken.push(place);
            }
        });
        for place in &woken {
            if task_table::at(*place).is_some_and(|task| task.notified.load(Ordering::Acquire)) {
                sched::interrupt(*place);
            } else {
                sched::wake(*place);
            }
        }
        if !woken.is_full() {
            return;
        }
    }
}

/// Makes the processes to wake that have a signal handle it before they return to EL0. This comes before the lock is
/// released: a task that then sees the reason for a signal, such as an ended child, handles the signal first.
fn notify(processes: &Table) {
    for place in processes.woken.iter() {
        if processes.get(place).is_ok_and(|own| own.signals.has_work())
            && let Some(task) = task_table::at(place)
        {
            task.notified.store(true, Ordering::Release);
        }
    }
}

/// The node of an absolute path and the content of its file.
pub(super) fn program(path: &[u8]) -> Option<(NodeId, &'static [u8])> {
    with(|processes| {
        let node = processes
            .files
            .find(NodeId::ROOT, path, Last::Follow, None)
            .ok()?;
        let is_file = processes.files.tree.kind(node) == NodeKind::File;
        is_file.then(|| (node, processes.files.tree.content(node)))
    })
}

/// Frees what an ended process had beside its memory.
pub(super) fn ended(task: &Task) {
    with(|processes| processes.end(task.place()));
}

/// Calls `zombie`, which gives an ended child, and notifies the child's parent that it can reap the
/// child. Forgets the child if the parent does not wait. False if there is no such child.
///
/// All of this happens in one step under the lock: SIGCHLD comes before the parent can reap.
// `inline(never)`: the code is about a kilobyte.
#[inline(never)]
pub(super) fn notify_parent(zombie: &mut dyn FnMut() -> Option<Zombie>) -> bool {
    with(|processes| {
        let Some(child) = zombie() else {
            return false;
        };
        let status = Status::from_word(child.status);
        if !processes.child_ended(child.parent, child.pid, status) {
            task_table::forget(child.task, child.pid);
        }
        true
    })
}
