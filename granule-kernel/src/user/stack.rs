//! The kernel's stacks of tasks: in a window of their own, made and given back with the task.
//!
//! A stack has as many pages as make 16K, at least one, so it is 16K with pages of 4K and 16K, and
//! 64K with those of 64K. It lies at the bottom of 64K whose other part, like the 64K below, is
//! mapped nowhere: a guard of at least a page of any size, and bit 16 of a stack pointer tells stack
//! (0) from guard (1) as for every other stack (see the vectors). The window lies in the last 4 GiB,
//! in pages that nothing merges or splits.

use super::MOST_TASKS;
use crate::arch::frame::{FRAME_BYTES, Frame as Registers};
use crate::mm::walker::Flush;
use crate::mm::{live, pages};
use granule::arch::{Attributes, Permissions, VirtualAddress};
use granule::table::Leaves;
use granule_kcore::frames::Frame;
use granule_kcore::layout;

/// The least that a stack has.
const LEAST_BYTES: u64 = 16 << 10;

/// From one stack to the next.
const STRIDE: u64 = 128 << 10;

/// A task's stack, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stack {
    bottom: u64,
    bytes: u64,
    frame: Frame,
    order: u32,
}

/// Where the stack of the task at `place` begins.
const fn bottom(place: usize) -> u64 {
    layout::TASK_STACKS_VADDR + place as u64 * STRIDE
}

/// Whether 16 bytes at `address` lie where a stack may be, mapped or not.
pub(crate) fn holds(address: u64) -> bool {
    let offset = address.wrapping_sub(layout::TASK_STACKS_VADDR);
    offset < MOST_TASKS as u64 * STRIDE && offset % STRIDE <= (64 << 10) - 16
}

impl Stack {
    /// The stack of the task at `place`, which has none; `None` if there is no memory.
    pub(crate) fn new(place: usize) -> Option<Self> {
        let kernel = live::kernel()?;
        let page = kernel.page();
        let bytes = LEAST_BYTES.max(page);
        let order = (bytes / page).trailing_zeros();
        let frame = pages::allocate(order)?;
        let stack = Self {
            bottom: bottom(place),
            bytes,
            frame,
            order,
        };
        let output = frame.address(kernel.geometry.page_size());
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let start = VirtualAddress(stack.bottom);
        let mapped = live::change(Flush::Now, |_, _, tree| {
            tree.map(start, output, bytes, attributes, Leaves::PAGES)
        });
        if matches!(mapped, Some(Ok(()))) {
            return Some(stack);
        }
        // Nothing is mapped: only the frames go back.
        let _ = pages::free(frame, order);
        core::mem::forget(stack);
        None
    }

    /// Puts the frame that a task goes to EL0 by at its top; gives the stack pointer.
    pub(super) fn put_frame(&self, frame: &Registers) -> u64 {
        let sp = self.bottom + self.bytes - FRAME_BYTES as u64;
        // SAFETY: inside the stack, which is mapped, aligned, and nobody's before its task begins.
        unsafe { (sp as *mut Registers).write(frame.clone()) };
        sp
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let (start, bytes) = (VirtualAddress(self.bottom), self.bytes);
        let unmapped = live::change(Flush::Now, |_, _, tree| tree.unmap(start, bytes));
        // What is still mapped must not become somebody else's.
        if matches!(unmapped, Some(Ok(()))) {
            // The frames count what they refuse.
            let _ = pages::free(self.frame, self.order);
        }
    }
}

const _: () = assert!(layout::TASK_STACKS_VADDR.is_multiple_of(STRIDE));
const _: () = assert!(MOST_TASKS as u64 * STRIDE <= layout::TASK_STACKS_BYTES);
