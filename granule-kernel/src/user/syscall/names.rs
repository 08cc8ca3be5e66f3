//! Calls that name a file by its path.
//!
//! The tree is read-only: what would change it fails as it does on a read-only file system, after
//! the path was looked at, so that what is missing is told as missing.

use super::Result;
use super::env::{Env, put, text};
use crate::user::abi::Errno;
use crate::user::abi::file::{
    AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW,
    O_CLOEXEC, PATH_MAX,
};
use crate::user::files::about;
use crate::user::files::open::What;
use crate::user::files::path::{Last, PathError, lookup, path_of};
use crate::user::files::tree::{Kind, NodeId};
use crate::user::world::{Family, Place, World};

type Known<T> = core::result::Result<T, Errno>;

/// A path, read into the kernel.
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
        What::Path(node) if world.files.tree.kind(node) == Kind::Directory => Ok(node),
        _ => Err(Errno::ENOTDIR),
    }
}

/// Where a path leads.
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

/// What `newfstatat` and `statx` ask about: a path, or a descriptor itself.
fn told<E: Env>(
    env: &mut E,
    at: i32,
    path: u64,
    flags: u32,
) -> Known<(crate::user::files::tree::About, u32)> {
    let last = if flags & AT_SYMLINK_NOFOLLOW != 0 {
        Last::Keep
    } else {
        Last::Follow
    };
    // A null pointer is as good as an empty path where that is allowed.
    let empty_allowed = flags & AT_EMPTY_PATH != 0;
    if empty_allowed && path == 0 {
        return env.with(|world, place| told_of_descriptor(world, place, at));
    }
    with_path(env, path, |world, place, path| {
        if path.is_empty() && empty_allowed {
            return told_of_descriptor(world, place, at);
        }
        let node = find(world, place, (at, path), last)?;
        Ok(world.files.about_node(node))
    })
}

fn told_of_descriptor<F: Family>(
    world: &World<'_, F>,
    place: Place,
    at: i32,
) -> Known<(crate::user::files::tree::About, u32)> {
    let own = world.own(place)?;
    if at == AT_FDCWD {
        return Ok(world.files.about_node(own.directory));
    }
    let file = world.files.get(own.descriptors.get(at as u32)?)?;
    Ok(world.files.about_open(file))
}

/// `newfstatat`.
pub(super) fn stat_at<E: Env>(env: &mut E, at: i32, path: u64, to: u64, flags: u32) -> Result {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (about, device) = told(env, at, path, flags)?;
    put(env, to, &about::stat(&about, device))?;
    Ok(0)
}

/// `statx`.
pub(super) fn statx<E: Env>(env: &mut E, at: i32, path: u64, flags: u32, to: u64) -> Result {
    let known = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE;
    if flags & !known != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (about, device) = told(env, at, path, flags)?;
    put(env, to, &about::statx(&about, device))?;
    Ok(0)
}

/// `statfs`.
pub(super) fn statfs<E: Env>(env: &mut E, path: u64, to: u64) -> Result {
    with_path(env, path, |world, place, path| {
        find(world, place, (AT_FDCWD, path), Last::Follow)
    })?;
    put(env, to, &about::STATFS)?;
    Ok(0)
}

/// `readlinkat`.
#[inline(never)]
pub(super) fn readlink<E: Env>(env: &mut E, at: i32, path: u64, to: u64, bytes: u64) -> Result {
    if bytes == 0 || i32::try_from(bytes).is_err() {
        return Err(Errno::EINVAL.into());
    }
    let node = with_path(env, path, |world, place, path| {
        if path.is_empty() && at != AT_FDCWD {
            let own = world.own(place)?;
            let file = world.files.get(own.descriptors.get(at as u32)?)?;
            return match file.what {
                What::Path(node) => Ok(node),
                _ => Err(Errno::ENOENT),
            };
        }
        find(world, place, (at, path), Last::Keep)
    })?;
    let mut buffer = [0; PATH_MAX];
    let used = env.with(|world, place| {
        let tree = &world.files.tree;
        let target = match tree.kind(node) {
            Kind::Link => tree.content(node),
            Kind::ExeLink => {
                let exe = world.own(place)?.exe;
                // It ends where the buffer ends; to the front with it.
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

/// `faccessat` and `faccessat2`: the one user may do anything that the file system allows.
pub(super) fn access<E: Env>(env: &mut E, at: i32, path: u64, mode: u32, flags: u32) -> Result {
    const EXECUTE: u32 = 1;
    const WRITE: u32 = 2;
    if mode > 7 || flags & !(AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (about, _) = told(env, at, path, flags)?;
    let device = matches!(about.kind, Kind::Device { .. });
    if mode & WRITE != 0 && !device {
        return Err(Errno::EROFS.into());
    }
    // Root may run what anybody may, and search every directory.
    if mode & EXECUTE != 0 && about.kind != Kind::Directory && about.mode & 0o111 == 0 {
        return Err(Errno::EACCES.into());
    }
    Ok(0)
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

/// What would make a new name: there is one, or it cannot be made.
pub(super) fn create<E: Env>(env: &mut E, at: i32, path: u64) -> Result {
    with_path(env, path, |world, place, path| {
        let from = start(world, place, at, path)?;
        let exe = Some(world.own(place)?.exe);
        match lookup(&world.files.tree, from, path, Last::Keep, exe) {
            Ok(_) => Err(Errno::EEXIST),
            Err(PathError::NotFound { only_last: true }) => Err(Errno::EROFS),
            Err(error) => Err::<(), _>(error.into()),
        }
    })?;
    Ok(0)
}

/// What would change what a path leads to.
pub(super) fn change<E: Env>(env: &mut E, at: i32, path: u64) -> Result {
    with_path(env, path, |world, place, path| {
        find(world, place, (at, path), Last::Keep)
    })?;
    Err(Errno::EROFS.into())
}

/// `utimensat`, which may name a descriptor by a null pointer.
pub(super) fn change_times<E: Env>(env: &mut E, at: i32, path: u64) -> Result {
    if path == 0 {
        env.with(|world, place| world.own(place)?.descriptors.get(at as u32))?;
        return Err(Errno::EROFS.into());
    }
    change(env, at, path)
}

/// What would give a file another name.
pub(super) fn link<E: Env>(env: &mut E, from: (i32, u64), to: (i32, u64)) -> Result {
    with_path(env, from.1, |world, place, path| {
        find(world, place, (from.0, path), Last::Keep)
    })?;
    // A second path, after the first has left the stack.
    with_path(env, to.1, |world, place, path| {
        start(world, place, to.0, path)
    })?;
    Err(Errno::EROFS.into())
}
