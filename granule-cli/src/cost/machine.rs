//! A machine as a few costs, fitted to published times.
//!
//! The model is a sum: each count times its cost. It knows nothing of caches, of what overlaps,
//! of other CPUs; what it is worth stands in [`check`](super::check).

use granule::arch::PageSize;
use granule::arch::bbm::BbmLevel;
use granule::linear::Expected;

use super::Job;
use super::published::{COLUMNS, Column, FITTED_COLUMNS, LINES};
use crate::request::Rodata;

/// The costs, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// What it was called where its times were published.
    pub published_as: &'static str,
    /// Whether its TLBIs reach ranges.
    pub tlbi_range: bool,
    /// Issuing a TLBI.
    pub tlbi_ns: f64,
    /// Waiting for the TLBIs issued before, with the DSBs and the ISB round them.
    pub wait_ns: f64,
    /// A DSB ISHST with its ISB.
    pub dsb_isb_ns: f64,
    /// Storing a descriptor, the walk that leads there and its share of all else included.
    pub store_ns: f64,
    /// Making a descriptor of a new table invalid. No published time tells it from
    /// [`store_ns`](Self::store_ns), as each strategy does one for the other: the sum is known, and
    /// divided evenly.
    pub zero_ns: f64,
}

/// How many costs are fitted: the last two are one.
const COSTS: usize = 4;

/// A time in milliseconds that the model gives: one where it was fitted to such maps, else what it
/// lies between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    /// At least.
    pub low_ms: f64,
    /// At most.
    pub high_ms: f64,
}

/// How often each of the costs is paid.
fn paid(expected: &Expected) -> [f64; COSTS] {
    let counts = &expected.counts;
    let written = counts.stores.saturating_sub(expected.zeroed);
    [
        counts.tlbi as f64,
        expected.waits as f64,
        // Two DSBs are part of each wait.
        counts.dsb.saturating_sub(2 * expected.waits) as f64,
        written as f64,
    ]
}

impl Machine {
    /// The machines there are published times of.
    #[must_use]
    pub fn all() -> Vec<Self> {
        FITTED_COLUMNS
            .into_iter()
            .filter_map(|column| Self::fit(column, COLUMNS.get(column)?))
            .collect()
    }

    /// The machine of this name.
    ///
    /// # Errors
    ///
    /// One line with the names there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let all = Self::all();
        let names: Vec<_> = all.iter().map(|machine| machine.name).collect();
        let names = names.join(", ");
        all.into_iter()
            .find(|machine| machine.name == name)
            .ok_or_else(|| format!("{name:?} is no machine with published times: {names}"))
    }

    /// Fits the costs to the lines that are for fitting, so that the sum of the squares of the
    /// relative errors is least and no cost is negative.
    fn fit(column: usize, about: &Column) -> Option<Self> {
        let job = published_job(about).ok()?;
        let mut rows = Vec::new();
        for line in LINES.iter().filter(|line| line.fitted) {
            let expected = job.expect(line.strategy, line.barriers).ok()?;
            let ns = f64::from(*line.ms.get(column)?) * 1e6;
            rows.push(paid(&expected).map(|times| times / ns));
        }
        let [tlbi_ns, wait_ns, dsb_isb_ns, write_ns] = least_squares(&rows)?;
        Some(Self {
            name: about.machine,
            published_as: about.published_as,
            tlbi_range: about.tlbi_range,
            tlbi_ns,
            wait_ns,
            dsb_isb_ns,
            store_ns: write_ns / 2.0,
            zero_ns: write_ns / 2.0,
        })
    }

    /// The time of a map that takes `expected`.
    #[must_use]
    pub fn predict(&self, expected: &Expected) -> Predicted {
        let [tlbi, waits, barriers, stores] = paid(expected);
        let rest = tlbi * self.tlbi_ns + waits * self.wait_ns + barriers * self.dsb_isb_ns;
        let low = rest + stores * self.store_ns + expected.zeroed as f64 * self.zero_ns;
        // Stores that were not preceded by zeroing: how much of the sum they cost is unknown.
        let unzeroed = stores - (expected.zeroed as f64).min(stores);
        Predicted {
            low_ms: low / 1e6,
            high_ms: (low + unzeroed * self.zero_ns) / 1e6,
        }
    }
}

