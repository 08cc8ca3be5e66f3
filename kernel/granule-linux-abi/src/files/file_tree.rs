//! A read-only tree of directories, files, links and devices, from an archive that stays in place.
//!
//! A node is a small value in storage from the caller; names and contents are ranges of the archive.
//! Files that programs expect but few archives bring (`/dev/null` and its like, `/proc/self/exe`), and texts of the
//! kernel (`/sys`), are added where the archive has no such name. [`path`](super::path) resolves paths to nodes.

mod error;

pub use error::ArchiveError;

use super::cpio::{self, Entry};
use super::source::Source;
use crate::abi::file::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

/// The most bytes of one name.
pub const MOST_NAME_BYTES: usize = 255;

/// The index of no node.
const NONE: u32 = u32::MAX;

/// A node of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(0);
}

/// A range of the archive. [`Tree::build`] checks that it lies below 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u32,
    length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Archive(Piece),
    Own(&'static [u8]),
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory, which may have children.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// A symbolic link to the program of the calling process.
    ExeLink,
    /// A character device.
    Device {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// Bytes that the kernel moves.
    Moved(Source),
    /// A text from the kernel.
    Status(Status),
    /// Another block device, a named pipe or a socket: visible, but without operations.
    Other,
}

/// A file with a text from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Whether a next kernel is loaded.
    KexecLoaded,
    /// The segments of the loaded kernel.
    KexecSegments,
    /// The device tree that this kernel was given.
    Tree,
}

/// A node of a [`Tree`].
#[derive(Clone, Copy, Debug)]
pub struct Node {
    name: Name,
    kind: NodeKind,
    content: Piece,
    parent: u32,
    first_child: u32,
    next: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: u32,
    /// The node whose content a hard link shares; otherwise the node itself.
    same: u32,
    /// The archive's identification of the hard links.
    archived: (u32, u32, u32),
    links: u32,
}

impl Node {
    /// The initial value of unused storage.
    pub const EMPTY: Self = Self {
        name: Name::Own(b""),
        kind: NodeKind::Directory,
        content: Piece {
            start: 0,
            length: 0,
        },
        parent: NONE,
        first_child: NONE,
        next: NONE,
        mode: S_IFDIR | 0o755,
        uid: 0,
        gid: 0,
        mtime: 0,
        same: NONE,
        archived: (0, 0, 0),
        links: 1,
    };
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The type of the node.
    pub kind: NodeKind,
    /// File type and permissions, in C's encoding.
    pub mode: u32,
    /// The user number.
    pub uid: u32,
    /// The group number.
    pub gid: u32,
    /// The number of hard links.
    pub links: u32,
    /// Bytes of the content.
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: u32,
    /// The inode number, the same for all hard links of a file.
    pub ino: u64,
}

/// Added where the archive has no such name.
const DEVICES: [(&[u8], u32, u32); 3] = [(b"null", 1, 3), (b"zero", 1, 5), (b"console", 5, 1)];

/// The folder in `/sys`, the name and the permissions.
const STATUS: [(&[u8], &[u8], u32, Status); 3] = [
    (b"kernel", b"kexec_loaded", 0o444, Status::KexecLoaded),
    (b"kernel", b"kexec_segments", 0o444, Status::KexecSegments),
    (b"firmware", b"fdt", 0o400, Status::Tree),
];

/// The most nodes of the tree of `archive`.
pub fn nodes_needed(archive: &[u8]) -> Result<usize, ArchiveError> {
    // The root, /dev and its devices, /proc/self/exe, /sys with two folders and their files, /proc/sysrq-trigger, and
    // what is added later.
    let own = 9 + DEVICES.len() + STATUS.len() + Source::LATER.len();
    cpio::entries(archive).try_fold(own, |sum, entry| {
        Ok(sum.saturating_add(parts(entry?.name).count()))
    })
}

/// The parts of a path between slashes, without ".", each with its offset.
fn parts(path: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut next = 0;
    path.split(|byte| *byte == b'/')
        .map(move |part| {
            let at = next;
            next += part.len() + 1;
            (at, part)
        })
        .filter(|(_, part)| !part.is_empty() && *part != b".")
}

/// The tree: nodes in `S`, names and contents in the archive.
#[derive(Debug)]
pub struct Tree<'a, S> {
    archive: &'a [u8],
    nodes: S,
    used: u32,
}

