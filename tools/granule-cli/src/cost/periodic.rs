//! The counts of a linear map of any size, from runs of the library's code over short maps.
//!
//! A map of pages repeats itself. So the code runs over a map that is shorter by whole periods, and over one period
//! more of it; the difference, times the periods left out, is added. Maps of blocks are short however much they map,
//! and run as they are.

use granule::arch::{Geometry, Level, PhysicalAddress, VirtualAddress};
use granule::linear::fixmap::Slot;
use granule::linear::{Barriers, Strategy};
use granule::table::{Piece, TableError};

use super::counting::{ByFixmap, Direct};
use super::{Cost, Job};

/// The cost of `direct`.
/// Fails with the error of the library's code.
pub(super) fn direct(job: &Job) -> Result<Cost, TableError> {
    let geometry = job.geometry;
    // The tables' own memory is mapped first, in rounds whose number depends on its size: it stays as it is.
    let arena = job.stats().tables.saturating_sub(job.pool_pages);
    let run = |pieces: &[Piece]| {
        geometry.page_size().dispatch(Direct {
            geometry,
            capabilities: job.capabilities,
            pieces,
            pool: job.pool_pages,
            arena,
        })
    };
    // Where the edges of a round lie in their tables decides its stores. A period of a whole entry near the root
    // leaves all of them in their places.
    let level = geometry.start_level().max(Level::L0);
    let period = geometry.page_size().entry_bytes(level);
    let arena_bytes = arena << geometry.page_size().shift();
    let Some((short, more, times)) = shortened(job, period, arena_bytes + 3 * period) else {
        return run(&job.pieces);
    };
    if crossed(&geometry, level, &job.pieces) != crossed(&geometry, level, &short) {
        return run(&job.pieces);
    }
    let cost = run(&short)?;
    Ok(cost.plus(&run(&more)?.minus(&cost).times(times)))
}

/// The boundaries between entries of the levels above `level` that the last piece crosses.
fn crossed(geometry: &Geometry, level: Level, pieces: &[Piece]) -> u64 {
    let above = Level::ALL
        .into_iter()
        .filter(|one| *one < level && *one >= geometry.start_level());
    above.map(|one| boundaries(geometry, one, pieces)).sum()
}

/// The boundaries between entries of `level` that the last piece crosses.
fn boundaries(geometry: &Geometry, level: Level, pieces: &[Piece]) -> u64 {
    let shift = geometry.page_size().level_shift(level);
    pieces.last().map_or(0, |piece| {
        let from = piece.start.0.wrapping_sub(geometry.base().0);
        ((from + piece.bytes - 1) >> shift) - (from >> shift)
    })
}

/// The job's pieces with the last one shorter by whole periods, but at least `least` bytes long; the same with one
/// period more; and the number of periods left out. `None` where nothing is to be left out.
fn shortened(job: &Job, period: u64, least: u64) -> Option<(Vec<Piece>, Vec<Piece>, u64)> {
    let last = job
        .pieces
        .last()
        .filter(|piece| piece.leaves.top == Level::L3)?;
    let times = last.bytes.checked_sub(least)? / period;
    let with = |bytes| {
        let mut pieces = job.pieces.clone();
        pieces.pop();
        pieces.push(Piece { bytes, ..*last });
        pieces
    };
    let bytes = last.bytes - times * period;
    (times > 1).then(|| (with(bytes), with(bytes + period), times))
}

