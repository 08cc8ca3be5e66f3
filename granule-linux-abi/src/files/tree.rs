//! The files there are: a read-only tree of directories, files, symbolic links and devices, out of
//! an archive that stays where it is.
//!
//! A node is a small value in storage that the caller brings; names and contents are ranges of the
//! archive. What every program expects and few archives bring (`/dev/null` and its like,
//! `/proc/self/exe`), and what the kernel says of itself (`/sys/kernel`), is added where the archive has nothing of that name. How a path leads to a
//! node is [`path`](super::path)'s.

use super::cpio::{self, CpioError, Entry};
use core::fmt;

/// The kind in a mode.
const KIND: u32 = 0o170000;
const DIRECTORY: u32 = 0o040000;
const FILE: u32 = 0o100000;
const LINK: u32 = 0o120000;
const CHARACTERS: u32 = 0o020000;

/// The most bytes of one name.
pub const MOST_NAME_BYTES: usize = 255;

/// No node.
const NONE: u32 = u32::MAX;

/// A node of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The directory above all others.
    pub const ROOT: Self = Self(0);
}

/// A range of the archive: below 4 GiB, which [`Tree::build`] checks.
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

/// What a node is, beside its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may have children.
    Directory,
    /// With content.
    File,
    /// Leads somewhere else.
    Link,
    /// Leads to the program that the asking process runs.
    ExeLink,
    /// A device by its numbers.
    Device {
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// What the kernel says of itself.
    Status(Status),
    /// A device with blocks, a pipe with a name, a socket: there, and nothing can be done with it.
    Other,
}

/// A file with what the kernel says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Whether a next kernel is loaded.
    KexecLoaded,
    /// What is loaded.
    KexecSegments,
}

/// See [`Tree`].
#[derive(Clone, Copy, Debug)]
pub struct Node {
    name: Name,
    kind: Kind,
    content: Piece,
    parent: u32,
    first_child: u32,
    next: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: u32,
    /// The node that a hard link shares its content with; itself if there is none.
    same: u32,
    /// What the archive says of hard links.
    archived: (u32, u32, u32),
    links: u32,
}

impl Node {
    /// Fills storage that is not used yet.
    pub const EMPTY: Self = Self {
        name: Name::Own(b""),
        kind: Kind::Directory,
        content: Piece {
            start: 0,
            length: 0,
        },
        parent: NONE,
        first_child: NONE,
        next: NONE,
        mode: DIRECTORY | 0o755,
        uid: 0,
        gid: 0,
        mtime: 0,
        same: NONE,
        archived: (0, 0, 0),
        links: 1,
    };
}

/// What is told of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The kind of node.
    pub kind: Kind,
    /// Kind and permissions, as C programs read them.
    pub mode: u32,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Bytes of the content.
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: u32,
    /// The same for all hard links of a file.
    pub ino: u64,
}

/// Why there is no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// The archive cannot be read.
    Cpio(CpioError),
    /// A name of the archive goes through something that is no directory, has `..` in it, or a
    /// part of more than 255 bytes; or it makes a directory into something else. The offset of its
    /// content.
    Name {
        /// The offset of the entry's content.
        at: usize,
    },
    /// The archive has 4 GiB or more.
    TooLarge,
    /// The storage has no room for as many nodes: [`nodes_needed`] was not asked.
    NoRoom,
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpio(error) => error.fmt(f),
            Self::Name { at } => write!(
                f,
                "initramfs: the entry whose content is at byte {at:#x} has a name with `..` or a part of more than 255 bytes in it, or what one entry has as a directory another has as something else"
            ),
            Self::TooLarge => f.write_str("initramfs: it has 4 GiB or more; make it smaller"),
            Self::NoRoom => f.write_str("initramfs: there is no memory for its names"),
        }
    }
}

impl From<CpioError> for TreeError {
    fn from(error: CpioError) -> Self {
        Self::Cpio(error)
    }
}

/// What is added where the archive has nothing of that name.
const DEVICES: [(&[u8], u32, u32); 3] = [(b"null", 1, 3), (b"zero", 1, 5), (b"console", 5, 1)];

const STATUS: [(&[u8], Status); 2] = [
    (b"kexec_loaded", Status::KexecLoaded),
    (b"kexec_segments", Status::KexecSegments),
];

