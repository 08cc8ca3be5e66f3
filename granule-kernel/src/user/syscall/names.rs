//! System calls that name a file by its path.

use super::Result;
use super::env::{Env, put, text};
use crate::user::abi::Errno;
use crate::user::abi::file::{
    AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_SYMLINK_NOFOLLOW, O_CLOEXEC, PATH_MAX,
};
use crate::user::files::about;
use crate::user::files::open::What;
use crate::user::files::path::{Last, path_of};
use crate::user::files::tree::{About, Kind, NodeId};
use crate::user::world::{Family, Place, World};

type Known<T> = core::result::Result<T, Errno>;

/// Reads a path into the kernel and calls `work` with it.
#[inline(never)]
fn with_path<E: Env, R>(
    env: &mut E,
    at: u64,
    work: impl FnOnce(&mut World<'_, E::Family>, Place, &[u8]) -> Known<R>,
) -> Known<R> {
    let mut buffer = [0; PATH_MAX];
    let path = text(env, at, &mut buffer, Errno::ENAMETOOLONG)?;
    env.with(|world, place| work(world, place, path))
}

/// The directory that a path begins at. An empty path leads nowhere, wherever it begins.
fn start<F: Family>(world: &World<'_, F>, place: Place, at: i32, path: &[u8]) -> Known<NodeId> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    if path.starts_with(b"/") {
        return Ok(NodeId::ROOT);
    }
    let own = world.own(place)?;
    if at == AT_FDCWD {
        return Ok(own.directory);
    }
    let file = world.files.get(own.descriptors.get(at as u32)?)?;
    match file.what {
        What::Directory(node) => Ok(node),
        _ => Err(Errno::ENOTDIR),
    }
}

/// The node that a path leads to.
fn find<F: Family>(
    world: &World<'_, F>,
    place: Place,
    (at, path): (i32, &[u8]),
    last: Last,
) -> Known<NodeId> {
    let from = start(world, place, at, path)?;
    world
        .files
        .find(from, path, last, Some(world.own(place)?.exe))
}

/// `openat`.
pub(super) fn openat<E: Env>(env: &mut E, at: i32, path: u64, flags: u32) -> Result {
    let fd = with_path(env, path, |world, place, path| {
        let from = start(world, place, at, path)?;
        let exe = world.own(place)?.exe;
        let open = world.files.open(from, path, flags, Some(exe))?;
        let descriptors = &mut world.own_mut(place)?.descriptors;
        let added = descriptors.add(open, 0, flags & O_CLOEXEC != 0);
        if added.is_err() {
            world.files.close(open);
        }
        added
    })?;
    Ok(u64::from(fd))
}

/// `newfstatat`: about the file that a path leads to, or about a descriptor if the path is empty.
pub(super) fn stat_at<E: Env>(env: &mut E, at: i32, path: u64, to: u64, flags: u32) -> Result {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let last = if flags & AT_SYMLINK_NOFOLLOW != 0 {
        Last::Keep
    } else {
        Last::Follow
    };
    let (about, device) = with_path(env, path, |world, place, path| {
        if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
            return about_descriptor(world, place, at);
        }
        let node = find(world, place, (at, path), last)?;
        Ok(world.files.about_node(node))
    })?;
    put(env, to, &about::stat(&about, device))?;
    Ok(0)
}

fn about_descriptor<F: Family>(world: &World<'_, F>, place: Place, at: i32) -> Known<(About, u32)> {
    let own = world.own(place)?;
    if at == AT_FDCWD {
        return Ok(world.files.about_node(own.directory));
    }
    let file = world.files.get(own.descriptors.get(at as u32)?)?;
    Ok(world.files.about_open(file))
}

/// `readlinkat`.
#[inline(never)]
pub(super) fn readlink<E: Env>(env: &mut E, at: i32, path: u64, to: u64, bytes: u64) -> Result {
    if bytes == 0 || i32::try_from(bytes).is_err() {
        return Err(Errno::EINVAL.into());
    }
    let node = with_path(env, path, |world, place, path| {
        find(world, place, (at, path), Last::Keep)
    })?;
    let mut buffer = [0; PATH_MAX];
    let used = env.with(|world, place| {
        let tree = &world.files.tree;
        let target = match tree.kind(node) {
            Kind::Link => tree.content(node),
            Kind::ExeLink => {
                let exe = world.own(place)?.exe;
                // `path_of` writes to the end of the buffer; the path is moved to its front.
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

/// `chdir`.
pub(super) fn chdir<E: Env>(env: &mut E, path: u64) -> Result {
    with_path(env, path, |world, place, path| {
        let node = find(world, place, (AT_FDCWD, path), Last::Follow)?;
        if world.files.tree.kind(node) != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        world.own_mut(place)?.directory = node;
        Ok(())
    })?;
    Ok(0)
}
