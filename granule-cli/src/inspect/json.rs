//! Ranges, trees and totals as JSON values. docs/dump-json.md documents the keys.

use granule_inspect::attributes::Decoded;
use granule_inspect::ranges::Range;
use granule_inspect::totals::Totals;
use granule_inspect::tree::Tree;
use serde_json::{Value, json};

use super::text;

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
        "pa_bits": geometry.pa_bits(),
        "root": address(tree.root.0),
        "origin": text::origin(tree.origin),
    })
}

pub(super) fn range(tree: &Tree, range: &Range) -> Value {
    let columns = Decoded::new(tree, range.attributes).columns();
    let words = columns.iter().filter(|word| !word.is_empty());
    json!({
        "owner": tree.owner.to_string(),
        "start": address(range.start),
        "bytes": range.bytes,
        "output": address(range.output),
        "leaf_bytes": range.leaf_bytes,
        "contiguous": range.contiguous,
        "attributes": words.map(ToString::to_string).collect::<Vec<_>>(),
    })
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