impl<'a, S: AsRef<[Node]> + AsMut<[Node]>> Tree<'a, S> {
    /// Builds the tree of `archive`. `nodes` must have room for [`nodes_needed`]; its old content is lost.
    pub fn build(archive: &'a [u8], nodes: S) -> Result<Self, ArchiveError> {
        if u32::try_from(archive.len()).is_err() {
            return Err(ArchiveError::TooLarge);
        }
        let mut tree = Self {
            archive,
            nodes,
            used: 0,
        };
        let root = tree.push(Node {
            parent: 0,
            same: 0,
            ..Node::EMPTY
        })?;
        for entry in cpio::entries(archive) {
            tree.add(root, &entry?)?;
        }
        if let Some(dev) = tree.own_directory(root, b"dev")? {
            for (name, major, minor) in DEVICES {
                let kind = NodeKind::Device { major, minor };
                tree.own_node(dev, name, kind, S_IFCHR | 0o666)?;
            }
        }
        if let Some(proc) = tree.own_directory(root, b"proc")?
            && let Some(own) = tree.own_directory(proc, b"self")?
        {
            tree.own_node(own, b"exe", NodeKind::ExeLink, S_IFLNK | 0o777)?;
        }
        tree.add_source(Source::Sysrq)?;
        if let Some(sys) = tree.own_directory(root, b"sys")? {
            for (folder, name, mode, status) in STATUS {
                if let Some(folder) = tree.own_directory(sys, folder)? {
                    tree.own_node(folder, name, NodeKind::Status(status), S_IFREG | mode)?;
                }
            }
        }
        tree.count_links();
        Ok(tree)
    }

    fn push(&mut self, node: Node) -> Result<NodeId, ArchiveError> {
        let id = self.used;
        let slot = self.nodes.as_mut().get_mut(id as usize);
        *slot.ok_or(ArchiveError::NoRoom)? = node;
        self.used += 1;
        Ok(NodeId(id))
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, ArchiveError> {
        let node = self.nodes.as_mut().get_mut(id.0 as usize);
        node.ok_or(ArchiveError::NoRoom)
    }

    fn add(&mut self, root: NodeId, entry: &Entry<'_>) -> Result<(), ArchiveError> {
        let bad = ArchiveError::Name(entry.data.start);
        let mut at = root;
        let mut made = false;
        for (offset, part) in parts(entry.name) {
            let is_name = part != b".." && part.len() <= MOST_NAME_BYTES;
            if !is_name || self.node(at).kind != NodeKind::Directory {
                return Err(bad);
            }
            let name = Piece {
                start: (entry.name_at + offset) as u32,
                length: part.len() as u32,
            };
            let child = self.child(at, part);
            made = child.is_none();
            at = match child {
                Some(child) => child,
                None => self.append(at, Name::Archive(name))?,
            };
        }
        let (start, length) = (entry.data.start as u32, entry.data.len() as u32);
        let content = Piece { start, length };
        let (major, minor) = entry.rdev;
        let kind = match entry.mode & S_IFMT {
            S_IFDIR => NodeKind::Directory,
            S_IFREG => NodeKind::File,
            S_IFLNK => NodeKind::Link,
            S_IFCHR => NodeKind::Device { major, minor },
            S_IFBLK => Source::of_block_device(entry.rdev).map_or(NodeKind::Other, NodeKind::Moved),
            _ => NodeKind::Other,
        };
        let is_directory = self.node_mut(at)?.kind == NodeKind::Directory;
        if !made && is_directory != (kind == NodeKind::Directory) {
            return Err(bad);
        }
        let archived = (entry.ino, entry.device.0, entry.device.1);
        let same = match kind {
            NodeKind::File if entry.links > 1 => self.hard_link_of(at, archived).unwrap_or(at),
            _ => at,
        };
        let node = self.node_mut(at)?;
        (node.kind, node.content, node.mode) = (kind, content, entry.mode);
        (node.uid, node.gid, node.mtime) = (entry.uid, entry.gid, entry.mtime);
        node.same = same.0;
        node.archived = archived;
        if same != at && length > 0 {
            // Only one of a file's hard links carries the content, usually the last.
            self.node_mut(same)?.content = content;
        }
        Ok(())
    }

    /// The first other node that is the same file in the archive.
    fn hard_link_of(&self, not: NodeId, archived: (u32, u32, u32)) -> Option<NodeId> {
        let nodes = self.nodes.as_ref().get(..self.used as usize)?;
        let is_it = |(id, node): &(usize, &Node)| {
            *id != not.0 as usize
                && node.kind == NodeKind::File
                && node.archived == archived
                && node.same as usize == *id
        };
        let found = nodes.iter().enumerate().find(is_it);
        found.map(|(id, _)| NodeId(id as u32))
    }

    /// Adds a directory as the last child of `parent`.
    fn append(&mut self, parent: NodeId, name: Name) -> Result<NodeId, ArchiveError> {
        let last = self.children(parent).last();
        let id = NodeId(self.used);
        let node = Node {
            name,
            parent: parent.0,
            same: id.0,
            ..Node::EMPTY
        };
        self.push(node)?;
        match last {
            Some(last) => self.node_mut(last)?.next = id.0,
            None => self.node_mut(parent)?.first_child = id.0,
        }
        Ok(id)
    }

    /// A directory with this name, made if missing. `None` if the archive has a non-directory there.
    fn own_directory(
        &mut self,
        parent: NodeId,
        name: &'static [u8],
    ) -> Result<Option<NodeId>, ArchiveError> {
        match self.child(parent, name) {
            Some(child) if self.node(child).kind == NodeKind::Directory => Ok(Some(child)),
            Some(_) => Ok(None),
            None => self.append(parent, Name::Own(name)).map(Some),
        }
    }

    fn own_node(
        &mut self,
        parent: NodeId,
        name: &'static [u8],
        kind: NodeKind,
        mode: u32,
    ) -> Result<(), ArchiveError> {
        if self.child(parent, name).is_some() {
            return Ok(());
        }
        let id = self.append(parent, Name::Own(name))?;
        let node = self.node_mut(id)?;
        (node.kind, node.mode) = (kind, mode);
        Ok(())
    }

    /// Adds the file of a source that has a name, where the archive has no such name.
    pub(super) fn add_source(&mut self, source: Source) -> Result<(), ArchiveError> {
        if let Some((folder, name, mode)) = source.place()
            && let Some(folder) = self.own_directory(NodeId::ROOT, folder)?
        {
            self.own_node(folder, name, NodeKind::Moved(source), mode)?;
        }
        Ok(())
    }

    /// Counts links: the names of a file; the subdirectories of a directory and two more.
    fn count_links(&mut self) {
        for id in 0..self.used {
            let directory = self.node(NodeId(id)).kind == NodeKind::Directory;
            if let Ok(node) = self.node_mut(NodeId(id)) {
                node.links = if directory { 2 } else { 0 };
            }
        }
        for id in 0..self.used {
            let node = *self.node(NodeId(id));
            let counted = match node.kind {
                NodeKind::Directory => node.parent,
                _ => node.same,
            };
            // No directory contains the root.
            if id != 0
                && let Ok(node) = self.node_mut(NodeId(counted))
            {
                node.links += 1;
            }
        }
    }
}

impl<'a, S: AsRef<[Node]>> Tree<'a, S> {
    /// The node of any id; the root if the id is invalid.
    fn node(&self, id: NodeId) -> &Node {
        const NOTHING: &Node = &Node::EMPTY;
        let nodes = self.nodes.as_ref();
        nodes
            .get(id.0 as usize)
            .filter(|_| id.0 < self.used)
            .or(nodes.first())
            .unwrap_or(NOTHING)
    }

