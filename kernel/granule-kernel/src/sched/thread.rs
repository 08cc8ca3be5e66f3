//! The part of a task that the scheduler switches: its kernel stack and its saved registers. The address
//! space and all else belongs to the module `task`.

use super::stack::Stack;
use super::switch::{Context, FpState};
use core::cell::UnsafeCell;
use core::fmt;
use granule_kcore::exception_frame::Frame;

/// The registers of a task that does not run.
pub(super) struct Saved {
    pub(super) context: Context,
    pub(super) fp: FpState,
    /// TPIDR_EL0.
    pub(super) thread_pointer: u64,
}

/// The stack and the saved registers of one task.
pub(crate) struct Thread {
    saved: UnsafeCell<Saved>,
    stack: Stack,
}

impl Thread {
    /// A thread for the task at `place`, which must have none, that first returns to EL0 with these
    /// registers. `None` if memory is exhausted.
    pub(crate) fn new(
        place: usize,
        frame: &Frame,
        fp: &FpState,
        thread_pointer: u64,
    ) -> Option<Self> {
        let stack = Stack::new(place)?;
        let sp = stack.put_frame(frame);
        let saved = UnsafeCell::new(Saved {
            context: Context::new(crate::exception::task_start(), sp),
            fp: fp.clone(),
            thread_pointer,
        });
        Some(Self { saved, stack })
    }

    pub(super) const fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The saved registers. They belong to the CPU that dequeued the task, or to the task itself.
    pub(super) const fn saved(&self) -> *mut Saved {
        self.saved.get()
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread on {:?}", self.stack)
    }
}
