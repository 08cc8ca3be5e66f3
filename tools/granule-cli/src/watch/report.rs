//! The result of a watched run in words and in JSON.

use std::fmt::Write as _;

use granule_model::{Policies, Policy};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::plant::Planted;
use super::tally::{Events, Tally};
use crate::findings::report::{Page, sizes};
use crate::findings::{self, Finding, Judged};
use crate::json::{Version, value};

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// QEMU ended by itself, and well.
    Ended,
    /// QEMU ended in another way: with this status or signal.
    Died(String),
    /// The guest reached its time limit.
    TimedOut,
    /// The user interrupted the run.
    Interrupted,
}

impl Outcome {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Died(_) => "died",
            Self::TimedOut => "timeout",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A watched run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    pub(super) outcome: Outcome,
    /// The version of QEMU and of its plugin interface.
    pub(super) qemu: String,
    pub(super) api: u32,
    pub(super) cpus: u16,
    pub(super) bbm_level: u8,
    /// The steps that the kernel may leave out.
    pub(super) policies: Policies,
    /// The addresses for which lazy unmapping holds.
    pub(super) lazy: Option<(u64, u64)>,
    /// Whether it was to be judged.
    pub(super) checks: bool,
    /// The counts of the events that were seen.
    pub(super) tally: Tally,
    pub(super) judged: Judged,
    pub(super) findings: Vec<Finding>,
    /// The instructions that were left out on purpose.
    pub(super) planted: Vec<Planted>,
    /// Whether there are none, although some were to be.
    pub(super) is_unplanted: bool,
    /// More lines for people.
    pub(super) notes: Vec<String>,
    /// The parts of the run that were not checked, a line each; none for a complete run.
    pub(super) unchecked: Vec<String>,
    /// The file that was recorded and the events in it.
    pub(super) record: Option<(String, u64)>,
}

impl Watched {
    /// The exit code of `granule watch`.
    pub fn exit_code(&self) -> u8 {
        let any = (self.saw_tables() || !self.checks) && !self.is_unplanted;
        findings::exit_code(&self.findings, any, self.is_whole())
    }

    /// Whether the run was watched to its end, and all of it judged that was to be.
    fn is_whole(&self) -> bool {
        let judged = self.judged.stopped.is_none() && self.unchecked.is_empty();
        self.outcome == Outcome::Ended && (judged || !self.checks)
    }

    /// Whether there was anything to judge.
    const fn saw_tables(&self) -> bool {
        self.tally.events.tables > 0 && !self.judged.page_sizes.is_empty()
    }

    /// The violations that are decided, or that are not.
    fn violations(&self, decided: bool) -> u64 {
        let of = |finding: &&Finding| finding.undecided.is_none() == decided;
        self.findings.iter().filter(of).map(|it| it.count).sum()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        for finding in &self.findings {
            text += &finding.text();
        }
        for one in &self.planted {
            let _ = writeln!(
                text,
                "planted: {} is a NOP in the place of {}",
                one.place, one.instruction
            );
        }
        for line in &self.notes {
            let _ = writeln!(text, "note: {line}");
        }
        let rows = self.tally.rows();
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
            .collect();
        let seen = if rows.is_empty() {
            "nothing".into()
        } else {
            rows.join(", ")
        };
        let _ = writeln!(text, "events: {seen}");
        if let Some(totals) = self.tally.totals {
            let _ = writeln!(
                text,
                "plugin: {} stores of privileged code, {} barriers; tables took {} KiB",
                totals.stores,
                totals.barriers,
                totals.table_bytes.div_ceil(1024)
            );
        }
        if self.policies != Policies::NONE {
            let _ = writeln!(
                text,
                "policy: {}",
                findings::allowed(self.policies, self.lazy)
            );
        }
        for line in &self.unchecked {
            let _ = writeln!(text, "not checked: {line}");
        }
        let _ = writeln!(text, "never checked: {}", findings::LIMITS.join("; "));
        if let Some((file, events)) = &self.record {
            let _ = writeln!(text, "{file}: {events} events");
        }
        text += &self.last_line();
        text.push('\n');
        text
    }

