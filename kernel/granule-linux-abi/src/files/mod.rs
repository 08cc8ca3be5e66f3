//! Files as user space sees them: a read-only [tree](file_tree) from the [`cpio`] archive of an initramfs,
//! [`pipe`]s, and the console, a plain file.
//!
//! [`Files`] has the open files of all processes; [`descriptors`] maps one process's numbers to
//! them; [`path`] resolves names to nodes; [`about`] describes files, and [`kexec`] the next
//! kernel. Nothing here waits, touches a program's memory or depends on processes. An operation
//! that would have to wait returns that, and [`syscall`](super::syscall) waits.
//!
//! Files are the archive's own bytes, and cannot be written: an attempt is `EROFS`. A [`source`] has files whose bytes
//! the kernel moves, such as disks. The console is a plain file: programs write to it, and reads end of file.

pub mod about;
pub mod cpio;
pub mod descriptors;
pub mod file_tree;
pub mod kexec;
pub mod open;
pub mod path;
pub mod pipe;
pub mod source;

use crate::abi::Errno;
use crate::abi::file::{
    O_ACCMODE, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDWR, O_TRUNC,
    O_WRONLY, PIPE_BUF, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM,
};
use crate::owned::{Array, Frames};
use descriptors::OpenId;
use file_tree::{Node, NodeId, NodeKind, Status, Tree};
use kexec::Kexec;
use open::{Device, OpenFile, What};
use path::{Last, PathError, lookup};
use pipe::Pipe;
use source::{Sizes, Source};

/// The most open files of all processes together.
const MOST_OPEN: usize = 512;
/// The most pipes; each takes memory.
const MOST_PIPES: usize = 128;

/// The result of an attempt to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// This many bytes were moved.
    Bytes(usize),
    /// Nothing could be moved; try again when this channel is woken.
    Wait(Channel),
    /// Nothing will ever be moved: the pipe has no reader.
    NobodyReads,
    /// The caller must write all the bytes to the console.
    Console,
    /// The caller must move so many of the bytes from or to the source, from this byte of it on.
    Through(Source, u64, usize),
}

/// An event that a process can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// A pipe gets bytes or room, or loses an end.
    Pipe(u16),
    /// A child of this process changes.
    Children(u32),
    /// No event: only time and signals end the wait.
    Nothing,
    /// Any event.
    Any,
}

/// The files of the machine.
#[derive(Debug)]
pub struct Files<'a, F: Frames> {
    /// The tree of files.
    pub tree: Tree<'a, Array<Node, F>>,
    /// The text about the next kernel.
    pub kexec: Kexec,
    /// The device tree that this kernel was given.
    pub machine: &'a [u8],
    sizes: Sizes,
    open: Array<Option<OpenFile>, F>,
    pipes: Array<Option<Pipe<F>>, F>,
}

impl<'a, F: Frames> Files<'a, F> {
    /// The files of `tree`, none of them open. `None` if memory is exhausted.
    pub fn new(tree: Tree<'a, Array<Node, F>>) -> Option<Self> {
        Some(Self {
            tree,
            kexec: Kexec::NONE,
            machine: &[],
            sizes: Sizes::default(),
            open: Array::new(MOST_OPEN, |_| None)?,
            pipes: Array::new(MOST_PIPES, |_| None)?,
        })
    }

    /// Resolves a path.
    pub fn find(
        &self,
        from: NodeId,
        path: &[u8],
        last: Last,
        exe: Option<NodeId>,
    ) -> Result<NodeId, Errno> {
        lookup(&self.tree, from, path, last, exe).map_err(Into::into)
    }

