//! What programs ask of the part of the kernel that loads a next one and leaves for it. That part stands
//! above user space, so here is the trait by which it is called.

use super::task::Current;
use granule_linux_abi::abi::Errno;

/// What a call gives.
pub(crate) type Outcome = Result<u64, Errno>;

/// x0 to x5.
pub(crate) type Arguments = [u64; 6];

/// Loads a next kernel and leaves for it.
pub(crate) trait NextKernel: Sync {
    /// `kexec_file_load`.
    fn load(&self, current: &mut Current<'_>, arguments: Arguments) -> Outcome;

    /// `reboot`.
    fn reboot(&self, current: &mut Current<'_>, arguments: Arguments) -> Outcome;

    /// Whether a task has asked for the next kernel.
    fn is_asked(&self) -> bool;

    /// Leaves for the next kernel, by the boot CPU, if a task has asked for it.
    fn serve(&self);

    /// Gives back what is loaded: there is no program left that could ask for it.
    fn forget(&self);
}

/// The one there is.
pub(crate) static NEXT_KERNEL: spin::Once<&'static dyn NextKernel> = spin::Once::new();

pub(super) fn load(current: &mut Current<'_>, arguments: Arguments) -> Outcome {
    let next = NEXT_KERNEL.get().ok_or(Errno::ENOSYS)?;
    next.load(current, arguments)
}

pub(super) fn reboot(current: &mut Current<'_>, arguments: Arguments) -> Outcome {
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
