//! Ranges, trees and totals as JSON.

use std::io::{self, Write};

use granule_inspect::attributes::Decoded;
use granule_inspect::ranges::Range;
use granule_inspect::totals::Totals;
use granule_inspect::tree::Tree;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::text::{self, Known};
use crate::json::{Hex, Version, value};

/// Result of `granule dump --json`, and of it with `--explain` and `--diff`: exactly one object on standard output
/// if the source could be opened. If it could not, there is no object, but one line on standard error, and the
/// exit code is 3, as for bad usage. Addresses are texts, because many readers of JSON have numbers of 53 bits.
#[derive(JsonSchema)]
#[schemars(title = "granule dump --json", untagged)]
#[expect(dead_code, reason = "describes what is written in pieces")]
pub(crate) enum Dump {
    Listed(Listed),
    Explained(super::dump::Explained),
    Differences(super::compare::Differences),
}

/// Without `--explain` and `--diff`. The exit code is 0, or 3 if a root table cannot be read. The object comes
/// piece by piece, a range on each line, so that a reader can begin before it ends.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "describes what is written in pieces")]
pub(crate) struct Listed {
    #[schemars(flatten)]
    head: Head,
    /// Ranges of all trees, by tree and then by address.
    ranges: Vec<RangeObject>,
    #[schemars(flatten)]
    tail: Tail,
}

/// The part before the ranges.
#[derive(Serialize, JsonSchema)]
pub(super) struct Head {
    pub(super) schema: Version,
    /// Page size in bytes, of the first tree.
    pub(super) page_size: Option<u64>,
    /// Bits of address, of the first tree.
    pub(super) va_bits: Option<u32>,
    /// The trees, the kernel's first.
    pub(super) trees: Vec<TreeObject>,
}

/// The part behind the ranges.
#[derive(Serialize, JsonSchema)]
pub(super) struct Tail {
    pub(super) totals: TotalsObject,
    /// Tables that are left out: those that cannot be read, that lead to themselves, or that are too many.
    pub(super) left_out: Vec<String>,
    /// Lines for people: what the source reports of itself, and what was guessed. Standard error has them too.
    pub(super) notes: Vec<String>,
}

/// A tree of tables.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tree")]
pub(super) struct TreeObject {
    /// Whose tables they are.
    pub(super) owner: String,
    /// Stage of translation, 1 or 2.
    stage: u32,
    /// Page size in bytes.
    page_size: u64,
    /// Bits of address.
    va_bits: u32,
    /// Bits of output addresses, as TCR or VTCR has them; null if this register is not given.
    pa_bits: Option<u32>,
    /// Address of the root table.
    root: Hex,
    /// Address of the root table of the stage 2 through which this tree is, or null. With one, addresses of tables
    /// and outputs are intermediate physical addresses.
    stage2_root: Option<Hex>,
    /// Origin of the address: `registers`, `options`, `VMCOREINFO`, `the kernel's data`, `a guess`.
    origin: String,
}

impl TreeObject {
    pub(super) fn of(tree: &Tree) -> Self {
        let geometry = tree.geometry();
        Self {
            owner: tree.owner.to_string(),
            stage: text::stage(tree),
            page_size: geometry.page_size().bytes(),
            va_bits: geometry.va_bits(),
            pa_bits: tree.output_size().map(|(bits, _)| bits),
            root: Hex(tree.root.0),
            stage2_root: tree.through.map(|through| Hex(through.root.0)),
            origin: text::origin(tree.origin).to_owned(),
        }
    }
}

/// Neighbouring leaves of one size, with the same attributes and consecutive outputs. Bits that are left to
/// software do not count as attributes.
#[derive(JsonSchema)]
#[schemars(rename = "Range")]
#[expect(dead_code, reason = "describes what is written in pieces")]
struct RangeObject {
    /// Whose tables they are, as in `trees`.
    owner: String,
    /// First address.
    start: Hex,
    /// Size.
    bytes: u64,
    /// Physical address of the first byte.
    output: Hex,
    #[schemars(flatten)]
    tail: RangeTail,
}

