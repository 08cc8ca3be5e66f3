//! The data of one source for the page: its trees as maps, their totals, findings. Everything is bounded:
//! cells by `--detail`, findings by `--most`, trees by [`MOST_TREES`].

use std::collections::BTreeSet;

use granule_inspect::Opened;
use granule_inspect::attributes::Decoded;
use granule_inspect::fields::size;
use granule_inspect::lint::{self, lint};
use granule_inspect::map::{Access, Cell, Content, Drawn, draw, share};
use granule_inspect::totals::{LeafKind, Totals};
use granule_inspect::tree::Tree;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::json::{TotalsObject, TreeObject};
use super::super::lint::{FindingObject, NotListed, listed, not_listed};
use super::super::{Progress, Step};
use crate::json::Hex;
use crate::page::visible;

/// The most trees of a source that the page shows; the others are counted.
const MOST_TREES: usize = 256;

/// The sizes of TLBs for which the reach is shown: powers of two up to this one.
const MOST_ENTRIES: u32 = 14;

pub(super) struct OfSource {
    pub(super) object: Source,
    /// Whether a root cannot be read.
    pub(super) no_root: bool,
}

/// A source on the page.
#[derive(Serialize)]
pub(super) struct Source {
    name: String,
    notes: Vec<String>,
    trees: Vec<Drawing>,
    /// Trees that are not shown.
    more_trees: u64,
    totals: Reaching,
    findings: Vec<FindingObject>,
    not_listed: Vec<NotListed>,
}

/// A tree on the page.
#[derive(Serialize)]
struct Drawing {
    #[serde(flatten)]
    tree: TreeObject,
    /// First address.
    base: Hex,
    kinds: Vec<LeafKindObject>,
    attributes: Vec<Words>,
    /// Cells as arrays, which are short in JSON: `[offset, bytes, ranges, kind, attributes, output]` of leaves
    /// alike, `[offset, bytes, ranges, parts]` of others, with `[kind, access, bytes]` of each part.
    cells: Vec<Value>,
    ranges: u64,
    /// Cells of several kinds.
    mixed: u64,
    /// Size of the smallest cell, if ranges were put together.
    window: Option<String>,
    left_out: Vec<String>,
    more_left_out: u64,
    totals: Reaching,
}

/// A kind of leaves.
#[derive(Serialize)]
struct LeafKindObject {
    bytes: u64,
    contiguous: bool,
    what: &'static str,
}

/// Attributes in words.
#[derive(Serialize)]
struct Words {
    words: String,
    access: String,
}

/// Totals with the reach of TLBs of 1, 2, 4 ... entries.
#[derive(Serialize)]
struct Reaching {
    #[serde(flatten)]
    totals: TotalsObject,
    reach: Vec<u64>,
    reach_without_hint: Vec<u64>,
}

/// The data of a source with at most `detail` cells.
pub(super) fn source(
    name: &str,
    opened: &Opened,
    detail: usize,
    most: usize,
    progress: Progress<'_>,
) -> OfSource {
    let mut tables = |tables| progress(Step::Tables(tables));
    let mut drawn: Vec<(&Tree, Drawn)> = Vec::new();
    let (mut all, mut no_root, mut more_trees) = (Totals::default(), false, 0_u64);
    let mut met = BTreeSet::new();
    for tree in &opened.trees {
        // CPUs that run the same program have the same root.
        if !met.insert((tree.root.0, format!("{:?}", tree.geometry()))) {
            continue;
        }
        let mut one = draw(&*opened.memory, tree, detail, &mut tables);
        all.add(&one.totals);
        no_root |= one.no_root;
        if drawn.len() == MOST_TREES {
            more_trees += 1;
            continue;
        }
        one.map.shrink(tree, detail);
        drawn.push((tree, one));
        if cells(&drawn) > detail.saturating_mul(2) {
            fit(&mut drawn, detail);
        }
    }
    fit(&mut drawn, detail);
    let options = lint::LintOptions {
        most,
        ..lint::LintOptions::default()
    };
    let linted = lint(&*opened.memory, &opened.trees, &options, &mut tables);
    let trees = drawn.iter().map(|(tree, drawn)| of_tree(tree, drawn));
    let object = Source {
        name: visible(name),
        notes: opened.notes.iter().map(|note| visible(note)).collect(),
        trees: trees.collect(),
        more_trees,
        totals: totals(&all),
        findings: listed(&linted.findings, visible),
        not_listed: not_listed(&linted.findings),
    };
    OfSource { object, no_root }
}

