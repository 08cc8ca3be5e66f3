//! The rules `missed-contiguous` and `missed-block`: leaves that could be larger, and what that would
//! win. They look at ranges, in which neighbours with the same attributes are one whatever their size.

use super::finding::Findings;
use super::rule::{Rule, Severity};
use crate::fields::{about, size};
use crate::ranges::Range;
use crate::totals::{Entries, Totals};
use crate::tree::Tree;
use granule::arch::{LeafSize, Level};

pub(super) fn check(tree: &Tree, ranges: &[Range], findings: &mut Findings) {
    let sizes: Vec<LeafSize> = tree.geometry().leaf_sizes().collect();
    for alike in ranges.chunk_by(Range::continues_in) {
        one(tree, &sizes, alike, findings);
    }
}

/// Ranges that continue each other with the same attributes.
fn one(tree: &Tree, sizes: &[LeafSize], ranges: &[Range], findings: &mut Findings) {
    let Some(first) = ranges.first() else { return };
    let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
    // Nothing larger than one leaf fits into it.
    if bytes == first.leaf_bytes {
        return;
    }
    let best = best(sizes, first.start, first.output, bytes);
    let mut now = Totals::default();
    for range in ranges {
        now.add_range(tree, range);
    }
    let mut entries = Entries::default();
    for (leaf, count) in &best {
        entries.add(leaf.bytes, *count);
    }
    let (has, needs) = (now.tlb(true).number(), entries.number());
    if needs >= has {
        return;
    }
    let tables = saved(tree, ranges, &best);
    let rule = if tables > 0 {
        Rule::MissedBlock
    } else {
        Rule::MissedContiguous
    };
    findings.add(
        (rule, Severity::Info),
        &tree.owner,
        (first.start, bytes),
        || {
            let leaves: Vec<String> = best
                .iter()
                .map(|(leaf, count)| {
                    let entry = tree.geometry().page_size().entry_bytes(leaf.level);
                    let plural = if *count == 1 { "" } else { "s" };
                    match leaf.contiguous {
                        true => format!(
                            "{count} group{plural} of {} entries of {}",
                            leaf.bytes / entry,
                            size(entry)
                        ),
                        false => format!("{count} x {}", size(entry)),
                    }
                })
                .collect();
            let memory = match tables {
                0 => String::new(),
                _ => {
                    let bytes = tables * tree.geometry().page_size().bytes();
                    format!(" and save {} of table memory", about(bytes))
                }
            };
            format!(
                "{has} TLB entries hold {} where {needs} would: {} would do{memory}, and an entry \
                 would reach {} instead of {} on average",
                size(bytes),
                leaves.join(", "),
                about(bytes / needs),
                about(bytes / has),
            )
        },
    );
}

/// The largest leaves that map `bytes` bytes from `start` on, largest size first.
fn best(sizes: &[LeafSize], start: u64, output: u64, bytes: u64) -> Vec<(LeafSize, u64)> {
    // Pieces that no larger leaf could map: at first the whole range.
    let mut left = vec![(start, bytes)];
    let mut found = Vec::new();
    for leaf in sizes {
        if !start.wrapping_sub(output).is_multiple_of(leaf.bytes) {
            continue;
        }
        let mut count = 0;
        let mut rest = Vec::new();
        for (start, bytes) in left {
            let head = start.wrapping_neg() % leaf.bytes;
            let whole = bytes.saturating_sub(head) / leaf.bytes;
            if whole == 0 {
                rest.push((start, bytes));
                continue;
            }
            count += whole;
            let middle = whole * leaf.bytes;
            let tail = bytes - head - middle;
            if head > 0 {
                rest.push((start, head));
            }
            if tail > 0 {
                rest.push((start.wrapping_add(head + middle), tail));
            }
        }
        left = rest;
        if count > 0 {
            found.push((*leaf, count));
        }
    }
    found
}

/// The tables that disappear if the leaves of `ranges` become the `best` ones.
fn saved(tree: &Tree, ranges: &[Range], best: &[(LeafSize, u64)]) -> u64 {
    let size = tree.geometry().page_size();
    let mut tables = 0;
    // Addresses that a leaf of a level or above maps need no table of the next level.
    for level in Level::ALL.into_iter().filter(|level| *level != Level::L3) {
        let without: u64 = best
            .iter()
            .filter(|(leaf, _)| leaf.level <= level)
            .map(|(leaf, count)| leaf.bytes * count)
            .sum();
        let now: u64 = ranges
            .iter()
            .filter(|range| range.level <= level)
            .map(|range| range.bytes)
            .sum();
        tables += without.saturating_sub(now) >> size.level_shift(level);
    }
    tables
}
