//! `granule lint`: findings in words and in JSON, accepted ones left out, and how far a TLB reaches.

use std::io::Write;

use granule_inspect::fields::about;
use granule_inspect::lint::{Accepted, Findings, LintOptions, Linted, Severity, lint};
use granule_inspect::memory_map::MemoryMap;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::args::LintArgs;
use super::{Failure, Interrupt, Progress, Step, UNREADABLE, go_on, open};
use crate::json::{Hex, Version, value};

/// The value of `--memory-map` for what the memory has.
const FOUND: &str = "found";

/// Carries the command out and returns its exit code. Notes go to `notes`, a line each.
/// Fails if the source or the file of accepted findings cannot be read, or the output not be written.
pub fn run(
    args: &LintArgs,
    out: &mut dyn Write,
    notes: &mut dyn FnMut(&str),
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let file = memory_map_file(args)?;
    let opened = open(
        &args.from.source()?,
        &args.from.options(),
        progress,
        interrupt,
    )?;
    let mut lines = opened.notes.clone();
    let memory_map = match (&args.memory_map, file) {
        (Some(_), None) => {
            let map = MemoryMap::find(&*opened.memory, &mut |_| {}).map_err(Failure::Source)?;
            lines.push(format!(
                "no-map memory is that of {}: {} ranges",
                map.origin,
                map.no_map.len()
            ));
            Some(map)
        }
        (_, file) => file,
    };
    let options = LintOptions {
        rules: args.rule.clone(),
        accepted: accepted(args, &mut lines)?,
        most: args.most,
        memory_map,
        ..LintOptions::default()
    };
    let linted = lint(&*opened.memory, &opened.trees, &options, &mut |tables| {
        progress(Step::Tables(tables));
    });
    go_on(interrupt)?;
    if linted.beyond_limit > 0 {
        lines.push(format!(
            "{} tables were not looked at: a tree has more than {}, or they come again too often",
            linted.beyond_limit, options.most_tables
        ));
    }
    let accepted = &linted.findings.accepted;
    let left_out = accepted.uses();
    if let Some(path) = &args.accept {
        let unused = accepted.unused(&args.rule);
        lines.extend(unused.map(|unused| format!("{}: {unused}", path.display())));
    }
    lines.iter().for_each(|note| notes(note));
    if args.json {
        writeln!(out, "{}", object(args, &linted, left_out, &lines))?;
    } else {
        in_words(args, &linted, left_out, out)?;
    }
    Ok(match linted.findings.worst() {
        _ if linted.no_root => UNREADABLE,
        None | Some(Severity::Info) => 0,
        Some(Severity::Warning) => 1,
        Some(Severity::Error) => 2,
    })
}

/// The map of the file of `--memory-map`, if that names one.
fn memory_map_file(args: &LintArgs) -> Result<Option<MemoryMap>, Failure> {
    let Some(path) = args
        .memory_map
        .as_ref()
        .filter(|path| path.as_os_str() != FOUND)
    else {
        return Ok(None);
    };
    let name = path.display();
    let text = std::fs::read(path).map_err(|error| Failure::Source(format!("{name}: {error}")))?;
    let map = MemoryMap::of_lines(&String::from_utf8_lossy(&text));
    map.map(Some)
        .map_err(|line| Failure::MemoryMap(format!("{name}: {line}")))
}

fn accepted(args: &LintArgs, lines: &mut Vec<String>) -> Result<Accepted, Failure> {
    let Some(path) = &args.accept else {
        return Ok(Accepted::default());
    };
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Source(format!("{name}: {error}")))?;
    let (accepted, bad) = Accepted::parse(&text);
    lines.extend(bad.iter().map(|bad| format!("{name}: {bad}")));
    Ok(accepted)
}

/// The part of the mapped memory that a TLB holds.
struct Reach {
    owner: String,
    entries: u64,
    mapped: u64,
    with: u64,
    without: u64,
}

fn reaches(args: &LintArgs, linted: &Linted) -> Vec<Reach> {
    let mut found = Vec::new();
    let mapped = linted.totals.iter().filter(|it| it.1.mapped() > 0);
    for (owner, totals) in mapped {
        found.extend(args.tlb.iter().map(|&entries| Reach {
            owner: owner.to_string(),
            entries,
            mapped: totals.mapped(),
            with: totals.reach(entries, true),
            without: totals.reach(entries, false),
        }));
    }
    found
}

impl Reach {
    fn percent(&self, bytes: u64) -> f64 {
        bytes as f64 * 100.0 / self.mapped as f64
    }
}

fn in_words(
    args: &LintArgs,
    linted: &Linted,
    left_out: u64,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    for finding in &linted.findings.list {
        writeln!(out, "{finding}")?;
    }
    for ((rule, severity), more) in &linted.findings.more {
        writeln!(
            out,
            "{severity} {}: {more} more, not listed (--most)",
            rule.name()
        )?;
    }
    for reach in reaches(args, linted) {
        writeln!(
            out,
            "modelled: {} TLB entries hold {:.1} % of the {} of {} ({}), {:.1} % ({}) without the contiguous hint",
            reach.entries,
            reach.percent(reach.with),
            about(reach.mapped),
            reach.owner,
            about(reach.with),
            reach.percent(reach.without),
            about(reach.without),
        )?;
    }
    let number = |severity| count(linted, severity);
    writeln!(
        out,
        "errors: {}, warnings: {}, infos: {}; accepted: {left_out}",
        number(Severity::Error),
        number(Severity::Warning),
        number(Severity::Info),
    )?;
    Ok(())
}

