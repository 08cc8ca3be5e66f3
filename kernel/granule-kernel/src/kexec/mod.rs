//! Leaving for the next kernel, and arriving in it.
//!
//! Loading: [`load`](mod@load) makes a [`Loaded`](loaded::Loaded) from files, with pages from [`pages`],
//! on the [`machine`] recorded at boot. This file holds the loaded kernel and the lock for changing it.
//! [`refused`] has the reasons for a refusal; [`messages`] limits how often they are printed.
//!
//! Leaving: [`leave`](mod@leave) takes the steps from the call to the jump. [`verify_tables`] verifies the tables
//! once more, and [`quiesce`] quiesces the devices. Arriving: [`arrive`] reports the handoff note. The device tree,
//! the note, the options and the request to the boot CPU are in `granule_kcore::kexec`.

pub(crate) mod arrive;
pub(crate) mod hook;
pub(crate) mod leave;
pub(crate) mod load;
pub(crate) mod loaded;
pub(crate) mod machine;
pub(crate) mod messages;
pub(crate) mod pages;
mod quiesce;
pub(crate) mod refused;
pub(crate) mod syscall;
pub(crate) mod verify_tables;

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

    /// The exclusive right to load, unload or leave.
    #[derive(Debug)]
    pub(crate) struct Busy(());

    impl Busy {
        /// Takes the right; `None` while another caller has it. A load may take seconds.
        pub(crate) fn take() -> Option<Self> {
            // Build the value only after the swap succeeds: dropping a spare value would release the
            // other caller's right.
            (!BUSY.swap(true, Ordering::Acquire)).then(|| Self(()))
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            BUSY.store(false, Ordering::Release);
        }
    }

    /// Loads a next kernel in place of the loaded one. On refusal the loaded one stays.
    pub(crate) fn load(_busy: &Busy, request: &Request<'_>) -> Result<(), Refused> {
        let new = super::load::load(request)?;
        messages::say(Kind::Loaded, || {
            print!("granule: kexec: the next kernel is loaded\n{new}");
        });
        let old = LOADED.with(|slot| slot.replace(new));
        drop(old);
        Ok(())
    }

    /// Frees the loaded kernel, if any.
    pub(crate) fn unload(_busy: &Busy) {
        let old = LOADED.with(Option::take);
        drop(old);
    }

    /// Calls `work` with the loaded kernel, if any. The slot is empty meanwhile: `work` waits for other
    /// CPUs, so it runs outside the lock. The waiting caller holds `Busy`.
    pub(super) fn begin<R>(work: impl FnOnce(&Loaded) -> R) -> Option<R> {
        let loaded = LOADED.with(Option::take)?;
        let result = work(&loaded);
        let old = LOADED.with(|slot| slot.replace(loaded));
        drop(old);
        Some(result)
    }

    /// Calls `look` with the loaded kernel.
    pub(crate) fn with_loaded<R>(look: impl FnOnce(Option<&Loaded>) -> R) -> R {
        LOADED.with(|slot| look(slot.as_ref()))
    }
}

/// A request to load a next kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// The content of the image file.
    pub(crate) kernel: &'a [u8],
    /// The initramfs, if any.
    pub(crate) initrd: Option<&'a [u8]>,
    /// The command line, without a NUL.
    pub(crate) command_line: &'a [u8],
    /// Load no segment directly into its place: for measurements and tests.
    pub(crate) copy: bool,
}
