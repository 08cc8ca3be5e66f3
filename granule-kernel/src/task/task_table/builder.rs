//! The task builder gives a task a place in the table, then a body, and makes it ready, or undoes all
//! of it.
//!
//! A task under construction has a place and a number, and stays invisible to others until it begins.

use super::{
    ALIVE, Body, FREE, KILLED, MADE, MOST_PID, NOT_KILLED, Own, TABLE, TASKS, Task, free_body,
};
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
        TABLE.with(|table| {
            if table.closed {
                return None;
            }
            let free = |task: &&Task| task.life.load(Ordering::Acquire) == FREE;
            let task = TASKS.iter().find(free)?;
            // A group may outlive the process that gave it its number.
            let used = |pid| {
                TASKS.iter().any(|task| {
                    let numbers = [&task.pid, &task.group];
                    task.life.load(Ordering::Relaxed) != FREE
                        && numbers.iter().any(|it| it.load(Ordering::Relaxed) == pid)
                })
            };
            loop {
                table.last_pid = table.last_pid % MOST_PID + 1;
                if !used(table.last_pid) {
                    break;
                }
            }
            let group = parent.map_or(table.last_pid, |parent| {
                parent.group.load(Ordering::Relaxed)
            });
            task.pid.store(table.last_pid, Ordering::Relaxed);
            task.parent
                .store(parent.map_or(0, Task::pid), Ordering::Relaxed);
            task.group.store(group, Ordering::Relaxed);
            task.killed.store(NOT_KILLED, Ordering::Relaxed);
            task.notified.store(false, Ordering::Relaxed);
            task.vfork_parent.store(0, Ordering::Relaxed);
            task.life.store(MADE, Ordering::Release);
            Some(Self { task, parent })
        })
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
        // finds the child, or found the parent and `finish_fork` knows.
        let closed = process_table::with(|processes| {
            let parent = self.parent.map(Task::place);
            if parent.is_some_and(|parent| !processes.finish_fork(parent, task.place())) {
                return Err(NotBegun::Signal);
            }
            // SAFETY: the body stays until its task is buried, and the place is this task's.
            unsafe { sched::begin(task.place(), NonNull::from(&body.as_ref().thread)) };
            Ok(TABLE.with(|table| {
                table.made += 1;
                task.life.store(ALIVE, Ordering::Release);
                table.closed
            }))
        })?;
        if closed {
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
        self.task.life.store(FREE, Ordering::Release);
    }
}
