//! `granule check`: replays a trace through the model and reports the result in words and in JSON.
//!
//! The model decides what breaks a rule; the trace format decides what a line means.

use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use flate2::read::MultiGzDecoder;
use granule_model::trace::{ReadError, Reader, TraceHeader};
use granule_model::{
    BarrierKind, Config, Event, EventError, Policies, Policy, Unchecked, Violation,
};
use serde_json::{Value, json};

use crate::findings::report::{self, Page, sizes};
use crate::findings::{self, Judge, Names, Timeline};

/// The schema's number. Keys may be added to a schema but never removed.
const SCHEMA: u32 = 1;
/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Events between two looks at the clock.
const EVENTS_A_STEP: u64 = 1 << 14;

/// How strict the check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Report legal but careless changes too.
    pub strict: bool,
    /// BBM level to use instead of the trace's.
    pub bbm_level: Option<u8>,
    /// Policies to judge by instead of the trace's.
    pub policies: Option<Policies>,
    /// The most violations to keep.
    pub most_violations: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            strict: false,
            bbm_level: None,
            policies: None,
            most_violations: 100,
        }
    }
}

/// Files that say more of what a trace has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// The functions of the recorded system, for a trace that does not name them.
    pub symbols: Option<PathBuf>,
    /// Findings that are accepted, with reasons.
    pub accept: Option<PathBuf>,
}

/// Writes a page of `--report`, or makes its file before the work.
///
/// # Errors
///
/// One line with the file.
pub fn write_page(path: &Path, html: &str) -> Result<(), String> {
    report::write(path, html)
}

/// The number of events, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// All events.
    pub events: u64,
    /// Descriptors stored; a run counts each of its descriptors, an update every descriptor it
    /// looks at.
    pub descriptors: u64,
    /// TLBIs.
    pub tlbi: u64,
    /// DSBs.
    pub dsb: u64,
    /// ISBs.
    pub isb: u64,
    /// Cache operations.
    pub cache: u64,
    /// Bytes obtained for tables.
    pub obtained_bytes: u64,
    /// Bytes of table memory given back.
    pub freed_bytes: u64,
}

impl Tally {
    fn add(&mut self, event: &Event) {
        self.events += 1;
        match *event {
            Event::Store { count, .. } | Event::Update { count, .. } => {
                self.descriptors = self.descriptors.saturating_add(count.into());
            }
            Event::System(system, _) => {
                self.tlbi += u64::from(system.is_tlbi());
                self.cache += u64::from(system.is_instruction_cache());
            }
            Event::Lines { .. } => self.cache += 1,
            Event::Barrier(barrier) => {
                self.dsb += u64::from(barrier.kind == BarrierKind::Dsb);
                self.isb += u64::from(barrier.kind == BarrierKind::Isb);
            }
            Event::Obtained { bytes, .. } => {
                self.obtained_bytes = self.obtained_bytes.saturating_add(bytes);
            }
            Event::Freed { bytes, .. } => {
                self.freed_bytes = self.freed_bytes.saturating_add(bytes);
            }
            _ => (),
        }
    }
}

/// A violation, with line numbers of the file instead of the model's event numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The violation as the model found it.
    pub violation: Violation,
    /// The line of the event that broke the rule; `None` if the end of the trace broke it.
    pub line: Option<u64>,
    /// The line of the earlier event.
    pub earlier_line: Option<u64>,
    /// The line of the invalidation that did not help.
    pub missed_line: Option<u64>,
}

/// The result of replaying a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The first line of the trace.
    pub header: TraceHeader,
    /// The events of the trace by kind.
    pub tally: Tally,
    /// The options of the check.
    pub options: Options,
    /// The violations in the order of the file, at most as many as the options keep.
    pub findings: Vec<Finding>,
    /// The number of all violations.
    pub violations: u64,
    /// What happened that the trace has no event for, with its line.
    pub missing: Vec<(u64, String)>,
    /// What no rule was applied to, each with the line that wrote its registers.
    pub unchecked: Vec<(Option<u64>, Unchecked)>,
    /// Where and why a recording ends before its end, if it was cut short.
    pub cut: Option<String>,
    /// The violations by rule and function.
    found: Vec<findings::Finding>,
    notes: Vec<String>,
    timeline: Timeline,
}

