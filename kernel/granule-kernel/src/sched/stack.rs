//! The kernel stacks of tasks, in a window of their own; each lives as long as its task.
//!
//! A stack has 16K. Its slot begins at a multiple of 128K. The second half of the slot is unmapped, and so is all of
//! the first half that the stack does not need. Bit 16 of a stack pointer is 0 in a stack and 1 in the guard below it, as
//! for every other stack (see the vectors). The window lies in the last 32 GiB, in pages that nothing merges or splits.
//!
//! Pages of 4K and 16K: the stack is the first 16K of its slot, and the page below is unmapped.
//!
//! Pages of 64K: a page for each stack would take 48K more for each task than the other kernels do.
//! So the stack is a piece of a subdivided frame, and the slot maps that whole frame. Only a stack
//! in the first quarter of its frame has the guard right below it; below another one is memory of
//! another owner, up to three quarters of a frame until the guard. An overflow into that is not
//! seen when it happens, but
//!
//! - by the next exception that the kernel takes on this stack ([`super::has_left_its_stack`]),
//! - or when the task leaves its CPU, by the word at the low end ([`Stack::is_sound`]), which every deep enough overflow by
//!   calls changes unless a frame skips it.
//!
//! Until then it may have changed the other owner's memory: another stack, or a table or a page of a program with smaller
//! pages. A frame that skips the last word can do so unseen. How near it ever comes is measured: `granule.test=stacks`
//! paints stacks, and the test of it asserts that a quarter of each is never used.

#![allow(unsafe_code, reason = "a task's first frame on its stack")]

use super::MOST_TASKS;
use super::hook::STACKS;
use crate::mm::environment::Flush;
use crate::mm::{kernel_tables, pages, sized, walker};
use granule::arch::{Attributes, PageSize, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::Leaves;
use granule_kcore::exception_frame::{FRAME_BYTES, Frame as Registers};
use granule_kcore::frames::Frame;
use granule_kcore::layout;

/// The size of a stack.
pub(crate) const BYTES: u64 = 16 << 10;

/// The distance between two slots.
const STRIDE: u64 = 128 << 10;

/// A task's kernel stack, freed on drop.
#[derive(Debug)]
pub(crate) struct Stack {
    bottom: u64,
    memory: Memory,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    start: PhysicalAddress,
    /// Of the kernel's pages.
    page: PageSize,
}

impl Memory {
    fn allocate() -> Option<Self> {
        let page = kernel_tables::kernel()?.geometry.page_size();
        let start = if page.bytes() > BYTES {
            sized::allocate_run(PageSize::MIN, BYTES >> PageSize::MIN.shift())?
        } else {
            pages::allocate(Self::order(page))?.address(page)
        };
        Some(Self { start, page })
    }

    fn free(self) {
        let Self { start, page } = self;
        if page.bytes() > BYTES {
            sized::release(PageSize::MIN, start, BYTES >> PageSize::MIN.shift());
        } else {
            // The frame statistics count a refused free.
            let _ = pages::free(Frame::containing(start, page), Self::order(page));
        }
    }

    const fn order(page: PageSize) -> u32 {
        BYTES.ilog2() - page.shift()
    }

    /// Where the stack begins in its first page.
    const fn in_page(self) -> u64 {
        self.start.0 & (self.page.bytes() - 1)
    }

    /// The bytes that the slot maps.
    const fn mapped(self) -> u64 {
        if self.page.bytes() > BYTES {
            self.page.bytes()
        } else {
            BYTES
        }
    }
}

pub(super) fn slot(address: u64) -> Option<usize> {
    let slot = address.wrapping_sub(layout::TASK_STACKS_VADDR) / STRIDE;
    (slot < MOST_TASKS as u64).then_some(slot as usize)
}

/// Whether stacks are pieces of frames, with memory of others below.
pub(crate) fn are_pieces() -> bool {
    kernel_tables::kernel().is_some_and(|kernel| kernel.page() > BYTES)
}

/// Whether 16 bytes at `address` lie where a slot may be mapped.
pub(crate) fn holds(address: u64) -> bool {
    slot(address).is_some() && address % STRIDE <= (STRIDE >> 1) - 16
}

impl Stack {
    /// Maps the stack of the task at `place`, which must have none. `None` if memory is exhausted.
    pub(crate) fn new(place: usize) -> Option<Self> {
        let memory = Memory::allocate()?;
        let slot = layout::TASK_STACKS_VADDR + place as u64 * STRIDE;
        let output = PhysicalAddress(memory.start.0 - memory.in_page());
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let mapped = kernel_tables::change(Flush::Now, |_, _, tree| {
            let start = VirtualAddress(slot);
            tree.map(start, output, memory.mapped(), attributes, Leaves::PAGES)
        });
        if !matches!(mapped, Some(Ok(()))) {
            // Nothing is mapped: only the memory is freed.
            memory.free();
            return None;
        }
        let bottom = slot + memory.in_page();
        if let Some(hook) = STACKS.get() {
            // SAFETY: the stack was just mapped, and nothing uses it before the task begins.
            unsafe { (hook.made)(bottom) };
        }
        // SAFETY: as above.
        unsafe { (bottom as *mut u64).write(bottom) };
        Some(Self { bottom, memory })
    }

    /// Writes the frame of the task's first return to EL0 at the top. Returns the stack pointer.
    pub(super) fn put_frame(&self, frame: &Registers) -> u64 {
        let sp = self.bottom + BYTES - FRAME_BYTES as u64;
        // SAFETY: the frame lies inside the stack, which is mapped and aligned; nothing uses it before
        // the task begins.
        unsafe { (sp as *mut Registers).write(frame.clone()) };
        sp
    }

    /// Whether `address` lies in the stack.
    pub(super) const fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.bottom) < BYTES
    }

    /// Whether the word at the low end is what it was at first. The task itself calls this, or the
    /// CPU that buries it.
    #[inline]
    pub(super) fn is_sound(&self) -> bool {
        // SAFETY: the stack is mapped while this value lives.
        unsafe { (self.bottom as *const u64).read_volatile() == self.bottom }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Some(hook) = STACKS.get() {
            // SAFETY: the stack is still mapped, and its task never runs again.
            unsafe { (hook.unused)(self.bottom) };
        }
        let start = VirtualAddress(self.bottom - self.memory.in_page());
        let bytes = self.memory.mapped();
        let unmapped =
            kernel_tables::change(Flush::Now, |_, _, tree| walker::unmap(tree, start, bytes));
        // Memory that is still mapped must not get another owner.
        if matches!(unmapped, Some(Ok(()))) {
            self.memory.free();
        }
    }
}

const _: () = assert!(layout::TASK_STACKS_VADDR.is_multiple_of(STRIDE));
const _: () = assert!(MOST_TASKS as u64 * STRIDE <= layout::TASK_STACKS_BYTES);
