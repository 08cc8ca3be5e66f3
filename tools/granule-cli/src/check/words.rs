//! What `granule check` found, in words, as JSON and as a page.

use anstyle::{AnsiColor, Style};
use granule_model::{Policies, Policy};
use serde_json::{Value, json};

use super::{Checked, Finding, Tally};
use crate::findings;
use crate::findings::report::{Page, sizes};

/// The schema's number. Keys may be added to a schema but never removed.
const SCHEMA: u32 = 1;

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
    #[must_use]
    pub fn text(&self) -> String {
        let bold = Style::new().bold();
        let red = AnsiColor::Red.on_default().bold();
        let green = AnsiColor::Green.on_default().bold();
        let mut text = String::new();
        // With instructions they are told as `granule watch` tells them, and by their lines without.
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
            text += &format!("allowed: {}\n", self.policies());
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
        let strict = if self.options.strict { ", strict" } else { "" };
        let colour = if self.is_clean() { green } else { red };
        text += &format!("{colour}{}{colour:#}{strict}\n", self.result());
        text
    }

    fn result(&self) -> String {
        let result = match self.violations {
            0 => "clean".into(),
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
    #[must_use]
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

    /// The page sizes of the tables that were walked; what the trace says if none was.
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

    /// The JSON object, documented in `docs/check-json.md`.
    #[must_use]
    pub fn json(&self) -> Value {
        let violations: Vec<_> = self.findings.iter().map(finding_json).collect();
        json!({
            "schema": SCHEMA,
            "clean": self.is_clean(),
            "page_size": self.header.page_bytes,
            "page_sizes": self.page_sizes(),
            "cpus": self.header.cpus,
            "bbm_level": self.bbm_level(),
            "strict": self.options.strict,
            "allowed": self.policies().iter().map(Policy::name).collect::<Vec<_>>(),
            "complete": self.is_complete(),
            "events": self.tally.events,
            "descriptors": self.tally.descriptors,
            "tlbi": self.tally.tlbi,
            "dsb": self.tally.dsb,
            "isb": self.tally.isb,
            "cache_operations": self.tally.cache,
            "table_bytes_obtained": self.tally.obtained_bytes,
            "table_bytes_freed": self.tally.freed_bytes,
            "missing": self.missing.iter().map(|(line, what)| json!({
                "line": line,
                "what": what,
            })).collect::<Vec<_>>(),
            "unchecked": self.unchecked.iter().map(|(line, one)| json!({
                "line": line,
                "cpu": one.cpu,
                "half": one.half(),
                "reason": one.reason(),
            })).collect::<Vec<_>>(),
            "cut": self.cut,
            "findings": self.found.iter().map(findings::Finding::json).collect::<Vec<_>>(),
            "notes": self.notes,
            "undecided": self.undecided(),
            "violation_count": self.violations,
            "violations": violations,
        })
    }
}

fn finding_json(finding: &Finding) -> Value {
    let violation = &finding.violation;
    let hexadecimal = |address: u64| format!("{address:#x}");
    json!({
        "rule": violation.rule.name(),
        "line": finding.line,
        "earlier_line": finding.earlier_line,
        "missed_line": finding.missed_line,
        "missed_because": violation.missed.map(|(_, miss)| miss.text()),
        "instruction": violation.origin.map(hexadecimal),
        "cpu": violation.cpu,
        "address_space": if violation.is_virtual { "virtual" } else { "physical" },
        "first_address": hexadecimal(violation.range.0),
        "last_address": hexadecimal(violation.range.1),
        "descriptor": violation.location.map(hexadecimal),
        "observation": violation.observation,
        "times": violation.times,
    })
}
