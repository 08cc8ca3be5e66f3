//! The format of the flattened device tree: its header, and a walk over its tokens.
//!
//! Every offset into the tree is checked where it is used. Every step of the walk advances by at
//! least one token of four bytes, so the walk ends for any input. The meaning of nodes and
//! properties does not belong here.

use super::super::bytes::{be32, same};
use core::fmt;

const MAGIC: u32 = 0xd00d_feed;
/// The size of the header of a version 17 tree.
const HEADER_BYTES: usize = 40;
/// The largest tree that the arm64 boot protocol allows.
const MAX_BYTES: u32 = 2 << 20;
/// The version of the format that this module reads.
const VERSION: u32 = 17;
/// Deeper than any real tree: a deeper tree is rejected.
const MAX_DEPTH: u32 = 64;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;
const END: u32 = 9;

/// An error in a device tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeError {
    /// The bytes are fewer than a header has, or than the header states.
    TooShort,
    /// The bytes do not start with the magic number.
    BadMagic,
    /// The size in the header is smaller than a header or larger than 2 MiB.
    BadSize,
    /// The tree is not of version 17 or compatible with it.
    BadVersion,
    /// The header's blocks lie outside the tree or are misaligned.
    BadLayout,
    /// The structure block ends before the tree does.
    Truncated {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// The word is not a token.
    BadToken {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// A property whose name is empty or lies outside the tree.
    BadName {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// A node ends that never began, or a token lies outside the root.
    BadNesting {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// The nodes are nested too deeply.
    TooDeep {
        /// Offset from the start of the tree.
        at: u32,
    },
}

impl TreeError {
    /// The reason code for the boot record; it never changes its meaning.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::TooShort => 0x0101,
            Self::BadMagic => 0x0102,
            Self::BadSize => 0x0103,
            Self::BadVersion => 0x0104,
            Self::BadLayout => 0x0105,
            Self::Truncated { .. } => 0x0106,
            Self::BadToken { .. } => 0x0107,
            Self::BadName { .. } => 0x0108,
            Self::BadNesting { .. } => 0x0109,
            Self::TooDeep { .. } => 0x010a,
        }
    }

    /// The error as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::TooShort => "device tree: shorter than its header says",
            Self::BadMagic => "device tree: bad magic at the address in x0, expected d00dfeed",
            Self::BadSize => "device tree: total size out of range, expected 40 bytes to 2 MiB",
            Self::BadVersion => "device tree: unsupported version, expected 17",
            Self::BadLayout => "device tree: the header's blocks do not lie inside the tree",
            Self::Truncated { .. } => "device tree: cut off before its end",
            Self::BadToken { .. } => "device tree: bad token, the tree is damaged or cut off",
            Self::BadName { .. } => "device tree: property without a name, damaged or cut off",
            Self::BadNesting { .. } => "device tree: nodes do not nest",
            Self::TooDeep { .. } => "device tree: nodes nested more than 64 deep",
        }
    }

    /// The place of the error, as an offset from the start of the tree.
    #[must_use]
    pub const fn at(self) -> Option<u32> {
        match self {
            Self::TooShort
            | Self::BadMagic
            | Self::BadSize
            | Self::BadVersion
            | Self::BadLayout => None,
            Self::Truncated { at }
            | Self::BadToken { at }
            | Self::BadName { at }
            | Self::BadNesting { at }
            | Self::TooDeep { at } => Some(at),
        }
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self.at() {
            Some(at) => write!(f, " (at offset {at:#x})"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for TreeError {}

/// The size of a tree in bytes, from its first eight bytes. It serves a caller that knows only an
/// address and needs the length for [`Tree::new`].
///
/// # Errors
///
/// [`TreeError::TooShort`], [`TreeError::BadMagic`], or [`TreeError::BadSize`] if no tree can have
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
    structure: &'a [u8],
    structure_at: u32,
    strings: &'a [u8],
}

impl<'a> Tree<'a> {
    /// Checks the header of the tree at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// The error in the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TreeError> {
        let size = total_size(bytes)?;
        let tree = bytes.get(..size as usize).ok_or(TreeError::TooShort)?;
        let field = |at| be32(tree, at).ok_or(TreeError::TooShort);
        if field(20)? < VERSION || field(24)? > VERSION {
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
        let structure = block(structure_at, field(36)?)?;
        let strings = block(field(12)?, field(32)?)?;
        Ok(Self {
            structure,
            structure_at,
            strings,
        })
    }

    /// A walk over the whole tree, for properties that [`peek`](Self::peek) does not read.
    #[must_use]
    pub const fn walk(&self) -> Walk<'a> {
        Walk::new(*self)
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

/// A property's name, as the rest of the strings block from its start. A comparison with another
/// name mostly reads one byte.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(&'a [u8]);

impl Name<'_> {
    /// Whether the name equals `wanted`.
    #[must_use]
    pub fn is(self, wanted: &[u8]) -> bool {
        match self.0.split_at_checked(wanted.len()) {
            Some((name, rest)) => same(name, wanted) && rest.first() == Some(&0),
            None => false,
        }
    }
}

/// A walk over the tokens of a tree, from first to last.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    tree: Tree<'a>,
    at: usize,
    depth: u32,
    root_ended: bool,
}

impl<'a> Walk<'a> {
    pub(super) const fn new(tree: Tree<'a>) -> Self {
        Self {
            tree,
            at: 0,
            depth: 0,
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
    /// The error in the tree at this place. The walk is over then.
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
        self.depth = self.depth.wrapping_add(1);
        let rest = self.rest(at)?;
        let len = rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(TreeError::Truncated { at })?;
        let name = rest.get(..len).ok_or(TreeError::Truncated { at })?;
        self.skip(len.wrapping_add(1));
        Ok(Token::Begin { name })
    }

    fn property(&mut self, at: u32) -> Result<Token<'a>, TreeError> {
        if self.depth == 0 {
            return Err(TreeError::BadNesting { at });
        }
        let len = self.word()? as usize;
        let name_at = self.word()? as usize;
        let value = self
            .rest(at)?
            .get(..len)
            .ok_or(TreeError::Truncated { at })?;
        self.skip(len);
        // A tree whose strings were cut off at the end has only zeros there.
        match self.tree.strings.get(name_at..) {
            Some(name) if name.first().is_some_and(|first| *first != 0) => Ok(Token::Property {
                name: Name(name),
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
