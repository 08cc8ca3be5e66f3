//! Metadata of files: `stat`, and the entries of a directory.

use super::Files;
use super::file_tree::{About, NodeId, NodeKind};
use super::open::{OpenFile, What};
use super::source::Source;
use crate::abi::Errno;
use crate::abi::file::{DIRECTORY_ENTRY_HEAD, S_IFIFO, Stat, device_number, directory_entry_head};
use crate::owned::Frames;

/// The device number of the tree, and the device number of files outside the tree.
const TREE_DEVICE: u32 = 1;
const PIPE_DEVICE: u32 = 2;

/// The unit of block counts, and the preferred size of reads.
const BLOCK: u64 = 512;
const BEST_READ: u32 = 4096;

/// Positions in a directory: ".", "..", and the first child.
const HERE: u64 = 0;
const ABOVE: u64 = 1;
const FIRST_CHILD: u64 = 2;

/// Makes the `stat` structure.
pub fn stat(about: &About, device: u32) -> Stat {
    let rdev = match about.kind {
        NodeKind::Device { major, minor } => device_number(major, minor),
        NodeKind::Moved(source) => source
            .numbers()
            .map_or(0, |(major, minor)| device_number(major, minor)),
        _ => 0,
    };
    let time = [i64::from(about.mtime), 0];
    Stat {
        dev: device_number(0, device),
        ino: about.ino,
        mode: about.mode,
        nlink: about.links,
        uid: about.uid,
        gid: about.gid,
        rdev,
        size: about.size as i64,
        blksize: BEST_READ as i32,
        blocks: about.size.div_ceil(BLOCK) as i64,
        atime: time,
        mtime: time,
        ctime: time,
        ..Stat::default()
    }
}

impl<F: Frames> Files<'_, F> {
    /// The metadata of a node, and its device number.
    pub fn about_node(&self, node: NodeId) -> (About, u32) {
        let mut about = self.tree.about(node);
        // The metadata of a disk has no size.
        if about.kind == NodeKind::Moved(Source::Vmcore) {
            about.size = self.sizes.get(Source::Vmcore).unwrap_or(0);
        }
        (about, TREE_DEVICE)
    }

    /// The metadata of an open file, and its device number.
    pub fn about_open(&self, file: &OpenFile) -> (About, u32) {
        match file.what {
            What::PipeOut(index) | What::PipeIn(index) => {
                let about = About {
                    kind: NodeKind::Other,
                    mode: S_IFIFO | 0o600,
                    uid: 0,
                    gid: 0,
                    links: 1,
                    size: 0,
                    mtime: 0,
                    ino: u64::from(index) + 1,
                };
                (about, PIPE_DEVICE)
            }
            What::File(node) | What::Directory(node) => self.about_node(node),
            What::Device(_, node) | What::Status(_, node) | What::Moved(_, node) => {
                self.about_node(node)
            }
        }
    }

    /// The bytes between the first one and the end of an open file, for `lseek`. The metadata of a disk has none.
    pub fn end_of(&self, file: &OpenFile) -> u64 {
        match file.what {
            What::Moved(source, _) => self.sizes.get(source).unwrap_or(0),
            _ => self.about_open(file).0.size,
        }
    }

    /// Writes as many entries of a directory to `into` as fit, starting at position `at`. Returns the
    /// bytes written and the next position; 0 bytes mean the end.
    pub fn list(&self, directory: NodeId, at: u64, into: &mut [u8]) -> Result<(usize, u64), Errno> {
        let mut used = 0;
        let mut at = at;
        while let Some((node, name)) = self.entry_at(directory, at) {
            let next = self.position_after(directory, at);
            let length = (DIRECTORY_ENTRY_HEAD + name.len() + 1).next_multiple_of(8);
            let Some(slot) = into.get_mut(used..used + length) else {
                // A buffer too small for one entry is an error: 0 bytes would look like the end.
                if used == 0 {
                    return Err(Errno::EINVAL);
                }
                break;
            };
            let about = self.tree.about(node);
            // The file type in a mode, as bits, is the type of an entry.
            let kind = (about.mode >> 12) as u8;
            let head = directory_entry_head(about.ino, next, length as u16, kind);
            slot.fill(0);
            let (start, rest) = slot.split_at_mut(DIRECTORY_ENTRY_HEAD);
            start.copy_from_slice(&head);
            for (to, from) in rest.iter_mut().zip(name) {
                *to = *from;
            }
            used += length;
            at = next;
        }
        Ok((used, at))
    }

    fn entry_at(&self, directory: NodeId, at: u64) -> Option<(NodeId, &[u8])> {
        match at {
            HERE => Some((directory, b".")),
            ABOVE => Some((self.tree.parent(directory), b"..")),
            FIRST_CHILD => {
                let first = self.tree.children(directory).next()?;
                Some((first, self.tree.name(first)))
            }
            // `lseek` may have set any position: only a child of this directory counts.
            _ => {
                let id = u32::try_from(at - FIRST_CHILD - 1).ok()?;
                let child = self.tree.existing(id)?;
                let is_child = child != NodeId::ROOT && self.tree.parent(child) == directory;
                is_child.then(|| (child, self.tree.name(child)))
            }
        }
    }

    /// A position names the child itself, so a listing continues correctly after any other call.
    fn position_after(&self, directory: NodeId, at: u64) -> u64 {
        let next = match at {
            HERE => return ABOVE,
            ABOVE => return FIRST_CHILD,
            FIRST_CHILD => {
                let first = self.tree.children(directory).next();
                first.and_then(|first| self.tree.next_child(first))
            }
            _ => u32::try_from(at - FIRST_CHILD - 1)
                .ok()
                .and_then(|id| self.tree.next_child(NodeId(id))),
        };
        match next {
            Some(next) => u64::from(next.0) + FIRST_CHILD + 1,
            // A position behind every possible child.
            None => u64::from(u32::MAX) + FIRST_CHILD + 1,
        }
    }
}