/// The part that many ranges share.
#[derive(Serialize, JsonSchema)]
struct RangeTail {
    /// Bytes of one leaf; in a contiguous group of one of its entries.
    leaf_bytes: u64,
    /// Whether the leaves have the contiguous hint.
    contiguous: bool,
    /// Words, those that apply.
    /// - `RW`, `ro`, `wo`, `none`: loads and stores; loads; at stage 2 also stores alone, and neither.
    /// - `PX` or `PXN`, `UX` or `UXN`: the privileged level may execute, or never; EL0.
    /// - `X` or `XN`: the same where there is one privilege, and at stage 2 without FEAT_XNX.
    /// - `user`: EL0 may access (`AP[1]`).
    /// - `AF`, `nG`: the access flag is set; the translation belongs to one address space.
    /// - `ISH`, `OSH`, `NSH`, `SH-reserved`: inner, outer, not shareable; the reserved encoding.
    /// - `SH-TCR`: TCR gives the shareability of every leaf (TCR.DS).
    /// - `SH-unknown`: the root was guessed, so that it is unknown which of the two gives it.
    /// - `DBM`, `GP`: hardware manages the dirty state; guarded page.
    /// - `normal-WB`, `normal-WT`, `normal-NC`, `normal-tagged`, `normal-outer-NC-inner-WB`, ...: Normal memory:
    ///   write-back, write-through, non-cacheable, with allocation tags, different in outer and inner caches.
    /// - `device-nGnRnE`, `device-nGnRE`, `device-nGRE`, `device-GRE`: Device memory.
    /// - `as-stage-1`: stage 2 with FEAT_S2FWB leaves the type to stage 1.
    /// - `index-N`, `reserved-0xN`: index N of a MAIR that is not given; a reserved encoding. The XS attribute is not
    ///   shown.
    ///
    /// Permissions are those that remain: the tables above a leaf can restrict it (APTable, PXNTable, UXNTable),
    /// and the privileged level never executes what EL0 may write. What registers forbid besides (WXN, PAN),
    /// permission overlays and permission indirection are not looked at, and neither is TCR.HPD, which switches the
    /// restrictions of tables off. Of a live machine `notes` have it if it uses HPD, indirection or overlays.
    attributes: Vec<String>,
}

/// Sums over ranges.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Totals")]
pub struct TotalsObject {
    /// Bytes mapped; what is mapped twice counts twice.
    mapped_bytes: u64,
    /// One object for each size of leaves.
    leaves: Vec<LeavesObject>,
    /// Tables that were read, each once.
    tables: u64,
    /// Their memory.
    table_bytes: u64,
    /// TLB entries that hold everything if a contiguous group is one entry.
    tlb_entries: u64,
    /// The same if each leaf is one entry.
    tlb_entries_without_hint: u64,
}

/// Leaves of a size.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Leaves")]
struct LeavesObject {
    /// Bytes of one leaf; in a contiguous group of one of its entries.
    leaf_bytes: u64,
    /// Whether they have the contiguous hint.
    contiguous: bool,
    /// Their number.
    leaves: u64,
    /// Bytes of them together.
    bytes: u64,
}

impl TotalsObject {
    pub(crate) fn of(totals: &Totals) -> Self {
        let leaves = totals.leaves.iter().map(|(kind, count)| LeavesObject {
            leaf_bytes: kind.leaf_bytes,
            contiguous: kind.contiguous,
            leaves: count.leaves,
            bytes: count.bytes,
        });
        Self {
            mapped_bytes: totals.mapped(),
            leaves: leaves.collect(),
            tables: totals.tables,
            table_bytes: totals.table_bytes,
            tlb_entries: totals.tlb(true).number(),
            tlb_entries_without_hint: totals.tlb(false).number(),
        }
    }
}

/// The texts of objects besides addresses, and the last object. There may be millions of ranges, so an object is
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
    let object = value(RangeTail {
        leaf_bytes: range.leaf_bytes,
        contiguous: range.contiguous,
        attributes: words,
    })
    .to_string();
    // Without the brace at the beginning.
    let rest = object.strip_prefix('{').unwrap_or(&object);
    format!("\",{rest}")
}
