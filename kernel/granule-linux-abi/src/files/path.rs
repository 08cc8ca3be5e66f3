//! Resolves a path to a node, and makes the path of a node.
//!
//! The code neither recurses nor allocates: a stack of slices, bounded by the most symbolic links, holds
//! the rest of the path and of each link's target.

use super::file_tree::{MOST_NAME_BYTES, Node, NodeId, NodeKind, Tree};
use arrayvec::ArrayVec;

/// The most symbolic links followed in one lookup.
pub const MOST_LINKS: usize = 40;

/// The treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Follow the link.
    Follow,
    /// Return the link itself.
    Keep,
}

/// Why a path cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// A name does not exist.
    NotFound {
        /// Whether only the last name is missing, so that the file could be created.
        only_last: bool,
    },
    /// A name before the last, or before a trailing slash, is not a directory.
    NotDirectory,
    /// Too many symbolic links.
    Loop,
    /// A name is longer than 255 bytes.
    NameTooLong,
}

/// Resolves `path` from the directory `from`. `exe` is the program of the caller.
pub fn lookup<S: AsRef<[Node]>>(
    tree: &Tree<'_, S>,
    from: NodeId,
    path: &[u8],
    last: Last,
    exe: Option<NodeId>,
) -> Result<NodeId, PathError> {
    const GONE: PathError = PathError::NotFound { only_last: false };
    if path.is_empty() {
        return Err(GONE);
    }
    let mut left = ArrayVec::<&[u8], { MOST_LINKS + 1 }>::new();
    left.push(path);
    let mut at = if path.starts_with(b"/") {
        NodeId::ROOT
    } else {
        from
    };
    let mut links = 0;
    while let Some(top) = left.last_mut() {
        let start = top.iter().position(|byte| *byte != b'/');
        let Some(start) = start else {
            left.pop();
            continue;
        };
        let (_, rest) = top.split_at(start);
        let end = rest.iter().position(|byte| *byte == b'/');
        let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
        *top = rest;
        // A rest behind a link's name begins with a slash, so it needs a directory.
        let needs_directory = left.iter().any(|rest| !rest.is_empty());
        let is_last = left
            .iter()
            .all(|rest| rest.iter().all(|byte| *byte == b'/'));

        if tree.kind(at) != NodeKind::Directory {
            return Err(PathError::NotDirectory);
        }
        if name.len() > MOST_NAME_BYTES {
            return Err(PathError::NameTooLong);
        }
        let next = match name {
            b"." => at,
            b".." => tree.parent(at),
            _ => tree
                .child(at, name)
                .ok_or(PathError::NotFound { only_last: is_last })?,
        };
        let kind = tree.kind(next);
        let is_link = matches!(kind, NodeKind::Link | NodeKind::ExeLink);
        at = if is_link && (!is_last || needs_directory || last == Last::Follow) {
            links += 1;
            if links > MOST_LINKS {
                return Err(PathError::Loop);
            }
            if kind == NodeKind::ExeLink {
                exe.ok_or(GONE)?
            } else {
                let target = tree.content(next);
                if target.is_empty() {
                    return Err(GONE);
                }
                if target.starts_with(b"/") {
                    at = NodeId::ROOT;
                }
                // The stack has room for one slice more than links, and the links were counted.
                left.try_push(target).map_err(|_| PathError::Loop)?;
                // The target is relative to the link's directory, and checked for a directory itself.
                continue;
            }
        } else {
            next
        };
        if needs_directory && tree.kind(at) != NodeKind::Directory {
            return Err(PathError::NotDirectory);
        }
    }
    Ok(at)
}

/// Writes the absolute path of a node to the end of `into` and returns it. `None` if it does not fit.
pub fn path_of<'b, S: AsRef<[Node]>>(
    tree: &Tree<'_, S>,
    node: NodeId,
    into: &'b mut [u8],
) -> Option<&'b [u8]> {
    let mut start = into.len();
    let mut at = node;
    while at != NodeId::ROOT {
        let name = tree.name(at);
        let name_start = start.checked_sub(name.len())?;
        into.get_mut(name_start..start)?.copy_from_slice(name);
        start = name_start.checked_sub(1)?;
        *into.get_mut(start)? = b'/';
        at = tree.parent(at);
    }
    if node == NodeId::ROOT {
        start = start.checked_sub(1)?;
        *into.get_mut(start)? = b'/';
    }
    into.get(start..)
}

#[cfg(test)]
mod tests;
