//! The functions of a kernel's loaded modules, out of the list that the kernel has of them.

use super::MOST_NAME;
use super::btf::Btf;
use super::space::Space;
use super::symbol::Symbol;

/// The most modules, and the most symbols of one. Linux itself has some thousands of each.
const MOST_MODULES: usize = 1 << 14;
const MOST_SYMBOLS: u64 = 1 << 18;
/// The bytes of an ELF symbol, and the type of a function.
const SYMBOL: usize = 24;
const FUNCTION: u8 = 2;

/// Adds the functions of the modules in the list at `head`, and lines for what cannot be read.
/// An error is one line: the kernel's types have not what a module looks like.
pub(super) fn read(
    space: &Space<'_>,
    types: &Btf,
    head: u64,
    to: &mut Vec<Symbol>,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let module = |field| types.offset("module", field);
    let (node, name, table) = (module("list")?, module("name")?, module("kallsyms")?);
    let part = |field| types.offset("mod_kallsyms", field);
    let (symbols, count, text) = (part("symtab")?, part("num_symtab")?, part("strtab")?);
    space.list("modules", head, MOST_MODULES, notes, |at, notes| {
        let place = at.wrapping_sub(node);
        let mut read = || -> Result<(), String> {
            let name = space.text(place.wrapping_add(name), MOST_NAME)?;
            let table = space.word(place.wrapping_add(table))?;
            let count = space.word(table.wrapping_add(count))? & u64::from(u32::MAX);
            if count > MOST_SYMBOLS {
                return Err(format!(
                    "{name} has {count} symbols, and at most {MOST_SYMBOLS} are read"
                ));
            }
            let text = space.word(table.wrapping_add(text))?;
            let list = space.word(table.wrapping_add(symbols))?;
            let list = space.bytes(list, count * SYMBOL as u64)?;
            for symbol in list.as_chunks::<SYMBOL>().0 {
                let word = |at: usize| {
                    let bytes = symbol.get(at..).and_then(<[u8]>::first_chunk);
                    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
                };
                // Name, type with binding, visibility, section; then value and size.
                let (head, start, bytes) = (word(0), word(8), word(16));
                if (head >> 32) as u8 & 0xf != FUNCTION || head >> 48 == 0 {
                    continue;
                }
                let place = text.wrapping_add(head & u64::from(u32::MAX));
                to.push(Symbol {
                    start,
                    end: start.saturating_add(bytes.max(1)),
                    name: space.text(place, MOST_NAME)?,
                    module: Some(name.clone()),
                });
            }
            Ok(())
        };
        if let Err(why) = read() {
            notes.push(format!("the module at {place:#x} cannot be read: {why}"));
        }
    });
    Ok(())
}
