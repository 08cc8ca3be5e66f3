//! The crash kernel: loaded ahead into memory that the boot reserved for it, and entered by a panic on any CPU.
//!
//! # Loading
//!
//! `crashkernel=` reserves a range at boot ([`reserve`]), aligned for every page size. The range is mapped and nothing
//! else uses it. A load ([`load`](mod@load)) puts the segments where they will run, and beside them all that the way
//! there needs: the relocation code, its list, which moves nothing, and the transitional tables. So the panic allocates,
//! copies and changes nothing.
//!
//! # The panic
//!
//! [`enter`](mod@enter) does everything without a lock and without the kernel's tables: they may be held, or half
//! changed. The other CPUs store their registers and go off ([`stop`](crate::cpu::stop)); one that does not answer is
//! reported, and goes on in memory that the crash kernel does not touch. All digests are compared, as whatever went
//! wrong may have written there. Then the relocation code turns the MMU off on its own tables, and jumps.
//!
//! # The crash kernel
//!
//! Its device tree has `linux,usable-memory-range` and `linux,elfcorehdr`, so that it leaves the dead kernel's memory
//! alone and finds the header of the core, which [`vmcore`] reads.

pub(super) mod enter;
pub(super) mod load;
pub(crate) mod reserve;
pub(crate) mod vmcore;

use super::hook::KEXEC;
use super::pages;
use super::pages::MOST_SEGMENTS;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use granule_kexec::PhysRange;

/// A loaded crash kernel, all of whose memory is in the reserved range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CrashKernel {
    /// The list's first page.
    head: u64,
    /// The notes of the CPUs.
    notes: PhysRange,
    /// Memory and its digest: each segment, of the header what comes before the notes; and relocation code, list and
    /// tables.
    checked: [(PhysRange, u64); MOST_SEGMENTS + 1],
}

impl CrashKernel {
    /// Notes the digests of its memory, which is complete.
    #[allow(unsafe_code, reason = "memory of the reserved range")]
    fn note_digests(&mut self) {
        for (range, digest) in &mut self.checked {
            // SAFETY: as in `is_whole`.
            *digest = unsafe { pages::digest(range, range.bytes) };
        }
    }

    /// Whether all of it is as it was loaded.
    #[allow(unsafe_code, reason = "memory of the reserved range")]
    fn is_whole(&self) -> bool {
        let mut checked = self.checked.iter();
        // SAFETY: the ranges are of the private fields, which `load` alone makes: they lie in the reserved range, which
        // only a load writes, with the right to it.
        checked.all(|(range, digest)| unsafe { pages::digest(range, range.bytes) } == *digest)
    }
}

/// The loaded crash kernel, for a panic, which takes no lock.
struct Slot(UnsafeCell<CrashKernel>);

#[allow(
    unsafe_code,
    reason = "one writer, and readers that see whether it writes"
)]
// SAFETY: the holder of `Busy` alone writes, while `READY` is false; a panic reads while it is true.
unsafe impl Sync for Slot {}

static SLOT: Slot = Slot(UnsafeCell::new(CrashKernel {
    head: 0,
    notes: PhysRange::new(0, 0),
    checked: [(PhysRange::new(0, 0), 0); MOST_SEGMENTS + 1],
}));
static READY: AtomicBool = AtomicBool::new(false);

/// Forgets the crash kernel, so that its memory may be written.
pub(super) fn unload(_busy: &super::Busy) {
    READY.store(false, Ordering::SeqCst);
}

/// Loads the crash kernel that `make` makes, in place of the loaded one, which is lost even if this fails: both have the
/// same memory.
pub(super) fn load(
    busy: &super::Busy,
    make: impl FnOnce() -> Result<CrashKernel, super::refused::Refused>,
) -> Result<(), super::refused::Refused> {
    unload(busy);
    let new = make()?;
    #[allow(unsafe_code, reason = "the slot")]
    // SAFETY: `busy` makes this the only writer, and no reader looks while `READY` is false.
    unsafe {
        *SLOT.0.get() = new;
    }
    enter::prepare();
    READY.store(true, Ordering::Release);
    if let Some(hook) = KEXEC.get() {
        (hook.crash_is_loaded)();
    }
    Ok(())
}

/// Lets each CPU be stopped again: those that were off for a while do not know it any more.
pub(super) fn allow_stop() {
    if is_loaded() {
        enter::prepare();
    }
}

/// Whether a crash kernel is loaded.
pub(super) fn is_loaded() -> bool {
    READY.load(Ordering::Acquire)
}

fn loaded() -> Option<CrashKernel> {
    #[allow(unsafe_code, reason = "the slot")]
    // SAFETY: it was written before `READY` became true. A load that begins now, on a CPU that does not stop, may write
    // meanwhile; any bytes are valid, and what is read is checked by digests.
    is_loaded().then(|| unsafe { SLOT.0.get().read_volatile() })
}
