//! `granule dump`, `granule lint` and `granule report`: other kernels' page tables in words, in JSON and
//! as a page.
//!
//! What tables mean is `granule_inspect`'s business. Here are options, output and exit codes.

pub mod args;
mod compare;
pub mod dump;
mod json;
pub mod lint;
mod listing;
pub mod report;
mod text;

use std::io;

use granule_inspect::source::OpenError;
use granule_inspect::{Opened, Options, source::Source};

/// The exit code for what cannot be read.
pub const UNREADABLE: u8 = 3;

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Something cannot be read.
    #[error("{0}")]
    Source(String),
    /// The result cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// A file cannot be written.
    #[error("{0}: {1}")]
    File(String, io::Error),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::Source(error.to_string())
    }
}

/// Who hears of progress, with the number of tables that were read.
pub type Progress<'p> = &'p mut dyn FnMut(u64);

/// Opens a source and finds its trees.
fn open(source: &Source, options: &Options) -> Result<Opened, Failure> {
    Ok(granule_inspect::open(source, options)?)
}
