//! Paths: from a path to a node, and from a node or a place of damage to a path. Aliases do not
//! belong here.

use super::super::bytes::before;
use super::node::Node;
use super::walk::{Token, Tree};
use core::fmt;

impl<'a> Tree<'a> {
    /// The node at a full path, as `/soc/uart@1000`. A component without a unit address takes the
    /// first child of that name.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<Node<'a>> {
        let mut node = self.root()?;
        let mut rest = path;
        while let Some((first, further)) = rest.split_first() {
            if *first == b'/' {
                rest = further;
                continue;
            }
            let name = before(rest, b'/');
            (_, rest) = rest.split_at_checked(name.len())?;
            node = node.child(name)?;
        }
        Some(node)
    }

    /// The node in which the walk over a damaged tree ends.
    #[must_use]
    pub fn damaged_node(&self) -> Path<'a> {
        let mut walk = self.walk();
        while let Ok(Some(_)) = walk.next() {}
        Path {
            tree: *self,
            at: usize::MAX,
            depth: walk.depth(),
        }
    }
}

impl<'a> Node<'a> {
    /// The path of the node.
    #[must_use]
    pub const fn path(&self) -> Path<'a> {
        Path {
            tree: self.tree,
            at: self.at,
            depth: self.depth,
        }
    }
}

/// The path of a node, for messages. `Display` escapes what is not printable ASCII.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    tree: Tree<'a>,
    /// The node is the last one of its depth that begins before this offset.
    at: usize,
    depth: u32,
}

impl<'a> Path<'a> {
    /// Calls `part` with the parts of the path in order: slashes, and names as they stand in the
    /// tree. For code that cannot format.
    pub fn parts(&self, mut part: impl FnMut(&'a [u8])) {
        if self.depth <= 1 {
            part(b"/");
        }
        for depth in 2..=self.depth {
            part(b"/");
            part(self.name(depth));
        }
    }

    /// The name of the node of that depth on the path.
    fn name(&self, depth: u32) -> &'a [u8] {
        let mut walk = self.tree.walk();
        let mut last: &[u8] = &[];
        while walk.at < self.at {
            match walk.next() {
                Ok(Some(Token::Begin { name })) if walk.depth() == depth => last = name,
                Ok(Some(_)) => {}
                _ => break,
            }
        }
        last
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Ok(());
        self.parts(|part| {
            if written.is_ok() {
                written = write!(f, "{}", part.escape_ascii());
            }
        });
        written
    }
}
