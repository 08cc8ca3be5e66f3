//! The rules `memory-clash` and `writable-text`: the same memory in several mappings, of one tree or
//! of several. They look at ranges by their output.
//!
//! Outputs of stage 1 under a hypervisor are the guest's own addresses. So trees are compared with those of the
//! same stage and below the same stage 2.

use super::finding::Findings;
use super::rule::{Rule, Severity};
use crate::attributes::{Decoded, Sharing};
use crate::memory_type::MemoryType;
use crate::ranges::Range;
use crate::tree::{Shape, Tree};
use granule::arch::Shareability;
use std::collections::BTreeSet;
use std::fmt;

/// A mapping, by its output.
#[derive(Clone, Copy)]
struct Mapping<'t> {
    tree: &'t Tree,
    range: &'t Range,
    class: Class,
    writable: bool,
    /// Whether the privileged level executes it and cannot write it.
    text: bool,
}

/// The attributes that all mappings of a memory must share.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Class {
    memory: MemoryType,
    /// `None` where the descriptor does not encode it.
    shareability: Option<Shareability>,
}

impl Class {
    /// Whether the two disagree. An unknown attribute disagrees with nothing.
    fn disagrees(self, other: Self) -> bool {
        let known = self.shareability.zip(other.shareability);
        self.memory != other.memory || known.is_some_and(|(one, other)| one != other)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.memory)?;
        f.write_str(match self.shareability {
            Some(Shareability::Inner) => " ISH",
            Some(Shareability::Outer) => " OSH",
            Some(Shareability::None) => " NSH",
            None => "",
        })
    }
}

impl Mapping<'_> {
    const fn end(&self) -> u64 {
        self.range.output.saturating_add(self.range.bytes)
    }

    /// The virtual address of an output.
    const fn address(&self, output: u64) -> u64 {
        self.range
            .start
            .wrapping_add(output.wrapping_sub(self.range.output))
    }
}

pub(super) fn check(mapped: &[(&Tree, Vec<Range>)], findings: &mut Findings) {
    let space = |tree: &Tree| {
        let through = tree.through.map(|through| through.root);
        (matches!(tree.shape, Shape::Stage2(_)), through)
    };
    let spaces: BTreeSet<_> = mapped.iter().map(|(tree, _)| space(tree)).collect();
    for one in spaces {
        let mut mappings = Vec::new();
        for (tree, ranges) in mapped.iter().filter(|(tree, _)| space(tree) == one) {
            mappings.reserve(ranges.len());
            for range in ranges {
                // Most have the attributes of the one before.
                let known = mappings.last().filter(|last: &&Mapping<'_>| {
                    std::ptr::eq(last.tree, *tree) && last.range.attributes == range.attributes
                });
                let next = match known {
                    Some(known) => Mapping { range, ..*known },
                    None => mapping(tree, range),
                };
                mappings.push(next);
            }
        }
        mappings.sort_unstable_by_key(|mapping| (mapping.range.output, mapping.range.start));
        sweep(&mappings, findings);
    }
}

fn mapping<'t>(tree: &'t Tree, range: &'t Range) -> Mapping<'t> {
    let decoded = Decoded::new(tree, range.attributes);
    let memory = decoded.memory.untagged();
    let class = Class {
        memory,
        // A descriptor's own shareability counts for memory that caches may hold.
        shareability: match decoded.sharing {
            _ if memory.always_outer() => Some(Shareability::Outer),
            Sharing::Known(shareability) => Some(shareability),
            Sharing::Reserved | Sharing::OfTcr | Sharing::Unknown => None,
        },
    };
    Mapping {
        tree,
        range,
        class,
        writable: decoded.writable,
        text: !decoded.stage2 && decoded.privileged_execute && !decoded.writable,
    }
}

/// Goes through mappings by ascending output. Of those that began before, it remembers of each kind
/// the one that ends last: if any of the kind overlaps, that one does.
fn sweep<'t>(mappings: &[Mapping<'t>], findings: &mut Findings) {
    let mut classes: Vec<Mapping<'t>> = Vec::new();
    let (mut writable, mut text): (Option<Mapping<'t>>, Option<Mapping<'t>>) = (None, None);
    for mapping in mappings {
        let mut known = false;
        for other in &mut classes {
            if other.class == mapping.class {
                later(other, mapping);
                known = true;
            } else if other.end() > mapping.range.output && other.class.disagrees(mapping.class) {
                clash(mapping, other, findings);
            }
        }
        if !known {
            classes.push(*mapping);
        }
        if mapping.text {
            if let Some(other) = writable.filter(|other| other.end() > mapping.range.output) {
                writable_text(mapping, &other, findings);
            }
            later(text.get_or_insert(*mapping), mapping);
        }
        if mapping.writable {
            if let Some(other) = text.filter(|other| other.end() > mapping.range.output) {
                writable_text(&other, mapping, findings);
            }
            later(writable.get_or_insert(*mapping), mapping);
        }
    }
}

fn later<'t>(kept: &mut Mapping<'t>, next: &Mapping<'t>) {
    if next.end() > kept.end() {
        *kept = *next;
    }
}

/// The first output and the bytes that two mappings have in common.
fn common(one: &Mapping<'_>, other: &Mapping<'_>) -> (u64, u64) {
    let first = one.range.output.max(other.range.output);
    (first, one.end().min(other.end()).saturating_sub(first))
}

fn clash(mapping: &Mapping<'_>, other: &Mapping<'_>, findings: &mut Findings) {
    let (output, bytes) = common(mapping, other);
    findings.add(
        (Rule::MemoryClash, Severity::Warning),
        &mapping.tree.owner,
        (mapping.address(output), bytes),
        || {
            format!(
                "{output:#x} is {} here and {} at {:#x} of {}",
                mapping.class,
                other.class,
                other.address(output),
                other.tree.owner
            )
        },
    );
}

fn writable_text(text: &Mapping<'_>, writable: &Mapping<'_>, findings: &mut Findings) {
    let (output, bytes) = common(text, writable);
    findings.add(
        (Rule::WritableText, Severity::Warning),
        &writable.tree.owner,
        (writable.address(output), bytes),
        || {
            format!(
                "text at {output:#x}, which {} executes at {:#x}, is writable here",
                text.tree.owner,
                text.address(output)
            )
        },
    );
}