/// How many nodes the tree of `archive` has at most.
pub fn nodes_needed(archive: &[u8]) -> Result<usize, TreeError> {
    // The root, /dev and its devices, /proc, /proc/self, /proc/self/exe, /sys, /sys/kernel and its
    // files.
    let own = 7 + DEVICES.len() + STATUS.len();
    cpio::entries(archive).try_fold(own, |sum, entry| {
        Ok(sum.saturating_add(parts(entry?.name).count()))
    })
}

/// The parts of a path between slashes, without what says "here", each with its offset.
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

/// The tree: nodes in `S`, the rest in the archive.
#[derive(Debug)]
pub struct Tree<'a, S> {
    archive: &'a [u8],
    nodes: S,
    used: u32,
}

impl<'a, S: AsRef<[Node]> + AsMut<[Node]>> Tree<'a, S> {
    /// The tree of `archive`. `nodes` must have room for [`nodes_needed`]; what it holds is lost.
    pub fn build(archive: &'a [u8], nodes: S) -> Result<Self, TreeError> {
        if u32::try_from(archive.len()).is_err() {
            return Err(TreeError::TooLarge);
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
                let kind = Kind::Device { major, minor };
                tree.own_node(dev, name, kind, CHARACTERS | 0o666)?;
            }
        }
        if let Some(proc) = tree.own_directory(root, b"proc")?
            && let Some(own) = tree.own_directory(proc, b"self")?
        {
            tree.own_node(own, b"exe", Kind::ExeLink, LINK | 0o777)?;
        }
        if let Some(sys) = tree.own_directory(root, b"sys")?
            && let Some(kernel) = tree.own_directory(sys, b"kernel")?
        {
            for (name, status) in STATUS {
                tree.own_node(kernel, name, Kind::Status(status), FILE | 0o444)?;
            }
        }
        tree.count_links();
        Ok(tree)
    }

    fn push(&mut self, node: Node) -> Result<NodeId, TreeError> {
        let id = self.used;
        let slot = self.nodes.as_mut().get_mut(id as usize);
        *slot.ok_or(TreeError::NoRoom)? = node;
        self.used += 1;
        Ok(NodeId(id))
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, TreeError> {
        let node = self.nodes.as_mut().get_mut(id.0 as usize);
        node.ok_or(TreeError::NoRoom)
    }

    fn add(&mut self, root: NodeId, entry: &Entry<'_>) -> Result<(), TreeError> {
        let bad = TreeError::Name {
            at: entry.data.start,
        };
        let mut at = root;
        let mut made = false;
        for (offset, part) in parts(entry.name) {
            if part == b".." || part.len() > MOST_NAME_BYTES {
                return Err(bad);
            }
            let name = Piece {
                start: (entry.name_at + offset) as u32,
                length: part.len() as u32,
            };
            let (next, new) = self.child_or_new(at, name, bad)?;
            (at, made) = (next, new);
        }
        let length = entry.data.len() as u32;
        let content = Piece {
            start: entry.data.start as u32,
            length,
        };
        let kind = match entry.mode & KIND {
            DIRECTORY => Kind::Directory,
            FILE => Kind::File,
            LINK => Kind::Link,
            CHARACTERS => Kind::Device {
                major: entry.rdev.0,
                minor: entry.rdev.1,
            },
            _ => Kind::Other,
        };
        let is_directory = self.node_mut(at)?.kind == Kind::Directory;
        if !made && is_directory != (kind == Kind::Directory) {
            return Err(bad);
        }
        let archived = (entry.ino, entry.device.0, entry.device.1);
        let same = match kind {
            Kind::File if entry.links > 1 => self.hard_link_of(at, archived).unwrap_or(at),
            _ => at,
        };
        let node = self.node_mut(at)?;
        node.kind = kind;
        node.content = content;
        node.mode = entry.mode;
        (node.uid, node.gid, node.mtime) = (entry.uid, entry.gid, entry.mtime);
        node.same = same.0;
        node.archived = archived;
        if same != at && length > 0 {
            // Only one of a file's hard links brings its content, usually the last.
            self.node_mut(same)?.content = content;
        }
        Ok(())
    }

    /// The first node that is the same file of the archive.
    fn hard_link_of(&self, not: NodeId, archived: (u32, u32, u32)) -> Option<NodeId> {
        let nodes = self.nodes.as_ref().get(..self.used as usize)?;
        let is_it = |(id, node): &(usize, &Node)| {
            *id != not.0 as usize
                && node.kind == Kind::File
                && node.archived == archived
                && node.same as usize == *id
        };
        nodes
            .iter()
            .enumerate()
            .find(is_it)
            .map(|(id, _)| NodeId(id as u32))
    }

    /// The child of that name, made as a directory if there is none, and whether it was made.
    fn child_or_new(
        &mut self,
        parent: NodeId,
        name: Piece,
        bad: TreeError,
    ) -> Result<(NodeId, bool), TreeError> {
        if self.node(parent).kind != Kind::Directory {
            return Err(bad);
        }
        if let Some(child) = self.child(parent, self.piece(name)) {
            return Ok((child, false));
        }
        Ok((self.append(parent, Name::Archive(name))?, true))
    }

    /// A directory as the last child of `parent`.
    fn append(&mut self, parent: NodeId, name: Name) -> Result<NodeId, TreeError> {
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

    /// A directory of ours, or the archive's; `None` if the archive has something else there.
    fn own_directory(
        &mut self,
        parent: NodeId,
        name: &'static [u8],
    ) -> Result<Option<NodeId>, TreeError> {
        match self.child(parent, name) {
            Some(child) if self.node(child).kind == Kind::Directory => Ok(Some(child)),
            Some(_) => Ok(None),
            None => self.append(parent, Name::Own(name)).map(Some),
        }
    }

    fn own_node(
        &mut self,
        parent: NodeId,
        name: &'static [u8],
        kind: Kind,
        mode: u32,
    ) -> Result<(), TreeError> {
        if self.child(parent, name).is_some() {
            return Ok(());
        }
        let id = self.append(parent, Name::Own(name))?;
        let node = self.node_mut(id)?;
        (node.kind, node.mode) = (kind, mode);
        Ok(())
    }

    /// As many links as names for a file, as subdirectories and two more for a directory.
    fn count_links(&mut self) {
        for id in 0..self.used {
            let directory = self.node(NodeId(id)).kind == Kind::Directory;
            if let Ok(node) = self.node_mut(NodeId(id)) {
                node.links = if directory { 2 } else { 0 };
            }
        }
        for id in 0..self.used {
            let node = *self.node(NodeId(id));
            let counted = match node.kind {
                Kind::Directory => node.parent,
                _ => node.same,
            };
            // The root is in no directory.
            if id != 0
                && let Ok(node) = self.node_mut(NodeId(counted))
            {
                node.links += 1;
            }
        }
    }
}

impl<'a, S: AsRef<[Node]>> Tree<'a, S> {
    /// The node of an id, which may be anything: the root for one that is not there.
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

    /// How many nodes there are; ids are below that.
    pub fn node_count(&self) -> u32 {
        self.used
    }

    /// A node's name; the root's is empty.
    pub fn name(&self, id: NodeId) -> &'a [u8] {
        match self.node(id).name {
            Name::Archive(piece) => self.piece(piece),
            Name::Own(name) => name,
        }
    }

    /// The directory that a node is in; the root's own for the root.
    pub fn parent(&self, id: NodeId) -> NodeId {
        NodeId(self.node(id).parent)
    }

    /// What a node is.
    pub fn kind(&self, id: NodeId) -> Kind {
        self.node(id).kind
    }

    /// A file's content, or where a symbolic link leads; empty for anything else.
    pub fn content(&self, id: NodeId) -> &'a [u8] {
        let node = self.node(id);
        match node.kind {
            Kind::File | Kind::Link => self.piece(self.node(NodeId(node.same)).content),
            _ => &[],
        }
    }

    /// What there is to tell of a node.
    pub fn about(&self, id: NodeId) -> About {
        let node = self.node(id);
        let shared = self.node(NodeId(node.same));
        About {
            kind: node.kind,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            links: if node.kind == Kind::Directory {
                node.links
            } else {
                shared.links
            },
            size: self.content(id).len() as u64,
            mtime: node.mtime,
            ino: u64::from(node.same) + 1,
        }
    }

    /// The children of a directory, in the archive's order.
    pub fn children(&self, directory: NodeId) -> impl Iterator<Item = NodeId> {
        let first = match self.node(directory).kind {
            Kind::Directory => self.node(directory).first_child,
            _ => NONE,
        };
        core::iter::successors(self.existing(first), |id| {
            self.existing(self.node(*id).next)
        })
    }

    /// The child that follows another one of the same directory.
    pub fn next_child(&self, child: NodeId) -> Option<NodeId> {
        self.existing(self.node(child).next)
    }

    /// The node of that number, if there is one.
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
