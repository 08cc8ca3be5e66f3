//! The flattened device tree's format: its header, and a walk over its tokens.
//!
//! Offsets into the tree are checked where they are used and nowhere assumed; every step of the
//! walk moves on by at least one token of four bytes, so it ends whatever the bytes are.

use super::super::bytes::{be32, same};
use core::fmt;

const MAGIC: u32 = 0xd00d_feed;
/// The header of a tree of version 17.
const HEADER_BYTES: usize = 40;
/// What the arm64 boot protocol allows a tree to be.
const MAX_BYTES: u32 = 2 << 20;
/// The version whose format is read here.
const VERSION: u32 = 17;
/// Deeper than any real tree; a tree that goes deeper is garbage.
const MAX_DEPTH: u32 = 64;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;
const END: u32 = 9;

/// What is wrong with a device tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeError {
    /// There are fewer bytes than a header has, or than the header says.
    TooShort,
    /// It does not start with the magic number.
    BadMagic,
    /// The size in the header is smaller than a header or larger than 2 MiB.
    BadSize,
    /// It is not of version 17 or compatible with it.
    BadVersion,
    /// The header's blocks lie outside the tree or are misaligned.
    BadLayout,
    /// The structure block ends before the tree does.
    Truncated {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// This is not a token.
    BadToken {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// A property whose name is empty or lies outside the tree.
    BadName {
        /// Offset from the start of the tree.
        at: u32,
    },
    /// A node ends that never began, or something stands outside the root.
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

    /// What is wrong, as one line.
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

    /// Where it is wrong, as an offset from the start of the tree.
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

/// How many bytes a tree has, from its first eight: what to ask for before [`Tree::new`] when
/// nothing but an address is known.
///
/// # Errors
///
/// [`TreeError::TooShort`], [`TreeError::BadMagic`], or [`TreeError::BadSize`] if the size cannot
/// be a tree's.
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

/// A device tree whose header is sound.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    structure: &'a [u8],
    structure_at: u32,
    strings: &'a [u8],
}

impl<'a> Tree<'a> {
    /// Checks the header of the tree that `bytes` starts with.
    ///
    /// # Errors
    ///
    /// What is wrong with the header.
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
            // A block inside the header would be read as something else than it is.
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

    /// A walk over all of it, for what [`peek`](Self::peek) does not look at.
    #[must_use]
    pub const fn walk(&self) -> Walk<'a> {
        Walk::new(*self)
    }

    /// The offset in the tree of an offset in the structure block.
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
    /// The node that began last, and has not ended, ends.
    End,
    /// A property of the node that began last.
    Property {
        /// Its name.
        name: Name<'a>,
        /// Its value.
        value: &'a [u8],
    },
}

/// A property's name: the strings block from its start, so that telling that it is not the one
/// looked for mostly takes reading one byte of it.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(&'a [u8]);

impl Name<'_> {
    /// Whether this is the name.
    #[must_use]
    pub fn is(self, wanted: &[u8]) -> bool {
        match self.0.split_at_checked(wanted.len()) {
            Some((name, rest)) => same(name, wanted) && rest.first() == Some(&0),
            None => false,
        }
    }
}

/// A walk over the tokens of a tree, first to last.
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

    /// How many nodes have begun and not ended; 1 in the root.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// The next token, or `None` at the tree's proper end.
    ///
    /// # Errors
    ///
    /// What is wrong with the tree here; there are no more tokens then.
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
        // Where the strings at the end of a tree were cut off there is nothing but zeros.
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

    /// Moves on over so many bytes that are known to be there, and over the padding after them.
    fn skip(&mut self, bytes: usize) {
        self.at = self.at.wrapping_add(bytes).wrapping_add(3) & !3;
    }
}
