//! The plan: what the relocation code is to do for some segments, as records.
//!
//! A record moves bytes, cleans lines, or both. Runs of pages that follow each other in source and
//! destination are one record, what is where it is to be is none (or one that cleans), and since no
//! bytes lie where others are to be, which is checked first, their order does not matter.

use super::layout::{CLEAN, COPY};
use super::segment::{Clean, Extent, Ground, Refusal, Segment, check_places, in_the_way, is_ram};

/// One step of the relocation code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The physical address of the first byte to write or clean.
    pub destination: u64,
    /// The physical address of the first byte to read; where nothing is copied, the destination.
    pub source: u64,
    /// How many bytes, a multiple of this kernel's page size.
    pub bytes: u64,
    /// What is done: [`COPY`], [`CLEAN`] or both.
    pub kind: u64,
}

impl Record {
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

    /// Takes over one that goes on where this one ends, if it does.
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

/// What a plan comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records.
    pub records: u64,
    /// Those that copy.
    pub copies: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Bytes that are where they are to be already.
    pub bytes_in_place: u64,
    /// Bytes whose lines are cleaned.
    pub bytes_cleaned: u64,
}

impl Totals {
    pub(super) const fn add(&mut self, record: &Record) {
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

/// Checks the segments, with where their bytes are now.
///
/// # Errors
///
/// Those of [`check_places`], then [`Refusal::Pages`], [`Refusal::Misaligned`],
/// [`Refusal::Source`] and [`Refusal::InTheWay`].
pub fn check(segments: &[Segment<'_>], ground: &Ground<'_>) -> Result<(), Refusal> {
    check_places(segments, ground)?;
    let page = ground.page;
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
            let kept = ground.kept.iter().any(|kept| kept.overlaps(&pages));
            if kept || pages.bytes == 0 || !is_ram(&pages, ground.ram) {
                return Err(Refusal::Source { segment, pages });
            }
            // Behind the last RAM there are no more bytes: the sum cannot wrap before the count of
            // pages is found to be wrong.
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

/// Makes the records for some segments, one after the other, and says what they come to. Nothing is
/// given to `emit` unless all segments are right.
///
/// # Errors
///
/// Those of [`check`].
pub fn plan(
    segments: &[Segment<'_>],
    ground: &Ground<'_>,
    mut emit: impl FnMut(Record),
) -> Result<Totals, Refusal> {
    check(segments, ground)?;
    let mut totals = Totals::default();
    let mut pending = Record::default();
    let mut add = |record: Record| {
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
            add(Record {
                destination: at,
                source: pages.start,
                bytes: pages.bytes,
                kind,
            });
            at += pages.bytes;
        }
        // What the next kernel writes there with its MMU off must not be written over by lines that
        // this one left.
        add(Record {
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

/// All memory that the relocation code reads or writes for some segments, beside the list: each
/// place as one extent and whether it is written. They may overlap and come in any order.
pub fn reached(segments: &[Segment<'_>], mut each: impl FnMut(Extent, bool)) {
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
