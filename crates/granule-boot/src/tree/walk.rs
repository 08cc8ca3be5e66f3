//! The format of the flattened device tree: its header, and a walk over its tokens.
//!
//! Every offset into the tree is checked where it is used. Every step of the walk advances by at
//! least one token of four bytes, so the walk ends for any input. The meaning of nodes and
//! properties does not belong here.

use super::super::bytes::{be32, before, same};
use super::error::TreeError;

const MAGIC: u32 = 0xd00d_feed;
/// The size of the header of a version 17 tree. An older one is a word shorter.
const HEADER_BYTES: usize = 40;
/// The largest tree that the arm64 boot protocol allows.
const MAX_BYTES: u32 = 2 << 20;
/// The newest version of the format that this module reads.
const VERSION: u32 = 17;
/// The oldest one. Its header lacks the size of the structure block.
const OLDEST_VERSION: u32 = 16;
/// Deeper than any real tree: a deeper tree is rejected.
const MAX_DEPTH: u32 = 64;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;
const END: u32 = 9;

/// The size of a tree in bytes, from its first eight bytes. It serves a caller that has only an
/// address and needs the length for [`Tree::new`].
///
/// # Errors
///
/// Fails with [`TreeError::TooShort`], [`TreeError::BadMagic`], or [`TreeError::BadSize`] if no tree can have
/// that size.
pub fn total_size(first_bytes: &[u8]) -> Result<u32, TreeError> {
    if be32(first_bytes, 0).ok_or(TreeError::TooShort)? != MAGIC {
        return Err(TreeError::BadMagic);
    }
    let size = be32(first_bytes, 4).ok_or(TreeError::TooShort)?;
    if size < HEADER_BYTES as u32 || size > MAX_BYTES {
        return Err(TreeError::BadSize);
    }
    Ok(size)
}

/// A device tree with a valid header.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    pub(super) bytes: &'a [u8],
    structure: &'a [u8],
    structure_at: u32,
    strings: &'a [u8],
    pub(super) reservations_at: u32,
}

impl<'a> Tree<'a> {
    /// Checks the header of the tree at the start of `bytes`. The blocks may come in any order.
    ///
    /// # Errors
    ///
    /// Fails with the error in the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TreeError> {
        let size = total_size(bytes)?;
        let tree = bytes.get(..size as usize).ok_or(TreeError::TooShort)?;
        let field = |at| be32(tree, at).ok_or(TreeError::TooShort);
        let version = field(20)?;
        if version < OLDEST_VERSION || field(24)? > VERSION {
            return Err(TreeError::BadVersion);
        }
        let structure_at = field(8)?;
        if structure_at % 4 != 0 {
            return Err(TreeError::BadLayout);
        }
        let block = |at: u32, size: u32| {
            // A block that overlaps the header would be misread.
            let (_, tail) = tree
                .split_at_checked(at as usize)
                .ok_or(TreeError::BadLayout)?;
            let block = tail.get(..size as usize).ok_or(TreeError::BadLayout)?;
            if at < HEADER_BYTES as u32 {
                Err(TreeError::BadLayout)
            } else {
                Ok(block)
            }
        };
        let structure_bytes = if version < VERSION {
            size.checked_sub(structure_at).ok_or(TreeError::BadLayout)?
        } else {
            field(36)?
        };
        Ok(Self {
            bytes: tree,
            structure: block(structure_at, structure_bytes)?,
            structure_at,
            strings: block(field(12)?, field(32)?)?,
            reservations_at: field(16)?,
        })
    }

    /// A walk over the whole tree, token by token.
    #[must_use]
    pub const fn walk(&self) -> Walk<'a> {
        Walk::inside(*self, 0, 0)
    }

    /// The first error in the structure block, if there is one.
    #[must_use]
    pub fn damage(&self) -> Option<TreeError> {
        let mut walk = self.walk();
        loop {
            if let Err(error) = walk.next().transpose()? {
                return Some(error);
            }
        }
    }

    /// The strings block, for code that copies it.
    #[must_use]
    pub const fn strings(&self) -> &'a [u8] {
        self.strings
    }

    /// The number of bytes of the structure block.
    #[must_use]
    pub const fn structure_bytes(&self) -> usize {
        self.structure.len()
    }

    /// The physical ID of the boot CPU, from the header.
    #[must_use]
    pub fn boot_cpu(&self) -> u32 {
        be32(self.bytes, 28).unwrap_or_default()
    }

    /// Converts an offset in the structure block to an offset in the tree.
    fn place(&self, at: usize) -> u32 {
        self.structure_at.wrapping_add(at as u32)
    }
}

