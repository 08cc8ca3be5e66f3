//! The callbacks of a plugin as traits, and the functions that QEMU calls for them: one form for each
//! version of the interface. They alone make [handles](super::handle) of QEMU's arguments.

#![allow(unsafe_code, reason = "arguments as QEMU passes them")]

use super::api::Pointer;
use super::handle::{Access, CpuThread, TranslatedBlock};
use std::ffi::{c_int, c_uint};

pub(super) type InsnCallback = unsafe extern "C" fn(c_uint, Pointer);
pub(super) type MemoryCallback = unsafe extern "C" fn(c_uint, u32, u64, Pointer);

/// The callback of every plugin.
pub(crate) trait Translation {
    fn translated(block: &TranslatedBlock<'_>);
}

/// An instruction or a block that calls back when it is about to execute.
pub(crate) trait Site: Sync + 'static {
    fn executed(&'static self, cpu: c_uint);
}

/// The callback after accesses to memory.
pub(crate) trait Accesses {
    /// CPU `cpu` made an access by an instruction that was registered with `data`.
    fn accessed(cpu: c_uint, access: &Access<'_>, data: u64);
}

/// The callbacks of a plugin that follows the machine.
pub(crate) trait Callbacks: Translation {
    /// A CPU begins, in its own thread.
    fn init(thread: &CpuThread<'_>);
    /// A CPU has nothing to do for now.
    fn idle() {}
    /// QEMU ends.
    fn exit();
    /// A CPU takes an exception or an interrupt; the address is that of the instruction it left.
    fn trapped(cpu: c_uint, from: u64);
}

/// # Safety
///
/// QEMU calls it when a CPU begins, in the CPU's thread.
pub(super) unsafe extern "C" fn init_before_7<C: Callbacks>(_id: u64, cpu: c_uint) {
    // SAFETY: the caller is QEMU, and waits for the return.
    C::init(&unsafe { CpuThread::new(cpu) });
}

/// # Safety
///
/// As for [`init_before_7`].
pub(super) unsafe extern "C" fn init<C: Callbacks>(cpu: c_uint, _data: Pointer) {
    // SAFETY: as above.
    C::init(&unsafe { CpuThread::new(cpu) });
}

pub(super) extern "C" fn idle_before_7<C: Callbacks>(_id: u64, _cpu: c_uint) {
    C::idle();
}

pub(super) extern "C" fn idle<C: Callbacks>(_cpu: c_uint, _data: Pointer) {
    C::idle();
}

/// # Safety
///
/// QEMU calls it with the block that it translates.
pub(super) unsafe extern "C" fn translated_before_7<C: Translation>(_id: u64, block: Pointer) {
    // SAFETY: the caller is QEMU, and waits for the return.
    C::translated(&unsafe { TranslatedBlock::new(block) });
}

/// # Safety
///
/// As for [`translated_before_7`].
pub(super) unsafe extern "C" fn translated<C: Translation>(block: Pointer, _data: Pointer) {
    // SAFETY: as above.
    C::translated(&unsafe { TranslatedBlock::new(block) });
}

/// # Safety
///
/// `data` is a [`Site`] of this type, as registered.
pub(super) unsafe extern "C" fn executed<T: Site>(cpu: c_uint, data: Pointer) {
    // SAFETY: `call_before` and `call_before_block` pass a `&'static T`, and QEMU passes it back.
    let site: &'static T = unsafe { &*data.cast_const().cast() };
    site.executed(cpu);
}

/// # Safety
///
/// QEMU calls it after an access, with the access's own arguments.
pub(super) unsafe extern "C" fn accessed<A: Accesses>(
    cpu: c_uint,
    info: u32,
    address: u64,
    data: Pointer,
) {
    // SAFETY: the caller is QEMU, and waits for the return.
    let access = unsafe { Access::new(info, address) };
    A::accessed(cpu, &access, data as usize as u64);
}

/// Returns a site as QEMU keeps it.
pub(super) fn pointer_to<T: Site>(site: &'static T) -> Pointer {
    std::ptr::from_ref(site).cast_mut().cast()
}

pub(super) extern "C" fn exit_before_7<C: Callbacks>(_id: u64, _data: Pointer) {
    C::exit();
}

pub(super) extern "C" fn exit<C: Callbacks>(_data: Pointer) {
    C::exit();
}

pub(super) extern "C" fn trapped_before_7<C: Callbacks>(
    _id: u64,
    cpu: c_uint,
    _kind: c_int,
    from: u64,
    _to: u64,
) {
    C::trapped(cpu, from);
}

pub(super) extern "C" fn trapped<C: Callbacks>(
    cpu: c_uint,
    _kind: c_int,
    from: u64,
    _to: u64,
    _data: Pointer,
) {
    C::trapped(cpu, from);
}
