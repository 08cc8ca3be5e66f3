//! The requests of programs to load a next kernel and to leave for it. The implementation stands above
//! user space, so user space calls it through this trait.

use super::task_table::Current;
use granule_linux_abi::abi::Errno;

/// The result of a call that cannot be interrupted.
pub(crate) type CallResult = Result<u64, Errno>;

/// x0 to x5.
pub(crate) type Arguments = [u64; 6];

/// Loads a next kernel and leaves for it.
pub(crate) trait NextKernel: Sync {
    /// `kexec_file_load`.
    fn load(&self, current: &mut Current<'_>, arguments: Arguments) -> CallResult;

    fn reboot(&self, current: &mut Current<'_>, arguments: Arguments) -> CallResult;

    /// Whether a task has requested the next kernel.
    fn is_asked(&self) -> bool;

    /// Leaves for the next kernel if a task has requested it. The boot CPU calls this.
    fn serve(&self);

    /// Frees the loaded kernel once no program is left that could leave for it.
    fn forget(&self);
}

/// The implementation, set at boot.
pub(crate) static NEXT_KERNEL: spin::Once<&'static dyn NextKernel> = spin::Once::new();

pub(super) fn load(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    let next = NEXT_KERNEL.get().ok_or(Errno::ENOSYS)?;
    next.load(current, arguments)
}

pub(super) fn reboot(current: &mut Current<'_>, arguments: Arguments) -> CallResult {
    let next = NEXT_KERNEL.get().ok_or(Errno::ENOSYS)?;
    next.reboot(current, arguments)
}

pub(super) fn is_asked() -> bool {
    NEXT_KERNEL.get().is_some_and(|next| next.is_asked())
}

pub(super) fn serve() {
    if let Some(next) = NEXT_KERNEL.get() {
        next.serve();
    }
}

pub(super) fn forget() {
    if let Some(next) = NEXT_KERNEL.get() {
        next.forget();
    }
}
