//! The cost of a linear map, without booting: its counts by arithmetic, and from the counts the
//! time on machines with published times.
//!
//! [`job`] is a map and its counts (`job::direct` those of our own strategy; `dry`, for tests,
//! builds a map on no machine), [`published`] holds the published times, [`machine`] fits a few
//! costs to some of them, and [`check`] compares the model's times with all of them. Nothing here
//! boots, prints or reads files.

pub mod check;
#[cfg(test)]
mod dry;
pub mod job;
pub mod machine;
pub mod published;

pub use job::Job;
pub use machine::CostModel;
