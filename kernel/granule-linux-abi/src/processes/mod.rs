//! The process table: the state of each process beside its memory and registers, and the shared files.
//!
//! [`Processes`] is one value behind one lock of the kernel. Nothing in it runs, waits or touches a
//! program's memory. A [`Process`] has the same place as its task in the kernel's table of tasks. That
//! table ([`TaskTable`]) stores how processes are related; [`relatives`] has the rules among relatives.
//! A change collects the processes to [wake](Processes::woken), which the lock's holder does afterwards.
//!
//! The table is made before the first process, with a number of places that follows from the free memory
//! ([`places_for`]) and limits a fork bomb; beyond it `fork` returns EAGAIN. A machine without programs has
//! no table. Nothing that a process does often looks through it: a bit set has the free places, an array the
//! place of each number, and rings the children of each task and the sleepers of a channel.
//!
//! A change names the *channel* (a pipe, a process's children) that it concerns; a sleeper has the channel
//! that it sleeps on; the lock's holder wakes the sleepers once the lock is free. Steps that must be atomic
//! share one holding of the lock: the begin of a child with the look at its parent's signals, and the point
//! from which a child can be waited for with the SIGCHLD for it. So a signal to a group arrives either after
//! the child exists, and the child gets it too, or before. Then the parent handles the signal first, and its
//! `fork` is repeated. If the parent blocks the signal, as C libraries do round a fork, the child also begins
//! with it, pending and blocked.

pub mod numbers;
pub mod places;
pub mod relatives;
pub mod rings;

pub use numbers::Numbers;
pub use places::Places;
pub use relatives::{Reaped, Relation, Selection, TaskTable};
pub use rings::Rings;

use crate::abi::Errno;
use crate::abi::process::NAME_BYTES;
use crate::files::descriptors::Descriptors;
use crate::files::file_tree::NodeId;
use crate::files::{CONSOLE_FLAGS, Channel, Files};
use crate::owned::{Array, Frames};
use crate::signals::{Cause, Signals};
use granule::arch::PageSize;

/// The most processes of any machine, as many as [`Places`] has bits. One with little memory has fewer places.
pub const MOST_PROCESSES: usize = 64 * 64;

/// The fewest places of any machine.
const LEAST_PROCESSES: usize = 64;

/// The number of places for a machine with so much free memory: an eighth of it could go into kernel
/// stacks of 16K, which is Linux's rule for `threads-max`. It is a multiple of 64, and limits a fork bomb.
#[must_use]
pub const fn places_for(free_bytes: u64) -> usize {
    const SHARE: u64 = 128 << 10;
    let places = free_bytes / SHARE / 64 * 64;
    if places >= MOST_PROCESSES as u64 {
        MOST_PROCESSES
    } else if places <= LEAST_PROCESSES as u64 {
        LEAST_PROCESSES
    } else {
        places as usize
    }
}

/// A place in the table.
pub type ProcessPlace = usize;

/// The number of lists of processes that wait for one of several events.
const EVENT_LISTS: usize = 64;

/// The list of processes that wait for any event.
const ANY_EVENT: usize = EVENT_LISTS;

/// The list of the processes that wait for an event; `None` for what is not an event.
const fn list_of(channel: Channel) -> Option<usize> {
    match channel {
        Channel::Pipe(number) => Some(number as usize % EVENT_LISTS),
        Channel::Children(pid) => Some(pid as usize % EVENT_LISTS),
        Channel::Any => Some(ANY_EVENT),
        Channel::Nothing => None,
    }
}

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
    /// The page size that it requests for the next program that it executes.
    pub page_size: Option<PageSize>,
    /// The channel that the process sleeps on, set by [`Processes::set_waits`].
    waits: Option<Channel>,
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
    /// The processes that wait for an event.
    waiting: Rings<T::Frames>,
    /// The places to wake. The lock's holder empties it.
    pub woken: Places,
}

