//! The counts of the strategy `direct` by arithmetic: as fast for a petabyte as for a gigabyte.
//!
//! A new table is filled once, before it is linked: as many stores as it has entries. All other
//! stores go into existing tables: the root, and tables that an earlier window of the map left half
//! full. Each edge of a window has at most one such table at each level, and only the entries of
//! these are looked at one by one. The library's leaf statistics give the number of tables below an
//! entry. Tests compare the result with the library's own code, run on no machine.

use granule::arch::{Level, PhysicalAddress, VirtualAddress};
use granule::linear::{self, Expected, LeafStats};
use granule::table::{Counts, Piece};

use super::Job;

/// Offsets into the half: the first, and the one after the last.
type Range = (u64, u64);

/// The counts of `direct` for this job.
///
/// # Errors
///
/// One line if there are too few tables, or no contiguous room for them.
pub(super) fn expected(job: &Job) -> Result<Expected, String> {
    let page = job.geometry.page_size().bytes();
    let (needed, pool) = (pages(job), job.pool_pages);
    let mut map = Map {
        job,
        done: (0, 0),
        available: pool,
        counts: Counts::default(),
    };
    let span = job.geometry.span();
    let top = job.pieces.last().map_or(0, |piece| piece.output_end().0);
    let first = top.saturating_sub(needed * page);
    let home = job
        .pieces
        .iter()
        .find(|piece| first < top && piece.output.0 <= first && top <= piece.output_end().0);
    let Some(home) = home else {
        map.window((0, span))?;
        map.publish();
        return Ok(map.finish());
    };
    let (low, high) = map.arena(home, first, top)?;
    map.window((0, low))?;
    map.done = (0, high);
    map.window((high, span))?;
    map.publish();
    Ok(map.finish())
}

/// The pages of RAM that the tables take beyond the pool.
pub(in crate::cost) fn pages(job: &Job) -> u64 {
    linear::arena_pages(&job.stats(), job.pool_pages)
}

/// A map under construction.
struct Map<'a> {
    job: &'a Job,
    /// The offsets that are fully mapped.
    done: Range,
    /// The tables that are available.
    available: u64,
    counts: Counts,
}

impl Map<'_> {
    /// Maps the arena, physical addresses `first` to `end` of the piece `home`, in the library's
    /// rounds; returns the offsets that are mapped then.
    fn arena(&mut self, home: &Piece, first: u64, end: u64) -> Result<Range, String> {
        let size = self.job.geometry.page_size();
        let home_start = self.offset(home);
        let distance = home_start.wrapping_sub(home.output.0);
        let (first, end) = (first.wrapping_add(distance), end.wrapping_add(distance));
        let span = size.entry_bytes(Level::L2);
        let blocks = home.leaves.top < Level::L3;
        let (low, last) = if blocks {
            (home_start, home_start + home.bytes)
        } else {
            (first & !(span - 1), end.next_multiple_of(span))
        };
        self.done = (low, low);
        // The physical address in the arena up to which RAM is mapped and can be taken.
        let mut reached = first;
        while self.done.1 < end {
            let high = self.done.1;
            let next = if blocks {
                last
            } else if high == low {
                low + span
            } else {
                let upper = self.available / size.entries() as u64 + Level::ALL.len() as u64;
                let spans = self.available.saturating_sub(upper).max(1);
                high.saturating_add(spans.saturating_mul(span)).min(last)
            };
            self.window((high, next))?;
            self.publish();
            self.done.1 = next;
            let now = next.clamp(reached, end);
            self.available += (now - reached) >> size.shift();
            reached = now;
        }
        Ok(self.done)
    }

    /// Maps the parts of the pieces in `window`, of which nothing is mapped yet.
    fn window(&mut self, window: Range) -> Result<(), String> {
        let geometry = &self.job.geometry;
        let before = self.counts.tables;
        self.existing(geometry.start_level(), (0, geometry.span()), window);
        let taken = self.counts.tables - before;
        self.available = self.available.checked_sub(taken).ok_or_else(|| {
            format!(
                "`direct`: {taken} tables are to be made with {} to be had; RAM is too small, or in too many pieces",
                self.available
            )
        })?;
        Ok(())
    }

    fn publish(&mut self) {
        self.counts.dsb += 1;
        self.counts.isb += 1;
    }

    fn finish(self) -> Expected {
        Expected {
            counts: self.counts,
            zeroed: 0,
            waits: 0,
        }
    }

    /// Counts the stores for `window` into an existing table of `level` that translates `table`.
    fn existing(&mut self, level: Level, table: Range, window: Range) {
        let geometry = self.job.geometry;
        let size = geometry.page_size();
        let bytes = size.entry_bytes(level);
        let above = u64::from(level.number().abs_diff(geometry.start_level().number()));
        let touched = clip(&self.pieces_in(table), window);
        let Some((from, to)) = hull(&touched) else {
            return;
        };
        let mut at = from & !(bytes - 1);
        while at < to {
            let entry = (at, at + bytes);
            at += bytes;
            let here = clip(&touched, entry);
            if here.is_empty() {
                continue;
            }
            if level.is_last() {
                self.counts.stores += 1;
                continue;
            }
            // `tables` also counts the tables of this level and above, except the root.
            let below = |ranges: &[Range]| self.tables(ranges).saturating_sub(above);
            if below(&clip(&self.pieces_in(entry), self.done)) > 0 {
                self.existing(level.next(), entry, window);
                continue;
            }
            // A leaf, or a link to new tables.
            let new = below(&here);
            self.counts.stores += 1 + new * size.entries() as u64;
            self.counts.tables += new;
        }
    }

    /// The parts of the pieces in `range`, one range for each piece.
    fn pieces_in(&self, range: Range) -> Vec<Range> {
        let pieces = self.job.pieces.iter();
        let all = pieces.map(|piece| (self.offset(piece), self.offset(piece) + piece.bytes));
        clip(&all.collect::<Vec<_>>(), range)
    }

    fn offset(&self, piece: &Piece) -> u64 {
        let base = self.job.geometry.base().0;
        piece.start.0.wrapping_sub(base)
    }

    /// The tables that map these parts of pieces alone, without the root.
    fn tables(&self, ranges: &[Range]) -> u64 {
        let geometry = &self.job.geometry;
        let mut parts = Vec::with_capacity(ranges.len());
        for &(from, to) in ranges {
            let piece = self.job.pieces.iter().find(|piece| {
                let start = self.offset(piece);
                start <= from && to <= start + piece.bytes
            });
            let Some(piece) = piece else { continue };
            let output = piece.output.0 + (from - self.offset(piece));
            parts.push(Piece {
                start: VirtualAddress(geometry.base().0.wrapping_add(from)),
                output: PhysicalAddress(output),
                bytes: to - from,
                ..*piece
            });
        }
        LeafStats::new(geometry, &parts).tables()
    }
}

