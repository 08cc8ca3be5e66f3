//! Leaving for the next kernel, and arriving in it.
//!
//! Loading: [`load`](mod@load) makes a [`Loaded`](loaded::Loaded) of files, with pages from [`pages`], on a
//! [`machine`] noted at boot. This file holds the kernel that is loaded, and says who may change it.
//! [`refused`] has the reasons for a refusal; [`messages`] limits how often they are printed.
//!
//! Leaving: [`leave`](mod@leave) has the order of steps, from the call to the jump. [`exact`] verifies the
//! tables once more, and [`quiet`] makes devices fall silent. Arriving: [`arrive`] reports the handoff note.
//! Device tree, note, options and the request to the boot CPU are in `granule_kcore::kexec`.

pub(crate) mod arrive;
pub(crate) mod exact;
pub(crate) mod hook;
pub(crate) mod leave;
pub(crate) mod load;
pub(crate) mod loaded;
pub(crate) mod machine;
pub(crate) mod messages;
pub(crate) mod pages;
mod quiet;
pub(crate) mod refused;
pub(crate) mod syscall;

use state::begin;
pub(crate) use state::{Busy, load, unload, with_loaded};

mod state {
    use super::Request;
    use super::loaded::Loaded;
    use super::messages::{self, Kind};
    use super::refused::Refused;
    use crate::dev::console::print;
    use crate::lock::Lock;
    use core::sync::atomic::{AtomicBool, Ordering};

    static LOADED: Lock<Option<Loaded>> = Lock::new(None);
    static BUSY: AtomicBool = AtomicBool::new(false);

    /// Who has this is the only one that loads, unloads or leaves.
    #[derive(Debug)]
    pub(crate) struct Busy(());

    impl Busy {
        /// `None` while somebody else has it: whoever loads may take seconds.
        pub(crate) fn take() -> Option<Self> {
            // Made only if nobody has it: one that is made and dropped again would give back what the
            // other has.
            (!BUSY.swap(true, Ordering::Acquire)).then(|| Self(()))
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            BUSY.store(false, Ordering::Release);
        }
    }

    /// Loads a next kernel in the place of the one that is loaded. If it is refused, that one stays.
    pub(crate) fn load(_busy: &Busy, request: &Request<'_>) -> Result<(), Refused> {
        let new = super::load::load(request)?;
        messages::say(Kind::Loaded, || {
            print!("granule: kexec: the next kernel is loaded\n{new}");
        });
        let old = LOADED.with(|slot| slot.replace(new));
        drop(old);
        Ok(())
    }

    /// Gives back what is loaded, if anything is.
    pub(crate) fn unload(_busy: &Busy) {
        let old = LOADED.with(Option::take);
        drop(old);
    }

    /// Calls `work` with what is loaded, if something is; while it lasts nothing is. Not under the
    /// lock, as `work` waits for other CPUs. Whoever waits for it has the right to.
    pub(super) fn begin<R>(work: impl FnOnce(&Loaded) -> R) -> Option<R> {
        let loaded = LOADED.with(Option::take)?;
        let result = work(&loaded);
        let old = LOADED.with(|slot| slot.replace(loaded));
        drop(old);
        Some(result)
    }

    /// Looks at what is loaded.
    pub(crate) fn with_loaded<R>(look: impl FnOnce(Option<&Loaded>) -> R) -> R {
        LOADED.with(|slot| look(slot.as_ref()))
    }
}

/// What is to be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// The image's file.
    pub(crate) kernel: &'a [u8],
    /// The initramfs, if there is to be one.
    pub(crate) initrd: Option<&'a [u8]>,
    /// The command line, without a NUL.
    pub(crate) command_line: &'a [u8],
    /// Nothing is put where it is to be at once: for measuring, and for tests.
    pub(crate) copy: bool,
}