/// One step of a walk.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Token<'a> {
    /// A node begins.
    Begin {
        /// Its name with its unit address; empty for the root.
        name: &'a [u8],
    },
    /// The innermost open node ends.
    End,
    /// A property of the innermost open node.
    Property {
        /// Its name.
        name: Name<'a>,
        /// Its value.
        value: &'a [u8],
    },
}

/// A property's name. A comparison with another name mostly reads one byte.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// The strings block from the name on.
    rest: &'a [u8],
    offset: u32,
}

impl<'a> Name<'a> {
    /// Whether the name equals `wanted`.
    #[must_use]
    pub fn is(self, wanted: &[u8]) -> bool {
        match self.rest.split_at_checked(wanted.len()) {
            Some((name, rest)) => same(name, wanted) && rest.first() == Some(&0),
            None => false,
        }
    }

    /// The name.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        before(self.rest, 0)
    }

    /// Its offset in the strings block.
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.offset
    }
}

/// A walk over the tokens of a tree, from first to last.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    pub(super) tree: Tree<'a>,
    /// Offset of the next token in the structure block.
    pub(super) at: usize,
    depth: u32,
    root_ended: bool,
}

impl<'a> Walk<'a> {
    /// A walk that goes on at a token inside `depth` nodes.
    pub(super) const fn inside(tree: Tree<'a>, at: usize, depth: u32) -> Self {
        Self {
            tree,
            at,
            depth,
            root_ended: false,
        }
    }

    /// The number of open nodes; 1 in the root.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// The next token, or `None` at the tree's proper end.
    ///
    /// # Errors
    ///
    /// Fails with the error in the tree at this place. The walk is over then.
    // One copy: the readers together call this at many places.
    #[inline(never)]
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator's items would be results, and what ends it an item like others"
    )]
    pub fn next(&mut self) -> Result<Option<Token<'a>>, TreeError> {
        loop {
            let at = self.tree.place(self.at);
            match self.word()? {
                NOP => {}
                BEGIN_NODE => return self.begin(at).map(Some),
                END_NODE => {
                    self.depth = self
                        .depth
                        .checked_sub(1)
                        .ok_or(TreeError::BadNesting { at })?;
                    self.root_ended = self.depth == 0;
                    return Ok(Some(Token::End));
                }
                PROPERTY => return self.property(at).map(Some),
                END if self.root_ended => return Ok(None),
                END => return Err(TreeError::BadNesting { at }),
                _ => return Err(TreeError::BadToken { at }),
            }
        }
    }

    fn begin(&mut self, at: u32) -> Result<Token<'a>, TreeError> {
        if self.root_ended {
            return Err(TreeError::BadNesting { at });
        }
        if self.depth >= MAX_DEPTH {
            return Err(TreeError::TooDeep { at });
        }
        let rest = self.rest(at)?;
        let len = rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(TreeError::Truncated { at })?;
        let name = rest.get(..len).ok_or(TreeError::Truncated { at })?;
        self.skip(len.wrapping_add(1));
        // A node whose name is cut off never began: its damage is reported in the node around it.
        self.depth = self.depth.wrapping_add(1);
        Ok(Token::Begin { name })
    }

    fn property(&mut self, at: u32) -> Result<Token<'a>, TreeError> {
        if self.depth == 0 {
            return Err(TreeError::BadNesting { at });
        }
        let len = self.word()? as usize;
        let offset = self.word()?;
        let value = self
            .rest(at)?
            .get(..len)
            .ok_or(TreeError::Truncated { at })?;
        self.skip(len);
        // A tree whose strings were cut off at the end has only zeros there.
        match self.tree.strings.get(offset as usize..) {
            Some(rest) if rest.first().is_some_and(|first| *first != 0) => Ok(Token::Property {
                name: Name { rest, offset },
                value,
            }),
            _ => Err(TreeError::BadName { at }),
        }
    }

    fn rest(&self, at: u32) -> Result<&'a [u8], TreeError> {
        self.tree
            .structure
            .get(self.at..)
            .ok_or(TreeError::Truncated { at })
    }

    fn word(&mut self) -> Result<u32, TreeError> {
        let at = self.tree.place(self.at);
        let word = be32(self.tree.structure, self.at).ok_or(TreeError::Truncated { at })?;
        self.skip(4);
        Ok(word)
    }

    /// Skips `bytes` bytes that are known to exist, and the padding after them.
    fn skip(&mut self, bytes: usize) {
        self.at = self.at.wrapping_add(bytes).wrapping_add(3) & !3;
    }
}