/// The parts of `ranges` that lie in `window`.
fn clip(ranges: &[Range], window: Range) -> Vec<Range> {
    let clipped = ranges
        .iter()
        .map(|&(from, to)| (from.max(window.0), to.min(window.1)));
    clipped.filter(|(from, to)| from < to).collect()
}

/// The range from the first to the last of some ascending ranges.
fn hull(ranges: &[Range]) -> Option<Range> {
    Some((ranges.first()?.0, ranges.last()?.1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use granule::arch::PageSize;
    use granule::arch::bbm::BbmLevel;
    use granule::linear::{Barriers, Strategy};

    use super::super::super::{dry, job};
    use super::*;
    use crate::request::Rodata;

    const MODES: [Rodata; 3] = [Rodata::Full, Rodata::Noalias, Rodata::Off];

    #[test]
    fn it_is_what_the_librarys_code_does() {
        const MIB: u64 = 1 << 20;
        for size in PageSize::ALL {
            let odd = [
                16 * MIB,
                100 * MIB + (192 << 10),
                1023 * MIB,
                5 << 30,
                (64 << 30) + (7 << 25),
            ];
            for memory in odd.into_iter().chain([1 << 30, 2 << 30, 4 << 30, 16 << 30]) {
                for va_bits in [42, 48, 52] {
                    for rodata in MODES {
                        let Ok(job) =
                            Job::assumed(memory, size, va_bits, rodata, BbmLevel::Level0, false)
                        else {
                            continue;
                        };
                        let made = dry::direct(&job).map_err(|error| error.to_string());
                        let said = expected(&job).map_err(|_| String::new());
                        assert_eq!(said, made, "{size} {memory:#x} {va_bits} {rodata:?}");
                    }
                }
            }
        }
    }

    /// Banks with holes at any address, at a distance that allows few blocks.
    #[test]
    fn banks_anywhere_take_what_the_librarys_code_does() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        for round in 0..60 {
            let size = PageSize::ALL[round % 3];
            let template =
                Job::assumed(1 << 30, size, 48, MODES[round % 2], BbmLevel::Level0, false).unwrap();
            let distance = template.pieces[0].start.0 - template.pieces[0].output.0;
            let mut at = 1 << 30;
            let mut ranges = Vec::new();
            for _ in 0..1 + below(5) {
                at += below(3) * below(40_000) * size.bytes();
                let shift = below(17);
                let bytes = (1 + below(1 << shift)) * size.bytes();
                ranges.push((at, bytes));
                at += bytes;
            }
            // The last bank holds the tables.
            ranges.push((at, 64 << 20));
            let pool = 6 + below(20);
            let job = Job::of(
                template.geometry,
                template.capabilities,
                ranges,
                distance,
                job::leaves(MODES[round % 2], BbmLevel::Level0),
                pool,
            );
            let made = dry::direct(&job).map_err(|error| error.to_string());
            let said = expected(&job).map_err(|_| String::new());
            match (&said, &made) {
                (Err(_), Err(_)) => {}
                _ => assert_eq!(said, made, "{job:x?}"),
            }
        }
    }

    /// CPU time of this thread, which does not depend on other work of the host.
    fn cpu_time() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.try_into().unwrap()
    }

    #[test]
    fn a_petabyte_is_answered_at_once() {
        for size in PageSize::ALL {
            for rodata in MODES {
                let begun = cpu_time();
                let job =
                    Job::assumed(1000 << 40, size, 52, rodata, BbmLevel::Level0, false).unwrap();
                for strategy in Strategy::ALL {
                    let expected = job.expect(strategy, Barriers::Table).unwrap();
                    assert_eq!(expected.counts.tables, job.stats().tables(), "{size}");
                }
                // Milliseconds on any host; work that grows with the RAM would take hours.
                assert!(
                    cpu_time() - begun < Duration::from_secs(2),
                    "{size} {rodata:?}"
                );
            }
        }
    }
}
