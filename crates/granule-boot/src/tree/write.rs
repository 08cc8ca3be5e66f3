//! The one writer of flattened device trees: tokens, names and header, into a buffer of the caller's.
//!
//! It writes byte by byte, allocates nothing and does not panic, so that code with the MMU off can
//! use it. The contents of trees do not belong here; [`rewrite`](super::rewrite) copies a tree with
//! changes.

use super::super::bytes::same;
use super::bus::Range;
use super::error::TreeError;
use super::walk::Name;
use thiserror::Error;

const MAGIC: u32 = 0xd00d_feed;
const HEADER_BYTES: usize = 40;
/// The version of the written tree, and the oldest version that its readers must support; both are from
/// the specification.
const VERSION: u32 = 17;
const LAST_COMPATIBLE: u32 = 16;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const END: u32 = 9;

/// The most names that a writer adds to the strings of the tree that it copies.
pub const MOST_NAMES: usize = 64;

/// Why a tree cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The tree that is copied cannot be read.
    #[error("{0}")]
    Malformed(TreeError),
    /// The new tree does not fit into its memory.
    #[error("{} (of {room} bytes)", self.text())]
    Full {
        /// Bytes of that memory.
        room: usize,
    },
    /// The code that writes the tree does not nest its nodes, or uses more than [`MOST_NAMES`] names.
    #[error("{}", self.text())]
    Misused,
}

impl WriteError {
    /// The error as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Malformed(error) => error.text(),
            Self::Full { .. } => "the new device tree does not fit into its memory",
            Self::Misused => {
                "the new device tree has nodes that do not nest or too many names, a fault of this \
                 kernel's: report it with the device tree"
            }
        }
    }
}

impl From<TreeError> for WriteError {
    fn from(error: TreeError) -> Self {
        Self::Malformed(error)
    }
}

type Done<T = ()> = Result<T, WriteError>;

/// A tree that is being written.
///
/// All functions fail with [`WriteError::Full`] where the memory ends; those that begin or end something also
/// with [`WriteError::Misused`].
///
/// ```
/// use granule_boot::tree::{Tree, Writer};
///
/// let mut bytes = [0; 256];
/// let mut writer = Writer::new(&mut bytes, [])?;
/// writer.begin(b"")?;
/// writer.cells(b"#address-cells", &[2])?;
/// writer.begin(b"chosen")?;
/// writer.text(b"bootargs", b"arm64.pagesize=16k")?;
/// writer.end()?;
/// writer.end()?;
/// let used = writer.finish(0)?;
///
/// let tree = Tree::new(&bytes[..used]).unwrap();
/// assert_eq!(tree.peek().bootargs, b"arm64.pagesize=16k");
/// # Ok::<(), granule_boot::tree::WriteError>(())
/// ```
#[derive(Debug)]
pub struct Writer<'a> {
    into: &'a mut [u8],
    /// Offset of the next byte.
    at: usize,
    /// Offset of the structure block.
    structure: usize,
    depth: u32,
    root_ended: bool,
    /// The strings of the tree that is copied.
    strings: &'a [u8],
    /// The first `named` are names that those strings do not have.
    names: [&'a [u8]; MOST_NAMES],
    named: usize,
}

impl<'a> Writer<'a> {
    /// A new tree with these memory reservations.
    pub fn new(into: &'a mut [u8], reservations: impl IntoIterator<Item = Range>) -> Done<Self> {
        Self::with_strings(into, &[], reservations)
    }

    /// A tree whose strings begin with those of the tree that is copied.
    pub(super) fn with_strings(
        into: &'a mut [u8],
        strings: &'a [u8],
        reservations: impl IntoIterator<Item = Range>,
    ) -> Done<Self> {
        let mut writer = Self {
            into,
            at: 0,
            structure: 0,
            depth: 0,
            root_ended: false,
            strings,
            names: [&[]; MOST_NAMES],
            named: 0,
        };
        writer.put(&[0; HEADER_BYTES])?;
        for range in reservations {
            writer.put(&range.start.to_be_bytes())?;
            writer.put(&range.bytes.to_be_bytes())?;
        }
        writer.put(&[0; 16])?;
        writer.structure = writer.at;
        Ok(writer)
    }

    /// Begins a node inside the innermost open one. The first is the root, whose name is empty.
    pub fn begin(&mut self, name: &[u8]) -> Done {
        self.begin_with(&[name])
    }

    /// Begins a node with a unit address, which is written as the specification demands: hexadecimal
    /// digits without leading zeros.
    pub fn begin_at(&mut self, name: &[u8], address: u64) -> Done {
        let mut digits = [0; 16];
        self.begin_with(&[name, b"@", hexadecimal(address, &mut digits)])
    }

    fn begin_with(&mut self, name: &[&[u8]]) -> Done {
        if self.root_ended {
            return Err(WriteError::Misused);
        }
        self.depth = self.depth.wrapping_add(1);
        self.word(BEGIN_NODE)?;
        for piece in name {
            self.put(piece)?;
        }
        self.put(&[0])?;
        self.align()
    }

    /// Ends the innermost open node.
    pub fn end(&mut self) -> Done {
        self.depth = self.depth.checked_sub(1).ok_or(WriteError::Misused)?;
        self.root_ended = self.depth == 0;
        self.word(END_NODE)
    }

    /// Writes a property of the innermost open node. All properties of a node precede its children.
    pub fn property(&mut self, name: &'a [u8], value: &[u8]) -> Done {
        self.pieces(name, &[value])
    }