/// The findings of one severity, those that are only counted too.
fn count(linted: &Linted, severity: Severity) -> u64 {
    let listed = linted.findings.list.iter();
    let more = linted.findings.more.iter();
    listed.filter(|it| it.severity == severity).count() as u64
        + more
            .filter(|(key, _)| key.1 == severity)
            .map(|(_, more)| more)
            .sum::<u64>()
}

/// Result of `granule lint --json`: exactly one object on standard output if the source could be opened. If it could
/// not, there is no object, but one line on standard error, and the exit code is 3, as for bad usage, and 2 for a line
/// of `--memory-map` that is none. Else it is 0
/// if there is nothing worse than `info`, 1 for a warning, 2 for an error, and 3 if a root table cannot be read.
///
/// The rules:
/// - `writable-executable` (error; warning at EL0): memory that one privilege may both store to and execute.
/// - `contiguous` (error): a contiguous group whose valid entries disagree on the hint, outputs or attributes, or
///   whose output is not aligned. Invalid members, the access flag and the dirty state are not a disagreement.
/// - `memory-clash` (warning): the same memory with different memory types or shareability, in one tree or in
///   several of a stage. Allocation hints and tags are not a difference.
/// - `reserved-bits` (warning): bits that are RES0, and reserved encodings of the kind, shareability and memory
///   type.
/// - `output-size` (error): an address beyond the output size that TCR (IPS, or PS where there is one half) or VTCR
///   (PS) sets, of trees whose registers are given. A CPU may have fewer physical addresses than that:
///   ID_AA64MMFR0_EL1.PARange is not looked at.
/// - `shared-table` (warning): a table that more than one entry leads to, in one tree or in several.
/// - `loop` (warning): a table that leads to itself.
/// - `writable-text` (warning): a writable mapping of text that the privileged level executes and does not write.
/// - `unreadable-table` (error): a table that the source does not have.
/// - `hypervisor-memory` (error; warning if it is not writable): tables of EL2 or of stage 2, or code of EL2, that
///   stage 2 maps.
/// - `no-map` (warning; info for Device memory): memory that must not be mapped, after `--memory-map`, and is.
/// - `kept-shareability` (info): outputs with bits 51:50 at which no memory is, under TCR.DS.
/// - `contiguous-state` (info): a contiguous group whose entries differ in the access flag or the dirty state.
/// - `missed-contiguous`, `missed-block` (info): leaves that could have the hint, or be blocks: TLB entries and table
///   memory that this would win.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule lint --json")]
pub(crate) struct Object {
    schema: Version,
    /// Findings, the worst first; of each rule and severity at most as many as `--most` allows.
    findings: Vec<FindingObject>,
    /// Findings beyond `--most`. They count for the exit code.
    not_listed: Vec<NotListed>,
    /// Number of findings that `--accept` left out; they do not count for `--most`.
    accepted: u64,
    /// One object for each tree that maps something and each number of `--tlb`.
    tlb: Vec<ReachObject>,
    /// Lines for people, also on standard error: what the source reports of itself, what was guessed, and lines of
    /// the file of `--accept` that are none or accept nothing.
    notes: Vec<String>,
}

/// A finding.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
pub(super) struct FindingObject {
    /// Rule.
    rule: &'static str,
    /// First address that it concerns.
    address: Hex,
    /// Bytes that it concerns.
    bytes: u64,
    /// `info`, `warning`, `error`.
    severity: String,
    /// The finding in words, and its consequence.
    text: String,
    /// Whose tables they are.
    owner: String,
}

/// Findings of a rule and severity that are only counted.
#[derive(Serialize, JsonSchema)]
pub(super) struct NotListed {
    /// Rule.
    rule: &'static str,
    /// `info`, `warning`, `error`.
    severity: String,
    /// Number of findings.
    findings: u64,
}

/// The part of the mapped memory that a TLB holds: that of the largest leaves that fit. In this model an entry holds a leaf
/// of any size.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Reach")]
struct ReachObject {
    /// Whose tables they are.
    owner: String,
    /// TLB entries.
    entries: u64,
    /// Bytes mapped.
    mapped_bytes: u64,
    /// Bytes that the entries hold if a contiguous group is one entry.
    modelled_reach_bytes: u64,
    /// Bytes that they hold if each leaf is one entry.
    modelled_reach_bytes_without_hint: u64,
}

/// The listed findings; `shown` makes texts of the source fit to be shown.
pub(super) fn listed(findings: &Findings, shown: impl Fn(&str) -> String) -> Vec<FindingObject> {
    let one = |it: &granule_inspect::lint::Finding| FindingObject {
        rule: it.rule.name(),
        address: Hex(it.address),
        bytes: it.bytes,
        severity: it.severity.to_string(),
        text: shown(&it.text),
        owner: shown(&it.owner.to_string()),
    };
    findings.list.iter().map(one).collect()
}

/// The findings that are only counted.
pub(super) fn not_listed(findings: &Findings) -> Vec<NotListed> {
    let more = findings.more.iter();
    more.map(|((rule, severity), more)| NotListed {
        rule: rule.name(),
        severity: severity.to_string(),
        findings: *more,
    })
    .collect()
}

fn object(args: &LintArgs, linted: &Linted, left_out: u64, notes: &[String]) -> Value {
    let reach = |it: Reach| ReachObject {
        owner: it.owner,
        entries: it.entries,
        mapped_bytes: it.mapped,
        modelled_reach_bytes: it.with,
        modelled_reach_bytes_without_hint: it.without,
    };
    value(Object {
        schema: Version,
        findings: listed(&linted.findings, str::to_owned),
        not_listed: not_listed(&linted.findings),
        accepted: left_out,
        tlb: reaches(args, linted).into_iter().map(reach).collect(),
        notes: notes.to_vec(),
    })
}
