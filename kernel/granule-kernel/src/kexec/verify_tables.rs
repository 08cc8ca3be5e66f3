//! Walks the transitional tables and checks that they map exactly the required memory, before the kernel
//! relies on them. A wrong write of the relocation code then faults and damages nothing else.
//!
//! The required memory comes from the list (its records name what is copied and cleaned), the segments'
//! places and the list's own pages, not from the input of the tables. All these ranges are disjoint; the
//! making of the list checked that. So if each required page is mapped correctly, and the bytes of all
//! leaves equal the bytes required, then nothing else is mapped.

use super::loaded::Loaded;
use super::pages::{self, ReadTables};
use crate::mm::kernel_tables::Kernel;
use core::fmt;
use core::ops::ControlFlow;
use granule::arch::{Attributes, Kind, Permissions, VirtualAddress};
use granule::table::{Entry, TableView, UnreadTable, Visit};
use granule_kexec::{ListRecord, PhysRange};
use thiserror::Error;

/// The use that the relocation code makes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Written,
    Executed,
}

impl Use {
    /// The only attributes that memory for this use may be mapped with.
    pub(crate) const fn attributes(self) -> Attributes {
        Attributes::normal(match self {
            Self::Read => Permissions::READ,
            Self::Written => Permissions::READ_WRITE,
            Self::Executed => Permissions::READ_EXECUTE,
        })
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "memory that is read",
            Self::Written => "memory that is written",
            Self::Executed => "the relocation code",
        })
    }
}

/// A difference between the tables and the required mappings.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum TableMismatch {
    /// An address is unmapped, translates to another address, or has other attributes.
    #[error("the transitional tables do not map {address:#x} as {used}{REMEDY}")]
    Page { address: u64, used: Use },
    /// The tables map more or fewer bytes than the list and the segments require.
    #[error(
        "the transitional tables map {mapped} bytes in the {half} half, expected {needed}{REMEDY}"
    )]
    Bytes {
        half: &'static str,
        mapped: u64,
        needed: u64,
    },
    /// A table lies where no table can be.
    #[error("of the transitional tables, {0}{REMEDY}")]
    Table(UnreadTable),
}

const REMEDY: &str = ": something wrote over them; load the next kernel again";

/// The most extents of the upper half that are collected; ample unless memory is badly fragmented.
const MOST_MAPPED: usize = 64;

/// Memory mapped where the linear map has it, ascending, collected in one walk over all leaves. An
/// extent that is missing here (no room, or other attributes) is checked by address, with a walk from
/// the root for each mapping.
struct Mapped {
    all: [(PhysRange, Use); MOST_MAPPED],
    used: usize,
}

impl Mapped {
    const fn new() -> Self {
        Self {
            all: [(PhysRange { start: 0, bytes: 0 }, Use::Read); MOST_MAPPED],
            used: 0,
        }
    }

    /// Appends an extent that lies after all others.
    fn push(&mut self, new: PhysRange, used: Use) {
        let last = self.used.checked_sub(1);
        if let Some((last, before)) = last.and_then(|last| self.all.get_mut(last))
            && *before == used
            && last.end() == Some(new.start)
        {
            last.bytes = last.bytes.saturating_add(new.bytes);
        } else if let Some(slot) = self.all.get_mut(self.used) {
            *slot = (new, used);
            self.used += 1;
        }
    }

    fn holds(&self, place: &PhysRange, used: Use) -> bool {
        let all = self.all.get(..self.used).unwrap_or_default();
        let behind = all.partition_point(|(one, _)| one.start <= place.start);
        let found = behind.checked_sub(1).and_then(|index| all.get(index));
        found.is_some_and(|(one, as_what)| *as_what == used && one.holds(place))
    }
}

pub(super) struct TableVerification<'a> {
    kernel: &'a Kernel,
    loaded: &'a Loaded,
    mapped: Mapped,
    needed: u64,
    mismatch: Option<TableMismatch>,
}

impl<'a> TableVerification<'a> {
    pub(super) const fn new(kernel: &'a Kernel, loaded: &'a Loaded) -> Self {
        Self {
            kernel,
            loaded,
            mapped: Mapped::new(),
            needed: 0,
            mismatch: None,
        }
    }