    /// The verdict.
    fn last_line(&self) -> String {
        let how = match &self.outcome {
            Outcome::Ended => String::new(),
            Outcome::Died(how) => format!(" until QEMU crashed ({how})"),
            Outcome::TimedOut => " until its time limit".into(),
            Outcome::Interrupted => " until it was interrupted".into(),
        };
        let complete = if self.unchecked.is_empty() {
            ""
        } else {
            ", not complete"
        };
        let result = match self.violations(true) {
            0 if self.checks && !self.saw_tables() => "nothing was judged".to_owned(),
            0 if self.checks && self.is_whole() => "clean".to_owned(),
            0 if self.checks => "no violation".to_owned(),
            0 => "not judged".to_owned(),
            1 => "1 violation".to_owned(),
            n => match self
                .findings
                .iter()
                .filter(|it| it.undecided.is_none())
                .count()
            {
                1 => format!("{n} violations in one place"),
                places => format!("{n} violations in {places} places"),
            },
        };
        let undecided = match self.violations(false) {
            0 => String::new(),
            n => format!(", {n} undecided"),
        };
        format!(
            "QEMU {}, {} CPU(s), BBM level {}{how}: {result}{undecided}{complete}",
            self.qemu, self.cpus, self.bbm_level
        )
    }

    /// The page of `--report`.
    pub(super) fn page(&self) -> String {
        let mut facts = vec![
            ("QEMU", self.qemu.clone()),
            ("plugin interface", self.api.to_string()),
            ("CPUs", self.cpus.to_string()),
            ("BBM level", self.bbm_level.to_string()),
            ("page sizes", sizes(&self.judged.page_sizes)),
        ];
        if let Some(totals) = self.tally.totals {
            facts.push(("stores of privileged code", totals.stores.to_string()));
            facts.push(("barriers", totals.barriers.to_string()));
        }
        Page {
            title: "a watched run",
            result: &self.last_line(),
            facts,
            findings: &self.findings,
            timeline: &self.judged.timeline,
            policies: self.policies,
            notes: &self.notes,
            unchecked: &self.unchecked,
        }
        .html()
    }

    /// The JSON object.
    pub fn json(&self) -> Value {
        let totals = self.tally.totals;
        value(Object {
            schema: Version,
            outcome: self.outcome.name(),
            guest: Guest {
                qemu: &self.qemu,
                plugin_interface: self.api,
                cpus: self.cpus,
                bbm_level: self.bbm_level,
                allowed: self.policies.iter().map(Policy::name).collect(),
                page_sizes: &self.judged.page_sizes,
                stores: totals.map(|it| it.stores),
                barriers: totals.map(|it| it.barriers),
                table_bytes: totals.map(|it| it.table_bytes),
            },
            events: &self.tally.events,
            complete: self.unchecked.is_empty(),
            unchecked: &self.unchecked,
            limits: &findings::LIMITS,
            planted: &self.planted,
            notes: &self.notes,
            record: self.record.as_ref().map(|(file, _)| file.as_str()),
            recorded: self.record.as_ref().map(|(_, events)| *events),
            findings: &self.findings,
            undecided: self.violations(false),
        })
    }
}

/// Result of `granule watch --json`: one object on standard output. Bad usage, and a QEMU that does not come to
/// load the plugin, print one line to standard error and no object.
///
/// The exit code is 1 if a rule was broken that is not accepted, however the run ended; what is undecided breaks
/// none. Otherwise it is 2 for bad usage, a guest that never turned its MMU on, a `--plant` that planted nothing, and a
/// page of `--report` that cannot be written; 3 for a run that was not watched to its end or of which a part was not
/// judged (`unchecked`); else 0.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule watch --json")]
pub(crate) struct Object<'a> {
    schema: Version,
    /// `ended`: QEMU ended by itself, and well; `died`: in another way; `timeout`; `interrupted`.
    outcome: &'static str,
    guest: Guest<'a>,
    /// Events seen, by kind.
    events: &'a Events,
    /// Whether everything was checked.
    complete: bool,
    /// Parts of the run that were not checked, a line each.
    unchecked: &'a [String],
    /// Mistakes that no run is checked for; the same in each object.
    limits: &'static [&'static str],
    /// Instructions that `--plant` left out.
    planted: &'a [Planted],
    /// More lines for people: why functions are not named, how many accepted findings were not found.
    notes: &'a [String],
    /// File of `--record`, or null.
    record: Option<&'a str>,
    /// Events in that file, or null.
    recorded: Option<u64>,
    /// One object for each rule and function, and for those of them that are not decided, those with the most
    /// violations first. `granule check --json` has the same for a recording.
    findings: &'a [Finding],
    /// Violations that are not decided: a plain store over an entry that hardware may have updated before the
    /// guest loaded it (the plugin sees no loads), what the next DSB of another CPU would prevent (the order of
    /// CPUs is not known that closely), and what rests on the TLBI of one CPU for an entry that another removed,
    /// where the first executed a DSB in between and the other did not (that DSB counts if a lock orders it after
    /// the store, and the plugin sees no locks).
    undecided: u64,
}

