//! The kernel stacks of tasks, in a window of their own; each lives as long as its task.
//!
//! A stack has the pages for 16K, at least one: 16K with pages of 4K and 16K, and 64K with 64K pages. It
//! lies at the bottom of a 64K slot; the rest of the slot and the 64K below it are unmapped. The guard
//! is thus at least one page of any size. Bit 16 of a stack pointer is 0 in a stack and 1 in a guard, as
//! for every other stack (see the vectors). The window lies in the last 32 GiB, in pages that nothing
//! merges or splits.

use super::MOST_TASKS;
use crate::mm::walker::Flush;
use crate::mm::{kernel_tables, pages};
use granule::arch::{Attributes, Permissions, VirtualAddress};
use granule::table::Leaves;
use granule_kcore::exception_frame::{FRAME_BYTES, Frame as Registers};
use granule_kcore::frames::Frame;
use granule_kcore::layout;

/// The smallest stack.
const LEAST_BYTES: u64 = 16 << 10;

/// The distance between two stacks.
const STRIDE: u64 = 128 << 10;

/// A task's kernel stack, freed on drop.
#[derive(Debug)]
pub(crate) struct Stack {
    bottom: u64,
    bytes: u64,
    frame: Frame,
    order: u32,
}

/// The start of the stack of the task at `place`.
const fn bottom(place: usize) -> u64 {
    layout::TASK_STACKS_VADDR + place as u64 * STRIDE
}

/// Whether 16 bytes at `address` lie in the range of a stack, mapped or not.
pub(crate) fn holds(address: u64) -> bool {
    let offset = address.wrapping_sub(layout::TASK_STACKS_VADDR);
    offset < MOST_TASKS as u64 * STRIDE && offset % STRIDE <= (64 << 10) - 16
}

impl Stack {
    /// Maps the stack of the task at `place`, which must have none. `None` if memory is exhausted.
    pub(crate) fn new(place: usize) -> Option<Self> {
        let kernel = kernel_tables::kernel()?;
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
        let mapped = kernel_tables::change(Flush::Now, |_, _, tree| {
            tree.map(start, output, bytes, attributes, Leaves::PAGES)
        });
        if matches!(mapped, Some(Ok(()))) {
            return Some(stack);
        }
        // Nothing is mapped: only the frames are freed.
        let _ = pages::free(frame, order);
        core::mem::forget(stack);
        None
    }

    /// Writes the frame of the task's first return to EL0 at the top. Returns the stack pointer.
    pub(super) fn put_frame(&self, frame: &Registers) -> u64 {
        let sp = self.bottom + self.bytes - FRAME_BYTES as u64;
        // SAFETY: the frame lies inside the stack, which is mapped and aligned; nothing uses it before
        // the task begins.
        unsafe { (sp as *mut Registers).write(frame.clone()) };
        sp
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let (start, bytes) = (VirtualAddress(self.bottom), self.bytes);
        let unmapped = kernel_tables::change(Flush::Now, |_, _, tree| tree.unmap(start, bytes));
        // A page that is still mapped must not get another owner.
        if matches!(unmapped, Some(Ok(()))) {
            // The frame statistics count a refused free.
            let _ = pages::free(self.frame, self.order);
        }
    }
}

const _: () = assert!(layout::TASK_STACKS_VADDR.is_multiple_of(STRIDE));
const _: () = assert!(MOST_TASKS as u64 * STRIDE <= layout::TASK_STACKS_BYTES);
