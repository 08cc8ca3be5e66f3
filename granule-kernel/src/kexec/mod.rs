//! Leaving for the next kernel, and arriving in it.
//!
//! Loading: [`load`](mod@load) makes a [`Loaded`](loaded::Loaded) of files, with pages from [`pages`], on a [`machine`]
//! noted at boot, with a device tree from [`tree`]; here is the one that is loaded, and who may change
//! it. [`words`] is what the command line says, [`refused`] what is wrong, [`budget`] how often that is said.
//!
//! Leaving: [`leave`](mod@leave) has the order of things, from the call to the jump, and [`asking`] who
//! may call. [`exact`] looks at the tables once more, [`quiet`] makes devices fall silent, and [`note`] is
//! what the next kernel is told. Arriving: [`arrive`] says it.

#[cfg(target_os = "none")]
pub(crate) mod arrive;
mod asking;
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) mod budget;
#[cfg(target_os = "none")]
pub(crate) mod exact;
#[cfg(target_os = "none")]
pub(crate) mod hook;
#[cfg(target_os = "none")]
pub(crate) mod leave;
#[cfg(target_os = "none")]
pub(crate) mod load;
#[cfg(target_os = "none")]
pub(crate) mod loaded;
#[cfg(target_os = "none")]
pub(crate) mod machine;
pub(crate) mod note;
#[cfg(target_os = "none")]
pub(crate) mod pages;
#[cfg(target_os = "none")]
mod quiet;
#[cfg(target_os = "none")]
pub(crate) mod refused;
mod tree;
pub(crate) mod words;

/// Bytes of command line that there may be, with the NUL, as in Linux.
pub(crate) const MOST_COMMAND_LINE: usize = 2048;

#[cfg(target_os = "none")]
use state::begin;
#[cfg(target_os = "none")]
pub(crate) use state::{Busy, load, unload, with_loaded};

#[cfg(target_os = "none")]
mod state {
    use super::Request;
    use super::budget::{self, Kind};
    use super::loaded::Loaded;
    use super::refused::Refused;
    use crate::console::print;
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
        budget::say(Kind::Loaded, || {
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
