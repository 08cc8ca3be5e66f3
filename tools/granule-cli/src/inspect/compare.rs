//! `granule dump --diff`: two sources compared, tree by tree.

use std::io::Write;

use granule_inspect::Opened;
use granule_inspect::diff::{Listed, diff};
use granule_inspect::ranges::Range;
use granule_inspect::tree::Tree;
use schemars::JsonSchema;
use serde::Serialize;

use super::args::DumpArgs;
use super::listing::ranges;
use super::{Failure, Interrupt, Progress, UNREADABLE, go_on};
use crate::json::{Hex, Version, value};

/// The exit code if there is a difference.
const DIFFERENT: u8 = 1;

/// With `--diff`. The exit code is 0 if there is no difference, 1 if there is one, 3 if a root table cannot be
/// read. Trees are compared by their owner.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Differences {
    schema: Version,
    /// The differences, by tree and then by address.
    differences: Vec<Difference>,
    /// Lines for people: what the sources report of themselves, and what was guessed or not read.
    notes: Vec<String>,
}

/// Neighbouring addresses at which the two sources differ in the same way.
#[derive(Serialize, JsonSchema)]
struct Difference {
    /// Whose tables they are.
    owner: String,
    /// First address.
    start: Hex,
    /// Size.
    bytes: u64,
    /// Mapping of the old source at the first of the addresses; null where it maps nothing.
    old: Option<String>,
    /// Mapping of the new source there; null where it maps nothing.
    new: Option<String>,
}

/// The ranges of a tree, and whether its root can be read.
fn listed(
    args: &DumpArgs,
    opened: &Opened,
    tree: &Tree,
    notes: &mut dyn FnMut(String),
    progress: Progress<'_>,
) -> Result<(Vec<Range>, bool), Failure> {
    let mut found = Vec::new();
    let walked = ranges(args.selection(), &*opened.memory, tree, progress, |range| {
        found.push(*range);
        Ok(())
    })?;
    walked.lines().for_each(notes);
    Ok((found, !walked.no_root))
}

pub(super) fn run(
    args: &DumpArgs,
    old: &Opened,
    new: &Opened,
    out: &mut dyn Write,
    notes: &mut dyn FnMut(&str),
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let mut others: Vec<&Tree> = new.trees.iter().collect();
    let mut pairs: Vec<(Option<&Tree>, Option<&Tree>)> = Vec::new();
    for tree in &old.trees {
        let same = others.iter().position(|other| other.owner == tree.owner);
        pairs.push((Some(tree), same.map(|at| others.remove(at))));
    }
    pairs.extend(others.into_iter().map(|tree| (None, Some(tree))));
    let (mut objects, mut number, mut readable) = (Vec::new(), 0, true);
    let mut lines: Vec<String> = old.notes.iter().chain(&new.notes).cloned().collect();
    for (one, other) in pairs {
        let mut both = [Vec::new(), Vec::new()];
        for ((opened, tree), list) in [(old, one), (new, other)].into_iter().zip(&mut both) {
            if let Some(tree) = tree {
                let mut note = |line: String| {
                    notes(&line);
                    lines.push(line);
                };
                let (found, read) = listed(args, opened, tree, &mut note, progress)?;
                go_on(interrupt)?;
                *list = found;
                readable &= read;
            }
        }
        // A tree that one source does not have maps nothing there.
        let Some(shape) = one.or(other) else { continue };
        let [olds, news] = &both;
        let (old, new) = (
            Listed {
                tree: one.unwrap_or(shape),
                ranges: olds,
            },
            Listed {
                tree: other.unwrap_or(shape),
                ranges: news,
            },
        );
        let found = diff(old, new);
        number += found.len();
        if args.json {
            objects.extend(found.into_iter().map(|it| Difference {
                owner: shape.owner.to_string(),
                start: Hex(it.start),
                bytes: it.bytes,
                old: it.old,
                new: it.new,
            }));
            continue;
        }
        for difference in &found {
            writeln!(out, "{}: {difference}", shape.owner)?;
        }
    }
    if args.json {
        let object = value(Differences {
            schema: Version,
            differences: objects,
            notes: lines,
        });
        writeln!(out, "{object}")?;
    } else if number == 0 {
        writeln!(out, "no differences")?;
    }
    Ok(match (readable, number) {
        (false, _) => UNREADABLE,
        (true, 0) => 0,
        (true, _) => DIFFERENT,
    })
}
