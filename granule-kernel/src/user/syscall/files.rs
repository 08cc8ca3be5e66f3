//! Calls on descriptors, but for those that move bytes.

use super::Result;
use super::env::{Env, get, put};
use crate::user::abi::Errno;
use crate::user::abi::file::{
    F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_GETPIPE_SZ, F_SETFD, F_SETFL, FD_CLOEXEC,
    O_CLOEXEC, O_LARGEFILE, O_NONBLOCK, O_PATH, O_SETTABLE, PATH_MAX, PIPE_BUF,
};
use crate::user::abi::terminal::{
    FIONBIO, FIONREAD, TCFLSH, TCGETS, TCSBRK, TCSETS, TCSETSF, TCSETSW, TIOCGPGRP, TIOCGSID,
    TIOCGWINSZ, TIOCSCTTY, TIOCSPGRP, TIOCSWINSZ, Termios, WindowSize,
};
use crate::user::files::about;
use crate::user::files::descriptors::{MOST, OpenId};
use crate::user::files::open::{Device, OpenFile, What};
use crate::user::files::path::path_of;
use crate::user::files::tree::{Kind, NodeId};
use crate::user::world::{Family, Place, World};

type Known<T> = core::result::Result<T, Errno>;

fn open_of<F: Family>(world: &World<'_, F>, place: Place, fd: u32) -> Known<OpenId> {
    world.own(place)?.descriptors.get(fd)
}

fn file_of<E: Env>(env: &mut E, fd: u32) -> Known<OpenFile> {
    env.with(|world, place| {
        let open = open_of(world, place, fd)?;
        world.files.get(open).copied()
    })
}

/// `close`.
pub(super) fn close<E: Env>(env: &mut E, fd: u32) -> Result {
    env.with(|world, place| {
        let open = world.own_mut(place)?.descriptors.remove(fd)?;
        if let Some(channel) = world.files.close(open) {
            world.wake(channel);
        }
        Ok(0)
    })
}

/// `close_range`: closes them, or marks them for `execve`.
pub(super) fn close_range<E: Env>(env: &mut E, first: u32, last: u32, flags: u32) -> Result {
    const UNSHARE: u32 = 2;
    const CLOEXEC: u32 = 4;
    // No two processes share descriptors, so there is nothing to unshare.
    if first > last || flags & !(UNSHARE | CLOEXEC) != 0 {
        return Err(Errno::EINVAL.into());
    }
    for fd in first..=last.min(MOST as u32 - 1) {
        if flags & CLOEXEC != 0 {
            env.with(|world, place| {
                let own = world.own_mut(place)?;
                let _ = own.descriptors.set_close_on_exec(fd, true);
                Ok::<_, Errno>(())
            })?;
        } else {
            let _ = close(env, fd);
        }
    }
    Ok(0)
}

/// `fstat`.
pub(super) fn fstat<E: Env>(env: &mut E, fd: u32, to: u64) -> Result {
    let file = file_of(env, fd)?;
    let (about, device) = env.with(|world, _| world.files.about_open(&file));
    put(env, to, &about::stat(&about, device))?;
    Ok(0)
}

/// `fstatfs`.
pub(super) fn fstatfs<E: Env>(env: &mut E, fd: u32, to: u64) -> Result {
    file_of(env, fd)?;
    put(env, to, &about::STATFS)?;
    Ok(0)
}

/// What would change a file: pipes and devices have what they have, too.
pub(super) fn change<E: Env>(env: &mut E, fd: u32) -> Result {
    file_of(env, fd)?;
    Err(Errno::EROFS.into())
}

/// `ftruncate`: nothing that could be truncated can be open for writing.
pub(super) fn truncate<E: Env>(env: &mut E, fd: u32, _bytes: u64) -> Result {
    file_of(env, fd)?;
    Err(Errno::EINVAL.into())
}

