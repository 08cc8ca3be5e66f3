//! The subjects of the comparison: each maps, protects and unmaps the same ranges with tables from
//! the arena.
//!
//! One file a subject. Each is used in the fastest way that its documentation shows, not in use
//! by any CPU ("live" rows: in use, as far as the subject can be set to that), and answers through
//! its own query what it mapped.

mod aarch64_paging;
mod descriptor;
mod floor;
mod granule;
mod multiarch;
mod page_table_generic;
mod x86_64;

pub use floor::Floor;

use crate::job::Job;
use alloc::{boxed::Box, vec, vec::Vec};
use anyhow::Result;
use granule::Variant;

/// A leaf, as a subject's own query returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The output address of the queried address.
    pub output: u64,
    /// The bytes of its leaf.
    pub bytes: u64,
    pub writable: bool,
}

/// Something that is timed. The trees of the one job are kept from `map` to `forget`.
pub trait Subject {
    /// The name in tables and in JSON.
    fn name(&self) -> &'static str;

    /// Whether it has a call for the job.
    fn takes(&self, _job: &Job) -> bool {
        true
    }

    /// Makes the job's trees and maps what is mapped before, one call a page. It is not timed.
    fn prepare(&mut self, job: &Job) -> Result<()>;

    /// Makes the job's trees unless they were prepared, and maps its range in each: readable, writable, not executable.
    fn map(&mut self, job: &Job) -> Result<()>;

    /// Makes the range read-only in each tree.
    fn protect(&mut self, job: &Job) -> Result<()>;

    /// Unmaps the range in each tree.
    fn unmap(&mut self, job: &Job) -> Result<()>;

    /// Returns the mapping of `address` in one of the trees.
    fn query(&self, tree: usize, address: u64) -> Option<Found>;

    /// Leaves the trees as they are and forgets them; the arena is reset next. Makes room for
    /// `trees` new ones, so that no time has the growth of a list in it.
    fn forget(&mut self, trees: usize);
}

/// All crates compared, ours first.
pub fn all() -> Result<Vec<Box<dyn Subject>>> {
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(granule::Granule::new(false, Variant::Plain)?),
        Box::new(granule::Granule::new(true, Variant::Plain)?),
        Box::new(granule::Granule::new(false, Variant::Refuse)?),
        Box::new(granule::Granule::new(true, Variant::Refuse)?),
        Box::new(granule::Granule::new(false, Variant::Keep)?),
        Box::new(granule::Granule::new(false, Variant::Cursor)?),
        Box::new(granule::Granule::new(true, Variant::Cursor)?),
        Box::new(granule::Granule::new(false, Variant::KeepCursor)?),
        Box::new(aarch64_paging::Aarch64Paging::new(false)),
    ];
    // On arm64 it issues TLBIs for live tables, which a user program may not.
    if cfg!(any(not(target_arch = "aarch64"), target_os = "none")) {
        subjects.push(Box::new(aarch64_paging::Aarch64Paging::new(true)));
    }
    subjects.push(Box::new(multiarch::Multiarch::default()));
    subjects.push(Box::new(page_table_generic::PageTableGeneric::default()));
    subjects.push(Box::new(x86_64::X86_64::default()));
    Ok(subjects)
}
