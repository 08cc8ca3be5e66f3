//! Reading and writing: bytes between a program's memory and an open file.
//!
//! What is moved goes through a buffer on the kernel's stack, because a program's memory may have to
//! be made present first, which nobody may do under the lock of what all share.

use super::env::{Env, Slept, get};
use super::{Fail, Restart, Result};
use crate::user::abi::Errno;
use crate::user::abi::file::{IOV_MAX, IoVec, MAX_RW_COUNT, O_NONBLOCK, PIPE_BUF};
use crate::user::abi::signal::SIGPIPE;
use crate::user::abi::terminal::{ONLCR, OPOST};
use crate::user::files::descriptors::OpenId;
use crate::user::files::{Channel, Moved};
use crate::user::signals::Cause;
use crate::user::world::{Family, Place, World};

/// A buffer that most calls are content with.
const SMALL: usize = 256;

/// The open file of a descriptor, and whether its calls must not wait.
fn opened<E: Env>(env: &mut E, fd: u32) -> core::result::Result<(OpenId, bool), Errno> {
    env.with(|world, place| {
        let open = world.own(place)?.descriptors.get(fd)?;
        Ok((open, world.files.get(open)?.flags & O_NONBLOCK != 0))
    })
}

/// `read`, and `pread64` at an offset.
pub(super) fn read<E: Env>(
    env: &mut E,
    fd: u32,
    (at, bytes): (u64, u64),
    offset: Option<u64>,
) -> Result {
    let (open, at_once) = opened(env, fd)?;
    if offset.is_some_and(|offset| i64::try_from(offset).is_err()) {
        return Err(Errno::EINVAL.into());
    }
    read_some(env, (open, at_once), (at, bytes), offset)
}

/// `write`, and `pwrite64`, for which there is no file that could be written.
pub(super) fn write<E: Env>(
    env: &mut E,
    fd: u32,
    (at, bytes): (u64, u64),
    offset: Option<u64>,
) -> Result {
    let (open, at_once) = opened(env, fd)?;
    if offset.is_some() {
        let seeks = env.with(|world, _| world.files.get(open).map(|file| file.seeks()))?;
        if !seeks {
            return Err(Errno::ESPIPE.into());
        }
    }
    write_some(env, (open, at_once), (at, bytes))
}

/// `readv`: one piece after the other, as far as there is something without waiting once there was.
pub(super) fn readv<E: Env>(env: &mut E, fd: u32, at: u64, count: u64) -> Result {
    let (open, at_once) = opened(env, fd)?;
    pieces(env, at, count, |env, piece, moved| {
        read_some(env, (open, at_once || moved > 0), piece, None)
    })
}

/// `writev`: one piece after the other; in one, where a pipe must take them in one.
pub(super) fn writev<E: Env>(env: &mut E, fd: u32, at: u64, count: u64) -> Result {
    let file = opened(env, fd)?;
    let mut bytes: u64 = 0;
    pieces(env, at, count, |_, (_, length), _| {
        bytes = bytes.saturating_add(length);
        Ok(length)
    })?;
    if bytes <= PIPE_BUF as u64 {
        return write_gathered(env, file, (at, count), bytes);
    }
    pieces(env, at, count, |env, piece, _| write_some(env, file, piece))
}

/// Calls `each` with every piece that is not empty and what was moved before, until one is not
/// moved wholly.
fn pieces<E: Env>(
    env: &mut E,
    at: u64,
    count: u64,
    mut each: impl FnMut(&mut E, (u64, u64), u64) -> Result,
) -> Result {
    if count > IOV_MAX {
        return Err(Errno::EINVAL.into());
    }
    let mut moved = 0;
    for index in 0..count {
        let place = at.wrapping_add(index * size_of::<IoVec>() as u64);
        let some = get::<IoVec>(env, place)
            .map_err(Fail::from)
            .and_then(|piece| {
                if i64::try_from(piece.length).is_err() {
                    return Err(Errno::EINVAL.into());
                }
                let length = piece.length.min(MAX_RW_COUNT - moved);
                // An empty piece between others must not look like an end.
                match length {
                    0 => Ok((0, 0)),
                    _ => Ok((each(env, (piece.base, length), moved)?, length)),
                }
            });
        match some {
            Ok((some, length)) => {
                moved += some;
                if some < length {
                    break;
                }
            }
            // What was moved was moved; what failed fails again.
            Err(_) if moved > 0 => break,
            Err(fail) => return Err(fail),
        }
    }
    Ok(moved)
}

/// Writes pieces of so many bytes together, which is no more than a pipe takes in one piece.
#[inline(never)]
fn write_gathered<E: Env>(
    env: &mut E,
    (open, at_once): (OpenId, bool),
    (at, count): (u64, u64),
    bytes: u64,
) -> Result {
    let mut buffer = [0; PIPE_BUF];
    pieces(env, at, count, |env, (from, length), moved| {
        // Another thread of control may have changed the lengths meanwhile.
        let room = buffer.get_mut(moved as usize..(moved + length) as usize);
        env.read(from, room.ok_or(Errno::EINVAL)?)?;
        Ok(length)
    })?;
    write_all(
        env,
        (open, at_once),
        buffer.get(..bytes as usize).unwrap_or_default(),
    )
}

fn read_some<E: Env>(
    env: &mut E,
    file: (OpenId, bool),
    (at, bytes): (u64, u64),
    offset: Option<u64>,
) -> Result {
    let bytes = bytes.min(MAX_RW_COUNT);
    if bytes <= SMALL as u64 {
        read_through::<E, SMALL>(env, file, (at, bytes), offset)
    } else {
        read_through::<E, PIPE_BUF>(env, file, (at, bytes), offset)
    }
}

