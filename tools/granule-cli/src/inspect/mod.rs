//! `granule dump`, `granule lint` and `granule report`: other kernels' page tables in words, in JSON and
//! as a page.
//!
//! The meaning of tables is `granule_inspect`'s business. Here are options, output and exit codes.

pub mod args;
pub(crate) mod compare;
pub mod dump;
pub(crate) mod json;
pub mod lint;
pub(crate) mod listing;
pub mod report;
mod text;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use granule::arch::PhysicalAddress;
use granule_inspect::source::{Memory, OpenError, ReadError, Source};
use granule_inspect::{Opened, Options};

/// The exit code for what cannot be read.
pub const UNREADABLE: u8 = 3;

/// The reasons why a command has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Something cannot be read.
    #[error("{0}")]
    Source(String),
    /// A line of the memory map is none.
    #[error("{0}")]
    MemoryMap(String),
    /// A signal came before the end.
    #[error("interrupted: there is no whole result")]
    Interrupted,
    /// The result cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// A file cannot be written.
    #[error("{0}: {1}")]
    File(String, io::Error),
}

impl Failure {
    /// The exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::MemoryMap(_) => 2,
            _ => UNREADABLE,
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::Source(error.to_string())
    }
}

/// The progress of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a source is searched and walked")]
pub enum Step {
    /// So many bytes were searched for tables, of at most so many.
    Searched(u64, u64),
    /// So many tables of a tree were read. Their total is unknown before the end.
    Tables(u64),
}

/// The receiver of progress.
pub type Progress<'p> = &'p mut dyn FnMut(Step);

/// The flag that a signal sets, where a signal must not end the program at once: a live machine stands still
/// while it is read, and has to run again.
pub type Interrupt = Arc<AtomicBool>;

/// An error if a signal came: what was read since lacks tables.
fn go_on(interrupt: &Interrupt) -> Result<(), Failure> {
    match interrupt.load(Ordering::Relaxed) {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

/// Whether somebody waits for the machine of this source to run again.
pub const fn is_live(source: &Source) -> bool {
    matches!(source, Source::Gdb(_) | Source::Qmp(_))
}

/// Opens a source and finds its trees. After a signal its memory cannot be read any more, so that every walk
/// ends.
fn open(
    source: &Source,
    options: &Options,
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<Opened, Failure> {
    let mut searched = |done, all| progress(Step::Searched(done, all));
    let opened = granule_inspect::open_telling(source, options, &mut searched);
    go_on(interrupt)?;
    let mut opened = opened?;
    opened.memory = Box::new(Interruptible {
        memory: opened.memory,
        interrupt: Arc::clone(interrupt),
    });
    Ok(opened)
}

struct Interruptible {
    memory: Box<dyn Memory>,
    interrupt: Interrupt,
}

impl Memory for Interruptible {
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(ReadError::Absent(address));
        }
        self.memory.read(address, buffer)
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.memory.ranges()
    }

    fn searchable(&self) -> Vec<Range<u64>> {
        self.memory.searchable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_after_a_signal() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0; 4096]).unwrap();
        let source = Source::File(file.path().into());
        let options = Options {
            base: Some(0x4000_0000),
            ttbr1: Some(0x4000_0000),
            tcr: Some(0x2_8019_0080),
            ..Options::default()
        };
        let interrupt = Interrupt::default();
        let opened = open(&source, &options, &mut |_| {}, &interrupt).unwrap();
        let read = || {
            opened
                .memory
                .read(PhysicalAddress(0x4000_0000), &mut [0; 8])
        };
        assert!(read().is_ok());
        interrupt.store(true, Ordering::Relaxed);
        assert!(read().is_err());
        let again = open(&source, &options, &mut |_| {}, &interrupt);
        assert!(matches!(again, Err(Failure::Interrupted)));
    }
}