/// The system that ran.
#[derive(Serialize, JsonSchema)]
struct Guest<'a> {
    /// Version of QEMU.
    qemu: &'a str,
    /// Version of the plugin interface.
    plugin_interface: u32,
    /// CPUs.
    cpus: u16,
    /// Break-before-make level.
    bbm_level: u8,
    /// Steps that the kernel may leave out (docs/trace-format.md).
    allowed: Vec<&'static str>,
    /// Page sizes in bytes, of the tables that were walked.
    page_sizes: &'a [u64],
    /// Stores of privileged code; null if the plugin did not come to its end.
    stores: Option<u64>,
    /// Barriers of privileged code; null likewise.
    barriers: Option<u64>,
    /// Bytes of the plugin's copy of the tables; null likewise.
    table_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::text::assert_contains;

    fn watched(findings: Vec<Finding>) -> Watched {
        Watched {
            outcome: Outcome::Ended,
            qemu: "10.0.2".into(),
            api: 4,
            cpus: 1,
            bbm_level: 0,
            policies: Policies::all(),
            lazy: None,
            checks: true,
            tally: Tally {
                events: Events::of_a_table(),
                ..Tally::default()
            },
            judged: Judged {
                page_sizes: vec![4096],
                ..Judged::default()
            },
            findings,
            planted: vec![Planted {
                place: "ptep_clear_flush+0x78".into(),
                address: 0x1078,
                linked: 0x78,
                instruction: "tlbi vale1is".into(),
            }],
            is_unplanted: false,
            notes: Vec::new(),
            unchecked: Vec::new(),
            record: None,
        }
    }

    fn finding() -> Finding {
        Finding {
            rule: "missing-isb",
            function: None,
            places: Vec::new(),
            count: 2,
            example: "CPU 0 may fault".into(),
            steps: Vec::new(),
            mend: "an ISB",
            undecided: None,
            accepted: None,
        }
    }

    #[test]
    fn the_object_is_as_described() {
        let object = watched(vec![finding()]).json();
        crate::schema::assert_matches("watch", &object);
        assert_eq!(object["planted"][0]["linked"], "0x78");
    }

    #[test]
    fn the_exit_code_depends_on_whether_everything_was_judged() {
        assert_eq!(watched(Vec::new()).exit_code(), 0);
        assert_eq!(watched(vec![finding()]).exit_code(), 1);
        let mut accepted = finding();
        accepted.accepted = Some("it is known".into());
        assert_eq!(watched(vec![accepted.clone()]).exit_code(), 0);
        assert_eq!(watched(vec![accepted, finding()]).exit_code(), 1);
        let mut died = watched(Vec::new());
        died.outcome = Outcome::Died("signal: 9".into());
        assert_eq!(died.exit_code(), 3);
        let mut part = watched(Vec::new());
        part.unchecked.push("the upper half of EL1&0".into());
        assert_eq!(part.exit_code(), 3);
        assert!(part.text().ends_with(": no violation, not complete\n"));
        part.findings.push(finding());
        assert_eq!(part.exit_code(), 1);
        let mut unplanted = watched(Vec::new());
        unplanted.is_unplanted = true;
        assert_eq!(unplanted.exit_code(), 2);
        let mut off = watched(Vec::new());
        off.judged.page_sizes.clear();
        assert_eq!(off.exit_code(), 2);
        // Registers were written, but the tables are where nobody looks.
        let mut unseen = watched(Vec::new());
        unseen.tally.events.tables = 0;
        assert_eq!(unseen.exit_code(), 2);
        assert!(unseen.text().ends_with(": nothing was judged\n"));
        let mut stopped = watched(Vec::new());
        stopped.judged.stopped = Some("the beginning".into());
        assert_eq!(stopped.exit_code(), 3);
        stopped.checks = false;
        assert_eq!(stopped.exit_code(), 0);
    }

    #[test]
    fn people_read_the_place_the_count_and_the_end() {
        let text = watched(vec![finding()]).text();
        assert_contains(&text, "missing-isb in end, 2 times: CPU 0 may fault\n");
        let planted = "planted: ptep_clear_flush+0x78 is a NOP in the place of tlbi vale1is\n";
        assert!(text.contains(planted), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.ends_with(": 2 violations in one place"), "{last}");
    }
}
