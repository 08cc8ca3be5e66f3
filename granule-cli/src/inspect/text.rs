//! Ranges, trees and totals in words, in columns.

use std::fmt::Write as _;
use std::io::{self, Write};

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

/// The line of a range.
pub(super) fn range(out: &mut dyn Write, tree: &Tree, range: &Range) -> io::Result<()> {
    let decoded = Decoded::new(tree, range.attributes);
    let mut words = String::new();
    for (word, &width) in decoded.columns().iter().zip(widths(&decoded)) {
        // Writing to a string cannot fail.
        let _ = write!(words, " {word:width$}");
    }
    let contiguous = if range.contiguous { "contiguous" } else { "" };
    writeln!(
        out,
        "{:#018x}-{:#018x} {:>8}  {:#014x}  {:10} {contiguous:10} {}",
        range.start,
        range.last(),
        size(range.bytes),
        range.output,
        leaf_name(tree.geometry().page_size(), range.level),
        words.trim_end()
    )
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
