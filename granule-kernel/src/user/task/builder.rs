//! The task builder gives a task a place in the table, then a body, then its first turn, or undoes all
//! of it.
//!
//! A task under construction has a place and a number, and stays invisible to others until it begins.

use super::{
    ALIVE, Body, FAMILY, FREE, KILLED, MADE, MOST_PID, NOT_KILLED, Own, Saved, TASKS, Task,
    free_body,
};
use crate::arch::frame::Frame;
use crate::user::memory::AddressSpace;
use crate::user::owned::Boxed;
use crate::user::process_table;
use crate::user::stack::Stack;
use crate::user::switch::{Context, FpState};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

/// A task under construction. The drop frees its place unless the task has begun.
#[derive(Debug)]
pub(in crate::user) struct TaskBuilder {
    task: &'static Task,
    parent: Option<&'static Task>,
}

/// Why a task did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::user) enum NotBegun {
    NoMemory,
    /// The parent must first handle a signal that may be meant for both.
    Signal,
}

impl TaskBuilder {
    /// Takes a free place for a child of `parent`; `None` if there is none.
    pub(in crate::user) fn new(parent: Option<&'static Task>) -> Option<Self> {
        FAMILY.with(|family| {
            if family.closed {
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
                family.last_pid = family.last_pid % MOST_PID + 1;
                if !used(family.last_pid) {
                    break;
                }
            }
            let group = parent.map_or(family.last_pid, |parent| {
                parent.group.load(Ordering::Relaxed)
            });
            task.pid.store(family.last_pid, Ordering::Relaxed);
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
    pub(in crate::user) const fn task(&self) -> &'static Task {
        self.task
    }

    /// Gives the task a body that starts with `frame`. The caller must then queue the task for its first
    /// turn.
    pub(in crate::user) fn begin(
        self,
        frame: &Frame,
        fp: &FpState,
        thread_pointer: u64,
        own: Own,
        vfork_parent: Option<&Task>,
    ) -> Result<&'static Task, NotBegun> {
        let stack = Stack::new(self.task.place()).ok_or(NotBegun::NoMemory)?;
        let sp = stack.put_frame(frame);
        let saved = Saved {
            context: Context::new(crate::exception::task_start(), sp),
            fp: fp.clone(),
            thread_pointer,
            space: own.memory.as_ref().map(AddressSpace::reference),
        };
        let body = Boxed::new(Body {
            saved: UnsafeCell::new(saved),
            own: UnsafeCell::new(own),
            stack,
        })
        .ok_or(NotBegun::NoMemory)?;
        let task = self.task;
        task.vfork_parent
            .store(vfork_parent.map_or(0, Task::pid), Ordering::Relaxed);
        task.body
            .store(body.into_pointer().as_ptr(), Ordering::Release);
        // A sender to a group or to all processes holds this lock during the whole search. So it either
        // finds the child, or found the parent and `finish_fork` knows.
        let closed = process_table::with(|processes| {
            let parent = self.parent.map(Task::place);
            if parent.is_some_and(|parent| !processes.finish_fork(parent, task.place())) {
                return Err(NotBegun::Signal);
            }
            task.state.begin();
            Ok(FAMILY.with(|family| {
                family.made += 1;
                task.life.store(ALIVE, Ordering::Release);
                family.closed
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
