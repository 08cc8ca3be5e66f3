//! Prints tables for people, JSON for programs, and how the figures compare with the goals.

use crate::rounds::{Outcome, ROUNDS};
use crate::stats::Spread;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use granule_bench::job::STEPS;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

/// Returns the allowed ratio of the floor's time to that of `memset` of the same bytes. `memset`
/// chooses its stores when it starts: with AVX-512 it takes stores of whole cache lines, which code
/// for the default target may not use.
fn floor_over_memset() -> RangeInclusive<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return 0.90..=1.35;
    }
    0.90..=1.10
}

/// The range that the floor is judged at, and with it the harness.
const JUDGED_BYTES: u64 = 64 << 30;

/// The subject that has goals on tables that no CPU walks.
const OURS: &str = "granule";

/// A ratio to the floor that is to be reached.
pub(crate) struct Goal {
    subject: &'static str,
    bytes: u64,
    step: usize,
    most: f64,
}

const fn goal(subject: &'static str, gib: u64, step: usize, most: f64) -> Goal {
    Goal {
        subject,
        bytes: gib << 30,
        step,
        most,
    }
}

/// All in 4K leaves, by one call.
pub(crate) const GOALS: [Goal; 8] = [
    goal(OURS, 64, 0, 1.25),
    goal(OURS, 1, 0, 1.3),
    goal(OURS, 64, 1, 1.5),
    goal(OURS, 1, 1, 1.3),
    goal("granule, live", 64, 1, 1.3),
    goal("granule, live", 1, 1, 2.0),
    goal("granule, holes refused", 64, 1, 1.5),
    goal("granule, live, holes refused", 64, 1, 1.8),
];

/// A goal and what was measured.
struct Judged<'a> {
    goal: &'a Goal,
    what: String,
    ratio: Spread,
    rounds: usize,
}

impl Judged<'_> {
    /// Nothing with fewer rounds than decide it.
    fn reached(&self) -> Option<bool> {
        (self.rounds >= usize::from(ROUNDS)).then_some(self.ratio.median <= self.goal.most)
    }
}

fn judge(outcomes: &[Outcome]) -> Vec<Judged<'_>> {
    let judged = GOALS.iter().filter_map(|goal| {
        let outcome = outcomes
            .iter()
            .find(|o| o.job.is_pages_at_once() && o.job.bytes == goal.bytes)?;
        let row = outcome
            .rows
            .iter()
            .find(|row| row.subject == goal.subject)?;
        let ours = goal.subject.strip_prefix(OURS).unwrap_or(goal.subject);
        Some(Judged {
            goal,
            what: format!("{} {}{ours}", STEPS[goal.step], outcome.job),
            ratio: row.ratio[goal.step],
            rounds: outcome.rounds,
        })
    });
    judged.collect()
}

/// Returns the fault of the harness, if its floor is not where it must be.
pub(crate) fn fault(outcomes: &[Outcome]) -> Option<String> {
    let judged = outcomes
        .iter()
        .find(|o| o.job.is_pages_at_once() && o.job.bytes == JUDGED_BYTES)?;
    let ratio = judged.floor_over_memset.median;
    let allowed = floor_over_memset();
    (!allowed.contains(&ratio)).then(|| {
        format!(
            "the harness is at fault: at {} its floor takes {ratio:.2} times memset of the same \
             bytes, which must be within {:.2} to {:.2}; no ratio above counts. Run it again on a \
             machine that does less",
            judged.job,
            allowed.start(),
            allowed.end(),
        )
    })
}

/// The tables, and the goals that they decide.
pub(crate) fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let job = &outcome.job;
        let trees = if job.trees == 1 {
            "one tree".to_owned()
        } else {
            format!("each of {} trees", job.trees)
        };
        text += &format!(
            "{job}: {} leaves and {} tables in {trees}; {} rounds; the floor's map is {} of \
             memset\n{}\n\n",
            job.leaves() / job.trees,
            job.tables(),
            outcome.rounds,
            ratio(&outcome.floor_over_memset),
            table(outcome),
        );
    }
    text += "x floor: the time over the floor's in the same round, median (quartiles).\n";
    let judged = judge(outcomes);
    if !judged.is_empty() {
        text += "\nGoals, time over the floor's:\n";
    }
    for goal in judged {
        text += &format!(
            "  {}: at most {}, measured {}: {}\n",
            goal.what,
            goal.goal.most,
            ratio(&goal.ratio),
            match goal.reached() {
                Some(true) => "reached".to_owned(),
                Some(false) => "missed".to_owned(),
                None => format!("not decided by fewer than {} rounds", ROUNDS),
            }
        );
    }
    text
}

