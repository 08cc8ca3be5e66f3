//! System calls on descriptors, except reading and writing.

use super::Result;
use crate::abi::Errno;
use crate::abi::file::{
    F_DUPFD_CLOEXEC, F_GETFL, F_SETFD, FD_CLOEXEC, FIONBIO, O_CLOEXEC, O_LARGEFILE, O_NONBLOCK,
    PATH_MAX, PIPE_BUF,
};
use crate::env::{Env, get, put};
use crate::files::about;
use crate::files::descriptors::{MOST, OpenId};
use crate::files::open::{OpenFile, What};
use crate::files::path::path_of;
use crate::processes::{ProcessPlace, Processes, TaskTable};

type Known<T> = core::result::Result<T, Errno>;

fn open_of<T: TaskTable>(
    processes: &Processes<'_, T>,
    place: ProcessPlace,
    fd: u32,
) -> Known<OpenId> {
    processes.get(place)?.descriptors.get(fd)
}

fn file_of<E: Env>(env: &mut E, fd: u32) -> Known<OpenFile> {
    env.with(|processes, place| {
        let open = open_of(processes, place, fd)?;
        processes.files.get(open).copied()
    })
}

pub(super) fn close<E: Env>(env: &mut E, fd: u32) -> Result {
    env.with(|processes, place| {
        let open = processes.get_mut(place)?.descriptors.remove(fd)?;
        if let Some(channel) = processes.files.close(open) {
            processes.wake(channel);
        }
        Ok(0)
    })
}

pub(super) fn close_range<E: Env>(env: &mut E, first: u32, last: u32, flags: u32) -> Result {
    if first > last || flags != 0 {
        return Err(Errno::EINVAL.into());
    }
    for fd in first..=last.min(MOST as u32 - 1) {
        let _ = close(env, fd);
    }
    Ok(0)
}

pub(super) fn fstat<E: Env>(env: &mut E, fd: u32, to: u64) -> Result {
    let file = file_of(env, fd)?;
    let (about, device) = env.with(|processes, _| processes.files.about_open(&file));
    put(env, to, &about::stat(&about, device))?;
    Ok(0)
}

/// `getcwd`: returns the bytes of the path with its NUL.
#[inline(never)]
pub(super) fn getcwd<E: Env>(env: &mut E, to: u64, bytes: u64) -> Result {
    let mut buffer = [0; PATH_MAX];
    let length = env.with(|processes, place| {
        let (path, _nul) = buffer.split_at_mut(PATH_MAX - 1);
        let directory = processes.get(place)?.directory;
        let path = path_of(&processes.files.tree, directory, path);
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
    let used = env.with(|processes, place| {
        let open = open_of(processes, place, fd)?;
        let file = *processes.files.get(open)?;
        let What::Directory(node) = file.what else {
            return Err(Errno::ENOTDIR);
        };
        let (used, next) = processes.files.list(node, file.offset, room)?;
        processes.files.get_mut(open)?.offset = next;
        Ok(used)
    })?;
    env.write(to, room.get(..used).unwrap_or_default())?;
    Ok(used as u64)
}

pub(super) fn lseek<E: Env>(env: &mut E, fd: u32, by: i64, from: u32) -> Result {
    env.with(|processes, place| {
        let open = open_of(processes, place, fd)?;
        let file = *processes.files.get(open)?;
        let end = processes.files.end_of(&file);
        Ok(processes.files.get_mut(open)?.seek(by, from, end)?)
    })
}

/// Duplicates a descriptor to the lowest number from `lowest` on; `execve` closes the copy.
fn duplicate<E: Env>(env: &mut E, fd: u32, lowest: u32) -> Result {
    env.with(|processes, place| {
        let open = open_of(processes, place, fd)?;
        let (files, process) = processes.files_and(place)?;
        let new = process.descriptors.add(open, lowest, true)?;
        if let Err(error) = files.share(open) {
            let _ = process.descriptors.remove(new);
            return Err(error.into());
        }
        Ok(u64::from(new))
    })
}

/// `dup3`.
pub(super) fn dup3<E: Env>(env: &mut E, fd: u32, new: u32, flags: u32) -> Result {
    if fd == new || flags & !O_CLOEXEC != 0 {
        return Err(Errno::EINVAL.into());
    }
    env.with(|processes, place| {
        let open = open_of(processes, place, fd)?;
        let (files, process) = processes.files_and(place)?;
        if new >= MOST as u32 {
            return Err(Errno::EBADF.into());
        }
        files.share(open)?;
        if let Some(before) = process
            .descriptors
            .replace(new, open, flags & O_CLOEXEC != 0)?
            && let Some(channel) = files.close(before)
        {
            processes.wake(channel);
        }
        Ok(u64::from(new))
    })
}

pub(super) fn fcntl<E: Env>(env: &mut E, fd: u32, command: u32, argument: u64) -> Result {
    match command {
        F_DUPFD_CLOEXEC => {
            let lowest = u32::try_from(argument).ok().filter(|fd| *fd < MOST as u32);
            file_of(env, fd)?;
            duplicate(env, fd, lowest.ok_or(Errno::EINVAL)?)
        }
        F_SETFD => env.with(|processes, place| {
            let descriptors = &mut processes.get_mut(place)?.descriptors;
            descriptors.set_close_on_exec(fd, argument & FD_CLOEXEC != 0)?;
            Ok(0)
        }),
        F_GETFL => Ok(u64::from(file_of(env, fd)?.flags | O_LARGEFILE)),
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
    let both = env.with(|processes, place| {
        let (files, process) = processes.files_and(place)?;
        let (reading, writing) = files.pipe(flags & O_NONBLOCK)?;
        let first = process.descriptors.add(reading, 0, close_on_exec);
        let second = process.descriptors.add(writing, 0, close_on_exec);
        match (first, second) {
            (Ok(first), Ok(second)) => Ok([first, second]),
            (first, _) => {
                if let Ok(first) = first {
                    let _ = process.descriptors.remove(first);
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

/// `ioctl`: only FIONBIO. The console is a plain file, so ENOTTY means that it is not a terminal.
pub(super) fn ioctl<E: Env>(env: &mut E, fd: u32, request: u32, argument: u64) -> Result {
    file_of(env, fd)?;
    if request != FIONBIO {
        return Err(Errno::ENOTTY.into());
    }
    let on: u32 = get(env, argument)?;
    let bit = if on != 0 { O_NONBLOCK } else { 0 };
    env.with(|processes, place| {
        let open = open_of(processes, place, fd)?;
        let file = processes.files.get_mut(open)?;
        file.flags = file.flags & !O_NONBLOCK | bit;
        Ok(0)
    })
}