fn cells(drawn: &[(&Tree, Drawn)]) -> usize {
    drawn.iter().map(|(_, one)| one.map.cells.len()).sum()
}

/// Makes the maps fit together.
fn fit(drawn: &mut [(&Tree, Drawn)], detail: usize) {
    let needs: Vec<usize> = drawn.iter().map(|(_, one)| one.map.cells.len()).collect();
    let each = share(&needs, detail);
    for (tree, one) in drawn {
        one.map.shrink(tree, each);
    }
}

/// Numbers things in the order in which they are met.
struct Numbers<T>(Vec<T>, std::collections::HashMap<T, usize>);

impl<T: Copy + Eq + std::hash::Hash> Numbers<T> {
    fn of(&mut self, thing: T) -> usize {
        let next = self.0.len();
        let number = *self.1.entry(thing).or_insert(next);
        if number == next {
            self.0.push(thing);
        }
        number
    }
}

/// A tree: its place and shape, and its cells.
fn of_tree(tree: &Tree, drawn: &Drawn) -> Drawing {
    let map = &drawn.map;
    let base = tree.geometry().base().0;
    let mut kinds: Vec<LeafKind> = drawn.totals.leaves.keys().copied().collect();
    // Totals of partial walks have all kinds too, and the map no other.
    kinds.sort_unstable();
    let kind_of = |kind: &LeafKind| kinds.binary_search(kind).unwrap_or_default();
    let mut attributes = Numbers(Vec::new(), std::collections::HashMap::new());
    let mut mixed = 0_u64;
    let mut cell_of = |cell: &Cell| {
        let offset = cell.start.wrapping_sub(base);
        match &cell.content {
            Content::Alike {
                output,
                kind,
                attributes: bits,
                ..
            } => json!([
                offset,
                cell.bytes,
                cell.ranges,
                kind_of(kind),
                attributes.of(*bits),
                output
            ]),
            Content::Mixed(parts) => {
                mixed += 1;
                let parts = parts.iter().map(|((kind, access), bytes)| {
                    json!([kind_of(kind), access.to_string(), bytes])
                });
                json!([offset, cell.bytes, cell.ranges, parts.collect::<Vec<_>>()])
            }
        }
    };
    let cells: Vec<Value> = map.cells.iter().map(&mut cell_of).collect();
    let words = attributes.0.iter().map(|&bits| {
        let decoded = Decoded::new(tree, bits);
        Words {
            words: decoded.to_string(),
            access: Access::of(&decoded).to_string(),
        }
    });
    let page = tree.geometry().page_size().bytes();
    let name = |kind: &LeafKind| LeafKindObject {
        bytes: kind.leaf_bytes,
        contiguous: kind.contiguous,
        what: if kind.leaf_bytes == page {
            "page"
        } else {
            "block"
        },
    };
    let mut shape = TreeObject::of(tree);
    shape.owner = visible(&shape.owner);
    let window = map.window.filter(|shift| *shift < u64::BITS);
    let left_out = drawn.left_out.iter().map(|it| visible(&it.to_string()));
    Drawing {
        tree: shape,
        base: Hex(base),
        kinds: kinds.iter().map(name).collect(),
        attributes: words.collect(),
        cells,
        ranges: map.ranges,
        mixed,
        window: window.map(|shift| size(1 << shift)),
        left_out: left_out.collect(),
        more_left_out: drawn.more_left_out,
        totals: totals(&drawn.totals),
    }
}

fn totals(totals: &Totals) -> Reaching {
    let reach = |hint| {
        let entries = (0..=MOST_ENTRIES).map(|shift| totals.reach(1 << shift, hint));
        entries.collect()
    };
    Reaching {
        totals: TotalsObject::of(totals),
        reach: reach(true),
        reach_without_hint: reach(false),
    }
}
