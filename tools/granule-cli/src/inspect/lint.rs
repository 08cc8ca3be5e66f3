//! `granule lint`: findings in words and in JSON, accepted ones left out, and how far a TLB reaches.

use std::io::Write;

use granule_inspect::fields::about;
use granule_inspect::lint::{Accepted, Linted, Options, Severity, lint};
use serde_json::{Value, json};

use super::args::LintArgs;
use super::{Failure, Interrupt, Progress, Step, UNREADABLE, go_on, json, open};

/// Carries the command out and returns its exit code. Notes go to `notes`, a line each.
///
/// # Errors
///
/// If the source or the file of accepted findings cannot be read, or the output not be written.
pub fn run(
    args: &LintArgs,
    out: &mut dyn Write,
    notes: &mut dyn FnMut(&str),
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let opened = open(&args.from.source, &args.from.options(), progress, interrupt)?;
    let mut said = opened.notes.clone();
    let options = Options {
        rules: args.rule.clone(),
        accepted: accepted(args, &mut said)?,
        most: args.most,
        ..Options::default()
    };
    let linted = lint(&*opened.memory, &opened.trees, &options, &mut |tables| {
        progress(Step::Tables(tables));
    });
    go_on(interrupt)?;
    if linted.beyond_limit > 0 {
        said.push(format!(
            "{} tables were not looked at: a tree has more than {}, or they come again too often",
            linted.beyond_limit, options.most_tables
        ));
    }
    let accepted = &linted.findings.accepted;
    let left_out = accepted.uses();
    if let Some(path) = &args.accept {
        let unused = accepted.unused(&args.rule);
        said.extend(unused.map(|unused| format!("{}: {unused}", path.display())));
    }
    said.iter().for_each(|note| notes(note));
    if args.json {
        writeln!(out, "{}", object(args, &linted, left_out, &said))?;
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

fn accepted(args: &LintArgs, said: &mut Vec<String>) -> Result<Accepted, Failure> {
    let Some(path) = &args.accept else {
        return Ok(Accepted::default());
    };
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Source(format!("{name}: {error}")))?;
    let (accepted, bad) = Accepted::parse(&text);
    said.extend(bad.iter().map(|bad| format!("{name}: {bad}")));
    Ok(accepted)
}

/// How much of what is mapped a TLB holds.
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

fn object(args: &LintArgs, linted: &Linted, left_out: u64, notes: &[String]) -> Value {
    let findings = linted.findings.list.iter().map(|it| {
        json!({
            "rule": it.rule.name(),
            "address": json::address(it.address),
            "bytes": it.bytes,
            "severity": it.severity.to_string(),
            "text": it.text,
            "owner": it.owner.to_string(),
        })
    });
    let more = linted.findings.more.iter().map(|((rule, severity), more)| {
        json!({ "rule": rule.name(), "severity": severity.to_string(), "findings": more })
    });
    let tlb = reaches(args, linted).into_iter().map(|it| {
        json!({
            "owner": it.owner,
            "entries": it.entries,
            "mapped_bytes": it.mapped,
            "modelled_reach_bytes": it.with,
            "modelled_reach_bytes_without_hint": it.without,
        })
    });
    json!({
        "schema": json::SCHEMA,
        "findings": findings.collect::<Vec<_>>(),
        "not_listed": more.collect::<Vec<_>>(),
        "accepted": left_out,
        "tlb": tlb.collect::<Vec<_>>(),
        "notes": notes,
    })
}