#[inline(never)]
fn read_through<E: Env, const N: usize>(
    env: &mut E,
    (open, at_once): (OpenId, bool),
    (at, bytes): (u64, u64),
    offset: Option<u64>,
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
            return if moved > 0 {
                Ok(moved)
            } else {
                Err(error.into())
            };
        }
        let from = offset.map(|offset| offset.saturating_add(moved));
        let tried = env.with(|world, _| {
            let tried = world.files.read(open, room, from);
            // There is room for who writes.
            if let (Ok(Moved::Bytes(1..)), Some(channel)) = (&tried, channel_of(world, open)) {
                world.wake(channel);
            }
            tried
        });
        let some = match tried {
            Ok(Moved::Bytes(some)) => some,
            Ok(Moved::Random) => {
                env.random(room);
                room.len()
            }
            Ok(Moved::Wait(channel)) if moved == 0 => {
                if at_once {
                    return Err(Errno::EAGAIN.into());
                }
                wait(env, channel, |world, _| {
                    world.files.poll(open).0 & READABLE != 0
                })?;
                continue;
            }
            Ok(Moved::Wait(_) | Moved::Console | Moved::NobodyReads) => return Ok(moved),
            Err(error) if moved == 0 => return Err(error.into()),
            Err(_) => return Ok(moved),
        };
        env.write(to, room.get(..some).unwrap_or_default())?;
        moved += some as u64;
        if some == 0 || moved == bytes || !reads_on(env, open) || env.pause() {
            return Ok(moved);
        }
    }
}

const READABLE: u16 = crate::user::abi::file::POLLIN | crate::user::abi::file::POLLHUP;

/// Whether a read goes on after it got something: for a terminal it is over with the line.
fn reads_on<E: Env>(env: &mut E, open: OpenId) -> bool {
    use crate::user::files::open::{Device, What};
    env.with(|world, _| {
        let what = world.files.get(open).map(|file| file.what);
        !matches!(what, Ok(What::Device(Device::Terminal, _)))
    })
}

fn channel_of<F: Family>(world: &World<'_, F>, open: OpenId) -> Option<Channel> {
    use crate::user::files::open::What;
    match world.files.get(open).ok()?.what {
        What::PipeIn(index) | What::PipeOut(index) => Some(Channel::Pipe(index)),
        _ => None,
    }
}

fn write_some<E: Env>(env: &mut E, file: (OpenId, bool), (at, bytes): (u64, u64)) -> Result {
    let bytes = bytes.min(MAX_RW_COUNT);
    if bytes <= SMALL as u64 {
        write_through::<E, SMALL>(env, file, (at, bytes))
    } else {
        write_through::<E, PIPE_BUF>(env, file, (at, bytes))
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
            return if moved > 0 {
                Ok(moved)
            } else {
                Err(error.into())
            };
        }
        match write_piece(env, (open, at_once), piece, bytes as usize) {
            Ok(some) => moved += some,
            // What was written was written; the signal or the error comes again.
            Err(_) if moved > 0 => return Ok(moved),
            Err(fail) => return Err(fail),
        }
        if moved == bytes || env.pause() {
            return Ok(moved);
        }
    }
}

/// Writes what is in a buffer of the kernel's.
fn write_all<E: Env>(env: &mut E, file: (OpenId, bool), bytes: &[u8]) -> Result {
    let mut moved = 0;
    loop {
        let rest = bytes.get(moved..).unwrap_or_default();
        match write_piece(env, file, rest, bytes.len()) {
            Ok(some) => moved += some as usize,
            Err(_) if moved > 0 => return Ok(moved as u64),
            Err(fail) => return Err(fail),
        }
        if moved >= bytes.len() {
            return Ok(moved as u64);
        }
    }
}

/// Writes something of a piece, once there is room.
fn write_piece<E: Env>(
    env: &mut E,
    (open, at_once): (OpenId, bool),
    piece: &[u8],
    whole: usize,
) -> Result {
    loop {
        let tried = env.with(|world, place| {
            let tried = world.files.write(open, piece, whole);
            match tried {
                Ok(Moved::Bytes(1..)) => {
                    if let Some(channel) = channel_of(world, open) {
                        world.wake(channel);
                    }
                }
                Ok(Moved::NobodyReads) => world.send(place, SIGPIPE, Cause::KERNEL),
                _ => {}
            }
            tried
        });
        match tried? {
            Moved::Bytes(some) => return Ok(some as u64),
            Moved::NobodyReads => return Err(Errno::EPIPE.into()),
            Moved::Random => return Ok(piece.len() as u64),
            Moved::Console => {
                let newlines = env.with(|world, _| {
                    world.files.terminal.settings.output & (OPOST | ONLCR) == OPOST | ONLCR
                });
                env.console(piece, newlines);
                return Ok(piece.len() as u64);
            }
            Moved::Wait(_) if at_once => return Err(Errno::EAGAIN.into()),
            Moved::Wait(channel) => {
                wait(env, channel, |world, _| world.files.can_write(open, whole))?
            }
        }
    }
}

fn wait<E: Env>(
    env: &mut E,
    channel: Channel,
    ready: impl FnMut(&mut World<'_, E::Family>, Place) -> bool,
) -> core::result::Result<(), Fail> {
    match env.sleep(channel, None, ready) {
        Slept::Ready | Slept::TimeUp => Ok(()),
        Slept::Signal => Err(Fail::Interrupted(Restart::IfAsked)),
    }
}