    /// Writes a property whose value is these pieces, one behind the other.
    pub fn pieces(&mut self, name: &'a [u8], value: &[&[u8]]) -> Done {
        let mut bytes = 0_usize;
        for piece in value {
            bytes = bytes.saturating_add(piece.len());
        }
        let name = self.place_of(name)?;
        self.head(bytes, name)?;
        for piece in value {
            self.put(piece)?;
        }
        self.align()
    }

    /// Writes a property that is one string.
    pub fn text(&mut self, name: &'a [u8], text: &[u8]) -> Done {
        self.pieces(name, &[text, &[0]])
    }

    /// Writes a property that is a list of cells.
    pub fn cells(&mut self, name: &'a [u8], cells: &[u32]) -> Done {
        self.list(name, cells.iter().map(|cell| cell.to_be_bytes()))
    }

    /// Writes a property that is a list of numbers of two cells each.
    pub fn numbers(&mut self, name: &'a [u8], numbers: impl IntoIterator<Item = u64>) -> Done {
        let numbers = numbers.into_iter();
        self.list(name, numbers.map(|number| number.to_be_bytes()))
    }

    /// Writes a property that is a list of values, whose number need not be known before.
    pub fn list<const BYTES: usize>(
        &mut self,
        name: &'a [u8],
        values: impl IntoIterator<Item = [u8; BYTES]>,
    ) -> Done {
        let name = self.place_of(name)?;
        let head = self.at;
        self.head(0, name)?;
        let begin = self.at;
        for value in values {
            self.put(&value)?;
        }
        let (behind, bytes) = (self.at, self.at.saturating_sub(begin));
        self.at = head;
        self.head(bytes, name)?;
        self.at = behind;
        self.align()
    }

    /// Copies a property of the tree whose strings this one begins with.
    pub(super) fn copy(&mut self, name: Name<'_>, value: &[u8]) -> Done {
        self.head(value.len(), name.offset())?;
        self.put(value)?;
        self.align()
    }

    /// Writes the strings and the header, and returns the bytes of the whole tree. `boot_cpu` is the
    /// physical ID of the boot CPU.
    pub fn finish(mut self, boot_cpu: u32) -> Done<usize> {
        if !self.root_ended {
            return Err(WriteError::Misused);
        }
        self.word(END)?;
        let strings = self.at;
        self.put(self.strings)?;
        let names = self.names;
        for name in names.iter().take(self.named) {
            self.put(name)?;
            self.put(&[0])?;
        }
        let total = self.at;
        let number = |number| u32::try_from(number).map_err(|_| self.full());
        let header = [
            MAGIC,
            number(total)?,
            number(self.structure)?,
            number(strings)?,
            HEADER_BYTES as u32,
            VERSION,
            LAST_COMPATIBLE,
            boot_cpu,
            number(total.wrapping_sub(strings))?,
            number(strings.wrapping_sub(self.structure))?,
        ];
        self.at = 0;
        for word in header {
            self.word(word)?;
        }
        Ok(total)
    }

    const fn full(&self) -> WriteError {
        WriteError::Full {
            room: self.into.len(),
        }
    }

    /// Offset of a name in the strings of the new tree.
    fn place_of(&mut self, name: &'a [u8]) -> Done<u32> {
        let mut place = match whole(self.strings, name) {
            Some(place) => place,
            None => self.strings.len(),
        };
        if place == self.strings.len() {
            let mut is_known = false;
            for known in self.names.iter().take(self.named) {
                if same(known, name) {
                    is_known = true;
                    break;
                }
                place = place.saturating_add(known.len()).saturating_add(1);
            }
            if !is_known {
                *self.names.get_mut(self.named).ok_or(WriteError::Misused)? = name;
                self.named = self.named.wrapping_add(1);
            }
        }
        u32::try_from(place).map_err(|_| self.full())
    }

    /// Writes what precedes a property's value.
    fn head(&mut self, bytes: usize, name: u32) -> Done {
        if self.depth == 0 {
            return Err(WriteError::Misused);
        }
        let bytes = u32::try_from(bytes).map_err(|_| self.full())?;
        self.word(PROPERTY)?;
        self.word(bytes)?;
        self.word(name)
    }

    fn word(&mut self, word: u32) -> Done {
        self.put(&word.to_be_bytes())
    }

    fn align(&mut self) -> Done {
        while self.at % 4 != 0 {
            self.put(&[0])?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Done {
        let end = self.at.saturating_add(bytes.len());
        let full = self.full();
        let to = self.into.get_mut(self.at..end).ok_or(full)?;
        for (to, from) in to.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.at = end;
        Ok(())
    }
}

/// A number as a unit address: hexadecimal digits without leading zeros.
pub fn hexadecimal(number: u64, digits: &mut [u8; 16]) -> &[u8] {
    let mut rest = number;
    let mut used = 0_usize;
    for digit in digits.iter_mut().rev() {
        if rest == 0 && used > 0 {
            break;
        }
        let value = rest as u8 & 0xf;
        let first = if value < 10 { b'0' } else { b'a' - 10 };
        *digit = first.wrapping_add(value);
        rest >>= 4;
        used = used.wrapping_add(1);
    }
    let zeros = digits.len().saturating_sub(used);
    digits.get(zeros..).unwrap_or_default()
}

/// Offset of a name, with the NUL behind it, in a strings block. It may be the end of a longer name.
fn whole(strings: &[u8], name: &[u8]) -> Option<usize> {
    let mut at = 0_usize;
    let mut rest = strings;
    while let Some((found, behind)) = rest.split_at_checked(name.len()) {
        if behind.first() == Some(&0) && same(found, name) {
            return Some(at);
        }
        (_, rest) = rest.split_first()?;
        at = at.wrapping_add(1);
    }
    None
}
