//! The hook of tasks: what happens as one begins, forks or asks for by a `prctl` of the tests' own.

use super::task::Task;
use crate::hook::Hook;
use granule_kcore::parameters::Parameters;

/// Changes what happens to tasks.
pub(crate) trait TaskHook: Sync {
    /// Comes before user space begins, with the command line.
    fn before_first(&self, parameters: &Parameters<'_>);

    /// Comes first on the kernel stack of each task.
    fn begins(&self);

    /// Comes once a child is made of `parent`.
    fn forks(&self, parent: &Task, child: &Task);

    /// The result of a `prctl` with these first arguments, if it is for the hook.
    fn prctl(&self, task: &Task, arguments: [u64; 3]) -> Option<u64>;
}

/// The hook of tasks.
pub(crate) static TASKS: Hook<dyn TaskHook> = Hook::new();