/// `fsync`: nothing waits to be written anywhere.
pub(super) fn sync<E: Env>(env: &mut E, fd: u32) -> Result {
    match file_of(env, fd)?.what {
        What::File(_) | What::Directory(_) => Ok(0),
        What::Path(_) => Err(Errno::EBADF.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// What does nothing to a file but be allowed.
pub(super) fn exists<E: Env>(env: &mut E, fd: u32) -> Result {
    file_of(env, fd)?;
    Ok(0)
}

fn directory_of(file: &OpenFile, kind: impl Fn(NodeId) -> Kind) -> Known<NodeId> {
    match file.what {
        What::Directory(node) => Ok(node),
        What::Path(node) if kind(node) == Kind::Directory => Ok(node),
        _ => Err(Errno::ENOTDIR),
    }
}

/// `fchdir`.
pub(super) fn fchdir<E: Env>(env: &mut E, fd: u32) -> Result {
    env.with(|world, place| {
        let open = open_of(world, place, fd)?;
        let file = world.files.get(open)?;
        let node = directory_of(file, |node| world.files.tree.kind(node))?;
        world.own_mut(place)?.directory = node;
        Ok(0)
    })
}

/// `getcwd`: the bytes of the path, its NUL among them.
#[inline(never)]
pub(super) fn getcwd<E: Env>(env: &mut E, to: u64, bytes: u64) -> Result {
    let mut buffer = [0; PATH_MAX];
    let length = env.with(|world, place| {
        let (path, _nul) = buffer.split_at_mut(PATH_MAX - 1);
        let directory = world.own(place)?.directory;
        let path = path_of(&world.files.tree, directory, path);
        path.map(<[u8]>::len).ok_or(Errno::ENAMETOOLONG)
    })?;
    let whole = buffer.get(PATH_MAX - 1 - length..).unwrap_or_default();
    if whole.len() as u64 > bytes {
        return Err(Errno::ERANGE.into());
    }
    env.write(to, whole)?;
    Ok(whole.len() as u64)
}

/// `getdents64`.
#[inline(never)]
pub(super) fn getdents<E: Env>(env: &mut E, fd: u32, to: u64, bytes: u32) -> Result {
    let mut buffer = [0; 2048];
    let room = buffer.len().min(bytes as usize);
    let room = buffer.get_mut(..room).unwrap_or_default();
    env.prepare_write(to, room.len() as u64)?;
    let used = env.with(|world, place| {
        let open = open_of(world, place, fd)?;
        let file = *world.files.get(open)?;
        let What::Directory(node) = file.what else {
            return Err(Errno::ENOTDIR);
        };
        let (used, next) = world.files.list(node, file.offset, room)?;
        world.files.get_mut(open)?.offset = next;
        Ok(used)
    })?;
    env.write(to, room.get(..used).unwrap_or_default())?;
    Ok(used as u64)
}

/// `lseek`.
pub(super) fn lseek<E: Env>(env: &mut E, fd: u32, by: i64, from: u32) -> Result {
    env.with(|world, place| {
        let open = open_of(world, place, fd)?;
        let file = *world.files.get(open)?;
        let (about, _) = world.files.about_open(&file);
        Ok(world.files.get_mut(open)?.seek(by, from, about.size)?)
    })
}

fn duplicate<E: Env>(env: &mut E, fd: u32, lowest: u32, close_on_exec: bool) -> Result {
    env.with(|world, place| {
        let open = open_of(world, place, fd)?;
        let (files, own) = world.files_and_own(place)?;
        let new = own.descriptors.add(open, lowest, close_on_exec)?;
        if let Err(error) = files.share(open) {
            let _ = own.descriptors.remove(new);
            return Err(error.into());
        }
        Ok(u64::from(new))
    })
}

/// `dup`.
pub(super) fn dup<E: Env>(env: &mut E, fd: u32) -> Result {
    duplicate(env, fd, 0, false)
}

/// `dup3`.
pub(super) fn dup3<E: Env>(env: &mut E, fd: u32, new: u32, flags: u32) -> Result {
    if fd == new || flags & !O_CLOEXEC != 0 {
        return Err(Errno::EINVAL.into());
    }
    env.with(|world, place| {
        let open = open_of(world, place, fd)?;
        let (files, own) = world.files_and_own(place)?;
        if new >= MOST as u32 {
            return Err(Errno::EBADF.into());
        }
        files.share(open)?;
        if let Some(before) = own.descriptors.replace(new, open, flags & O_CLOEXEC != 0)?
            && let Some(channel) = files.close(before)
        {
            world.wake(channel);
        }
        Ok(u64::from(new))
    })
}

/// `fcntl`.
pub(super) fn fcntl<E: Env>(env: &mut E, fd: u32, command: u32, argument: u64) -> Result {
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let lowest = u32::try_from(argument).ok().filter(|fd| *fd < MOST as u32);
            file_of(env, fd)?;
            let lowest = lowest.ok_or(Errno::EINVAL)?;
            duplicate(env, fd, lowest, command == F_DUPFD_CLOEXEC)
        }
        F_GETFD => env.with(|world, place| {
            let closes = world.own(place)?.descriptors.closes_on_exec(fd)?;
            Ok(if closes { FD_CLOEXEC } else { 0 })
        }),
        F_SETFD => env.with(|world, place| {
            let descriptors = &mut world.own_mut(place)?.descriptors;
            descriptors.set_close_on_exec(fd, argument & FD_CLOEXEC != 0)?;
            Ok(0)
        }),
        F_GETFL => {
            let flags = file_of(env, fd)?.flags;
            let path = flags & O_PATH != 0;
            Ok(u64::from(if path { flags } else { flags | O_LARGEFILE }))
        }
        F_SETFL => env.with(|world, place| {
            let open = open_of(world, place, fd)?;
            let file = world.files.get_mut(open)?;
            file.flags = file.flags & !O_SETTABLE | argument as u32 & O_SETTABLE;
            Ok(0)
        }),
        F_GETPIPE_SZ => env.with(|world, place| {
            let open = open_of(world, place, fd)?;
            Ok(world.files.pipe_capacity(open)?)
        }),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// `pipe2`.
pub(super) fn pipe<E: Env>(env: &mut E, to: u64, flags: u32) -> Result {
    const _: () = assert!(PIPE_BUF >= 512, "POSIX");
    if flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let close_on_exec = flags & O_CLOEXEC != 0;
    env.prepare_write(to, 8)?;
    let both = env.with(|world, place| {
        let (files, own) = world.files_and_own(place)?;
        let (reading, writing) = files.pipe(flags & O_NONBLOCK)?;
        let first = own.descriptors.add(reading, 0, close_on_exec);
        let second = own.descriptors.add(writing, 0, close_on_exec);
        match (first, second) {
            (Ok(first), Ok(second)) => Ok([first, second]),
            (first, _) => {
                if let Ok(first) = first {
                    let _ = own.descriptors.remove(first);
                }
                files.close(reading);
                files.close(writing);
                Err(Errno::EMFILE)
            }
        }
    })?;
    put(env, to, &both)?;
    Ok(0)
}

/// `ioctl`: of terminals, and the two that any file has.
pub(super) fn ioctl<E: Env>(env: &mut E, fd: u32, request: u32, argument: u64) -> Result {
    let file = file_of(env, fd)?;
    match request {
        FIONREAD => {
            let bytes = env.with(|world, place| {
                let open = open_of(world, place, fd)?;
                world.files.readable_bytes(open)
            })?;
            put(env, argument, &(bytes.min(i32::MAX as u64) as u32))?;
            return Ok(0);
        }
        FIONBIO => {
            let on: u32 = get(env, argument)?;
            let bit = if on != 0 { O_NONBLOCK } else { 0 };
            return env.with(|world, place| {
                let open = open_of(world, place, fd)?;
                let file = world.files.get_mut(open)?;
                file.flags = file.flags & !O_NONBLOCK | bit;
                Ok(0)
            });
        }
        _ => {}
    }
    if !matches!(file.what, What::Device(Device::Terminal, _)) {
        return Err(Errno::ENOTTY.into());
    }
    terminal(env, request, argument)
}

fn terminal<E: Env>(env: &mut E, request: u32, argument: u64) -> Result {
    match request {
        TCGETS => {
            let settings = env.with(|world, _| world.files.terminal.settings);
            put(env, argument, &settings)?;
        }
        TCSETS | TCSETSW | TCSETSF => {
            let settings: Termios = get(env, argument)?;
            env.with(|world, _| world.files.terminal.set(settings, request == TCSETSF));
        }
        // Nothing of the output is left to wait for: the call that wrote it returned when it was out. A
        // break is not sent; nobody reads one.
        TCSBRK => {}
        TCFLSH => env.with(|world, _| {
            // Output is never kept, so only input can be flushed: 0 or 2.
            if argument != 1 {
                world.files.terminal.flush();
            }
        }),
        TIOCGWINSZ => {
            let window = env.with(|world, _| world.files.terminal.window);
            put(env, argument, &window)?;
        }
        TIOCSWINSZ => {
            let window: WindowSize = get(env, argument)?;
            env.with(|world, _| world.files.terminal.window = window);
        }
        TIOCGPGRP => {
            let group = env.with(|world, place| {
                in_session(world, place)?;
                Ok::<_, Errno>(world.files.terminal.foreground)
            })?;
            put(env, argument, &group)?;
        }
        TIOCSPGRP => {
            let group: u32 = get(env, argument)?;
            env.with(|world, place| {
                let session = in_session(world, place)?;
                let places = 0..crate::user::MOST_TASKS;
                let mut members = places.filter_map(|place| world.family.relation(place));
                if !members.any(|it| it.group == group && it.session == session) {
                    return Err(Errno::EPERM);
                }
                world.files.terminal.foreground = group;
                Ok(())
            })?;
        }
        TIOCGSID => {
            let session = env.with(|world, place| in_session(world, place))?;
            put(env, argument, &session)?;
        }
        TIOCSCTTY => env.with(|world, place| {
            let own = world.family.relation(place).ok_or(Errno::ESRCH)?;
            if own.session != own.pid {
                return Err(Errno::EPERM);
            }
            world.files.terminal.session = own.session;
            world.files.terminal.foreground = own.group;
            Ok(())
        })?,
        _ => return Err(Errno::ENOTTY.into()),
    }
    Ok(0)
}

/// The session whose terminal the console is, if it is the caller's.
fn in_session<F: Family>(world: &World<'_, F>, place: Place) -> Known<u32> {
    let own = world.family.relation(place).ok_or(Errno::ESRCH)?;
    let session = world.files.terminal.session;
    if own.session == session {
        Ok(session)
    } else {
        Err(Errno::ENOTTY)
    }
}