/// The reasons why a check has no result.
#[derive(Debug)]
pub enum CheckError {
    /// A file beside the trace cannot be used.
    About(String),
    /// The file is no valid trace.
    Read(ReadError),
    /// An event that no machine can produce.
    Impossible {
        /// The line, counted from 1.
        line: u64,
        /// The column of the wrong number, counted from 1.
        column: usize,
        /// The error.
        error: EventError,
    },
    /// No table that was walked has pages of the size that the first line names.
    OtherPages {
        /// The column of the size, counted from 1.
        column: usize,
        /// The size that the first line names, in bytes.
        said: u64,
        /// The page sizes of the tables that were walked.
        walked: Vec<u64>,
    },
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::About(line) => f.write_str(line),
            Self::Read(error) => write!(f, "{error}"),
            Self::Impossible {
                line,
                column,
                error,
            } => write!(f, "line {line}, column {column}: {error}"),
            Self::OtherPages {
                column,
                said,
                walked,
            } => {
                let walked: Vec<_> = walked.iter().map(|one| format!("{}K", one >> 10)).collect();
                write!(
                    f,
                    "line 1, column {column}: pages of {}K, but the tables that TCR names have pages of {}; \
                     correct the first line",
                    said >> 10,
                    walked.join(" and ")
                )
            }
        }
    }
}

impl std::error::Error for CheckError {}

impl From<ReadError> for CheckError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

/// The line of each event: one pair for each place where comments stand between events.
#[derive(Debug, Default)]
struct Lines(Vec<(u64, u64)>);

impl Lines {
    fn note(&mut self, event: u64, line: u64) {
        let ahead = line - event;
        if self.0.last().is_none_or(|(_, last)| *last != ahead) {
            self.0.push((event, ahead));
        }
    }

    /// The line of an event, or `None` for an event after the last, where `events` is the number of
    /// events.
    fn of(&self, event: u64, events: u64) -> Option<u64> {
        if event >= events {
            return None;
        }
        let after = self.0.partition_point(|(first, _)| *first <= event);
        let (_, ahead) = self.0.get(after.checked_sub(1)?)?;
        Some(event + ahead)
    }
}

/// Replays a trace that may be compressed by gzip, as `granule watch` records it. See [`check`]. A compressed
/// one that was cut short is judged as far as it goes.
///
/// # Errors
///
/// As of [`check`], and if another file cannot be used.
pub fn check_any(
    mut from: impl BufRead,
    options: &Options,
    about: &About,
    progress: &mut dyn FnMut(u64),
) -> Result<Checked, CheckError> {
    // An error here comes again at the first line.
    let is_gzip = from.fill_buf().is_ok_and(|begin| begin.starts_with(&GZIP));
    if is_gzip {
        let text = BufReader::with_capacity(1 << 20, MultiGzDecoder::new(from));
        replay(text, options, about, true, progress)
    } else {
        replay(from, options, about, false, progress)
    }
}