/// The map whose time a published column holds.
///
/// # Errors
///
/// None for the columns there are.
pub fn published_job(column: &Column) -> Result<Job, String> {
    Job::assumed(
        column.gib << 30,
        PageSize::K4,
        48,
        Rodata::Full,
        BbmLevel::Level0,
        column.tlbi_range,
    )
}

/// The costs, none negative, with which the sum of each row comes nearest to 1. With so few of
/// them every choice of which are 0 can be tried.
fn least_squares(rows: &[[f64; COSTS]]) -> Option<[f64; COSTS]> {
    let mut best: Option<(f64, [f64; COSTS])> = None;
    for used in 1u32..1 << COSTS {
        let Some(costs) = solve(rows, |cost| used >> cost & 1 == 1) else {
            continue;
        };
        if costs.iter().any(|&cost| cost < 0.0) {
            continue;
        }
        let miss = |row: &[f64; COSTS]| {
            let sum: f64 = row
                .iter()
                .zip(costs)
                .map(|(times, cost)| times * cost)
                .sum();
            (sum - 1.0).powi(2)
        };
        let error: f64 = rows.iter().map(miss).sum();
        if best.is_none_or(|(least, _)| error < least) {
            best = Some((error, costs));
        }
    }
    best.map(|(_, costs)| costs)
}

/// The normal equations for the costs that are used, by elimination; `None` when the rows do not
/// determine them.
fn solve(rows: &[[f64; COSTS]], used: impl Fn(usize) -> bool) -> Option<[f64; COSTS]> {
    // The counts differ by orders of magnitude: each is scaled to 1 first.
    let scale: [f64; COSTS] = std::array::from_fn(|cost| {
        let largest = rows.iter().map(|row| row[cost]).fold(0.0, f64::max);
        if largest > 0.0 { largest } else { 1.0 }
    });
    let mut matrix = [[0.0; COSTS + 1]; COSTS];
    for (i, equation) in matrix.iter_mut().enumerate() {
        if !used(i) {
            equation[i] = 1.0;
            continue;
        }
        for row in rows {
            for j in (0..COSTS).filter(|&j| used(j)) {
                equation[j] += row[i] / scale[i] * (row[j] / scale[j]);
            }
            equation[COSTS] += row[i] / scale[i];
        }
    }
    for pivot in 0..COSTS {
        let largest = (pivot..COSTS)
            .max_by(|&a, &b| matrix[a][pivot].abs().total_cmp(&matrix[b][pivot].abs()))?;
        matrix.swap(pivot, largest);
        if matrix[pivot][pivot].abs() < 1e-12 {
            return None;
        }
        let lead = matrix[pivot];
        for (i, equation) in matrix.iter_mut().enumerate() {
            if i != pivot {
                let times = equation[pivot] / lead[pivot];
                for (to, from) in equation.iter_mut().zip(lead) {
                    *to -= times * from;
                }
            }
        }
    }
    Some(std::array::from_fn(|cost| {
        matrix[cost][COSTS] / matrix[cost][cost] / scale[cost]
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_finds_costs_that_are_there() {
        // Times made up from known costs come back as those.
        let costs = [300.0, 1500.0, 16.0, 2.5];
        let counts = [
            [1e6, 1e6, 1.8e7, 1.7e7],
            [6.5e4, 6.5e4, 1.6e7, 1.7e7],
            [6.5e4, 6.5e4, 9.0e4, 1.7e7],
            [3.2e4, 2.0e3, 9.0e4, 1.7e7],
        ];
        let rows = counts.map(|row| {
            let time: f64 = row.iter().zip(costs).map(|(n, cost)| n * cost).sum();
            row.map(|n| n / time)
        });
        let found = least_squares(&rows).unwrap();
        for (found, cost) in found.into_iter().zip(costs) {
            assert!((found / cost - 1.0).abs() < 1e-6, "{found} for {cost}");
        }
    }

    #[test]
    fn a_cost_that_would_be_negative_is_none() {
        let rows = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]];
        let [first, second, ..] = least_squares(&rows).unwrap();
        assert!(first >= 0.0 && second >= 0.0, "{first} {second}");
    }

    #[test]
    fn unknown_machines_are_told_what_there_is() {
        let error = Machine::named("cray").unwrap_err();
        for machine in Machine::all() {
            assert!(error.contains(machine.name), "{error}");
        }
        assert_eq!(Machine::all().len(), FITTED_COLUMNS.len());
    }
}
