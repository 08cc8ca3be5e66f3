//! Reading and writing: moves bytes between a program's memory and an open file.
//!
//! The bytes go through a buffer on the kernel's stack. A program's memory may have to be faulted in
//! first, which is not allowed under the lock of the process table.
//!
//! The buffer is made writable before bytes leave a pipe, so a bad pointer loses nothing.

use super::{Fail, Restart, Result};
use crate::abi::Errno;
use crate::abi::file::{MAX_RW_COUNT, O_NONBLOCK, PIPE_BUF};
use crate::abi::signal::SIGPIPE;
use crate::env::{Env, Slept, Transfer};
use crate::files::descriptors::OpenId;
use crate::files::source::Source;
use crate::files::{Channel, Moved};
use crate::processes::{ProcessPlace, Processes, TaskTable};
use crate::signals::Cause;

/// The buffer size that suffices for most calls.
const SMALL: usize = 256;

/// The open file of a descriptor, and whether its calls must not wait.
fn opened<E: Env>(env: &mut E, fd: u32) -> core::result::Result<(OpenId, bool), Errno> {
    env.with(|processes, place| {
        let open = processes.get(place)?.descriptors.get(fd)?;
        Ok((open, processes.files.get(open)?.flags & O_NONBLOCK != 0))
    })
}

pub(super) fn read<E: Env>(env: &mut E, fd: u32, (at, bytes): (u64, u64)) -> Result {
    let file = opened(env, fd)?;
    let bytes = bytes.min(MAX_RW_COUNT);
    if bytes <= SMALL as u64 {
        read_through::<E, SMALL>(env, file, (at, bytes))
    } else {
        read_through::<E, PIPE_BUF>(env, file, (at, bytes))
    }
}

pub(super) fn write<E: Env>(env: &mut E, fd: u32, (at, bytes): (u64, u64)) -> Result {
    let file = opened(env, fd)?;
    let bytes = bytes.min(MAX_RW_COUNT);
    if bytes <= SMALL as u64 {
        write_through::<E, SMALL>(env, file, (at, bytes))
    } else {
        write_through::<E, PIPE_BUF>(env, file, (at, bytes))
    }
}

#[inline(never)]
fn read_through<E: Env, const N: usize>(
    env: &mut E,
    (open, at_once): (OpenId, bool),
    (at, bytes): (u64, u64),
) -> Result {
    let mut buffer = [0; N];
    let mut moved: u64 = 0;
    loop {
        let left = (bytes - moved).min(N as u64);
        let Some(room) = buffer.get_mut(..left as usize) else {
            return Ok(moved);
        };
        let to = at.checked_add(moved).ok_or(Errno::EFAULT)?;
        if let Err(error) = env.prepare_write(to, left) {
            return moved_or(moved, error.into());
        }
        let tried = env.with(|processes, _| {
            let tried = processes.files.read(open, room);
            // Writers now have room.
            if let (Ok(Moved::Bytes(1..)), Some(channel)) = (&tried, channel_of(processes, open)) {
                processes.wake(channel);
            }
            tried
        });
        let some = match tried {
            Ok(Moved::Bytes(some)) => some,
            Ok(Moved::Through(source, at, some)) => {
                let into = Transfer::Read(room.get_mut(..some).unwrap_or_default());
                if let Err(error) = through(env, open, (source, at), into) {
                    return moved_or(moved, error.into());
                }
                some
            }
            Ok(Moved::Wait(channel)) if moved == 0 => {
                if at_once {
                    return Err(Errno::EAGAIN.into());
                }
                wait(env, channel, |processes, _| {
                    processes.files.poll(open).0 & READABLE != 0
                })?;
                continue;
            }
            Ok(Moved::Wait(_) | Moved::Console | Moved::NobodyReads) => return Ok(moved),
            Err(error) => return moved_or(moved, error.into()),
        };
        env.write(to, room.get(..some).unwrap_or_default())?;
        moved += some as u64;
        if some == 0 || moved == bytes || env.pause() {
            return Ok(moved);
        }
    }
}

