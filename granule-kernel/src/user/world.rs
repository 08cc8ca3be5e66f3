//! Everything that system calls share: files, and what each process has beside its memory and
//! registers.
//!
//! One value behind one lock. Nothing in it runs, waits or touches a program's memory: a process
//! here is what it has ([`Own`]), at the place that its task has in the table, and how it is
//! related to others, which that table knows ([`Family`]). Whom a change should wake is collected
//! and [taken](World::take_woken) by who holds the lock.

pub(crate) mod family;

pub(crate) use family::{Family, Relation, Selection, Waited, signal_number};

use super::abi::Errno;
use super::abi::process::NAME_BYTES;
use super::files::descriptors::Descriptors;
use super::files::tree::NodeId;
use super::files::{CONSOLE_FLAGS, Channel, Files};
use super::owned::Array;
use super::signals::{Cause, Signals};

/// A place in the table of tasks.
pub(crate) type Place = usize;

/// Bits of a set of places, in words.
const WORDS: usize = super::MOST_TASKS.div_ceil(64);

/// What a process has until it ends: in a frame of its own, since it is some thousand bytes.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) descriptors: Descriptors,
    pub(crate) signals: Signals,
    /// The working directory.
    pub(crate) directory: NodeId,
    /// The program that runs.
    pub(crate) exe: NodeId,
    pub(crate) umask: u32,
    pub(crate) name: [u8; NAME_BYTES],
    /// What it waits for, asleep.
    pub(crate) waits: Option<Channel>,
    /// When the call that a signal without a handler interrupted was to end: it is made again.
    pub(crate) restart_at: Option<u64>,
}

const _: () = assert!(
    size_of::<Own>() as u64 <= granule::arch::PageSize::MIN.bytes(),
    "it should fit the smallest frame"
);

impl Own {
    /// Nothing open, default actions, at the root.
    const NEW: Self = Self {
        descriptors: Descriptors::new(),
        signals: Signals::new(false),
        directory: NodeId::ROOT,
        exe: NodeId::ROOT,
        umask: 0o022,
        name: [0; NAME_BYTES],
        waits: None,
        restart_at: None,
    };

    /// Becomes what a forked child of `from` has.
    fn copy(&mut self, from: &Self) {
        self.descriptors.clone_from(&from.descriptors);
        self.signals.fork_from(&from.signals);
        (self.directory, self.exe) = (from.directory, from.exe);
        (self.umask, self.name) = (from.umask, from.name);
    }

    /// One in its own frame, made where it stays: a kernel stack has no room for copies.
    fn allocate() -> Result<Array<Self>, Errno> {
        Array::new(1, |_| Self::NEW).ok_or(Errno::ENOMEM)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct World<'a, F> {
    pub(crate) files: Files<'a>,
    pub(crate) family: F,
    own: Array<Option<Array<Own>>>,
    /// A bit for each place that is to be woken.
    woken: [u64; WORDS],
}

impl<'a, F: Family> World<'a, F> {
    /// No processes yet; `None` if there is no memory.
    pub(crate) fn new(files: Files<'a>, family: F) -> Option<Self> {
        Some(Self {
            files,
            family,
            own: Array::new(super::MOST_TASKS, |_| None)?,
            woken: [0; WORDS],
        })
    }

    /// What a process has.
    pub(crate) fn own(&self, place: Place) -> Result<&Own, Errno> {
        let slot = self.own.get(place).and_then(Option::as_ref);
        slot.and_then(|own| own.first()).ok_or(Errno::ESRCH)
    }

    /// What a process has, to be changed.
    pub(crate) fn own_mut(&mut self, place: Place) -> Result<&mut Own, Errno> {
        let slot = self.own.get_mut(place).and_then(Option::as_mut);
        slot.and_then(|own| own.first_mut()).ok_or(Errno::ESRCH)
    }

    /// The files and what a process has, both to be changed.
    pub(crate) fn files_and_own(
        &mut self,
        place: Place,
    ) -> Result<(&mut Files<'a>, &mut Own), Errno> {
        let slot = self.own.get_mut(place).and_then(Option::as_mut);
        let own = slot.and_then(|own| own.first_mut());
        Ok((&mut self.files, own.ok_or(Errno::ESRCH)?))
    }