/// The cost of a published strategy.
/// Fails with the error of the library's code.
pub(super) fn published(
    job: &Job,
    strategy: Strategy,
    barriers: Barriers,
) -> Result<Cost, TableError> {
    let geometry = job.geometry;
    let size = geometry.page_size();
    let run = |pieces: &[Piece]| {
        size.dispatch(ByFixmap {
            geometry,
            capabilities: job.capabilities,
            pieces,
            strategy,
            barriers,
        })
    };
    // A whole series of slots, and whole spans that `base` maps at a time.
    let tables = Slot::SERIES.max(size.contiguous_entries(Level::L2)) as u64;
    let period = tables * size.entry_bytes(Level::L2);
    let Some((short, _, times)) = shortened(job, period, 2 * period) else {
        return run(&job.pieces);
    };
    let mut cost = run(&short)?;
    // A period inside a table of level 2, and what it costs more to go on behind a boundary above that.
    let of = |from: u64, bytes: u64| {
        run(&[Piece {
            start: VirtualAddress(geometry.base().0.wrapping_add(from)),
            output: PhysicalAddress(from),
            bytes,
            ..*short.last().unwrap_or(&job.pieces[0])
        }])
    };
    let one = of(0, 2 * period)?.minus(&of(0, period)?);
    cost = cost.plus(&one.times(times));
    let mut usual = one;
    for level in [Level::L1, Level::L0, Level::Minus1] {
        let more = boundaries(&geometry, level, &job.pieces) - boundaries(&geometry, level, &short);
        if more == 0 {
            break;
        }
        let at = size.entry_bytes(level);
        let across = of(at - period, 2 * period)?.minus(&of(at - period, period)?);
        cost = cost.plus(&across.minus(&usual).times(more));
        usual = across;
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule::arch::PageSize;
    use granule::arch::bbm::BbmLevel;
    use std::time::Duration;

    use crate::request::{LinearMap, Rodata};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn job(memory: u64, size: PageSize, va_bits: u32, rodata: Rodata) -> Result<Job, String> {
        Job::assumed(memory, size, va_bits, rodata, BbmLevel::Level0, false)
    }

    /// Whole maps, as far as they take no minutes, against those that are put together.
    #[test]
    fn what_is_left_out_costs_what_it_would() {
        let odd = [
            100 * MIB + (192 << 10),
            GIB,
            5 * GIB,
            33 * GIB + 7 * MIB,
            64 * GIB,
        ];
        for size in PageSize::ALL {
            for (memory, va_bits) in odd
                .into_iter()
                .flat_map(|it| [(it, 39), (it, 42), (it, 47), (it, 48), (it, 52)])
                // A whole run of a large map takes seconds, and more levels add nothing to its period.
                .filter(|(memory, va_bits)| *memory < 32 * GIB || matches!(va_bits, 39 | 52))
            {
                let Ok(job) = job(memory, size, va_bits, Rodata::Full) else {
                    continue;
                };
                let geometry = job.geometry;
                let capabilities = job.capabilities;
                let whole = size.dispatch(Direct {
                    geometry,
                    capabilities,
                    pieces: &job.pieces,
                    pool: job.pool_pages,
                    arena: job.stats().tables.saturating_sub(job.pool_pages),
                });
                assert_eq!(direct(&job), whole, "{size} {memory:#x} {va_bits}");
                for strategy in Strategy::ALL {
                    for barriers in Barriers::ALL {
                        let whole = size.dispatch(ByFixmap {
                            geometry,
                            capabilities,
                            pieces: &job.pieces,
                            strategy,
                            barriers,
                        });
                        let made = published(&job, strategy, barriers);
                        assert_eq!(made, whole, "{size} {memory:#x} {va_bits} {strategy:?}");
                    }
                }
            }
        }
    }

    /// CPU time of this thread, which does not depend on other work of the host.
    fn cpu_time() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.try_into().unwrap()
    }

    #[test]
    fn sixty_four_terabytes_are_answered_at_once() {
        for size in PageSize::ALL {
            for rodata in [Rodata::Full, Rodata::Noalias, Rodata::Off] {
                let begun = cpu_time();
                let job = job(64 << 40, size, 52, rodata).unwrap();
                for way in LinearMap::ALL {
                    let cost = job.cost(way.strategy(), Barriers::Table).unwrap();
                    assert_eq!(cost.counts.tables, job.stats().tables, "{size}");
                }
                // Seconds on no host; work that grows with the RAM would take minutes.
                assert!(
                    cpu_time() - begun < Duration::from_secs(10),
                    "{size} {rodata:?}"
                );
            }
        }
    }
}
