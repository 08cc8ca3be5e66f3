//! The requests of programs to load and unload modules. The implementation stands above user space, so user space
//! calls it through these functions.

use super::next_kernel::{Arguments, CallResult};
use super::task_table::Current;
use granule_linux_abi::abi::Errno;

/// Loads and unloads modules.
pub(crate) struct Modules {
    /// `init_module`.
    pub(crate) init: fn(&mut Current<'_>, Arguments) -> CallResult,
    /// `finit_module`.
    pub(crate) finit: fn(&mut Current<'_>, Arguments) -> CallResult,
    /// `delete_module`.
    pub(crate) delete: fn(&mut Current<'_>, Arguments) -> CallResult,
    /// Unloads all modules once no program is left.
    pub(crate) forget: fn(),
}

/// The implementation, set at boot before the first program.
pub(crate) static MODULES: spin::Once<Modules> = spin::Once::new();

pub(super) fn init(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    (MODULES.get().ok_or(Errno::ENOSYS)?.init)(current, arguments)
}

pub(super) fn finit(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    (MODULES.get().ok_or(Errno::ENOSYS)?.finit)(current, arguments)
}

pub(super) fn delete(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    (MODULES.get().ok_or(Errno::ENOSYS)?.delete)(current, arguments)
}

pub(super) fn forget() {
    if let Some(modules) = MODULES.get() {
        (modules.forget)();
    }
}