    /// Walks the upper half. `records` calls its argument with each record of the list.
    pub(super) fn run(
        mut self,
        records: impl FnOnce(&mut dyn FnMut(&ListRecord)),
    ) -> Result<(), TableMismatch> {
        let [lower, upper] = self.loaded.tables.geometries();
        let [low, high] = self.loaded.tables.roots();
        let read = pages::table_reader();
        let tables = TableView::new(upper, high, &read);
        let mapped = self.collect(&tables)?;
        for place in self.loaded.segments().map(|it| it.place) {
            self.check_mapped(&tables, place.start, place.bytes, Use::Written);
        }
        records(&mut |record| {
            if record.copies() {
                self.check_mapped(&tables, record.source, record.bytes, Use::Read);
            }
        });
        let page = self.kernel.page();
        let list = &self.loaded.list;
        // The list was verified, so its links lead to its own pages.
        let _ = list.each_page(&pages::Words, |at| {
            self.check_mapped(&tables, at.0, page, Use::Read);
        });
        self.check_bytes("upper", mapped, self.needed);
        let tables = TableView::new(lower, low, &read);
        let code = self.loaded.way.code.0;
        let there = tables
            .query(VirtualAddress(code))
            .map_err(TableMismatch::Table)?;
        let right = there
            .is_some_and(|it| it.output.0 == code && it.attributes == Use::Executed.attributes());
        if !right {
            self.mismatch.get_or_insert(TableMismatch::Page {
                address: code,
                used: Use::Executed,
            });
        }
        self.check_bytes("lower", mapped_bytes(&tables, |_| {})?, page);
        self.mismatch.map_or(Ok(()), Err)
    }

    /// Collects the mapped extents. Returns the bytes of all leaves.
    fn collect(&mut self, tables: &TableView<impl ReadTables>) -> Result<u64, TableMismatch> {
        let distance = self.loaded.tables.distance();
        mapped_bytes(tables, |entry| {
            let attributes = Attributes::decode(entry.descriptor, tables.geometry());
            let used = [Use::Read, Use::Written]
                .into_iter()
                .find(|used| used.attributes() == attributes);
            let in_place = entry.start.0.wrapping_sub(distance) == entry.output.0;
            if let Some(used) = used.filter(|_| in_place) {
                let bytes = entry.bytes.wrapping_mul(entry.count as u64);
                self.mapped
                    .push(PhysRange::new(entry.output.0, bytes), used);
            }
        })
    }

    /// Checks that memory is mapped at its linear address, with exactly the attributes of `used`.
    fn check_mapped(
        &mut self,
        tables: &TableView<impl ReadTables>,
        start: u64,
        bytes: u64,
        used: Use,
    ) {
        let page = self.kernel.page();
        let bytes = bytes.next_multiple_of(page);
        self.needed = self.needed.wrapping_add(bytes);
        if self.mapped.holds(&PhysRange::new(start, bytes), used) {
            return;
        }
        let end = start.saturating_add(bytes);
        let mut at = start;
        while at < end && self.mismatch.is_none() {
            let address = VirtualAddress(at.wrapping_add(self.loaded.tables.distance()));
            match tables.query(address) {
                Ok(Some(it)) if it.output.0 == at && it.attributes == used.attributes() => {
                    let into = address.0.wrapping_sub(it.start.0);
                    at = at.saturating_add(it.bytes.saturating_sub(into).max(page));
                }
                Ok(_) => self.mismatch = Some(TableMismatch::Page { address: at, used }),
                Err(unread) => self.mismatch = Some(TableMismatch::Table(unread)),
            }
        }
    }

    fn check_bytes(&mut self, half: &'static str, mapped: u64, needed: u64) {
        if mapped != needed {
            self.mismatch.get_or_insert(TableMismatch::Bytes {
                half,
                mapped,
                needed,
            });
        }
    }
}

/// Calls `each` with every leaf, ascending, in runs of one table. Returns the bytes of all leaves.
fn mapped_bytes(
    tables: &TableView<impl ReadTables>,
    mut each: impl FnMut(&Entry),
) -> Result<u64, TableMismatch> {
    let mut mapped = 0u64;
    let visited = tables.visit_runs(|found| match found {
        Ok(entry) => {
            if entry.kind == Kind::Leaf {
                mapped = mapped.wrapping_add(entry.bytes.wrapping_mul(entry.count as u64));
                each(entry);
            }
            ControlFlow::Continue(Visit::Descend)
        }
        Err(unread) => ControlFlow::Break(unread),
    });
    match visited {
        ControlFlow::Continue(()) => Ok(mapped),
        ControlFlow::Break(unread) => Err(TableMismatch::Table(unread)),
    }
}