impl<'a, T: TaskTable> Processes<'a, T> {
    /// An empty table for `most` processes; `None` if memory is exhausted.
    pub fn new(files: Files<'a, T::Frames>, tasks: T, most: usize) -> Option<Self> {
        Some(Self {
            files,
            tasks,
            slots: Array::new(most, |_| None)?,
            waiting: Rings::new(most, EVENT_LISTS + 1)?,
            woken: Places::new(),
        })
    }

    /// The process at a place, or `ESRCH`.
    pub fn get(&self, place: ProcessPlace) -> Result<&Process, Errno> {
        let slot = self.slots.get(place).and_then(Option::as_ref);
        slot.and_then(|process| process.first()).ok_or(Errno::ESRCH)
    }

    /// The process at a place, mutably, or `ESRCH`.
    pub fn get_mut(&mut self, place: ProcessPlace) -> Result<&mut Process, Errno> {
        Ok(self.files_and(place)?.1)
    }

    /// The files and a process, both mutably.
    pub(crate) fn files_and(
        &mut self,
        place: ProcessPlace,
    ) -> Result<(&mut Files<'a, T::Frames>, &mut Process), Errno> {
        let slot = self.slots.get_mut(place).and_then(Option::as_mut);
        let process = slot.and_then(|process| process.first_mut());
        Ok((&mut self.files, process.ok_or(Errno::ESRCH)?))
    }

    /// Makes the first process at `place`, with program `exe` and the console, or `ENOMEM`.
    pub fn begin(&mut self, place: ProcessPlace, exe: NodeId) -> Result<(), Errno> {
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

    /// Makes a child of the process at `parent`, at `place`. Errors: `ENOMEM`, without any trace of the child;
    /// `EAGAIN` for an invalid place.
    pub fn fork(&mut self, parent: ProcessPlace, place: ProcessPlace) -> Result<(), Errno> {
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

    /// `execve`: makes the process run `exe`. `ESRCH` if there is none.
    pub fn execute(&mut self, place: ProcessPlace, exe: NodeId, path: &[u8]) -> Result<(), Errno> {
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
    pub fn end(&mut self, place: ProcessPlace) {
        while let Ok((files, process)) = self.files_and(place)
            && let Some(open) = process.descriptors.take_any()
        {
            if let Some(channel) = files.close(open) {
                self.wake(channel);
            }
        }
        self.waiting.remove(place);
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = None;
        }
    }

    /// Sets the channel that the process sleeps on, `None` while it runs.
    pub fn set_waits(&mut self, place: ProcessPlace, channel: Option<Channel>) {
        let Ok(process) = self.get_mut(place) else {
            return;
        };
        process.waits = channel;
        match channel.and_then(list_of) {
            Some(list) => self.waiting.append(list, place),
            None => self.waiting.remove(place),
        }
    }

    pub(crate) fn send(&mut self, place: ProcessPlace, signal: u8, cause: Cause) {
        if let Ok(process) = self.get_mut(place)
            && process.signals.send(signal, cause)
        {
            self.woken.insert(place);
        }
    }

    /// Wakes the processes that sleep on a channel.
    pub(crate) fn wake(&mut self, channel: Channel) {
        let Self {
            slots,
            waiting,
            woken,
            ..
        } = self;
        let same = list_of(channel).map(|list| waiting.iter(list));
        for place in same.into_iter().flatten() {
            // Other channels have the same list.
            let process = slots.get(place).and_then(Option::as_ref);
            let process = process.and_then(|process| process.first());
            if process.is_some_and(|process| process.waits == Some(channel)) {
                woken.insert(place);
            }
        }
        waiting
            .iter(ANY_EVENT)
            .for_each(|place| woken.insert(place));
    }

    /// Wakes a process after a change of its mask, if it has a signal to handle now.
    pub(crate) fn unblocked(&mut self, place: ProcessPlace) {
        if self.get(place).is_ok_and(|it| it.signals.has_work()) {
            self.woken.insert(place);
        }
    }

    /// The number of processes.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
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
