//! QEMU's handles, which are valid in one callback. They are made of what QEMU passes to a
//! [callback](super::callback), and lent to it. So safe code has no handle that is not valid.

#![allow(unsafe_code, reason = "handles as QEMU passes them")]

use super::api::Pointer;
use std::ffi::c_uint;
use std::marker::PhantomData;

/// A block of instructions that is being translated.
pub(crate) struct TranslatedBlock<'c> {
    handle: Pointer,
    callback: PhantomData<&'c ()>,
}

impl TranslatedBlock<'_> {
    /// # Safety
    ///
    /// `handle` is the block of a callback that runs as long as the value exists.
    pub(super) const unsafe fn new(handle: Pointer) -> Self {
        Self {
            handle,
            callback: PhantomData,
        }
    }

    /// Returns QEMU's handle.
    pub(super) const fn handle(&self) -> Pointer {
        self.handle
    }
}

/// An instruction of a block that is being translated.
pub(crate) struct Insn<'c> {
    handle: Pointer,
    callback: PhantomData<&'c ()>,
}

impl<'c> Insn<'c> {
    /// # Safety
    ///
    /// `handle` is of an instruction of `_block`.
    pub(super) const unsafe fn new(_block: &TranslatedBlock<'c>, handle: Pointer) -> Self {
        Self {
            handle,
            callback: PhantomData,
        }
    }

    /// Returns QEMU's handle.
    pub(super) const fn handle(&self) -> Pointer {
        self.handle
    }
}

/// An access to memory, whose callback runs.
pub(crate) struct Access<'c> {
    info: u32,
    address: u64,
    callback: PhantomData<&'c ()>,
}

impl Access<'_> {
    /// # Safety
    ///
    /// Both are arguments of a callback on an access, which runs as long as the value exists.
    pub(super) const unsafe fn new(info: u32, address: u64) -> Self {
        Self {
            info,
            address,
            callback: PhantomData,
        }
    }

    /// Returns QEMU's description.
    pub(super) const fn info(&self) -> u32 {
        self.info
    }

    /// Returns the virtual address.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }
}

/// The thread of a CPU, in which a callback runs.
pub(crate) struct CpuThread<'c> {
    cpu: c_uint,
    // Neither sent to another thread nor shared with one.
    callback: PhantomData<(&'c (), Pointer)>,
}

impl CpuThread<'_> {
    /// # Safety
    ///
    /// A callback of this CPU runs in this thread as long as the value exists.
    pub(super) const unsafe fn new(cpu: c_uint) -> Self {
        Self {
            cpu,
            callback: PhantomData,
        }
    }

    /// Returns the CPU's number.
    pub(crate) const fn cpu(&self) -> c_uint {
        self.cpu
    }
}
