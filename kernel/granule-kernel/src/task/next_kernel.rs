//! The requests of programs to load a next kernel and to leave for it. The implementation stands above
//! user space, so user space calls it through these functions.

use super::task_table::Current;
use granule_linux_abi::abi::Errno;

/// The result of a call that cannot be interrupted.
pub(crate) type CallResult = Result<u64, Errno>;

/// x0 to x5.
pub(crate) type Arguments = [u64; 6];

/// Loads a next kernel and leaves for it.
pub(crate) struct NextKernel {
    /// `kexec_file_load`.
    pub(crate) load: fn(&mut Current<'_>, Arguments) -> CallResult,
    /// `kexec_load`.
    pub(crate) load_segments: fn(&mut Current<'_>, Arguments) -> CallResult,
    /// `reboot`.
    pub(crate) reboot: fn(&mut Current<'_>, Arguments) -> CallResult,
    /// Whether a task has requested the next kernel.
    pub(crate) is_asked: fn() -> bool,
    /// Leaves for the next kernel if a task has requested it. The boot CPU calls this.
    pub(crate) serve: fn(),
    /// The machine's device tree; empty if it is not in mapped RAM.
    pub(crate) tree: fn() -> &'static [u8],
    /// Frees the loaded kernel once no program is left that could leave for it.
    pub(crate) forget: fn(),
}

/// The implementation, set at boot before the first program.
pub(crate) static NEXT_KERNEL: spin::Once<NextKernel> = spin::Once::new();

pub(super) fn load(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    (NEXT_KERNEL.get().ok_or(Errno::ENOSYS)?.load)(current, arguments)
}

pub(super) fn load_segments(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    (NEXT_KERNEL.get().ok_or(Errno::ENOSYS)?.load_segments)(current, arguments)
}

pub(super) fn reboot(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    (NEXT_KERNEL.get().ok_or(Errno::ENOSYS)?.reboot)(current, arguments)
}

pub(super) fn is_asked() -> bool {
    NEXT_KERNEL.get().is_some_and(|next| (next.is_asked)())
}

pub(super) fn serve() {
    if let Some(next) = NEXT_KERNEL.get() {
        (next.serve)();
    }
}

pub(super) fn tree() -> &'static [u8] {
    NEXT_KERNEL.get().map_or(&[], |next| (next.tree)())
}

pub(super) fn forget() {
    if let Some(next) = NEXT_KERNEL.get() {
        (next.forget)();
    }
}