    fn piece(&self, piece: Piece) -> &'a [u8] {
        let start = piece.start as usize;
        let end = start.saturating_add(piece.length as usize);
        self.archive.get(start..end).unwrap_or_default()
    }

    /// The number of nodes; ids are below it.
    pub fn node_count(&self) -> u32 {
        self.used
    }

    /// The name of a node; empty for the root.
    pub fn name(&self, id: NodeId) -> &'a [u8] {
        match self.node(id).name {
            Name::Archive(piece) => self.piece(piece),
            Name::Own(name) => name,
        }
    }

    /// The parent directory of a node; the root for the root.
    pub fn parent(&self, id: NodeId) -> NodeId {
        NodeId(self.node(id).parent)
    }

    /// The type of a node.
    pub fn kind(&self, id: NodeId) -> NodeKind {
        self.node(id).kind
    }

    /// The content of a file, or the target of a symbolic link; empty for other nodes.
    pub fn content(&self, id: NodeId) -> &'a [u8] {
        let node = self.node(id);
        match node.kind {
            NodeKind::File | NodeKind::Link => self.piece(self.node(NodeId(node.same)).content),
            _ => &[],
        }
    }

    /// The metadata of a node.
    pub fn about(&self, id: NodeId) -> About {
        let node = self.node(id);
        let shared = self.node(NodeId(node.same));
        About {
            kind: node.kind,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            links: match node.kind {
                NodeKind::Directory => node.links,
                _ => shared.links,
            },
            size: self.content(id).len() as u64,
            mtime: node.mtime,
            ino: u64::from(node.same) + 1,
        }
    }

    /// The children of a directory, in the order of the archive.
    pub fn children(&self, directory: NodeId) -> impl Iterator<Item = NodeId> {
        let first = match self.node(directory).kind {
            NodeKind::Directory => self.node(directory).first_child,
            _ => NONE,
        };
        let next = |id: &NodeId| self.existing(self.node(*id).next);
        core::iter::successors(self.existing(first), next)
    }

    /// The next child of the same directory.
    pub fn next_child(&self, child: NodeId) -> Option<NodeId> {
        self.existing(self.node(child).next)
    }

    /// The node with this index, if it exists.
    pub fn existing(&self, id: u32) -> Option<NodeId> {
        (id < self.used).then_some(NodeId(id))
    }

    /// The child of that name.
    pub fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        self.children(directory).find(|id| self.name(*id) == name)
    }
}

#[cfg(test)]
mod tests;
