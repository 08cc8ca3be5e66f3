//! Prints tables for people, JSON for programs, and how the figures compare with the goals.

use crate::rounds::{Outcome, ROUNDS};
use crate::stats::Spread;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use granule_bench::goals::{Goal, Measurement, goals};
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

/// A goal and what was measured.
struct Judged {
    goal: Goal,
    what: String,
    ratio: Spread,
    rounds: usize,
}

impl Judged {
    /// Nothing with fewer rounds than decide it.
    fn reached(&self) -> Option<bool> {
        (self.rounds >= usize::from(ROUNDS)).then_some(self.ratio.median <= self.goal.most)
    }
}

fn judge(outcomes: &[Outcome]) -> Vec<Judged> {
    let rows = outcomes.iter().flat_map(|outcome| {
        let rows = outcome.rows.iter();
        rows.map(|row| Measurement {
            job: &outcome.job,
            subject: row.subject,
            value: row,
        })
    });
    let rows: Vec<_> = rows.collect();
    let timed = goals().into_iter().filter(Goal::is_timed);
    let judged = timed.filter_map(|goal| {
        let step = goal.step;
        let compared = goal.compared(&rows, |row| row.ratio[step].median)?;
        let (ours, other) = (&compared.ours.ratios, compared.other);
        // Of the same round.
        let ratio = |at: usize| ours[at][step] / other.map_or(1.0, |row| row.ratios[at][step]);
        Some(Judged {
            goal,
            what: goal.what(compared.job),
            ratio: Spread::of((0..ours.len()).map(ratio).collect())?,
            rounds: ours.len(),
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
        text += "\nGoals, time over the floor's where nothing else is said:\n";
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
    use granule_bench::job::{Calls, Job, Leaf, Tables};

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
        let [map, protect, unmap] = ratios;
        Row {
            subject,
            tables: 1,
            nanoseconds: vec![flat(2.0); 3],
            ratio: ratios.map(flat).to_vec(),
            ratios: vec![[map, protect, unmap, f64::NAN]; 31],
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
                row("granule", [map, 1.6, 0.5]),
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
            ("unmap 64 GiB in 4K leaves", Some(false)),
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
    fn calls_are_judged_by_other_crates() {
        let mut calls = outcome(64 << 20, 6.0, 1.0);
        calls.job.calls = Calls::of(4, Tables::There);
        let other = ["aarch64-paging", "page_table_multiarch", "x86_64"];
        for (subject, map) in other.into_iter().zip([9.0, 1.0, 5.0]) {
            calls.rows.push(row(subject, [map, 1.0, 0.1]));
        }
        let judged = judge(&[calls]);
        let of = |words: &str| {
            let mut all = judged.iter().filter(|one| one.what.contains(words));
            let one = all.next().unwrap();
            (one.ratio.median, one.reached())
        };
        assert_eq!(
            of("map 64 MiB in 4K leaves, 4 pages a call, tables there, over the fastest"),
            (1.2, Some(true))
        );
        assert_eq!(
            of("protect 64 MiB in 4K leaves, 4 pages a call, tables there, live"),
            (1.0, Some(true))
        );
        assert_eq!(of("unmap 64 MiB"), (5.0, Some(false)));
        assert_eq!(judged.len(), 6);
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        for (rounds, decided) in [(1, false), (30, false), (31, true)] {
            let mut few = outcome(64 << 30, 1.0, 1.0);
            few.rounds = rounds;
            for row in &mut few.rows {
                row.ratios.truncate(rounds);
            }
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
