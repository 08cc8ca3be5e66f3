//! The kernel's own list of symbols (kallsyms), which it keeps for its backtraces.
//!
//! A name is a number of bytes, each of which stands for a piece of text; the first letter is the
//! symbol's type. The list is in the order of the addresses, which are offsets: from one base, or without
//! one (newer kernels) each from the place where it is itself.

use super::space::Space;
use crate::vmcoreinfo::Vmcoreinfo;

/// The most bytes of names, and the most symbols. Large kernels have a tenth.
const MOST_NAMES: u64 = 64 << 20;
const MOST_SYMBOLS: u64 = 4 << 20;
/// The most bytes of the 256 pieces of text.
const MOST_PIECES: u64 = 64 << 10;
/// A symbol whose address VMCOREINFO has too: it shows whether the list is read right.
const KNOWN: &str = "_stext";

/// The list as the kernel has it.
pub(super) struct List {
    /// The address of the first offset.
    first: u64,
    /// The address that the offsets count from; `None` where each counts from its own place.
    base: Option<u64>,
    offsets: Vec<u8>,
    names: Vec<u8>,
    /// The place of each byte's piece in `pieces`.
    index: Vec<u8>,
    pieces: Vec<u8>,
}

impl List {
    /// The list of a running kernel.
    /// An error is one line: VMCOREINFO does not contain the list's address, or the list cannot be read or has
    /// another form.
    pub(super) fn read(space: &Space<'_>, info: Vmcoreinfo<'_>) -> Result<Self, String> {
        let place = |name: &str| {
            let symbol = info.symbol(name);
            symbol.ok_or_else(|| format!("VMCOREINFO has no SYMBOL({name})"))
        };
        let expected = place(KNOWN)?;
        let names = place("kallsyms_names")?;
        let pieces = place("kallsyms_token_table")?;
        let index = place("kallsyms_token_index")?;
        let base = info.symbol("kallsyms_relative_base");
        let base = base.map(|base| space.word(base)).transpose()?;
        let count = space.word(place("kallsyms_num_syms")?)? & u64::from(u32::MAX);
        let Some(bytes) = pieces.checked_sub(names) else {
            return Err(format!(
                "its list of {count} symbols has no form that is known"
            ));
        };
        if bytes > MOST_NAMES || count > MOST_SYMBOLS {
            return Err(format!(
                "its list has {count} symbols with {bytes} bytes of names, and at most {MOST_SYMBOLS} with \
                 {MOST_NAMES} are read"
            ));
        }
        let first = place("kallsyms_offsets")?;
        let offsets = space.bytes(first, 4 * count)?;
        let names = space.bytes(names, bytes)?;
        let index = space.bytes(index, 2 * 256)?;
        let list = Self {
            first,
            base,
            offsets,
            names,
            pieces: pieces_of(space, pieces, &index)?,
            index,
        };
        // The kernel has one symbol of that name.
        let known = list.symbols().filter(|(_, name)| list.spells(name, KNOWN));
        if known.last().map(|(address, _)| address) != Some(expected) {
            return Err(format!(
                "its list of symbols has no form that is known: {KNOWN} is not at {expected:#x}"
            ));
        }
        // The next kernel stores where the last one's list was.
        if !list.symbols().is_sorted_by_key(|(address, _)| address) {
            return Err(
                "its list of symbols is not in the order of addresses: other data was stored there"
                    .into(),
            );
        }
        Ok(list)
    }

    /// The addresses of these symbols; `None` for one that the kernel does not have.
    pub(super) fn find<const COUNT: usize>(&self, wanted: [&str; COUNT]) -> [Option<u64>; COUNT] {
        let mut found = [None; COUNT];
        for (address, name) in self.symbols() {
            for (found, wanted) in found.iter_mut().zip(wanted) {
                if found.is_none() && self.spells(name, wanted) {
                    *found = Some(address);
                }
            }
        }
        found
    }

    /// Address, type and name of each symbol, in the order of the list.
    pub(super) fn named(&self) -> impl Iterator<Item = (u64, char, String)> {
        self.symbols().filter_map(|(address, name)| {
            let mut letters = self.letters(name).map(|&letter| char::from(letter));
            Some((address, letters.next()?, letters.collect()))
        })
    }

    /// Address and pieces of each symbol.
    fn symbols(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = self.names.as_slice();
        let offsets = self.offsets.as_chunks::<4>().0.iter().enumerate();
        offsets.map_while(move |(at, offset)| {
            let (name, others) = take_name(rest)?;
            rest = others;
            let address = match self.base {
                Some(base) => base.wrapping_add(u64::from(u32::from_le_bytes(*offset))),
                None => self
                    .first
                    .wrapping_add(4 * at as u64)
                    .wrapping_add_signed(i32::from_le_bytes(*offset).into()),
            };
            Some((address, name))
        })
    }

    /// The letters that these pieces stand for: a type's, and then the name's.
    fn letters(&self, name: &[u8]) -> impl Iterator<Item = &u8> {
        let index = self.index.as_chunks::<2>().0;
        name.iter().flat_map(move |&byte| {
            let at = index
                .get(usize::from(byte))
                .map_or(0, |at| u16::from_le_bytes(*at));
            self.pieces
                .get(usize::from(at)..)
                .unwrap_or_default()
                .iter()
                .take_while(|&&letter| letter != 0)
        })
    }

    /// Whether these pieces are a type's letter and then `wanted`.
    fn spells(&self, name: &[u8], wanted: &str) -> bool {
        self.letters(name).skip(1).eq(wanted.as_bytes())
    }
}

/// The pieces of text, up to the end of the last.
fn pieces_of(space: &Space<'_>, start: u64, index: &[u8]) -> Result<Vec<u8>, String> {
    let last = index
        .as_chunks::<2>()
        .0
        .iter()
        .map(|at| u16::from_le_bytes(*at))
        .max();
    // The last piece is a letter or a few.
    let bytes = (u64::from(last.unwrap_or(0)) + 64).min(MOST_PIECES);
    space.bytes(start, bytes)
}

/// The first name, as bytes that stand for pieces, and the rest. A length of more than 127 takes two
/// bytes.
fn take_name(names: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = names.split_first()?;
    if length & 0x80 == 0 {
        return rest.split_at_checked(length.into());
    }
    let (&high, rest) = rest.split_first()?;
    rest.split_at_checked(usize::from(length & 0x7f) | usize::from(high) << 7)
}