fn table(outcome: &Outcome) -> Table {
    let mut table = Table::new();
    let mut header = vec![String::new()];
    for step in outcome.job.steps() {
        header.extend([format!("{step}, ns a leaf"), "x floor".to_owned()]);
    }
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    let mut floor = vec!["floor: plain stores".to_owned()];
    for spread in &outcome.floor {
        floor.extend([format!("{:.2}", spread.median), "1".to_owned()]);
    }
    table.add_row(floor);
    for row in &outcome.rows {
        let mut cells = vec![row.subject.to_owned()];
        for (time, over) in row.nanoseconds.iter().zip(&row.ratio) {
            cells.extend([format!("{:.2}", time.median), ratio(over)]);
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn ratio(spread: &Spread) -> String {
    format!(
        "{:.2} ({:.2} to {:.2})",
        spread.median, spread.lower, spread.upper
    )
}

/// The same for programs.
pub(crate) fn json(outcomes: &[Outcome]) -> Value {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let job = &outcome.job;
        for row in &outcome.rows {
            for (step, name) in job.steps().iter().enumerate() {
                rows.push(json!({
                    "bytes": job.bytes,
                    "leaf_bytes": job.leaf.bytes(),
                    "trees": job.trees,
                    "calls": job.calls_name(),
                    "tables": row.tables,
                    "rounds": outcome.rounds,
                    "subject": row.subject,
                    "step": name,
                    "ratio": spread(&row.ratio[step]),
                    "ns_per_leaf": spread(&row.nanoseconds[step]),
                    "floor_ns_per_leaf": spread(&outcome.floor[step]),
                }));
            }
        }
    }
    let floors = outcomes.iter().map(|outcome| {
        json!({
            "bytes": outcome.job.bytes,
            "leaf_bytes": outcome.job.leaf.bytes(),
            "calls": outcome.job.calls_name(),
            "floor_over_memset": spread(&outcome.floor_over_memset),
        })
    });
    let goals = judge(outcomes).into_iter().map(|goal| {
        json!({
            "what": goal.what,
            "at_most": goal.goal.most,
            "ratio": spread(&goal.ratio),
            "reached": goal.reached(),
        })
    });
    json!({
        "rows": rows,
        "floors": floors.collect::<Vec<_>>(),
        "goals": goals.collect::<Vec<_>>(),
        "fault": fault(outcomes),
    })
}

fn spread(spread: &Spread) -> Value {
    json!({
        "least": spread.least,
        "lower_quartile": spread.lower,
        "median": spread.median,
        "upper_quartile": spread.upper,
        "most": spread.most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Row;
    use granule_bench::job::{Calls, Job, Leaf};

    fn flat(value: f64) -> Spread {
        Spread {
            least: value,
            lower: value,
            median: value,
            upper: value,
            most: value,
        }
    }

    fn row(subject: &'static str, ratios: [f64; 3]) -> Row {
        Row {
            subject,
            tables: 1,
            nanoseconds: vec![flat(2.0); 3],
            ratio: ratios.map(flat).to_vec(),
        }
    }

    fn outcome(bytes: u64, map: f64, floor_over_memset: f64) -> Outcome {
        Outcome {
            job: Job {
                bytes,
                leaf: Leaf::PAGE_4K,
                trees: 1,
                calls: Calls::RANGE,
            },
            rounds: 31,
            floor: vec![flat(1.0); 3],
            floor_over_memset: flat(floor_over_memset),
            rows: vec![
                row("other", [9.0, 1.6, 0.5]),
                row(OURS, [map, 1.6, 0.5]),
                row("granule, live", [9.0, 1.6, 0.5]),
            ],
        }
    }

    #[test]
    fn judges_ours_by_the_goals() {
        let outcomes = [outcome(1 << 30, 1.31, 1.0), outcome(64 << 30, 1.25, 1.0)];
        let reached: Vec<_> = judge(&outcomes)
            .iter()
            .map(|goal| (goal.what.clone(), goal.reached()))
            .collect();
        let expected = [
            ("map 64 GiB in 4K leaves", Some(true)),
            ("map 1 GiB in 4K leaves", Some(false)),
            ("protect 64 GiB in 4K leaves", Some(false)),
            ("protect 1 GiB in 4K leaves", Some(false)),
            ("protect 64 GiB in 4K leaves, live", Some(false)),
            ("protect 1 GiB in 4K leaves, live", Some(true)),
        ];
        assert_eq!(reached, expected.map(|(what, is)| (what.to_owned(), is)));
        let text = text(&outcomes);
        assert!(
            text.contains(
                "map 1 GiB in 4K leaves: at most 1.3, measured 1.31 (1.31 to 1.31): missed"
            ),
            "{text}"
        );
        assert_eq!(json(&outcomes)["goals"][0]["reached"], true);
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        for (rounds, decided) in [(1, false), (30, false), (31, true)] {
            let mut few = outcome(64 << 30, 1.0, 1.0);
            few.rounds = rounds;
            let outcomes = [few];
            let text = text(&outcomes);
            assert_eq!(text.contains(": reached"), decided, "{text}");
            assert_eq!(text.contains("not decided by fewer than 31"), !decided);
            let reached = &json(&outcomes)["goals"][0]["reached"];
            let expected = if decided { json!(true) } else { Value::Null };
            assert_eq!(*reached, expected);
        }
    }

    #[test]
    fn a_floor_far_from_memset_is_a_fault_of_the_harness() {
        assert_eq!(fault(&[outcome(64 << 30, 1.0, 1.09)]), None);
        assert_eq!(fault(&[outcome(64 << 30, 1.0, 0.91)]), None);
        // Only the large range decides: a small one fits in caches that memset goes round.
        assert_eq!(fault(&[outcome(1 << 30, 1.0, 3.0)]), None);
        let allowed = floor_over_memset();
        assert_eq!(*allowed.start(), 0.90);
        assert!([1.10, 1.35].contains(allowed.end()), "{allowed:?}");
        for far in [allowed.start() - 0.01, allowed.end() + 0.01] {
            let message = fault(&[outcome(64 << 30, 1.0, far)]).unwrap();
            assert!(message.starts_with("the harness is at fault"), "{message}");
        }
    }
}
