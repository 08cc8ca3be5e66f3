//! Ranges, trees and totals in words, in columns.

use std::fmt;
use std::io::{self, Write};

use granule::arch::Level;
use granule_inspect::attributes::Decoded;
use granule_inspect::fields::{about, leaf_name, size};
use granule_inspect::ranges::Range;
use granule_inspect::totals::Totals;
use granule_inspect::tree::{Origin, Shape, Tree};

/// The origin of a tree, in words.
pub(super) const fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Registers => "registers",
        Origin::Options => "options",
        Origin::Vmcoreinfo => "VMCOREINFO",
        Origin::KernelData => "the kernel's data",
        Origin::Guess => "a guess",
    }
}

pub(super) const fn stage(tree: &Tree) -> u32 {
    match tree.shape {
        Shape::Stage1(_) => 1,
        Shape::Stage2(_) => 2,
    }
}

/// The line above the ranges of a tree.
pub(super) fn heading(out: &mut dyn Write, tree: &Tree) -> io::Result<()> {
    let geometry = tree.geometry();
    let root = match geometry.root_tables() {
        1 => format!("root table at {}", tree.root),
        number => format!("{number} root tables from {}", tree.root),
    };
    let through = tree.through.map_or(String::new(), |through| {
        format!(", through stage 2 with its root at {}", through.root)
    });
    writeln!(
        out,
        "{}: stage {}, {} pages, {} bits of address, {root} of level {}, from {}{through}",
        tree.owner,
        stage(tree),
        size(geometry.page_size().bytes()),
        geometry.va_bits(),
        geometry.start_level(),
        origin(tree.origin),
    )
}

/// The widths of the columns of attributes.
const fn widths(decoded: &Decoded) -> &'static [usize] {
    match (decoded.stage2, decoded.two_privileges) {
        (false, true) => &[2, 3, 3, 4, 2, 2, 3, 3, 2, 0],
        (false, false) => &[2, 2, 4, 2, 2, 3, 3, 2, 0],
        (true, true) => &[4, 3, 3, 2, 3, 3, 0],
        (true, false) => &[4, 2, 2, 3, 3, 0],
    }
}

/// Texts of things that come again and again, such as the attributes of ranges that take turns.
pub(super) struct Known<K>(Vec<(K, String)>);

impl<K> Default for Known<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq> Known<K> {
    /// The most texts that are kept: a kernel has a dozen kinds of ranges.
    const MOST: usize = 16;

    /// The text of `key`, which `make` makes the first time.
    pub(super) fn text(&mut self, key: K, make: impl FnOnce() -> String) -> &str {
        let at = self.0.iter().position(|(known, _)| *known == key);
        let at = at.unwrap_or_else(|| {
            if self.0.len() == Self::MOST {
                self.0.clear();
            }
            self.0.push((key, make()));
            self.0.len() - 1
        });
        self.0.get(at).map_or("", |(_, text)| text)
    }
}

/// The texts of lines besides addresses, and the last line.
#[derive(Default)]
pub(super) struct Lines {
    words: Known<(Level, bool, u64)>,
    sizes: Known<u64>,
    line: Vec<u8>,
}

impl Lines {
    /// Writes the line of a range of `tree`, always the same one. There may be millions of them, so
    /// the addresses are not formatted by `write!`.
    pub(super) fn range(
        &mut self,
        out: &mut dyn Write,
        tree: &Tree,
        range: &Range,
    ) -> io::Result<()> {
        self.line.clear();
        hex(&mut self.line, range.start, 16);
        self.line.push(b'-');
        hex(&mut self.line, range.last(), 16);
        let bytes = self
            .sizes
            .text(range.bytes, || format!(" {:>8}  ", size(range.bytes)));
        self.line.extend_from_slice(bytes.as_bytes());
        hex(&mut self.line, range.output, 12);
        let kind = (range.level, range.contiguous, range.attributes);
        let words = self.words.text(kind, || words(tree, range));
        self.line.extend_from_slice(words.as_bytes());
        out.write_all(&self.line)
    }
}

/// Appends an address with at least so many digits.
pub(super) fn hex(line: &mut Vec<u8>, address: u64, digits: u32) {
    let digits = digits.max(16 - address.leading_zeros() / 4);
    line.extend_from_slice(b"0x");
    line.extend((0..digits).rev().map(|at| {
        let digit = (address >> (4 * at) & 0xf) as usize;
        b"0123456789abcdef"[digit]
    }));
}

/// The leaves and the attributes of a range, in columns, to the end of the line.
fn words(tree: &Tree, range: &Range) -> String {
    let decoded = Decoded::new(tree, range.attributes);
    let contiguous = if range.contiguous { "contiguous" } else { "" };
    let leaf = leaf_name(tree.geometry().page_size(), range.level);
    let mut text = format!("  {leaf:10} {contiguous:10} ");
    for (word, &width) in decoded.columns().iter().zip(widths(&decoded)) {
        // Writing to a string cannot fail.
        let _ = fmt::Write::write_fmt(&mut text, format_args!(" {word:width$}"));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The lines of totals.
pub(super) fn totals(out: &mut dyn Write, totals: &Totals) -> io::Result<()> {
    writeln!(out, "mapped {} by", about(totals.mapped()))?;
    for (kind, count) in totals.leaves.iter().rev() {
        let contiguous = if kind.contiguous { " contiguous" } else { "" };
        writeln!(
            out,
            "  {:>12} leaves of {:>4}{contiguous:11} {:>8}",
            count.leaves,
            size(kind.leaf_bytes),
            about(count.bytes)
        )?;
    }
    let (tables, bytes) = (totals.tables, about(totals.table_bytes));
    writeln!(out, "  {tables:>12} tables, {bytes}")?;
    let (with, without) = (totals.tlb(true).number(), totals.tlb(false).number());
    writeln!(
        out,
        "  {with:>12} TLB entries would cover it ({without} without the contiguous hint)"
    )
}
