//! The task builder gives a task a place in the table, then a body, and makes it ready, or undoes all
//! of it.
//!
//! A task under construction has a place and a number, and stays invisible to others until it begins.

use super::{ALIVE, Body, IN_USE, KILLED, MADE, NOT_KILLED, Own, Task, at, free_body, with_kin};
use crate::sched;
use crate::sched::switch::FpState;
use crate::sched::thread::Thread;
use crate::task::address_space::AddressSpace;
use crate::task::owned::Boxed;
use crate::task::process_table;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use granule_kcore::exception_frame::Frame;

/// A task under construction. The drop frees its place unless the task has begun.
#[derive(Debug)]
pub(in crate::task) struct TaskBuilder {
    task: &'static Task,
    parent: Option<&'static Task>,
}

/// Why a task did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::task) enum NotBegun {
    NoMemory,
    /// The parent must first handle a signal that may be meant for both.
    Signal,
}

impl TaskBuilder {
    /// Takes a free place for a child of `parent`; `None` if there is none.
    pub(in crate::task) fn new(parent: Option<&'static Task>) -> Option<Self> {
        let task = with_kin(|kin| {
            if kin.closed {
                return None;
            }
            let place = kin.free.first()?;
            let (task, pid) = (at(place)?, kin.numbers.give(place)?);
            kin.free.remove(place);
            let group = parent.map_or(pid, |parent| parent.group.load(Ordering::Relaxed));
            kin.numbers.join(group);
            if let Some(parent) = parent {
                kin.children.append(parent.place(), place);
            }
            task.pid.store(pid, Ordering::Relaxed);
            task.parent
                .store(parent.map_or(0, Task::pid), Ordering::Relaxed);
            task.group.store(group, Ordering::Relaxed);
            task.killed.store(NOT_KILLED, Ordering::Relaxed);
            task.notified.store(false, Ordering::Relaxed);
            task.vfork_parent.store(0, Ordering::Relaxed);
            task.life.store(MADE, Ordering::Release);
            IN_USE.fetch_add(1, Ordering::SeqCst);
            Some(task)
        })??;
        Some(Self { task, parent })
    }

    /// The task under construction.
    pub(in crate::task) const fn task(&self) -> &'static Task {
        self.task
    }

    /// Gives the task a body that starts with `frame`. The caller must then queue the task.
    pub(in crate::task) fn begin(
        self,
        frame: &Frame,
        fp: &FpState,
        thread_pointer: u64,
        own: Own,
        vfork_parent: Option<&Task>,
    ) -> Result<&'static Task, NotBegun> {
        let task = self.task;
        let thread =
            Thread::new(task.place(), frame, fp, thread_pointer).ok_or(NotBegun::NoMemory)?;
        let body = Boxed::new(Body {
            thread,
            space: UnsafeCell::new(own.memory.as_ref().map(AddressSpace::reference)),
            own: UnsafeCell::new(own),
        })
        .ok_or(NotBegun::NoMemory)?
        .into_pointer();
        task.vfork_parent
            .store(vfork_parent.map_or(0, Task::pid), Ordering::Relaxed);
        task.body.store(body.as_ptr(), Ordering::Release);
        // A sender to a group or to all processes holds this lock during the whole search. So it either
        // finds the child, or found the parent and `finish_fork` detects that.
        let closed = process_table::with(|processes| {
            let parent = self.parent.map(Task::place);
            if parent.is_some_and(|parent| !processes.finish_fork(parent, task.place())) {
                return Err(NotBegun::Signal);
            }
            // SAFETY: the body stays until its task is buried, and the place is this task's.
            unsafe { sched::begin(task.place(), NonNull::from(&body.as_ref().thread)) };
            Ok(with_kin(|kin| {
                kin.made += 1;
                task.life.store(ALIVE, Ordering::Release);
                kin.closed
            }))
        })?;
        if closed == Some(true) {
            // The search that ended all tasks did not see this one.
            task.set_killed(KILLED);
        }
        core::mem::forget(self);
        Ok(task)
    }
}

impl Drop for TaskBuilder {
    // `inline(never)`: one copy, instead of one at each exit of `fork`.
    #[inline(never)]
    fn drop(&mut self) {
        // Free the body before the place can be used again.
        free_body(self.task);
        process_table::ended(self.task);
        with_kin(|kin| kin.forget(self.task));
    }
}
