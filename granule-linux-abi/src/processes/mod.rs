//! The process table: the state of each process beside its memory and registers, and the shared files.
//!
//! [`Processes`] is one value behind one lock of the kernel. Nothing in it runs, waits or touches a
//! program's memory. A [`Process`] has the same place as its task in the kernel's table of tasks. That
//! table ([`TaskTable`]) stores how processes are related; [`relatives`] has the rules among relatives.
//! A change collects the processes to wake, and the lock's holder [takes](Processes::take_woken) them
//! afterwards.

pub mod relatives;

pub use relatives::{Reaped, Relation, Selection, TaskTable, Waited};

use crate::abi::Errno;
use crate::abi::process::NAME_BYTES;
use crate::files::descriptors::Descriptors;
use crate::files::file_tree::NodeId;
use crate::files::{CONSOLE_FLAGS, Channel, Files};
use crate::owned::{Array, Frames};
use crate::signals::{Cause, Signals};
use granule::arch::PageSize;

/// The most processes; the limit of a fork bomb.
pub const MOST_PROCESSES: usize = 256;

/// A place in the table.
pub type Place = usize;

/// Words of a set of places, one bit for each.
const WORDS: usize = MOST_PROCESSES.div_ceil(64);

/// The state of a process until it ends. It takes a frame, since it has some thousand bytes.
#[derive(Debug)]
pub struct Process {
    /// The open files by number.
    pub descriptors: Descriptors,
    /// The signals.
    pub signals: Signals,
    /// The working directory.
    pub directory: NodeId,
    /// The running program.
    pub exe: NodeId,
    /// The mask for the modes of new files; no call creates files.
    pub umask: u32,
    /// The name for `prctl`.
    pub name: [u8; NAME_BYTES],
    /// The page size that it wants for the next program that it executes.
    pub page_size: Option<PageSize>,
    /// The channel that the process sleeps on.
    pub waits: Option<Channel>,
    /// The deadline of an interrupted call, kept for its repetition.
    pub restart_at: Option<u64>,
}

const _: () = assert!(
    size_of::<Process>() <= crate::owned::SMALLEST_FRAME,
    "it should fit the smallest frame"
);

impl Process {
    /// No descriptors, default actions, at the root directory.
    const NEW: Self = Self {
        descriptors: Descriptors::new(),
        signals: Signals::new(false),
        directory: NodeId::ROOT,
        exe: NodeId::ROOT,
        umask: 0o022,
        name: [0; NAME_BYTES],
        page_size: None,
        waits: None,
        restart_at: None,
    };

    /// Copies the state that a child forked from `from` inherits.
    fn copy(&mut self, from: &Self) {
        self.descriptors.clone_from(&from.descriptors);
        self.signals.fork_from(&from.signals);
        (self.directory, self.exe) = (from.directory, from.exe);
        (self.umask, self.name) = (from.umask, from.name);
        self.page_size = from.page_size;
    }

    /// A process in its own frame, built in place: a kernel stack has no room for a copy.
    fn allocate<F: Frames>() -> Result<Array<Self, F>, Errno> {
        Array::new(1, |_| Self::NEW).ok_or(Errno::ENOMEM)
    }
}

/// A process in a frame of its own.
type Slot<F> = Option<Array<Process, F>>;

/// The process table.
#[derive(Debug)]
pub struct Processes<'a, T: TaskTable> {
    /// The files that all processes share.
    pub files: Files<'a, T::Frames>,
    /// The kernel's table of tasks.
    pub tasks: T,
    slots: Array<Slot<T::Frames>, T::Frames>,
    /// A bit for each place to wake.
    woken: [u64; WORDS],
}

impl<'a, T: TaskTable> Processes<'a, T> {
    /// An empty table; `None` if memory is exhausted.
    pub fn new(files: Files<'a, T::Frames>, tasks: T) -> Option<Self> {
        Some(Self {
            files,
            tasks,
            slots: Array::new(MOST_PROCESSES, |_| None)?,
            woken: [0; WORDS],
        })
    }

    /// The process at a place.
    ///
    /// # Errors
    ///
    /// `ESRCH` if there is none.
    pub fn get(&self, place: Place) -> Result<&Process, Errno> {
        let slot = self.slots.get(place).and_then(Option::as_ref);
        slot.and_then(|process| process.first()).ok_or(Errno::ESRCH)
    }

