//! Ranges, trees and totals in words, in columns.

use std::fmt;
use std::io::{self, Write};

use granule::arch::Level;
use granule_inspect::attributes::Decoded;
use granule_inspect::fields::{about, leaf_name, size};
use granule_inspect::ranges::Range;
use granule_inspect::totals::Totals;
use granule_inspect::tree::{Origin, Shape, Tree};

/// What told of a tree, in words.
pub(super) const fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Registers => "registers",
        Origin::Options => "options",
        Origin::Vmcoreinfo => "VMCOREINFO",
        Origin::KernelData => "the kernel's data",
        Origin::Guess => "a guess",
        _ => "elsewhere",
    }
}

/// The stage of a tree.
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
    writeln!(
        out,
        "{}: stage {}, {} pages, {} bits of address, {root} of level {}, from {}",
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

/// What a line says besides addresses, for the ranges that have it in common with the last one.
#[derive(Default)]
pub(super) struct Lines {
    kind: Option<(Level, bool, u64)>,
    words: String,
    size: (u64, String),
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
        let kind = (range.level, range.contiguous, range.attributes);
        if self.kind != Some(kind) {
            self.kind = Some(kind);
            self.words = words(tree, range);
        }
        self.line.clear();
        hex(&mut self.line, range.start, 16);
        self.line.push(b'-');
        hex(&mut self.line, range.last(), 16);
        if self.size.0 != range.bytes {
            self.size = (range.bytes, format!(" {:>8}  ", size(range.bytes)));
        }
        self.line.extend_from_slice(self.size.1.as_bytes());
        hex(&mut self.line, range.output, 12);
        self.line.extend_from_slice(self.words.as_bytes());
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
    let mapped = totals.mapped();
    writeln!(out, "mapped {} by", about(mapped))?;
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
    let entries = |hint| totals.tlb(hint).number();
    let each = |entries: u64| about(mapped.checked_div(entries).unwrap_or_default());
    let (with, without) = (entries(true), entries(false));
    writeln!(
        out,
        "  {with:>12} TLB entries hold all of it, {} each on average; {without}, {} each, without the contiguous hint",
        each(with),
        each(without),
    )
}
