//! `granule check`: replays a trace through the model and reports the result in words and in JSON.
//!
//! The model decides what breaks a rule; the trace format decides what a line means.

use std::fmt;
use std::io::BufRead;

use anstyle::{AnsiColor, Style};
use granule_model::trace::{ReadError, Reader, TraceHeader};
use granule_model::{BarrierKind, Config, Event, EventError, Model, Violation};
use serde_json::{Value, json};

/// The schema's number. Keys may be added to a schema but never removed.
const SCHEMA: u32 = 1;
/// Events between two looks at the clock.
const EVENTS_A_STEP: u64 = 1 << 14;

/// How strict the check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Report legal but careless changes too.
    pub strict: bool,
    /// BBM level to use instead of the trace's.
    pub bbm_level: Option<u8>,
    /// The most violations to keep.
    pub most_violations: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            strict: false,
            bbm_level: None,
            most_violations: 100,
        }
    }
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
}

/// The reasons why a check has no result.
#[derive(Debug)]
pub enum CheckError {
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
    let mut reader = Reader::new(from)?;
    let header = *reader.header();
    let mut model = Model::new(Config {
        cpus: header.cpus,
        bbm_level: options.bbm_level.unwrap_or(header.bbm_level),
        strict: options.strict,
        caches_unknown_at_reset: options.strict,
        most_violations: options.most_violations,
        ..Config::default()
    });
    let page_column = reader.column_of_word(2);
    let mut tally = Tally::default();
    let mut lines = Lines::default();
    while let Some((line, cpu, event)) = reader.next_event()? {
        lines.note(tally.events, line);
        model
            .event(cpu, event)
            .map_err(|error| CheckError::Impossible {
                line,
                column: reader.column_of_word(wrong_word(&event, error)),
                error,
            })?;
        tally.add(&event);
        if tally.events.is_multiple_of(EVENTS_A_STEP) {
            progress(reader.bytes());
        }
    }
    let walked = model.page_sizes();
    if !walked.is_empty() && !walked.contains(&header.page_bytes) {
        return Err(CheckError::OtherPages {
            column: page_column,
            said: header.page_bytes,
            walked,
        });
    }
    if header.complete {
        for cpu in 0..header.cpus {
            model
                .event(cpu, Event::Settled)
                .map_err(|error| CheckError::Impossible {
                    line: reader.lines(),
                    column: 1,
                    error,
                })?;
        }
    }
    let line = |event| lines.of(event, tally.events);
    let findings = model
        .violations()
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
        violations: model.violation_count(),
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
            Some(line) => format!("line {line}"),
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

    /// The exit code of `granule check`.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        !self.is_clean() as u8
    }

    /// The whole report for people, with colours that the printer may strip.
    #[must_use]
    pub fn text(&self) -> String {
        let bold = Style::new().bold();
        let red = AnsiColor::Red.on_default().bold();
        let green = AnsiColor::Green.on_default().bold();
        let mut text = String::new();
        for finding in &self.findings {
            let (place, rule, what) = finding.parts();
            text += &format!("{bold}{place}{bold:#}: {red}{rule}{red:#}: {what}\n");
        }
        let more = self.violations - self.findings.len() as u64;
        if more > 0 {
            text += &format!("... and {more} more (--most lists more)\n");
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
        if !self.header.complete {
            text += "the trace is not complete: what it relies on at its end is not checked\n";
        }
        let strict = if self.options.strict { ", strict" } else { "" };
        text += &match self.violations {
            0 => format!("{green}clean{green:#}{strict}\n"),
            1 => format!("{red}1 violation{red:#}{strict}\n"),
            n => format!("{red}{n} violations{red:#}{strict}\n"),
        };
        text
    }

    fn bbm_level(&self) -> u8 {
        self.options.bbm_level.unwrap_or(self.header.bbm_level)
    }

    /// The JSON object, documented in `docs/check-json.md`.
    #[must_use]
    pub fn json(&self) -> Value {
        let findings: Vec<_> = self.findings.iter().map(finding_json).collect();
        json!({
            "schema": SCHEMA,
            "clean": self.is_clean(),
            "page_size": self.header.page_bytes,
            "cpus": self.header.cpus,
            "bbm_level": self.bbm_level(),
            "strict": self.options.strict,
            "complete": self.header.complete,
            "events": self.tally.events,
            "descriptors": self.tally.descriptors,
            "tlbi": self.tally.tlbi,
            "dsb": self.tally.dsb,
            "isb": self.tally.isb,
            "cache_operations": self.tally.cache,
            "table_bytes_obtained": self.tally.obtained_bytes,
            "table_bytes_freed": self.tally.freed_bytes,
            "violation_count": self.violations,
            "violations": findings,
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
        "cpu": violation.cpu,
        "address_space": if violation.is_virtual { "virtual" } else { "physical" },
        "first_address": hexadecimal(violation.range.0),
        "last_address": hexadecimal(violation.range.1),
        "descriptor": violation.location.map(hexadecimal),
        "observation": violation.observation,
        "times": violation.times,
    })
}
