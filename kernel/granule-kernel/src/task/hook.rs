//! The test hook of tasks: called when a task begins or forks, and for the `prctl` numbers of the tests.

use super::task_table::Task;
use crate::hook::Hook;
use granule_kcore::parameters::Parameters;

/// Adds behaviour to tasks, for tests.
pub(crate) struct TaskHook {
    /// Called before user space begins, with the command line.
    pub(crate) before_first: fn(&Parameters<'_>),
    /// Called once the last task has ended.
    pub(crate) after_last: fn(),
    /// Called first on the kernel stack of each task.
    pub(crate) begins: fn(),
    /// Called once `parent` has made a child.
    pub(crate) forks: fn(&Task, &Task),
    /// The result of a `prctl` with these first arguments, if the hook handles it.
    pub(crate) prctl: fn(&Task, [u64; 3]) -> Option<u64>,
}

pub(crate) static TASKS: Hook<TaskHook> = Hook::new();
