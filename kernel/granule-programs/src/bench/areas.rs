//! The cost of a change of one area among many: `areas=256,2048` counts it with 256 areas, and with 2048.
//!
//! A range has areas of three pages, each with a free page behind it. [`TIMES`] areas, spread over all, are each split
//! in three by `mprotect` of their middle page, which was written, and merged again. Then as many ranges of two pages
//! are mapped, for which no single free page is enough, and unmapped. The page that was written is discarded, and
//! ranges are mapped again, one page of each touched, and unmapped. With the splits and the program's own the
//! areas are nearly as many as the argument states, and never more: Linux too allows 65530.
//!
//! ```text
//! bench op=mprotect-split-2048 times=32 best=7245 median=7245 worst=7250 at=30
//! ```

use super::clock::{Took, print, timed};
use super::rounds::{Failure, MOST_ROUNDS, done, read_one, write_all};
use granule_programs::calls::{self, DONT_NEED, PROT_READ, READ_WRITE};
use granule_programs::start::number;

/// Changes between two readings of the clock.
const TIMES: u64 = 32;
/// Areas that a program has besides, at most.
const OWN: u64 = 16;
/// Pages of an area, and with the free page behind it.
const PAGES: u64 = 3;
const STRIDE: u64 = 4;

const OPS: [&str; 6] = [
    "mprotect-split",
    "mprotect-merge",
    "dontneed",
    "mmap",
    "munmap",
    "munmap-one",
];

/// Measures each of some counts of areas. Returns the number of lines printed.
pub(crate) fn measure(counts: &[u8], page: u64, rounds: usize) -> Result<usize, Failure> {
    let mut lines = 0;
    for count in counts.split(|byte| *byte == b',').map(number) {
        let made = count.saturating_sub(2 * TIMES + OWN);
        if made < TIMES {
            return Err(("too few areas", count as i64));
        }
        let mut times = [[Took::default(); MOST_ROUNDS]; OPS.len()];
        let areas = Areas::make(made, page)?;
        for at in 0..rounds {
            for (times, took) in times.iter_mut().zip(areas.round()?) {
                times[at] = took;
            }
        }
        areas.end()?;
        for (name, times) in OPS.iter().zip(&mut times) {
            let name = format_args!("op={name}-{count} times={TIMES}");
            print(name, &mut times[..rounds]);
        }
        lines += OPS.len();
    }
    Ok(lines)
}

struct Areas {
    start: u64,
    count: u64,
    page: u64,
}

impl Areas {
    fn make(count: u64, page: u64) -> Result<Self, Failure> {
        let bytes = count * STRIDE * page;
        let start = calls::map(bytes, READ_WRITE).map_err(|error| ("mmap", error))?;
        let areas = Self { start, count, page };
        for area in 0..count {
            let hole = start + (area * STRIDE + PAGES) * page;
            done(calls::unmap(hole, page)).map_err(|error| ("munmap", error))?;
        }
        for time in 0..TIMES {
            write_all(areas.middle(time), page, page);
        }
        Ok(areas)
    }

    /// The middle page of one of the areas that are split.
    const fn middle(&self, time: u64) -> u64 {
        let area = time * self.count / TIMES;
        self.start + (area * STRIDE + 1) * self.page
    }

    fn round(&self) -> Result<[Took; OPS.len()], Failure> {
        let mut mapped = [0; TIMES as usize];
        let protect = |rights| {
            timed(|| {
                (0..TIMES).try_for_each(|time| {
                    done(calls::protect(self.middle(time), self.page, rights)).map(drop)
                })
            })
        };
        let (split, splits) = protect(PROT_READ);
        let (merge, merges) = protect(READ_WRITE);
        let (discard, discards) = timed(|| {
            (0..TIMES).try_for_each(|time| {
                let middle = [self.middle(time), self.page, DONT_NEED, 0, 0, 0];
                done(calls::call(calls::MADVISE, middle)).map(drop)
            })
        });
        for time in 0..TIMES {
            write_all(self.middle(time), self.page, self.page);
        }
        let (map, maps) = timed(|| self.map(&mut mapped));
        let (unmap, unmaps) = timed(|| self.unmap(&mapped));
        self.map(&mut mapped).map_err(|error| ("mmap", error))?;
        mapped.into_iter().for_each(read_one);
        let (one, ones) = timed(|| self.unmap(&mapped));
        let results = [splits, merges, discards, maps, unmaps, ones];
        for (name, result) in OPS.into_iter().zip(results) {
            result.map_err(|error| (name, error))?;
        }
        Ok([split, merge, discard, map, unmap, one])
    }

    /// Maps ranges of two pages. Neighbours differ, so that each is an area.
    fn map(&self, mapped: &mut [u64]) -> Result<(), i64> {
        let rights = [READ_WRITE, PROT_READ].into_iter().cycle();
        mapped.iter_mut().zip(rights).try_for_each(|(at, rights)| {
            *at = calls::map(2 * self.page, rights)?;
            Ok(())
        })
    }

    fn unmap(&self, mapped: &[u64]) -> Result<(), i64> {
        let mut mapped = mapped.iter();
        mapped.try_for_each(|at| done(calls::unmap(*at, 2 * self.page)).map(drop))
    }

    fn end(self) -> Result<(), Failure> {
        let bytes = self.count * STRIDE * self.page;
        done(calls::unmap(self.start, bytes)).map_err(|error| ("munmap", error))?;
        Ok(())
    }
}
