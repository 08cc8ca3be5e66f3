//! System calls that name a file by its path.

use super::Result;
use crate::abi::Errno;
use crate::abi::file::{
    AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_SYMLINK_NOFOLLOW, O_CLOEXEC, PATH_MAX,
};
use crate::env::{Env, put, text};
use crate::files::about;
use crate::files::file_tree::{About, NodeId, NodeKind};
use crate::files::open::What;
use crate::files::path::{Last, path_of};
use crate::processes::{ProcessPlace, Processes, TaskTable};

type Known<T> = core::result::Result<T, Errno>;

/// Reads a path into the kernel and calls `work` with it.
#[inline(never)]
fn with_path<E: Env, R>(
    env: &mut E,
    at: u64,
    work: impl FnOnce(&mut Processes<'_, E::Tasks>, ProcessPlace, &[u8]) -> Known<R>,
) -> Known<R> {
    let mut buffer = [0; PATH_MAX];
    let path = text(env, at, &mut buffer, Errno::ENAMETOOLONG)?;
    env.with(|processes, place| work(processes, place, path))
}

/// The directory that a path starts from. An empty path is an error from any directory.
fn start<T: TaskTable>(
    processes: &Processes<'_, T>,
    place: ProcessPlace,
    at: i32,
    path: &[u8],
) -> Known<NodeId> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    if path.starts_with(b"/") {
        return Ok(NodeId::ROOT);
    }
    let process = processes.get(place)?;
    if at == AT_FDCWD {
        return Ok(process.directory);
    }
    let file = processes.files.get(process.descriptors.get(at as u32)?)?;
    match file.what {
        What::Directory(node) => Ok(node),
        _ => Err(Errno::ENOTDIR),
    }
}

fn find<T: TaskTable>(
    processes: &Processes<'_, T>,
    place: ProcessPlace,
    (at, path): (i32, &[u8]),
    last: Last,
) -> Known<NodeId> {
    let from = start(processes, place, at, path)?;
    processes
        .files
        .find(from, path, last, Some(processes.get(place)?.exe))
}

pub(super) fn openat<E: Env>(env: &mut E, at: i32, path: u64, flags: u32) -> Result {
    let fd = with_path(env, path, |processes, place, path| {
        let from = start(processes, place, at, path)?;
        let exe = processes.get(place)?.exe;
        let open = processes.files.open(from, path, flags, Some(exe))?;
        let descriptors = &mut processes.get_mut(place)?.descriptors;
        let added = descriptors.add(open, 0, flags & O_CLOEXEC != 0);
        if added.is_err() {
            processes.files.close(open);
        }
        added
    })?;
    Ok(u64::from(fd))
}

/// `newfstatat`: describes the file at the path, or the descriptor if the path is empty.
pub(super) fn stat_at<E: Env>(env: &mut E, at: i32, path: u64, to: u64, flags: u32) -> Result {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let last = if flags & AT_SYMLINK_NOFOLLOW != 0 {
        Last::Keep
    } else {
        Last::Follow
    };
    let (about, device) = with_path(env, path, |processes, place, path| {
        if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
            return about_descriptor(processes, place, at);
        }
        let node = find(processes, place, (at, path), last)?;
        Ok(processes.files.about_node(node))
    })?;
    put(env, to, &about::stat(&about, device))?;
    Ok(0)
}

fn about_descriptor<T: TaskTable>(
    processes: &Processes<'_, T>,
    place: ProcessPlace,
    at: i32,
) -> Known<(About, u32)> {
    let process = processes.get(place)?;
    if at == AT_FDCWD {
        return Ok(processes.files.about_node(process.directory));
    }
    let file = processes.files.get(process.descriptors.get(at as u32)?)?;
    Ok(processes.files.about_open(file))
}

/// `readlinkat`.
#[inline(never)]
pub(super) fn readlink<E: Env>(env: &mut E, at: i32, path: u64, to: u64, bytes: u64) -> Result {
    if bytes == 0 || i32::try_from(bytes).is_err() {
        return Err(Errno::EINVAL.into());
    }
    let node = with_path(env, path, |processes, place, path| {
        find(processes, place, (at, path), Last::Keep)
    })?;
    let mut buffer = [0; PATH_MAX];
    let used = env.with(|processes, place| {
        let tree = &processes.files.tree;
        let target = match tree.kind(node) {
            NodeKind::Link => tree.content(node),
            NodeKind::ExeLink => {
                let exe = processes.get(place)?.exe;
                // `path_of` writes to the end of the buffer, so the path is moved to the front.
                let length = path_of(tree, exe, &mut buffer).map(<[u8]>::len);
                let length = length.ok_or(Errno::ENAMETOOLONG)?;
                buffer.copy_within(PATH_MAX - length.., 0);
                return Ok(length);
            }
            _ => return Err(Errno::EINVAL),
        };
        for (to, from) in buffer.iter_mut().zip(target) {
            *to = *from;
        }
        Ok(target.len().min(PATH_MAX))
    })?;
    let used = used.min(bytes as usize);
    env.write(to, buffer.get(..used).unwrap_or_default())?;
    Ok(used as u64)
}

pub(super) fn chdir<E: Env>(env: &mut E, path: u64) -> Result {
    with_path(env, path, |processes, place, path| {
        let node = find(processes, place, (AT_FDCWD, path), Last::Follow)?;
        if processes.files.tree.kind(node) != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        processes.get_mut(place)?.directory = node;
        Ok(())
    })?;
    Ok(0)
}
