//! `granule dump`: lists ranges as they are found, or explains one address. Comparing two sources is
//! in `compare`.

use std::io::Write;

use granule::arch::VirtualAddress;
use granule_inspect::Opened;
use granule_inspect::explain::{End, explain};
use granule_inspect::totals::Totals;
use granule_inspect::tree::Tree;
use granule_inspect::walk::Tables;
use schemars::JsonSchema;
use serde::Serialize;

use super::args::DumpArgs;
use super::json::{Head, Objects, Tail, TotalsObject, TreeObject};
use super::listing::ranges;
use super::text::Lines;
use super::{Failure, Interrupt, Progress, UNREADABLE, compare, go_on, open, text};
use crate::json::{Hex, Version, value};

/// Carries the command out and returns its exit code. Notes go to `notes`, a line each.
/// Fails if the source cannot be read, or the output not be written.
pub fn run(
    args: &DumpArgs,
    out: &mut dyn Write,
    notes: &mut dyn FnMut(&str),
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    if args.first > args.last {
        let (first, last) = (args.first, args.last);
        return Err(Failure::Source(format!(
            "--from {first:#x} lies above --to {last:#x}: give the lower address first"
        )));
    }
    let options = args.from.options();
    let opened = open(&args.from.source()?, &options, progress, interrupt)?;
    opened.notes.iter().for_each(|note| notes(note));
    if let Some(other) = &args.diff {
        let other = open(other, &options, progress, interrupt)?;
        other.notes.iter().for_each(|note| notes(note));
        return compare::run(args, &opened, &other, out, notes, progress, interrupt);
    }
    match args.explain {
        Some(address) => explained(args, &opened, address, out, interrupt),
        None if args.json => in_json(args, &opened, out, progress, interrupt),
        None => in_words(args, &opened, out, progress, interrupt),
    }
}

const fn code(no_root: bool) -> u8 {
    if no_root { UNREADABLE } else { 0 }
}

fn in_words(
    args: &DumpArgs,
    opened: &Opened,
    out: &mut dyn Write,
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let mut no_root = false;
    for tree in &opened.trees {
        text::heading(out, tree)?;
        let mut lines = Lines::default();
        let walked = ranges(args.selection(), &*opened.memory, tree, progress, |range| {
            lines.range(out, tree, range)
        })?;
        go_on(interrupt)?;
        for line in walked.lines() {
            writeln!(out, "{line}")?;
        }
        text::totals(out, &walked.totals)?;
        no_root |= walked.no_root;
    }
    Ok(code(no_root))
}

/// Ranges are written as they come, so the object is put together by hand.
fn in_json(
    args: &DumpArgs,
    opened: &Opened,
    out: &mut dyn Write,
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let shape = opened.trees.first().map(Tree::geometry);
    let head = value(Head {
        schema: Version,
        page_size: shape.map(|shape| shape.page_size().bytes()),
        va_bits: shape.map(|shape| shape.va_bits()),
        trees: opened.trees.iter().map(TreeObject::of).collect(),
    })
    .to_string();
    // Without the brace at the end.
    let head = head.strip_suffix('}').unwrap_or(&head);
    write!(out, "{head},\"ranges\":[")?;
    let mut comma = "\n";
    let (mut all, mut left_out, mut no_root) = (Totals::default(), Vec::new(), false);
    for tree in &opened.trees {
        let mut objects = Objects::new(tree);
        let walked = ranges(args.selection(), &*opened.memory, tree, progress, |range| {
            out.write_all(comma.as_bytes())?;
            comma = ",\n";
            objects.range(out, tree, range)
        })?;
        go_on(interrupt)?;
        all.add(&walked.totals);
        left_out.extend(walked.lines());
        no_root |= walked.no_root;
    }
    let tail = value(Tail {
        totals: TotalsObject::of(&all),
        left_out,
        notes: opened.notes.clone(),
    })
    .to_string();
    // Without the brace at the beginning.
    writeln!(out, "],{}", tail.strip_prefix('{').unwrap_or(&tail))?;
    Ok(code(no_root))
}

/// With `--explain`. The exit code is 0, or 3 if a root table cannot be read.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Explained {
    schema: Version,
    /// Address to explain.
    address: Hex,
    /// One object for each tree that translates the address.
    explained: Vec<Walk>,
    /// Lines for people: what the source reports of itself, and what was guessed. Standard error has them too.
    notes: Vec<String>,
}

/// A walk of the tables.
#[derive(Serialize, JsonSchema)]
struct Walk {
    /// Whose tables they are.
    owner: String,
    /// Descriptors on the way.
    steps: Vec<Step>,
    /// A sentence with the output or the fault.
    end: String,
}

/// A descriptor on the way.
#[derive(Serialize, JsonSchema)]
struct Step {
    /// Level, -1 to 3.
    level: i32,
    /// Physical address of the table.
    table: Hex,
    /// Index in the table.
    index: usize,
    /// The descriptor's bits.
    descriptor: Hex,
    /// The descriptor in words.
    text: String,
}

fn explained(
    args: &DumpArgs,
    opened: &Opened,
    address: u64,
    out: &mut dyn Write,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let translates = |tree: &&Tree| {
        let address = VirtualAddress(tree.untagged(address));
        tree.geometry().offset(address).is_some()
    };
    let mut trees: Vec<&Tree> = opened.trees.iter().filter(translates).collect();
    if trees.is_empty() {
        // The first one reports that it does not.
        trees.extend(opened.trees.first());
    }
    let (mut objects, mut no_root) = (Vec::new(), false);
    for tree in trees {
        let tables = Tables::new(&*opened.memory, tree);
        let explained = explain(&tables, tree, address);
        go_on(interrupt)?;
        let unreadable = matches!(explained.end, End::Unreadable { .. });
        no_root |= unreadable && explained.steps.is_empty();
        if !args.json {
            text::heading(out, tree)?;
            write!(out, "{explained}")?;
            continue;
        }
        let steps = explained.steps.iter().map(|step| Step {
            level: step.level.number(),
            table: Hex(step.table.0),
            index: step.index,
            descriptor: Hex(step.descriptor.0),
            text: step.text.clone(),
        });
        objects.push(Walk {
            owner: tree.owner.to_string(),
            steps: steps.collect(),
            end: explained.end_in_words(),
        });
    }
    if args.json {
        let object = value(Explained {
            schema: Version,
            address: Hex(address),
            explained: objects,
            notes: opened.notes.clone(),
        });
        writeln!(out, "{object}")?;
    }
    Ok(code(no_root))
}