    /// `open`, with the flags of `openat`.
    pub fn open(
        &mut self,
        from: NodeId,
        path: &[u8],
        flags: u32,
        exe: Option<NodeId>,
    ) -> Result<OpenId, Errno> {
        let exclusive = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
        let last = if flags & O_NOFOLLOW != 0 || exclusive {
            Last::Keep
        } else {
            Last::Follow
        };
        let node = match lookup(&self.tree, from, path, last, exe) {
            Ok(_) if exclusive => return Err(Errno::EEXIST),
            Ok(node) => node,
            // On a writable file system the file would be created.
            Err(PathError::NotFound { only_last: true }) if flags & O_CREAT != 0 => {
                return Err(Errno::EROFS);
            }
            Err(error) => return Err(error.into()),
        };
        let kind = self.tree.kind(node);
        if flags & O_DIRECTORY != 0 && kind != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if flags & O_PATH != 0 {
            return Err(Errno::EINVAL);
        }
        let writes = flags & O_ACCMODE != 0;
        let what = match kind {
            NodeKind::Directory if writes || flags & O_CREAT != 0 => return Err(Errno::EISDIR),
            NodeKind::File | NodeKind::Status(_) if writes || flags & O_TRUNC != 0 => {
                return Err(Errno::EROFS);
            }
            NodeKind::Directory => What::Directory(node),
            NodeKind::File => What::File(node),
            NodeKind::Status(status) => What::Status(status, node),
            NodeKind::Link | NodeKind::ExeLink => return Err(Errno::ELOOP),
            NodeKind::Device { major, minor } => {
                let device = Device::of(major, minor).ok_or(Errno::ENODEV)?;
                What::Device(device, node)
            }
            NodeKind::Moved(source) => {
                source.may_open(flags)?;
                self.sizes.get(source).ok_or(Errno::ENXIO)?;
                What::Moved(source, node)
            }
            NodeKind::Other => return Err(Errno::ENODEV),
        };
        // Flags with an effect on the opening only are not kept.
        let kept = flags & !(O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_DIRECTORY);
        self.add(OpenFile::new(what, kept))
    }

    /// Makes a pipe. Returns its reading end and its writing end.
    pub fn pipe(&mut self, flags: u32) -> Result<(OpenId, OpenId), Errno> {
        let free = self.pipes.iter().position(Option::is_none);
        let index = free.ok_or(Errno::ENFILE)?;
        let pipe = Pipe::new().ok_or(Errno::ENOMEM)?;
        if let Some(slot) = self.pipes.get_mut(index) {
            *slot = Some(pipe);
        }
        let index = index as u16;
        let reading = self.add(OpenFile::new(What::PipeOut(index), flags));
        let writing = self.add(OpenFile::new(What::PipeIn(index), flags | O_WRONLY));
        match (reading, writing) {
            (Ok(reading), Ok(writing)) => Ok((reading, writing)),
            (reading, writing) => {
                for id in [reading, writing].into_iter().flatten() {
                    if let Some(slot) = self.open.get_mut(usize::from(id.0)) {
                        *slot = None;
                    }
                }
                if let Some(slot) = self.pipes.get_mut(usize::from(index)) {
                    *slot = None;
                }
                Err(Errno::ENFILE)
            }
        }
    }

    /// Adds a source of so many bytes, and its name. Fails if its name has no room.
    pub fn add_source(&mut self, source: Source, bytes: u64) -> Result<(), Errno> {
        self.tree.add_source(source).map_err(|_| Errno::ENOMEM)?;
        self.sizes.set(source, Some(bytes));
        Ok(())
    }

    /// Takes a source away, if no process has it open; returns whether none has.
    pub fn remove_source(&mut self, gone: Source) -> bool {
        let mut open = self.open.iter().flatten();
        let is_open =
            open.any(|file| matches!(file.what, What::Moved(source, _) if source == gone));
        if !is_open {
            self.sizes.set(gone, None);
        }
        !is_open
    }

    /// Moves the offset behind the bytes of the source that a call transfers; returns where they are, at most `most`.
    fn through(&mut self, id: OpenId, source: Source, most: usize) -> Result<Moved, Errno> {
        let end = self.sizes.get(source).unwrap_or(0);
        let file = self.get_mut(id)?;
        let at = file.offset;
        let count = end.saturating_sub(at).min(most as u64);
        file.offset += count;
        Ok(Moved::Through(source, at, count as usize))
    }

