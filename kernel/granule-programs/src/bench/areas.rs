//! The cost of a change of one area among many: `areas=256,2048` counts it with 256 areas, and with 2048.
//!
//! A range has areas of three pages, each with a free page behind it. [`TIMES`] areas, spread over all, are each split
//! in three by `mprotect` of their middle page, which was written, and merged again. Then as many ranges of two pages
//! are mapped, for which no single free page is enough, and unmapped. With the splits and the program's own the
//! areas are nearly as many as the argument states, and never more: Linux too allows 65530.
//!
//! ```text
//! bench op=mprotect-split-2048 times=32 best=7245 median=7245 worst=7250 at=30
//! ```

use super::clock::{Took, print, timed};
use super::rounds::{Failure, MOST_ROUNDS, done, write_all};
use granule_programs::calls::{self, READ_WRITE};
use granule_programs::start::number;

/// Changes between two readings of the clock.
const TIMES: u64 = 32;
/// Areas that a program has besides, at most.
const OWN: u64 = 16;
/// Pages of an area, and with the free page behind it.
const PAGES: u64 = 3;
const STRIDE: u64 = 4;
const PROT_READ: u64 = 1;

const OPS: [&str; 4] = ["mprotect-split", "mprotect-merge", "mmap", "munmap"];

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
        let (map, maps) = timed(|| {
            // Neighbours that differ, so that each is an area.
            let rights = [READ_WRITE, PROT_READ].into_iter().cycle();
            mapped.iter_mut().zip(rights).try_for_each(|(at, rights)| {
                *at = calls::map(2 * self.page, rights)?;
                Ok(())
            })
        });
        let (unmap, unmaps) = timed(|| {
            let mut mapped = mapped.iter();
            mapped.try_for_each(|at| done(calls::unmap(*at, 2 * self.page)).map(drop))
        });
        for (name, result) in OPS.into_iter().zip([splits, merges, maps, unmaps]) {
            result.map_err(|error| (name, error))?;
        }
        Ok([split, merge, map, unmap])
    }

    fn end(self) -> Result<(), Failure> {
        let bytes = self.count * STRIDE * self.page;
        done(calls::unmap(self.start, bytes)).map_err(|error| ("munmap", error))?;
        Ok(())
    }
}
