//! `granule check`: replays a trace through the model. `words` formats the result.
//!
//! The model decides what breaks a rule; the trace format decides what a line means.

pub mod args;
pub(crate) mod words;

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use granule_model::trace::{ReadError, Reader, TraceHeader};
use granule_model::{
    BarrierKind, Config, Event, EventError, Lacks, Policies, Unchecked, Violation,
};
use thiserror::Error;

use crate::findings::{self, Judge, Names, Timeline, report};

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Events between two looks at the clock.
const EVENTS_A_STEP: u64 = 1 << 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckOptions {
    /// Report legal but careless changes too.
    pub strict: bool,
    /// BBM level to use instead of the trace's.
    pub bbm_level: Option<u8>,
    /// Policies to judge by instead of the trace's.
    pub policies: Option<Policies>,
    /// The features that the CPUs lack, instead of the trace's.
    pub lacks: Option<Lacks>,
    /// The addresses that are unmapped lazily, instead of the trace's.
    pub lazy: Option<(u64, u64)>,
    /// The most violations to keep.
    pub most_violations: usize,
}

impl CheckOptions {
    /// All as the trace states it, and legal but careless changes too.
    pub const STRICT: Self = Self {
        strict: true,
        bbm_level: None,
        policies: None,
        lacks: None,
        lazy: None,
        most_violations: 100,
    };
}

impl Default for CheckOptions {
    fn default() -> Self {
        let strict = false;
        Self {
            strict,
            ..Self::STRICT
        }
    }
}

/// Files that add to the content of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// The functions of the recorded system, for a trace that does not name them.
    pub symbols: Option<PathBuf>,
    /// Findings that are accepted, with reasons.
    pub accept: Option<PathBuf>,
}

/// Writes a page of `--report`, or makes its file before the work.
/// Fails with one line with the file.
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
    pub tlbi: u64,
    pub dsb: u64,
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
    pub options: CheckOptions,
    /// The violations in the order of the file, at most as many as the options keep.
    pub findings: Vec<Finding>,
    /// The number of all violations.
    pub violations: u64,
    /// The changes that the trace has no event for, each with its line.
    pub missing: Vec<(u64, String)>,
    /// The halves of address spaces that no rule was applied to, each with the line that wrote its registers.
    pub unchecked: Vec<(Option<u64>, Unchecked)>,
    /// Where and why a recording ends before its end, if it was cut short.
    pub cut: Option<String>,
    /// The page sizes of the tables that were walked.
    page_sizes: Vec<u64>,
    /// The violations by rule and function.
    found: Vec<findings::Finding>,
    notes: Vec<String>,
    timeline: Timeline,
}

/// The reasons why a check has no result.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A file beside the trace cannot be used.
    #[error("{0}")]
    About(String),
    /// The file is not a valid trace.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An event that no machine can produce.
    #[error("line {line}, column {column}: {error}")]
    Impossible {
        /// The line, counted from 1.
        line: u64,
        /// The column of the wrong number, counted from 1.
        column: usize,
        error: EventError,
    },
    /// No table that was walked has pages of the size that the first line names.
    #[error(
        "line 1, column {column}: pages of {}K, but the tables that TCR names have pages of {}; correct the first line",
        .named >> 10, in_words(.walked)
    )]
    OtherPages {
        /// The column of the size, counted from 1.
        column: usize,
        /// The size that the first line names, in bytes.
        named: u64,
        /// The page sizes of the tables that were walked.
        walked: Vec<u64>,
    },
}

/// Sizes in KiB, with `and` between them.
fn in_words(sizes: &[u64]) -> String {
    let sizes: Vec<_> = sizes.iter().map(|one| format!("{}K", one >> 10)).collect();
    sizes.join(" and ")
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
/// Fails as of [`check`], and if another file cannot be used.
pub fn check_any(
    mut from: impl BufRead,
    options: &CheckOptions,
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
/// Fails with a [`CheckError`] if the file is not a valid trace, or holds an event that no machine can produce.
pub fn check(
    from: impl BufRead,
    options: &CheckOptions,
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
    options: &CheckOptions,
    about: &About,
    may_be_cut: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Checked, CheckError> {
    let mut names = Names::new(about.symbols.as_deref()).map_err(CheckError::About)?;
    let accept = about.accept.as_deref();
    let mut accepted = findings::accepted(accept).map_err(CheckError::About)?;
    let mut reader = Reader::new(from)?;
    let header = *reader.header();
    let config = options.lacks.unwrap_or(header.lacks).of(Config {
        cpus: header.cpus,
        bbm_level: options.bbm_level.unwrap_or(header.bbm_level),
        strict: options.strict,
        policies: options.policies.unwrap_or(header.policies),
        lazy: options.lazy.or(header.lazy),
        caches_unknown_at_reset: options.strict,
        ..Config::default()
    });
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
            named: header.page_bytes,
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
    names.add(reader.functions().iter().cloned());
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
        page_sizes: judged.page_sizes,
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

impl Checked {
    /// Whether there are no violations.
    pub const fn is_clean(&self) -> bool {
        self.violations == 0
    }

    /// Whether the trace has everything up to the end of the recording.
    pub const fn is_complete(&self) -> bool {
        self.header.complete && self.missing.is_empty() && self.cut.is_none()
    }

    /// Whether the rules were applied to all that the system did.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_complete() && self.unchecked.is_empty() && self.saw_tables()
    }

    /// Whether there was anything to judge.
    const fn saw_tables(&self) -> bool {
        !self.page_sizes.is_empty()
    }

    /// The exit code of `granule check`.
    pub fn exit_code(&self) -> u8 {
        findings::exit_code(&self.found, self.saw_tables(), self.is_whole())
    }
}
