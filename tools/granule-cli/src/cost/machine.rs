//! A machine as a few costs, fitted to published times.
//!
//! The model is a sum, the same for fitting and for predicting: each count times its cost. It
//! leaves out caches, overlapping operations and other CPUs; [`check`](super::check) shows how good
//! it is.

use std::array;

use super::published::{COLUMNS, Column, FITTED_COLUMNS, LINES, Line};
use super::{Cost, Job};
use crate::request::Rodata;
use granule::arch::PageSize;
use granule::arch::bbm::BbmLevel;

/// The costs of a machine, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct CostModel {
    pub name: &'static str,
    /// The machine's name in the publication.
    pub published_as: &'static str,
    /// The page sizes that its CPUs support.
    pub page_sizes: &'static [PageSize],
    /// Whether its CPUs have TLBIs by range.
    pub tlbi_range: bool,
    /// The cost of issuing a TLBI.
    pub tlbi_ns: f64,
    /// The cost of waiting for the TLBIs issued before, with the DSBs and the ISB around them.
    pub wait_ns: f64,
    /// The cost of a DSB ISHST with its ISB.
    pub dsb_isb_ns: f64,
    /// The cost of storing a descriptor, including the walk to it and its share of everything else.
    /// Zeroing an entry of a new table counts as such a store: the published times do not
    /// separate the two, since each strategy does one zeroing for each store.
    pub store_ns: f64,
    /// The least and the most of each cost, in the order above, when the published times move by
    /// 2 %, or by half a millisecond because they are rounded to whole ones.
    pub ranges: [(f64, f64); COSTS],
}

/// The number of fitted costs.
pub const COSTS: usize = 4;

/// The assumed error of a published time: about the difference between postings of the same
/// strategy on the Altra.
const SPREAD: f64 = 0.02;
/// Times were published in whole milliseconds.
const ROUNDING_NS: f64 = 0.5e6;

/// A time in milliseconds that the model predicts: exact for maps like the fitted ones, a range for
/// others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    /// The lower bound.
    pub low_ms: f64,
    /// The upper bound.
    pub high_ms: f64,
}

/// The count of each cost.
fn paid(cost: &Cost) -> [f64; COSTS] {
    let counts = &cost.counts;
    [
        counts.tlbi as f64,
        cost.waits as f64,
        // Each wait includes two DSBs.
        counts.dsb.saturating_sub(2 * cost.waits) as f64,
        counts.stores as f64,
    ]
}

impl CostModel {
    /// The machines with published times.
    pub fn all() -> Vec<Self> {
        FITTED_COLUMNS
            .into_iter()
            .filter_map(|column| Self::fit(column, COLUMNS.get(column)?))
            .collect()
    }

    /// The machine with this name.
    /// Fails with one line with the known names.
    pub fn named(name: &str) -> Result<Self, String> {
        let all = Self::all();
        let names: Vec<_> = all.iter().map(|machine| machine.name).collect();
        let names = names.join(", ");
        all.into_iter()
            .find(|machine| machine.name == name)
            .ok_or_else(|| format!("{name:?} is not a machine with published times: {names}"))
    }

    /// Fits the costs to the fitted lines: least sum of the squares of the relative errors, with no
    /// negative cost.
    fn fit(column: usize, about: &Column) -> Option<Self> {
        let job = published_job(about).ok()?;
        let lines: Vec<&Line> = LINES.iter().filter(|line| line.fitted).collect();
        let mut counts = Vec::new();
        let mut times = Vec::new();
        for line in &lines {
            counts.push(paid(&job.cost(Some(line.strategy), line.barriers).ok()?));
            times.push(f64::from(*line.ms.get(column)?) * 1e6);
        }
        let fit = |times: &[f64]| {
            let rows = counts.iter().zip(times);
            let rows: Vec<_> = rows.map(|(row, ns)| row.map(|paid| paid / ns)).collect();
            least_squares(&rows)
        };
        let costs = fit(&times)?;
        let mut ranges = costs.map(|cost| (cost, cost));
        // Every combination of times that are too high or too low.
        for signs in 0u32..1 << times.len() {
            let moved: Vec<f64> = (times.iter().enumerate())
                .map(|(place, ns)| {
                    let off = (ns * SPREAD).max(ROUNDING_NS);
                    ns + if signs >> place & 1 == 1 { off } else { -off }
                })
                .collect();
            for (range, cost) in ranges.iter_mut().zip(fit(&moved)?) {
                *range = (range.0.min(cost), range.1.max(cost));
            }
        }
        let [tlbi_ns, wait_ns, dsb_isb_ns, store_ns] = costs;
        Some(Self {
            name: about.machine,
            published_as: about.published_as,
            page_sizes: about.page_sizes,
            tlbi_range: about.tlbi_range,
            tlbi_ns,
            wait_ns,
            dsb_isb_ns,
            store_ns,
            ranges,
        })
    }

    /// The costs in the order in which they are fitted.
    pub const fn costs(&self) -> [f64; COSTS] {
        [self.tlbi_ns, self.wait_ns, self.dsb_isb_ns, self.store_ns]
    }

