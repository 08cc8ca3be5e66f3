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

use self::granule::{Granule, Variant};
use self::multiarch::Multiarch;
use self::x86_64::X86_64;
use crate::arena::TABLE;
use crate::job::Job;
use ::granule::arch::{Page, Page4K, Page16K, Page64K};
use ::granule::table::{Stage1, Stage2};
use alloc::{boxed::Box, vec, vec::Vec};
use anyhow::Result;

/// A leaf, as a subject's own query returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The output address of the queried address.
    pub output: u64,
    /// The bytes of its leaf.
    pub bytes: u64,
    pub writable: bool,
}

/// The crates compared that check what their calls name. A type checks alignment in x86_64, and
/// page-table-generic does not where it protects a single leaf.
pub const CHECKING: [&str; 3] = ["aarch64-paging", "page-table-generic", "x86_64"];

/// Something that is timed. The trees of the one job are kept from `map` to `forget`.
pub trait Subject {
    /// The name in tables and in JSON.
    fn name(&self) -> &'static str;

    /// Whether it has a call for the job.
    fn takes(&self, job: &Job) -> bool {
        job.leaf.page_bytes() == TABLE
    }

    /// Makes the job's trees and maps what is mapped before, one call a leaf. It is not timed.
    fn prepare(&mut self, job: &Job) -> Result<()>;

    /// Makes the job's trees unless they were prepared, and maps its range in each: readable, writable, not executable.
    fn map(&mut self, job: &Job) -> Result<()>;

    /// Makes the range read-only in each tree.
    fn protect(&mut self, job: &Job) -> Result<()>;

    /// Unmaps the range in each tree.
    fn unmap(&mut self, job: &Job) -> Result<()>;

    /// Returns the mapping of `address` in one of the trees.
    fn query(&self, tree: usize, address: u64) -> Option<Found>;

    /// Queries the address of each of the job's calls in each tree, as one does to translate it.
    /// Returns the sum of the outputs.
    fn query_each(&self, job: &Job) -> u64;

    /// Leaves the trees as they are and forgets them; the arena is reset next. Makes room for
    /// `trees` new ones, so that no time has the growth of a list in it.
    fn forget(&mut self, trees: usize);
}

/// Makes the library's subjects with one size of page, at one stage.
fn ours<P: Page, S: granule::Translation>() -> Result<Vec<Box<dyn Subject>>> {
    Ok(vec![
        Box::new(Granule::<P, S>::new(false, Variant::Plain)?),
        Box::new(Granule::<P, S>::new(true, Variant::Plain)?),
        Box::new(Granule::<P, S>::new(false, Variant::Keep)?),
        Box::new(Granule::<P, S>::new(true, Variant::Keep)?),
    ])
}

/// Makes the library's subjects in the forms that no other crate has: with larger pages, and at stage 2.
pub fn library_alone() -> Result<Vec<Box<dyn Subject>>> {
    let mut subjects = ours::<Page4K, Stage2>()?;
    subjects.extend(ours::<Page16K, Stage1>()?);
    subjects.extend(ours::<Page64K, Stage1>()?);
    Ok(subjects)
}

/// All crates compared, ours first.
pub fn all() -> Result<Vec<Box<dyn Subject>>> {
    let mut subjects = ours::<Page4K, Stage1>()?;
    for (live, variant) in [
        (false, Variant::Refuse),
        (true, Variant::Refuse),
        (false, Variant::Cursor),
        (true, Variant::Cursor),
        (false, Variant::KeepCursor),
    ] {
        subjects.push(Box::new(Granule::<Page4K, Stage1>::new(live, variant)?));
    }
    subjects.push(Box::new(aarch64_paging::Aarch64Paging::new(false)));
    // On arm64 it issues TLBIs for live tables, which a user program may not.
    if cfg!(any(not(target_arch = "aarch64"), target_os = "none")) {
        subjects.push(Box::new(aarch64_paging::Aarch64Paging::new(true)));
    }
    subjects.push(Box::new(Multiarch::<0, true>::default()));
    subjects.push(Box::new(Multiarch::<0, false>::default()));
    subjects.push(Box::new(Multiarch::<1, true>::default()));
    subjects.push(Box::new(Multiarch::<1, false>::default()));
    subjects.push(Box::new(Multiarch::<2, true>::default()));
    subjects.push(Box::new(Multiarch::<2, false>::default()));
    subjects.push(Box::new(page_table_generic::PageTableGeneric::default()));
    subjects.push(Box::new(X86_64::<true>::default()));
    subjects.push(Box::new(X86_64::<false>::default()));
    Ok(subjects)
}
