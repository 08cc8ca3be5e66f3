//! The findings of `granule check` in words, as JSON and as a page.

use anstyle::{AnsiColor, Style};
use granule_model::{Policies, Policy};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{Checked, Finding, Tally};
use crate::findings;
use crate::findings::report::{Page, sizes};
use crate::json::{Hex, Version, value};

impl Finding {
    /// The three parts of the line for people: the place, the rule, the observation.
    fn parts(&self) -> (String, &'static str, String) {
        let violation = &self.violation;
        let place = match self.line {
            Some(line) => match violation.origin {
                Some(origin) => format!("line {line}, at {origin:#x}"),
                None => format!("line {line}"),
            },
            None => "end of trace".into(),
        };
        let named = |event: u64| {
            let of_missed = violation.missed.filter(|(missed, _)| *missed == event);
            let line = match (of_missed, self.missed_line) {
                (Some(_), Some(line)) => line,
                _ => self.earlier_line?,
            };
            Some(format!("line {line}"))
        };
        let text = violation.describe(named);
        (place, violation.rule.name(), text)
    }
}

impl Checked {
    /// The whole report for people, with colours that the printer may strip.
    pub fn text(&self) -> String {
        let bold = Style::new().bold();
        let red = AnsiColor::Red.on_default().bold();
        let green = AnsiColor::Green.on_default().bold();
        let mut text = String::new();
        // With instructions they are listed as `granule watch` lists them, and by their lines without.
        if self.found.iter().any(|it| !it.places.is_empty()) {
            for finding in &self.found {
                text += &finding.text();
            }
        } else {
            for finding in &self.findings {
                let (place, rule, what) = finding.parts();
                text += &format!("{bold}{place}{bold:#}: {red}{rule}{red:#}: {what}\n");
            }
            let more = self.violations - self.findings.len() as u64;
            if more > 0 {
                text += &format!("... and {more} more (--most lists more)\n");
            }
        }
        for line in &self.notes {
            text += &format!("note: {line}\n");
        }
        let Tally {
            events,
            descriptors,
            tlbi,
            dsb,
            isb,
            cache,
            obtained_bytes,
            freed_bytes,
        } = self.tally;
        let of_all = self.page_sizes();
        // Tables of several sizes are counted in KiB.
        let (page, unit) = match of_all[..] {
            [_, _, ..] => (1024, " (KiB)"),
            _ => (self.header.page_bytes, ""),
        };
        text += &format!(
            "{events} events of {} CPU(s), {} pages, BBM level {}: {descriptors} descriptors, \
             {tlbi} TLBI, {dsb} DSB, {isb} ISB, {cache} cache operations, tables: {} obtained, {} freed{unit}\n",
            self.header.cpus,
            sizes(&of_all),
            self.bbm_level(),
            obtained_bytes / page,
            freed_bytes / page,
        );
        for (line, what) in &self.missing {
            text += &format!(
                "{bold}goes unchecked from line {line} on{bold:#}: what happens with {what}\n"
            );
        }
        if self.policies() != Policies::NONE {
            let lazy = self.options.lazy.or(self.header.lazy);
            text += &format!("policy: {}\n", findings::allowed(self.policies(), lazy));
        }
        if let Some(cut) = &self.cut {
            text += &format!("{bold}what follows goes unchecked{bold:#}: {cut}\n");
        } else if !self.is_complete() {
            text += "the trace is not complete: what it relies on at its end is not checked\n";
        }
        for (line, unchecked) in &self.unchecked {
            let since = line.map_or(String::new(), |line| format!(" from line {line} on"));
            text += &format!("{bold}goes unchecked{since}{bold:#}: {unchecked}\n");
        }
        text += &format!("never checked: {}\n", findings::LIMITS.join("; "));
        let strict = if self.options.strict { ", strict" } else { "" };
        let colour = if self.is_clean() && self.is_whole() {
            green
        } else {
            red
        };
        text += &format!("{colour}{}{colour:#}{strict}\n", self.result());
        text
    }

    fn result(&self) -> String {
        let result = match self.violations {
            0 if self.is_whole() => "clean".into(),
            0 if !self.saw_tables() => "nothing was judged: no MMU was turned on".into(),
            0 => "no violation, but a part was not judged".into(),
            1 => "1 violation".into(),
            n => format!("{n} violations"),
        };
        match self.undecided() {
            0 => result,
            n => format!("{result}, {n} undecided"),
        }
    }