    /// Whether its CPUs support this page size.
    pub fn has(&self, page_size: PageSize) -> bool {
        self.page_sizes.contains(&page_size)
    }

    /// The time of a map that costs `cost`.
    pub fn predict(&self, cost: &Cost) -> Predicted {
        let sum = sum(&paid(cost), &self.costs());
        // Where nothing is zeroed, the cost of a store by itself is unknown: between half of what
        // storing and zeroing cost together (if they cost the same) and all of it.
        let unzeroed = if cost.zeroed == 0 {
            cost.counts.stores as f64 * self.store_ns
        } else {
            0.0
        };
        Predicted {
            low_ms: sum / 1e6,
            high_ms: (sum + unzeroed) / 1e6,
        }
    }
}

/// Each count times its cost.
fn sum(counts: &[f64; COSTS], costs: &[f64; COSTS]) -> f64 {
    counts.iter().zip(costs).map(|(n, cost)| n * cost).sum()
}

/// The map that a published column was measured with.
/// Fails for none of the existing columns.
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

/// The non-negative costs with which the sum of each row comes nearest to 1. There are so few costs
/// that every choice of which of them are 0 is tried.
fn least_squares(rows: &[[f64; COSTS]]) -> Option<[f64; COSTS]> {
    let mut best: Option<(f64, [f64; COSTS])> = None;
    for used in 1u32..1 << COSTS {
        let Some(costs) = solve(rows, |cost| used >> cost & 1 == 1) else {
            continue;
        };
        if costs.iter().any(|&cost| cost < 0.0) {
            continue;
        }
        let miss = |row| (sum(row, &costs) - 1.0).powi(2);
        let error: f64 = rows.iter().map(miss).sum();
        if best.is_none_or(|(least, _)| error < least) {
            best = Some((error, costs));
        }
    }
    best.map(|(_, costs)| costs)
}

/// Solves the normal equations for the used costs by elimination; `None` if the rows do not
/// determine them.
fn solve(rows: &[[f64; COSTS]], used: impl Fn(usize) -> bool) -> Option<[f64; COSTS]> {
    // The counts differ by orders of magnitude, so each is scaled to 1 first.
    let scale: [f64; COSTS] = array::from_fn(|cost| {
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
    Some(array::from_fn(|cost| {
        matrix[cost][COSTS] / matrix[cost][cost] / scale[cost]
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_finds_costs_that_are_there() {
        // Times computed from known costs give those costs back.
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
    fn there_are_more_fitted_lines_than_costs() {
        assert!(LINES.iter().filter(|line| line.fitted).count() > COSTS);
    }

    /// A machine fitted to times that its own costs predict must come out the same: fitting and
    /// predicting use one sum.
    #[test]
    fn fitting_and_predicting_are_one_formula() {
        for machine in CostModel::all() {
            let column = COLUMNS.iter().find(|column| column.machine == machine.name);
            let job = published_job(column.unwrap()).unwrap();
            let fitted = LINES.iter().filter(|line| line.fitted);
            let rows: Vec<_> = fitted
                .map(|line| {
                    let cost = job.cost(Some(line.strategy), line.barriers).unwrap();
                    let predicted = machine.predict(&cost);
                    // Maps like the published ones have one exact time.
                    assert_eq!(predicted.low_ms, predicted.high_ms);
                    paid(&cost).map(|paid| paid / (predicted.low_ms * 1e6))
                })
                .collect();
            let again = least_squares(&rows).unwrap();
            for (again, cost) in again.into_iter().zip(machine.costs()) {
                assert!(
                    (again - cost).abs() < 1e-3 * cost.max(1.0),
                    "{again} {cost}"
                );
            }
        }
    }

    #[test]
    fn only_what_is_not_zeroed_has_a_range() {
        let machine = CostModel::named("altra").unwrap();
        let job = published_job(&COLUMNS[1]).unwrap();
        for way in crate::request::LinearMap::ALL {
            let cost = job.cost(way.strategy(), way.barriers().value()).unwrap();
            let predicted = machine.predict(&cost);
            let direct = way.strategy().is_none();
            assert_eq!(predicted.high_ms > predicted.low_ms, direct, "{way:?}");
        }
    }

    #[test]
    fn each_cost_lies_in_its_range() {
        for machine in CostModel::all() {
            for (cost, (least, most)) in machine.costs().into_iter().zip(machine.ranges) {
                assert!(least <= cost && cost <= most, "{machine:?}");
                assert!(cost == 0.0 || least < most, "{machine:?}");
            }
        }
    }

    #[test]
    fn a_cost_that_would_be_negative_is_none() {
        let rows = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]];
        let [first, second, ..] = least_squares(&rows).unwrap();
        assert!(first >= 0.0 && second >= 0.0, "{first} {second}");
    }

    #[test]
    fn an_unknown_machine_is_refused_with_those_there_are() {
        let error = CostModel::named("cray").unwrap_err();
        for machine in CostModel::all() {
            assert!(error.contains(machine.name), "{error}");
        }
        assert_eq!(CostModel::all().len(), FITTED_COLUMNS.len());
    }
}
