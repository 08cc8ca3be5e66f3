//! The floor: no subject that makes the same stores can be faster. Plain loops, no tree.
//!
//! Mapping and unmapping store 512 entries into each table that the job has; protecting loads, ORs
//! and stores the entries of the tables that hold leaves, and queries load them. `memset` of the
//! same bytes is there for comparison with the floor.

#![allow(unsafe_code, reason = "tables in the arena")]

use super::descriptor;
use crate::arena::{self, TABLE};
use crate::job::{Job, VIRTUAL};
use anyhow::{Context, Result, ensure};
use core::hint::black_box;

const ENTRIES: usize = TABLE as usize / 8;

/// One job's tables, as pages that follow each other; those that would hold leaves are the last.
#[derive(Debug)]
pub struct Floor {
    tables: &'static mut [[u64; ENTRIES]],
    above: usize,
}

impl Floor {
    /// Takes all of the job's tables from the arena.
    ///
    /// # Safety
    ///
    /// The value must be gone before the arena is reset.
    pub unsafe fn new(job: &Job) -> Result<Self> {
        let wanted = job.trees * job.tables();
        let (first, count) = arena::take(wanted).context("the arena is empty")?;
        ensure!(count == wanted, "the arena is too small");
        let first = core::ptr::with_exposed_provenance_mut(first as usize);
        // SAFETY: the pages were taken from the arena, which was written as a whole; nobody else
        // uses them until it is reset, and the caller sees to it that this is gone by then.
        let tables = unsafe { core::slice::from_raw_parts_mut(first, count as usize) };
        let above = (job.trees * (job.tables() - job.leaf_tables())) as usize;
        Ok(Self { tables, above })
    }

    /// Descriptors that ascend by a page, through all tables.
    pub fn map(&mut self) {
        store(self.tables, black_box(FIRST), black_box(TABLE));
    }

    /// Sets a bit in each leaf.
    pub fn protect(&mut self) {
        load_or_store(
            &mut self.tables[self.above..],
            black_box(descriptor::PROTECT),
        );
    }

    /// Loads each leaf.
    pub fn query(&self) {
        black_box(sum(&self.tables[self.above..]));
    }

    /// Nothing, into all tables.
    pub fn unmap(&mut self) {
        store(self.tables, black_box(0), black_box(0));
    }

    /// The same bytes by the host's `memset`.
    pub fn memset(&mut self) {
        let start: *mut u8 = self.tables.as_mut_ptr().cast();
        let bytes = size_of_val(self.tables);
        // SAFETY: exactly the tables' bytes; any byte is a valid part of an entry.
        unsafe { black_box(start).write_bytes(black_box(0x5A), bytes) };
    }

    /// Whether `map` wrote each entry.
    pub fn is_mapped(&self) -> bool {
        let entries = self.tables.as_flattened().iter();
        entries.zip(0..).all(|(entry, at)| *entry == nth(at))
    }

    /// Whether `protect` changed the leaves and nothing else.
    pub fn is_protected(&self) -> bool {
        let above = (self.above * ENTRIES) as u64;
        let entries = self.tables.as_flattened().iter();
        entries.zip(0..).all(|(entry, at)| {
            let bits = if at < above { 0 } else { descriptor::PROTECT };
            *entry == nth(at) | bits
        })
    }

    /// Whether `unmap` cleared each entry.
    pub fn is_unmapped(&self) -> bool {
        self.tables.as_flattened().iter().all(|entry| *entry == 0)
    }
}

/// Any address that a page can have.
const FIRST: u64 = descriptor::page(VIRTUAL);

/// The entry at an index counted through all tables.
const fn nth(at: u64) -> u64 {
    FIRST + at * TABLE
}

#[inline(never)]
fn store(tables: &mut [[u64; ENTRIES]], first: u64, step: u64) {
    let mut value = first;
    for table in tables {
        for entry in table {
            *entry = value;
            value = value.wrapping_add(step);
        }
    }
}

#[inline(never)]
fn load_or_store(tables: &mut [[u64; ENTRIES]], bits: u64) {
    for table in tables {
        for entry in table {
            *entry |= bits;
        }
    }
}

#[inline(never)]
fn sum(tables: &[[u64; ENTRIES]]) -> u64 {
    let entries = tables.as_flattened().iter();
    entries.fold(0, |sum, entry| sum.wrapping_add(*entry))
}