    fn add(&mut self, file: OpenFile) -> Result<OpenId, Errno> {
        let mut slots = self.open.iter_mut().enumerate();
        let free = slots.find(|(_, slot)| slot.is_none());
        let (index, slot) = free.ok_or(Errno::ENFILE)?;
        *slot = Some(file);
        Ok(OpenId(index as u16))
    }

    /// An open file.
    pub fn get(&self, id: OpenId) -> Result<&OpenFile, Errno> {
        let slot = self.open.get(usize::from(id.0));
        slot.and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    /// An open file, mutably.
    pub fn get_mut(&mut self, id: OpenId) -> Result<&mut OpenFile, Errno> {
        let slot = self.open.get_mut(usize::from(id.0));
        slot.and_then(Option::as_mut).ok_or(Errno::EBADF)
    }

    fn pipe_at(&mut self, index: u16) -> Result<&mut Pipe<F>, Errno> {
        let slot = self.pipes.get_mut(usize::from(index));
        slot.and_then(Option::as_mut).ok_or(Errno::EBADF)
    }

    fn pipe_ref(&self, index: u16) -> Result<&Pipe<F>, Errno> {
        let slot = self.pipes.get(usize::from(index));
        slot.and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    /// Adds an owner to the open file.
    pub fn share(&mut self, id: OpenId) -> Result<(), Errno> {
        let file = self.get_mut(id)?;
        file.owners = file.owners.checked_add(1).ok_or(Errno::ENFILE)?;
        Ok(())
    }

    /// Removes an owner from the open file. Returns the channel to wake, if any.
    pub fn close(&mut self, id: OpenId) -> Option<Channel> {
        let slot = self.open.get_mut(usize::from(id.0))?;
        let file = slot.as_mut()?;
        file.owners -= 1;
        if file.owners > 0 {
            return None;
        }
        let what = file.what;
        *slot = None;
        let (index, reads) = match what {
            What::PipeOut(index) => (index, true),
            What::PipeIn(index) => (index, false),
            _ => return None,
        };
        let slot = self.pipes.get_mut(usize::from(index))?;
        let pipe = slot.as_mut()?;
        if reads {
            pipe.readers -= 1;
        } else {
            pipe.writers -= 1;
        }
        if pipe.readers == 0 && pipe.writers == 0 {
            *slot = None;
        }
        Some(Channel::Pipe(index))
    }

    /// Reads the bytes available now at the file's offset, and advances the offset.
    pub fn read(&mut self, id: OpenId, into: &mut [u8]) -> Result<Moved, Errno> {
        let file = *self.get(id)?;
        if !file.may_read() {
            return Err(Errno::EBADF);
        }
        let content = match file.what {
            What::File(node) => self.tree.content(node),
            What::Status(Status::KexecLoaded, _) => self.kexec.loaded(),
            What::Status(Status::KexecSegments, _) => self.kexec.segments(),
            What::Status(Status::Tree, _) => self.machine,
            What::Directory(_) => return Err(Errno::EISDIR),
            What::Device(Device::Zero, _) => {
                into.fill(0);
                return Ok(Moved::Bytes(into.len()));
            }
            // The console has no input: it is always at its end.
            What::Device(Device::Null | Device::Console, _) => return Ok(Moved::Bytes(0)),
            What::PipeOut(index) => {
                let pipe = self.pipe_at(index)?;
                return Ok(match pipe.read(into) {
                    0 if pipe.writers > 0 && !into.is_empty() => Moved::Wait(Channel::Pipe(index)),
                    count => Moved::Bytes(count),
                });
            }
            What::PipeIn(_) => return Err(Errno::EBADF),
            What::Moved(source, _) => return self.through(id, source, into.len()),
        };
        let start = usize::try_from(file.offset).unwrap_or(usize::MAX);
        let rest = content.get(start..).unwrap_or_default();
        let count = rest.len().min(into.len());
        for (to, from) in into.iter_mut().zip(rest) {
            *to = *from;
        }
        self.get_mut(id)?.offset = file.offset.saturating_add(count as u64);
        Ok(Moved::Bytes(count))
    }

    /// Writes the bytes that fit now. `whole` is the size of the whole call, of which `from` may be a
    /// part. If a pipe must take the call in one piece, nothing is written until all of it fits.
    pub fn write(&mut self, id: OpenId, from: &[u8], whole: usize) -> Result<Moved, Errno> {
        let file = *self.get(id)?;
        if !file.may_write() {
            return Err(Errno::EBADF);
        }
        match file.what {
            What::Device(Device::Null | Device::Zero, _) => Ok(Moved::Bytes(from.len())),
            What::Device(Device::Console, _) => Ok(Moved::Console),
            What::Moved(source @ Source::Sysrq, _) => match from.first() {
                // Crash; the other letters of Linux mean nothing here.
                Some(b'c') => Ok(Moved::Through(source, 0, from.len())),
                Some(_) => Err(Errno::EINVAL),
                None => Ok(Moved::Bytes(0)),
            },
            What::Moved(source, _) => match self.through(id, source, from.len())? {
                Moved::Through(.., 0) if !from.is_empty() => Err(Errno::ENOSPC),
                moved => Ok(moved),
            },
            What::PipeIn(index) => {
                let pipe = self.pipe_at(index)?;
                if pipe.readers == 0 {
                    return Ok(Moved::NobodyReads);
                }
                if from.is_empty() {
                    return Ok(Moved::Bytes(0));
                }
                if whole <= PIPE_BUF && pipe.room() < whole {
                    return Ok(Moved::Wait(Channel::Pipe(index)));
                }
                match pipe.write(from) {
                    0 => Ok(Moved::Wait(Channel::Pipe(index))),
                    count => Ok(Moved::Bytes(count)),
                }
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// The operations possible on a descriptor without waiting, and the channel to wait on for others.
    pub fn poll(&self, id: OpenId) -> (u16, Channel) {
        let always = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM;
        let Ok(file) = self.get(id) else {
            return (crate::abi::file::POLLNVAL, Channel::Nothing);
        };
        match file.what {
            What::PipeOut(index) => {
                let events = self.pipe_ref(index).map_or(0, |pipe| {
                    let has_bytes = pipe.used() > 0;
                    let input = if has_bytes { POLLIN | POLLRDNORM } else { 0 };
                    let hung_up = if pipe.writers == 0 { POLLHUP } else { 0 };
                    input | hung_up
                });
                (events, Channel::Pipe(index))
            }
            What::PipeIn(index) => {
                let events = self.pipe_ref(index).map_or(0, |pipe| {
                    let room = pipe.room() >= PIPE_BUF;
                    let output = if room { POLLOUT | POLLWRNORM } else { 0 };
                    let broken = if pipe.readers == 0 { POLLERR } else { 0 };
                    output | broken
                });
                (events, Channel::Pipe(index))
            }
            _ => (always, Channel::Nothing),
        }
    }

    /// Whether [`write`](Self::write) of a part of `whole` bytes would succeed without waiting.
    pub fn can_write(&self, id: OpenId, whole: usize) -> bool {
        match self.get(id).map(|file| file.what) {
            Ok(What::PipeIn(index)) => self.pipe_ref(index).is_ok_and(|pipe| {
                let needed = if whole <= PIPE_BUF { whole } else { 1 };
                pipe.readers == 0 || pipe.room() >= needed
            }),
            _ => true,
        }
    }

    /// The numbers of open files and pipes, to detect leaks.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        (
            self.open.iter().flatten().count(),
            self.pipes.iter().flatten().count(),
        )
    }
}

/// The open flags of the first process's descriptors.
pub const CONSOLE_FLAGS: u32 = O_RDWR;

impl From<PathError> for Errno {
    fn from(error: PathError) -> Self {
        match error {
            PathError::NotFound { .. } => Self::ENOENT,
            PathError::NotDirectory => Self::ENOTDIR,
            PathError::Loop => Self::ELOOP,
            PathError::NameTooLong => Self::ENAMETOOLONG,
        }
    }
}

#[cfg(test)]
pub mod tests;
