//! The test hook of kernel stacks: called when the stack of a task is made, and when it is used no more.

#![allow(unsafe_code, reason = "stacks that nothing uses")]

use crate::hook::Hook;

/// Looks at stacks, for tests.
pub(crate) struct StackHook {
    /// A stack of [`BYTES`](super::stack::BYTES) was made.
    ///
    /// # Safety
    ///
    /// The stack from `bottom` on must be mapped, and nothing else may use it.
    pub(crate) made: unsafe fn(u64),
    /// Its task has left it for good.
    ///
    /// # Safety
    ///
    /// As for [`made`](Self::made).
    pub(crate) unused: unsafe fn(u64),
}

pub(crate) static STACKS: Hook<StackHook> = Hook::new();
