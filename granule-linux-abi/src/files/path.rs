//! How a path leads to a node, and a node to its path.
//!
//! Neither recursion nor allocation: what is left of the path, and of each symbolic link on the
//! way, is a stack of as many slices as links may be followed.

use super::tree::{Kind, MOST_NAME_BYTES, Node, NodeId, Tree};
use arrayvec::ArrayVec;

/// The most symbolic links on one way.
pub const MOST_LINKS: usize = 40;

/// What happens to a symbolic link at a path's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// The way goes on where it leads.
    Follow,
    /// It is what was looked for.
    Keep,
}

/// Why a path leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// There is nothing of that name; whether it is only the last one that is missing, so that it
    /// could be created.
    NotFound {
        /// Whether only the last name is missing.
        only_last: bool,
    },
    /// What is not the last, or has a slash behind it, is no directory.
    NotDirectory,
    /// Too many symbolic links.
    Loop,
    /// A name has more than 255 bytes.
    NameTooLong,
}

/// Where `path` leads from the directory `from`. `exe` is the program of who asks.
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
        // Behind each link's name, and so at the start of what is left below the top, is a slash.
        let needs_directory = left.iter().any(|rest| !rest.is_empty());
        let is_last = left
            .iter()
            .all(|rest| rest.iter().all(|byte| *byte == b'/'));

        if tree.kind(at) != Kind::Directory {
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
        let is_link = matches!(kind, Kind::Link | Kind::ExeLink);
        at = if is_link && (!is_last || needs_directory || last == Last::Follow) {
            links += 1;
            if links > MOST_LINKS {
                return Err(PathError::Loop);
            }
            if kind == Kind::ExeLink {
                exe.ok_or(GONE)?
            } else {
                let target = tree.content(next);
                if target.is_empty() {
                    return Err(GONE);
                }
                if target.starts_with(b"/") {
                    at = NodeId::ROOT;
                }
                // There is room for one more than links: each was counted.
                left.try_push(target).map_err(|_| PathError::Loop)?;
                // Relative to where the link is; what must be a directory is where it leads.
                continue;
            }
        } else {
            next
        };
        if needs_directory && tree.kind(at) != Kind::Directory {
            return Err(PathError::NotDirectory);
        }
    }
    Ok(at)
}

/// Writes the path of a node to the end of `into`, from the root on, and gives it; `None` if it
/// does not fit.
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
