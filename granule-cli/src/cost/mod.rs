//! What a linear map takes, without booting anything: its counts by arithmetic, and from the
//! counts the time on machines whose published times are known.
//!
//! [`job`] is a map to be made and its counts (`job::direct` those of our own strategy; `dry`, for tests, makes
//! one on no machine),
//! [`published`] holds the published times, [`machine`] fits a few costs to some of them, and
//! [`check`] sets the model's times beside all of them. Nothing here boots, prints or reads files.

pub mod check;
#[cfg(test)]
mod dry;
pub mod job;
pub mod machine;
pub mod published;

pub use job::Job;
pub use machine::Machine;