    /// The violations that the trace does not decide.
    fn undecided(&self) -> u64 {
        let undecided = self.found.iter().filter(|it| it.undecided.is_some());
        undecided.map(|it| it.count).sum()
    }

    /// The page of `--report`; `file` is the trace.
    pub fn page(&self, file: &str) -> String {
        let mut unchecked: Vec<String> = self
            .unchecked
            .iter()
            .map(|(_, one)| one.to_string())
            .collect();
        let missing = self.missing.iter();
        unchecked.extend(missing.map(|(_, what)| format!("what happens with {what}")));
        match &self.cut {
            Some(cut) => unchecked.push(format!("what follows {cut}")),
            None if !self.header.complete => {
                unchecked.push("what the system relies on at its end".into());
            }
            None => (),
        }
        let strict = if self.options.strict { ", strict" } else { "" };
        Page {
            title: file,
            result: &format!("{}{strict}", self.result()),
            facts: vec![
                ("file", file.into()),
                ("CPUs", self.header.cpus.to_string()),
                ("BBM level", self.bbm_level().to_string()),
                ("page sizes", sizes(&self.page_sizes())),
                ("events", self.tally.events.to_string()),
            ],
            findings: &self.found,
            timeline: &self.timeline,
            policies: self.policies(),
            notes: &self.notes,
            unchecked: &unchecked,
        }
        .html()
    }

    /// The page sizes of the tables that were walked; the size in the first line if none was.
    fn page_sizes(&self) -> Vec<u64> {
        if self.page_sizes.is_empty() {
            return vec![self.header.page_bytes];
        }
        self.page_sizes.clone()
    }

    fn policies(&self) -> Policies {
        self.options.policies.unwrap_or(self.header.policies)
    }

    fn bbm_level(&self) -> u8 {
        self.options.bbm_level.unwrap_or(self.header.bbm_level)
    }

    /// The JSON object.
    pub fn json(&self) -> Value {
        let missing = |(line, what): &(u64, String)| Missing {
            line: *line,
            what: what.clone(),
        };
        let unchecked = |(line, one): &(Option<u64>, granule_model::Unchecked)| Unchecked {
            line: *line,
            cpu: one.cpu,
            half: one.half(),
            reason: one.reason().to_owned(),
        };
        value(Object {
            schema: Version,
            clean: self.is_clean() && self.is_whole(),
            page_size: self.header.page_bytes,
            page_sizes: self.page_sizes(),
            cpus: self.header.cpus,
            bbm_level: self.bbm_level(),
            strict: self.options.strict,
            allowed: self.policies().iter().map(Policy::name).collect(),
            complete: self.is_complete(),
            events: self.tally.events,
            descriptors: self.tally.descriptors,
            tlbi: self.tally.tlbi,
            dsb: self.tally.dsb,
            isb: self.tally.isb,
            cache_operations: self.tally.cache,
            table_bytes_obtained: self.tally.obtained_bytes,
            table_bytes_freed: self.tally.freed_bytes,
            missing: self.missing.iter().map(missing).collect(),
            unchecked: self.unchecked.iter().map(unchecked).collect(),
            cut: self.cut.as_deref(),
            limits: &findings::LIMITS,
            findings: &self.found,
            notes: &self.notes,
            undecided: self.undecided(),
            violation_count: self.violations,
            violations: self.findings.iter().map(violation).collect(),
        })
    }
}

