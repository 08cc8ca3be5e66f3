//! The cost of a linear map, without booting: its counts, and from the counts the time on machines with published
//! times.
//!
//! [`job`] is a map. `counting` runs the library's code on tables that are only counted, and `periodic` runs it
//! over a part of a long map. [`published`] holds the published times, [`machine`] fits a few costs to some of them,
//! and [`check`] compares the model's times with all of them. Nothing here boots, prints or reads files.

pub mod check;
mod counting;
pub mod job;
pub mod machine;
mod periodic;
pub mod published;

use granule_trace::recorder::Counts;

pub use job::Job;
pub use machine::CostModel;

/// The cost of making a linear map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Stores, tables, TLBIs and barriers.
    pub counts: Counts,
    /// The number of stores that make an entry of a new table invalid before the table is filled.
    pub zeroed: u64,
    /// The number of waits for TLBIs; one wait may cover several TLBIs.
    pub waits: u64,
}

impl Cost {
    /// Each count of both, combined.
    fn with(self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let (a, b) = (&self.counts, &other.counts);
        Self {
            counts: Counts {
                stores: combine(a.stores, b.stores),
                tables: combine(a.tables, b.tables),
                tlbi: combine(a.tlbi, b.tlbi),
                dsb: combine(a.dsb, b.dsb),
                isb: combine(a.isb, b.isb),
            },
            zeroed: combine(self.zeroed, other.zeroed),
            waits: combine(self.waits, other.waits),
        }
    }

    fn plus(self, more: &Self) -> Self {
        self.with(more, u64::wrapping_add)
    }

    fn minus(self, less: &Self) -> Self {
        self.with(less, u64::wrapping_sub)
    }

    fn times(self, factor: u64) -> Self {
        self.with(&self, |count, _| count.wrapping_mul(factor))
    }
}
