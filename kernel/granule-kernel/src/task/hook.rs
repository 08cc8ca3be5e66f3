//! The test hook of tasks: called when a task begins or forks, and for the `prctl` numbers of the tests.

use super::task_table::Task;
use crate::hook::Hook;
use granule_kcore::parameters::Parameters;

/// Adds behaviour to tasks, for tests.
pub(crate) trait TaskHook: Sync {
    /// Called before user space begins, with the command line.
    fn before_first(&self, parameters: &Parameters<'_>);

    /// Called once the last task has ended.
    fn after_last(&self);

    /// Called first on the kernel stack of each task.
    fn begins(&self);

    /// Called once `parent` has made a child.
    fn forks(&self, parent: &Task, child: &Task);

    /// The result of a `prctl` with these first arguments, if the hook handles it.
    fn prctl(&self, task: &Task, arguments: [u64; 3]) -> Option<u64>;
}

pub(crate) static TASKS: Hook<dyn TaskHook> = Hook::new();