    /// The process at a place, mutably.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn get_mut(&mut self, place: Place) -> Result<&mut Process, Errno> {
        Ok(self.files_and(place)?.1)
    }

    /// The files and a process, both mutably.
    pub(crate) fn files_and(
        &mut self,
        place: Place,
    ) -> Result<(&mut Files<'a, T::Frames>, &mut Process), Errno> {
        let slot = self.slots.get_mut(place).and_then(Option::as_mut);
        let process = slot.and_then(|process| process.first_mut());
        Ok((&mut self.files, process.ok_or(Errno::ESRCH)?))
    }

    /// Makes the first process at `place`, with program `exe` and the console as its input and output.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn begin(&mut self, place: Place, exe: NodeId) -> Result<(), Errno> {
        let mut array = Process::allocate()?;
        let process = array.first_mut().ok_or(Errno::ENOMEM)?;
        process.signals.set_init();
        process.exe = exe;
        process.name = name_of(self.files.tree.name(exe));
        let console = self
            .files
            .open(NodeId::ROOT, b"/dev/console", CONSOLE_FLAGS, None);
        // The archive may have another file there: then the process starts without descriptors.
        if let Ok(console) = console {
            process.descriptors.add(console, 0, false)?;
            for number in 1..3 {
                self.files.share(console)?;
                process.descriptors.add(console, number, false)?;
            }
        }
        *self.slots.get_mut(place).ok_or(Errno::EAGAIN)? = Some(array);
        Ok(())
    }

    /// Makes a child of the process at `parent`, at `place`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, without any trace of the child; `EAGAIN` for an invalid place.
    pub fn fork(&mut self, parent: Place, place: Place) -> Result<(), Errno> {
        let mut array = Process::allocate()?;
        let process = array.first_mut().ok_or(Errno::ENOMEM)?;
        process.copy(self.get(parent)?);
        let slot = self.slots.get_mut(place).ok_or(Errno::EAGAIN)?;
        for open in process.descriptors.iter() {
            self.files.share(open)?;
        }
        *slot = Some(array);
        Ok(())
    }

    /// `execve`: lets the process run `exe`.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn execute(&mut self, place: Place, exe: NodeId, path: &[u8]) -> Result<(), Errno> {
        loop {
            let (files, process) = self.files_and(place)?;
            let Some(open) = process.descriptors.take_close_on_exec() else {
                break;
            };
            if let Some(channel) = files.close(open) {
                self.wake(channel);
            }
        }
        let process = self.get_mut(place)?;
        process.signals.executed();
        process.exe = exe;
        process.name = name_of(path);
        process.restart_at = None;
        Ok(())
    }

    /// Ends the process at a place and frees its state; also for a child that could not be completed.
    pub fn end(&mut self, place: Place) {
        while let Ok((files, process)) = self.files_and(place)
            && let Some(open) = process.descriptors.take_any()
        {
            if let Some(channel) = files.close(open) {
                self.wake(channel);
            }
        }
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = None;
        }
    }

    /// Sends a signal to the process at `place`.
    pub(crate) fn send(&mut self, place: Place, signal: u8, cause: Cause) {
        if let Ok(process) = self.get_mut(place)
            && process.signals.send(signal, cause)
        {
            self.wake_place(place);
        }
    }

    /// Wakes the processes that sleep on a channel.
    pub(crate) fn wake(&mut self, channel: Channel) {
        for place in 0..MOST_PROCESSES {
            let waits = self.get(place).ok().and_then(|process| process.waits);
            if waits.is_some_and(|waits| waits == channel || waits == Channel::Any) {
                self.wake_place(place);
            }
        }
    }

    /// Wakes the process at a place.
    pub(crate) fn wake_place(&mut self, place: Place) {
        if let Some(word) = self.woken.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
    }

    /// Wakes a process after a change of its mask, if it has a signal to handle now.
    pub(crate) fn unblocked(&mut self, place: Place) {
        if self
            .get(place)
            .is_ok_and(|process| process.signals.has_work())
        {
            self.wake_place(place);
        }
    }

    /// Takes the processes to wake.
    pub fn take_woken(&mut self) -> Woken {
        Woken(core::mem::take(&mut self.woken))
    }

    /// The number of processes.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}

/// Places to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken([u64; WORDS]);

impl Woken {
    /// Iterates over the places.
    pub fn places(self) -> impl Iterator<Item = Place> {
        (0..MOST_PROCESSES).filter(move |place| {
            self.0
                .get(place / 64)
                .is_some_and(|word| word >> (place % 64) & 1 != 0)
        })
    }
}

/// The last part of a path, cut to the size of a process name.
fn name_of(path: &[u8]) -> [u8; NAME_BYTES] {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let mut name = [0; NAME_BYTES];
    // The last byte stays NUL.
    for (to, from) in name.iter_mut().take(NAME_BYTES - 1).zip(last) {
        *to = *from;
    }
    name
}

#[cfg(test)]
pub(crate) mod tests;
