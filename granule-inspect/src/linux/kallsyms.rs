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

/// The addresses of these symbols; `None` for one that the kernel does not have.
///
/// # Errors
///
/// One line: VMCOREINFO does not say where the list is, it cannot be read, or it has another form.
pub(super) fn find<const COUNT: usize>(
    space: &Space<'_>,
    info: Vmcoreinfo<'_>,
    wanted: [&str; COUNT],
) -> Result<[Option<u64>; COUNT], String> {
    let place = |name: &str| {
        let symbol = info.symbol(name);
        symbol.ok_or_else(|| format!("VMCOREINFO has no SYMBOL({name})"))
    };
    // A symbol whose address is known otherwise shows whether the list is read right.
    let known = "_stext";
    let expected = place(known)?;
    let names = place("kallsyms_names")?;
    let pieces = place("kallsyms_token_table")?;
    let index = place("kallsyms_token_index")?;
    let base = info.symbol("kallsyms_relative_base");
    let base = base.map(|base| space.word(base)).transpose()?;
    let count = space.word(place("kallsyms_num_syms")?)? & u64::from(u32::MAX);
    let bytes = pieces
        .checked_sub(names)
        .filter(|bytes| *bytes <= MOST_NAMES);
    let (Some(bytes), true) = (bytes, count <= MOST_SYMBOLS) else {
        return Err(format!(
            "its list of {count} symbols has no form that is known"
        ));
    };
    let first = place("kallsyms_offsets")?;
    let offsets = space.bytes(first, 4 * count)?;
    let names = space.bytes(names, bytes)?;
    let index = space.bytes(index, 2 * 256)?;
    let text = pieces_of(space, pieces, &index)?;

    let (mut found, mut known_at) = ([None; COUNT], None);
    let mut rest = names.as_slice();
    for (at, offset) in offsets.as_chunks::<4>().0.iter().enumerate() {
        let Some((name, others)) = take_name(rest) else {
            break;
        };
        rest = others;
        let address = match base {
            Some(base) => base.wrapping_add(u64::from(u32::from_le_bytes(*offset))),
            None => first
                .wrapping_add(4 * at as u64)
                .wrapping_add_signed(i32::from_le_bytes(*offset).into()),
        };
        if spells(name, &index, &text, known) {
            known_at = Some(address);
        }
        for (found, wanted) in found.iter_mut().zip(wanted) {
            if found.is_none() && spells(name, &index, &text, wanted) {
                *found = Some(address);
            }
        }
    }
    if known_at != Some(expected) {
        return Err(format!(
            "its list of symbols has no form that is known: {known} is not at {expected:#x}"
        ));
    }
    Ok(found)
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

/// Whether these pieces are a type's letter and then `wanted`.
fn spells(name: &[u8], index: &[u8], text: &[u8], wanted: &str) -> bool {
    let index = index.as_chunks::<2>().0;
    let piece = |&byte: &u8| {
        let at = index
            .get(usize::from(byte))
            .map_or(0, |at| u16::from_le_bytes(*at));
        text.get(usize::from(at)..)
            .unwrap_or_default()
            .iter()
            .take_while(|&&letter| letter != 0)
    };
    name.iter().flat_map(piece).skip(1).eq(wanted.as_bytes())
}