/// Replays a trace. `progress` receives the number of bytes read so far, now and then.
///
/// At the end of a complete trace, all tables count as relied on.
///
/// # Errors
///
/// A [`CheckError`] if the file is no valid trace, or holds an event that no machine can produce.
pub fn check(
    from: impl BufRead,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Checked, CheckError> {
    replay(from, options, &About::default(), false, progress)
}

/// Where a recording was cut short, or the error.
fn cut_short(error: ReadError) -> Result<String, CheckError> {
    match &error {
        ReadError::CutShort { .. } => Ok(error.to_string()),
        ReadError::Io { error: cause, .. } if cause.kind() == io::ErrorKind::UnexpectedEof => {
            Ok(error.to_string())
        }
        _ => Err(error.into()),
    }
}

fn replay(
    from: impl BufRead,
    options: &Options,
    about: &About,
    may_be_cut: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Checked, CheckError> {
    let mut names = Names::new(about.symbols.as_deref()).map_err(CheckError::About)?;
    let accept = about.accept.as_deref();
    let mut accepted = findings::accepted(accept).map_err(CheckError::About)?;
    let mut reader = Reader::new(from)?;
    let header = *reader.header();
    let config = Config {
        cpus: header.cpus,
        bbm_level: options.bbm_level.unwrap_or(header.bbm_level),
        strict: options.strict,
        policies: options.policies.unwrap_or(header.policies),
        caches_unknown_at_reset: options.strict,
        ..Config::default()
    };
    let mut judge = Judge::new(config, options.most_violations);
    let page_column = reader.column_of_word(2);
    let mut tally = Tally::default();
    let mut lines = Lines::default();
    let mut missing = Vec::new();
    let mut cut = None;
    loop {
        let (line, cpu, event) = match reader.next_event() {
            Ok(Some(read)) => read,
            Ok(None) => break,
            Err(error) if may_be_cut => {
                cut = Some(cut_short(error)?);
                break;
            }
            Err(error) => return Err(error.into()),
        };
        lines.note(tally.events, line);
        judge
            .add(cpu, event)
            .map_err(|error| CheckError::Impossible {
                line,
                column: reader.column_of_word(wrong_word(&event, error)),
                error,
            })?;
        tally.add(&event);
        if let Event::Missing(what) = event {
            missing.push((line, what.as_str().to_owned()));
        }
        if tally.events.is_multiple_of(EVENTS_A_STEP) {
            progress(reader.bytes());
        }
    }
    let walked = judge.page_sizes();
    if !walked.is_empty() && !walked.contains(&header.page_bytes) {
        return Err(CheckError::OtherPages {
            column: page_column,
            said: header.page_bytes,
            walked,
        });
    }
    let whole = header.complete && missing.is_empty() && cut.is_none();
    let (mut judged, done) = judge.finish(whole);
    done.map_err(|error| CheckError::Impossible {
        line: reader.lines(),
        column: 1,
        error,
    })?;
    names.know(reader.functions().iter().cloned());
    let (found, notes) = findings::of(&mut judged, &mut names, &mut accepted, accept);
    let line = |event| lines.of(event, tally.events);
    let findings = judged
        .kept
        .iter()
        .map(|violation| Finding {
            line: line(violation.event),
            earlier_line: violation.earlier.and_then(line),
            missed_line: violation.missed.and_then(|(event, _)| line(event)),
            violation: violation.clone(),
        })
        .collect();
    Ok(Checked {
        header,
        tally,
        options: *options,
        findings,
        violations: judged.violations,
        missing,
        unchecked: judged
            .unchecked
            .iter()
            .map(|one| (line(one.event), one.clone()))
            .collect(),
        cut,
        found,
        notes,
        timeline: judged.timeline,
    })
}

/// The word of the line that makes an event impossible, counted from 0.
const fn wrong_word(event: &Event, error: EventError) -> usize {
    match (error, event) {
        (EventError::NoSuchCpu { .. }, _) => 1,
        (EventError::TooManyPending { .. } | EventError::TooManyEntries { .. }, _) => 0,
        (EventError::TooManyDescriptors { .. }, _) => 3,
        (_, Event::Lines { .. }) => 3,
        _ => 2,
    }
}

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
    /// Whether there are no violations.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.violations == 0
    }

    /// Whether the trace has everything up to the end of the recording.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.header.complete && self.missing.is_empty() && self.cut.is_none()
    }

    /// The exit code of `granule check`.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.found.iter().any(findings::Finding::fails) {
            1
        } else if self.cut.is_some() {
            2
        } else {
            0
        }
    }

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
        let page = self.header.page_bytes;
        text += &format!(
            "{events} events of {} CPU(s), {}K pages, BBM level {}: {descriptors} descriptors, \
             {tlbi} TLBI, {dsb} DSB, {isb} ISB, {cache} cache operations, tables: {} obtained, {} freed\n",
            self.header.cpus,
            page >> 10,
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
                ("page size", sizes(&[self.header.page_bytes])),
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