/// Returns a partial result before a signal or an error, which comes up again in the next call.
fn moved_or(moved: u64, fail: Fail) -> Result {
    if moved > 0 { Ok(moved) } else { Err(fail) }
}

const READABLE: u16 = crate::abi::file::POLLIN | crate::abi::file::POLLHUP;

fn channel_of<T: TaskTable>(processes: &Processes<'_, T>, open: OpenId) -> Option<Channel> {
    use crate::files::open::What;
    match processes.files.get(open).ok()?.what {
        What::PipeIn(index) | What::PipeOut(index) => Some(Channel::Pipe(index)),
        _ => None,
    }
}

#[inline(never)]
fn write_through<E: Env, const N: usize>(
    env: &mut E,
    (open, at_once): (OpenId, bool),
    (at, bytes): (u64, u64),
) -> Result {
    let mut buffer = [0; N];
    let mut moved: u64 = 0;
    loop {
        let left = (bytes - moved).min(N as u64);
        let Some(piece) = buffer.get_mut(..left as usize) else {
            return Ok(moved);
        };
        let from = at.checked_add(moved).ok_or(Errno::EFAULT)?;
        if let Err(error) = env.read(from, piece) {
            return moved_or(moved, error.into());
        }
        match write_piece(env, (open, at_once), piece, bytes as usize) {
            Ok(some) => moved += some,
            Err(fail) => return moved_or(moved, fail),
        }
        if moved == bytes || env.pause() {
            return Ok(moved);
        }
    }
}

/// Writes a part of `piece` once there is room.
fn write_piece<E: Env>(
    env: &mut E,
    (open, at_once): (OpenId, bool),
    piece: &[u8],
    whole: usize,
) -> Result {
    loop {
        let tried = env.with(|processes, place| {
            let tried = processes.files.write(open, piece, whole);
            match tried {
                Ok(Moved::Bytes(1..)) => {
                    if let Some(channel) = channel_of(processes, open) {
                        processes.wake(channel);
                    }
                }
                Ok(Moved::NobodyReads) => processes.send(place, SIGPIPE, Cause::KERNEL),
                _ => {}
            }
            tried
        });
        match tried? {
            Moved::Bytes(some) => return Ok(some as u64),
            Moved::NobodyReads => return Err(Errno::EPIPE.into()),
            Moved::Through(source, at, some) => {
                let from = Transfer::Write(piece.get(..some).unwrap_or_default());
                through(env, open, (source, at), from)?;
                return Ok(some as u64);
            }
            Moved::Console => {
                env.console(piece);
                return Ok(piece.len() as u64);
            }
            Moved::Wait(_) if at_once => return Err(Errno::EAGAIN.into()),
            Moved::Wait(channel) => wait(env, channel, |processes, _| {
                processes.files.can_write(open, whole)
            })?,
        }
    }
}

/// Moves bytes from or to a source. The offset is behind them already; after an error it is where it was.
fn through<E: Env>(
    env: &mut E,
    open: OpenId,
    (source, at): (Source, u64),
    bytes: Transfer<'_>,
) -> core::result::Result<(), Errno> {
    let moved = env.transfer(source, at, bytes);
    if moved.is_err() {
        env.with(|processes, _| processes.files.get_mut(open).map(|file| file.offset = at))?;
    }
    moved
}

fn wait<E: Env>(
    env: &mut E,
    channel: Channel,
    ready: impl FnMut(&mut Processes<'_, E::Tasks>, ProcessPlace) -> bool,
) -> core::result::Result<(), Fail> {
    match env.sleep(channel, None, ready) {
        Slept::Ready | Slept::TimeUp => Ok(()),
        Slept::Signal => Err(Fail::Interrupted(Restart::IfAsked)),
    }
}
