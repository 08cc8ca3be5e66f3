//! The plan: turns segments into the records that the relocation code executes.
//!
//! A record copies bytes, cleans lines, or both. Runs of pages that are consecutive in source and
//! destination share one record. Pages already in place need no record, or one that only cleans.
//! The order of records does not matter, because a check before it makes sure that no source lies
//! in a destination.

use super::layout::{CLEAN, COPY};
use super::segment::{
    Clean, MemoryMap, PhysRange, Refusal, Segment, check_places, in_the_way, is_ram,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One instruction to the relocation code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct ListRecord {
    /// Physical address of the first byte to write or clean.
    pub destination: u64,
    /// Physical address of the first byte to read; equal to the destination if nothing is copied.
    pub source: u64,
    /// Number of bytes, a multiple of this kernel's page size.
    pub bytes: u64,
    /// The operation: [`COPY`], [`CLEAN`] or both.
    pub kind: u64,
}

impl ListRecord {
    pub(super) const fn words(self) -> [u64; 4] {
        zerocopy::transmute!(self)
    }

    /// Whether bytes are copied.
    #[must_use]
    pub const fn copies(&self) -> bool {
        self.kind & COPY != 0
    }

    /// Whether lines are cleaned.
    #[must_use]
    pub const fn cleans(&self) -> bool {
        self.kind & CLEAN != 0
    }

    /// Merges `next` into this record if it continues this record.
    const fn join(&mut self, next: &Self) -> bool {
        let goes_on = self.kind == next.kind
            && self.destination + self.bytes == next.destination
            && self.source + self.bytes == next.source;
        if goes_on {
            self.bytes += next.bytes;
        }
        goes_on
    }
}

/// Totals over the records of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of records.
    pub records: u64,
    /// Number of records that copy.
    pub copies: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Bytes that are already in place.
    pub bytes_in_place: u64,
    /// Bytes whose lines are cleaned.
    pub bytes_cleaned: u64,
}

impl Totals {
    pub(super) const fn add(&mut self, record: &ListRecord) {
        self.records += 1;
        if record.copies() {
            self.copies += 1;
            self.bytes_copied += record.bytes;
        }
        if record.cleans() {
            self.bytes_cleaned += record.bytes;
        }
    }
}

/// Checks the segments and their source pages.
///
/// # Errors
///
/// Fails as [`check_places`] does, then with [`Refusal::Pages`], [`Refusal::Misaligned`], [`Refusal::Source`]
/// and [`Refusal::InTheWay`].
pub fn check(segments: &[Segment<'_>], memory_map: &MemoryMap<'_>) -> Result<(), Refusal> {
    check_places(segments, memory_map)?;
    let page = memory_map.page;
    for one in segments {
        let segment = one.name;
        let mut at = one.destination;
        let mut found: u64 = 0;
        for pages in one.pages {
            for value in [pages.start, pages.bytes] {
                if value & (page.bytes() - 1) != 0 {
                    return Err(Refusal::Misaligned {
                        segment,
                        value,
                        page,
                    });
                }
            }
            let pages = *pages;
            let kept = memory_map.kept.iter().any(|kept| kept.overlaps(&pages));
            if kept || pages.bytes == 0 || !is_ram(&pages, memory_map.ram) {
                return Err(Refusal::Source { segment, pages });
            }
            // All pages lie in RAM, so a sum that saturates differs from the needed count.
            found = found.saturating_add(pages.bytes);
            if pages.start != at
                && let Some(other) = in_the_way(segments, &pages)
            {
                return Err(Refusal::InTheWay {
                    segment,
                    pages,
                    other: other.name,
                });
            }
            at = at.saturating_add(pages.bytes);
        }
        let needed = one.whole_pages(page).unwrap_or(u64::MAX);
        if found != needed {
            return Err(Refusal::Pages {
                segment,
                found,
                needed,
            });
        }
    }
    Ok(())
}

/// Emits the records for some segments in order, and returns the totals. `emit` is called only
/// after all segments passed the checks.
///
/// # Errors
///
/// Fails as [`check`] does.
pub fn plan(
    segments: &[Segment<'_>],
    memory_map: &MemoryMap<'_>,
    mut emit: impl FnMut(ListRecord),
) -> Result<Totals, Refusal> {
    check(segments, memory_map)?;
    let mut totals = Totals::default();
    let mut pending = ListRecord::default();
    let mut add = |record: ListRecord| {
        if record.kind == 0 || record.bytes == 0 || pending.join(&record) {
            return;
        }
        if pending.bytes != 0 {
            totals.add(&pending);
            emit(pending);
        }
        pending = record;
    };
    let mut in_place = 0;
    for segment in segments {
        let (clean, in_place_clean, clean_behind) = match segment.clean {
            Clean::Nothing => (0, 0, 0),
            Clean::All => (CLEAN, CLEAN, CLEAN),
            Clean::Moved => (CLEAN, 0, CLEAN),
            Clean::MovedAlone => (CLEAN, 0, 0),
        };
        let mut at = segment.destination;
        for pages in segment.pages {
            let kind = if pages.start == at {
                in_place += pages.bytes;
                in_place_clean
            } else {
                COPY | clean
            };
            add(ListRecord {
                destination: at,
                source: pages.start,
                bytes: pages.bytes,
                kind,
            });
            at += pages.bytes;
        }
        // The next kernel writes here with its MMU off. Dirty lines of this kernel must not be
        // written back over those stores later.
        add(ListRecord {
            destination: at,
            source: at,
            bytes: segment.destination + segment.memory - at,
            kind: clean_behind,
        });
    }
    if pending.bytes != 0 {
        totals.add(&pending);
        emit(pending);
    }
    totals.bytes_in_place = in_place;
    Ok(totals)
}

/// Calls `each` with all memory, except the list, that the relocation code reads or writes: an
/// extent, and whether it is written. Extents may overlap and come in any order.
pub fn reached(segments: &[Segment<'_>], mut each: impl FnMut(PhysRange, bool)) {
    for segment in segments {
        each(segment.place(), true);
        let mut at = segment.destination;
        for pages in segment.pages {
            if pages.start != at {
                each(*pages, false);
            }
            at = at.saturating_add(pages.bytes);
        }
    }
}
