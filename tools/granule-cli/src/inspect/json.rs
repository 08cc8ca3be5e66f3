//! Ranges, trees and totals as JSON values. docs/dump-json.md documents the keys.

use std::io::{self, Write};

use granule_inspect::attributes::Decoded;
use granule_inspect::ranges::Range;
use granule_inspect::totals::Totals;
use granule_inspect::tree::Tree;
use serde_json::{Value, json};

use super::text::{self, Known};

/// The schema's number. Keys may be added to a schema but never removed.
pub(super) const SCHEMA: u32 = 1;

/// An address: as text, because many readers of JSON have numbers of 53 bits.
pub(super) fn address(address: u64) -> Value {
    Value::String(format!("{address:#x}"))
}

pub(super) fn tree(tree: &Tree) -> Value {
    let geometry = tree.geometry();
    json!({
        "owner": tree.owner.to_string(),
        "stage": text::stage(tree),
        "page_size": geometry.page_size().bytes(),
        "va_bits": geometry.va_bits(),
        "pa_bits": tree.output_size().map(|(bits, _)| bits),
        "root": address(tree.root.0),
        "origin": text::origin(tree.origin),
    })
}

/// What objects say besides addresses, and the last object. There may be millions of ranges, so an object is
/// put together of pieces.
pub(super) struct Objects {
    head: String,
    sizes: Known<u64>,
    tails: Known<(u64, bool, u64)>,
    line: Vec<u8>,
}

impl Objects {
    /// For ranges of this tree.
    pub(super) fn new(tree: &Tree) -> Self {
        let owner = Value::String(tree.owner.to_string());
        Self {
            head: format!("{{\"owner\":{owner},\"start\":\""),
            sizes: Known::default(),
            tails: Known::default(),
            line: Vec::new(),
        }
    }

    /// Writes the object of a range.
    pub(super) fn range(
        &mut self,
        out: &mut dyn Write,
        tree: &Tree,
        range: &Range,
    ) -> io::Result<()> {
        self.line.clear();
        self.line.extend_from_slice(self.head.as_bytes());
        text::hex(&mut self.line, range.start, 1);
        let bytes = self.sizes.text(range.bytes, || {
            format!("\",\"bytes\":{},\"output\":\"", range.bytes)
        });
        self.line.extend_from_slice(bytes.as_bytes());
        text::hex(&mut self.line, range.output, 1);
        let kind = (range.leaf_bytes, range.contiguous, range.attributes);
        let tail = self.tails.text(kind, || tail(tree, range));
        self.line.extend_from_slice(tail.as_bytes());
        out.write_all(&self.line)
    }
}

/// The end of an object, after the digits of `output`.
fn tail(tree: &Tree, range: &Range) -> String {
    let columns = Decoded::new(tree, range.attributes).columns();
    let words = columns.iter().filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(ToString::to_string).collect();
    let object = json!({
        "leaf_bytes": range.leaf_bytes,
        "contiguous": range.contiguous,
        "attributes": words,
    })
    .to_string();
    // Without the brace at the beginning.
    let rest = object.strip_prefix('{').unwrap_or(&object);
    format!("\",{rest}")
}

pub(super) fn totals(totals: &Totals) -> Value {
    let leaves = totals.leaves.iter().map(|(kind, count)| {
        json!({
            "leaf_bytes": kind.leaf_bytes,
            "contiguous": kind.contiguous,
            "leaves": count.leaves,
            "bytes": count.bytes,
        })
    });
    json!({
        "mapped_bytes": totals.mapped(),
        "leaves": leaves.collect::<Vec<_>>(),
        "tables": totals.tables,
        "table_bytes": totals.table_bytes,
        "tlb_entries": totals.tlb(true).number(),
        "tlb_entries_without_hint": totals.tlb(false).number(),
    })
}