    /// The first process: at `place`, running `exe`, with the console as its input and output.
    pub(crate) fn begin(&mut self, place: Place, exe: NodeId) -> Result<(), Errno> {
        let mut array = Own::allocate()?;
        let own = array.first_mut().ok_or(Errno::ENOMEM)?;
        own.signals.set_init();
        own.exe = exe;
        own.name = name_of(self.files.tree.name(exe));
        let console = self
            .files
            .open(NodeId::ROOT, b"/dev/console", CONSOLE_FLAGS, None);
        // An archive may have something else there: then it begins with nothing open.
        if let Ok(console) = console {
            own.descriptors.add(console, 0, false)?;
            for number in 1..3 {
                self.files.share(console)?;
                own.descriptors.add(console, number, false)?;
            }
        }
        *self.own.get_mut(place).ok_or(Errno::EAGAIN)? = Some(array);
        Ok(())
    }

    /// What a child of the process at `parent` has, at `place`: all that is copied.
    pub(crate) fn fork(&mut self, parent: Place, place: Place) -> Result<(), Errno> {
        let mut array = Own::allocate()?;
        let own = array.first_mut().ok_or(Errno::ENOMEM)?;
        own.copy(self.own(parent)?);
        for open in own.descriptors.iter() {
            self.files.share(open)?;
        }
        *self.own.get_mut(place).ok_or(Errno::EAGAIN)? = Some(array);
        Ok(())
    }

    /// `execve`: the process runs `exe` from now on.
    pub(crate) fn execute(&mut self, place: Place, exe: NodeId, path: &[u8]) -> Result<(), Errno> {
        loop {
            let (files, own) = self.files_and_own(place)?;
            let Some(open) = own.descriptors.take_close_on_exec() else {
                break;
            };
            if let Some(channel) = files.close(open) {
                self.wake(channel);
            }
        }
        let own = self.own_mut(place)?;
        own.signals.executed();
        own.exe = exe;
        own.name = name_of(path);
        own.restart_at = None;
        Ok(())
    }

    /// The process ends: what it had is given back. A child that could not be made is ended, too.
    pub(crate) fn end(&mut self, place: Place) {
        while let Ok((files, own)) = self.files_and_own(place)
            && let Some(open) = own.descriptors.take_any()
        {
            if let Some(channel) = files.close(open) {
                self.wake(channel);
            }
        }
        if let Some(slot) = self.own.get_mut(place) {
            *slot = None;
        }
    }

    /// A signal for the process at `place`.
    pub(crate) fn send(&mut self, place: Place, signal: u8, cause: Cause) {
        if let Ok(own) = self.own_mut(place)
            && own.signals.send(signal, cause)
        {
            self.wake_place(place);
        }
    }

    /// Whoever waits for this looks again.
    pub(crate) fn wake(&mut self, channel: Channel) {
        for place in 0..super::MOST_TASKS {
            let waits = self.own(place).ok().and_then(|own| own.waits);
            if waits.is_some_and(|waits| waits == channel || waits == Channel::Any) {
                self.wake_place(place);
            }
        }
    }

    /// The process at a place looks again.
    pub(crate) fn wake_place(&mut self, place: Place) {
        if let Some(word) = self.woken.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
    }

    /// What is blocked changed: a process with something to be done about looks again.
    pub(crate) fn unblocked(&mut self, place: Place) {
        if self.own(place).is_ok_and(|own| own.signals.has_work()) {
            self.wake_place(place);
        }
    }

    /// Whom to wake, once.
    pub(crate) fn take_woken(&mut self) -> Woken {
        Woken(core::mem::take(&mut self.woken))
    }

    /// Processes that have something here.
    pub(crate) fn count(&self) -> usize {
        self.own.iter().flatten().count()
    }
}

/// Places that are to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Woken([u64; WORDS]);

impl Woken {
    /// Each of them.
    pub(crate) fn places(self) -> impl Iterator<Item = Place> {
        (0..super::MOST_TASKS).filter(move |place| {
            self.0
                .get(place / 64)
                .is_some_and(|word| word >> (place % 64) & 1 != 0)
        })
    }
}

/// The last part of a path, cut to what fits a process's name.
fn name_of(path: &[u8]) -> [u8; NAME_BYTES] {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let mut name = [0; NAME_BYTES];
    // The last byte stays a NUL.
    for (to, from) in name.iter_mut().take(NAME_BYTES - 1).zip(last) {
        *to = *from;
    }
    name
}

#[cfg(test)]
pub(crate) mod tests;