/// Result of `granule check --json`: exactly one object, on one line of standard output, if the file could be
/// read to its end. For a file that is not a trace, that no machine makes, or that takes too much to check there is
/// no object, but one line on standard error with line and column, and the exit code is 2 (docs/trace-format.md).
/// A recording of `granule watch` that was cut short is judged as far as it goes. The exit code is 1 if something was
/// found that is not accepted. Otherwise it is 2 if no MMU was turned on, so that there was nothing to judge, 3 if a part
/// was not judged (`complete`, `missing`, `unchecked`, `cut`), and 0 if all was.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule check --json")]
pub(crate) struct Object<'a> {
    schema: Version,
    /// Whether everything was judged and nothing found.
    clean: bool,
    /// Page size in bytes, as the trace has it.
    page_size: u64,
    /// Page sizes of all tables that were walked, in bytes: a kernel's, and those of its programs.
    page_sizes: Vec<u64>,
    /// Number of CPUs.
    cpus: u32,
    /// Break-before-make level that the rules were applied with: the trace's, or that of `--bbm`.
    bbm_level: u8,
    /// Whether `--strict` was given.
    strict: bool,
    /// Steps that the kernel may leave out, by the trace or `--allow` (docs/trace-format.md).
    allowed: Vec<&'static str>,
    /// Whether the trace is complete: its first line has so, and it has no `missing` line.
    complete: bool,
    /// Events in it.
    events: u64,
    /// Descriptors stored; each of a run counts, and each that an `update` line looked at.
    descriptors: u64,
    /// TLB invalidations.
    tlbi: u64,
    /// DSBs.
    dsb: u64,
    /// ISBs.
    isb: u64,
    /// `dc` and `ic` lines.
    cache_operations: u64,
    /// Bytes of `obtain` lines.
    table_bytes_obtained: u64,
    /// Bytes of `free` lines.
    table_bytes_freed: u64,
    /// Changes that the trace has no event for.
    missing: Vec<Missing>,
    /// Halves of address spaces that no rule was applied to; empty as a rule.
    unchecked: Vec<Unchecked>,
    /// Where and why a compressed recording ends before its end; null for a whole one.
    cut: Option<&'a str>,
    /// Mistakes that no trace is checked for; the same in each object.
    limits: &'static [&'static str],
    /// Violations by rule and function, as of `granule watch`; without `at` lines all violations of a rule are one
    /// finding.
    findings: &'a [findings::Finding],
    /// Accepted findings that were not found.
    notes: &'a [String],
    /// Violations that a recording does not decide, which the other counts leave out (`granule schema watch`).
    undecided: u64,
    /// Number of all violations, also of those beyond `--most`.
    violation_count: u64,
    /// Violations in the order of the file, at most as many as `--most` allows.
    violations: Vec<Violation<'a>>,
}

/// Something without an event.
#[derive(Serialize, JsonSchema)]
struct Missing {
    /// Line.
    line: u64,
    /// The change, in a few words.
    what: String,
}

/// A half that goes unchecked, because the registers name no granule, or a size that the machine does not have.
#[derive(Serialize, JsonSchema)]
struct Unchecked {
    /// Line that wrote the registers.
    line: Option<u64>,
    /// First CPU that translates by them.
    cpu: u32,
    /// The half: `the upper half of EL1&0`, `stage 2`.
    half: &'static str,
    /// The field, its value, and what was expected.
    reason: String,
}

/// A violation.
#[derive(Serialize, JsonSchema)]
struct Violation<'a> {
    /// Rule, by the Arm ARM's name where it has one: `RWHZWS`, `stale-translation`.
    rule: &'static str,
    /// Line that broke it; null if the violation is found at the end of the trace, where everything is relied on.
    line: Option<u64>,
    /// Line that it conflicts with; null if there is none.
    earlier_line: Option<u64>,
    /// Invalidation that was meant to prevent it; null if there is none.
    missed_line: Option<u64>,
    /// Why that invalidation did not prevent it; null if there is none.
    missed_because: Option<&'static str>,
    /// Virtual address of the instruction that the line comes from; null if the trace does not have it.
    instruction: Option<Hex>,
    /// A CPU that could observe it.
    cpu: u32,
    /// Kind of the two addresses: `virtual` or `physical`.
    address_space: &'static str,
    /// First address concerned.
    first_address: Hex,
    /// Last address concerned.
    last_address: Hex,
    /// Physical address of the descriptor concerned; null if none is.
    descriptor: Option<Hex>,
    /// Observation that the CPU could make.
    observation: &'a str,
    /// Number of times that the line broke the rule in this way on this CPU for adjacent addresses,
    /// `first_address` to `last_address`.
    times: u64,
}

fn violation(finding: &Finding) -> Violation<'_> {
    let violation = &finding.violation;
    let (first, last) = violation.range;
    Violation {
        rule: violation.rule.name(),
        line: finding.line,
        earlier_line: finding.earlier_line,
        missed_line: finding.missed_line,
        missed_because: violation.missed.map(|(_, miss)| miss.text()),
        instruction: violation.origin.map(Hex),
        cpu: violation.cpu,
        address_space: if violation.is_virtual {
            "virtual"
        } else {
            "physical"
        },
        first_address: Hex(first),
        last_address: Hex(last),
        descriptor: violation.location.map(Hex),
        observation: &violation.observation,
        times: violation.times,
    }
}
