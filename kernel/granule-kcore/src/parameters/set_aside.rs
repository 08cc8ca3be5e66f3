//! Words that set memory aside: `granule.persist=`, `granule.guard=`, `crashkernel=` and `elfcorehdr=`.

use super::{Instead, Problem, Reader, decimal, size};
use crate::persist;
use core::ops::Range;

/// `granule.guard=PAGES[,RATE]`: a pool of guard pages for small objects of modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardPool {
    /// The pages of the pool, a power of two.
    pub pages: u64,
    /// One of so many objects is in the pool.
    pub rate: u64,
}

/// The most pages of a pool.
pub const MOST_GUARD_PAGES: u64 = 256;

/// The rate if the word has none.
const RATE: u64 = 100;

fn guard_pool(value: &[u8]) -> Option<GuardPool> {
    let mut parts = value.splitn(2, |byte| *byte == b',');
    let pages = decimal(parts.next()?)?;
    let rate = parts.next().map_or(Some(RATE), decimal)?;
    let fits = (4..=MOST_GUARD_PAGES).contains(&pages) && pages.is_power_of_two() && rate > 0;
    fits.then_some(GuardPool { pages, rate })
}

/// `crashkernel=SIZE[@OFFSET]`: memory for a crash kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashMemory {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// The physical address, if the word states one.
    pub start: Option<u64>,
}

/// Two numbers of bytes, the first and the last of a value between which is an `@`; the last may be missing.
fn at(value: &[u8]) -> Option<(u64, Option<u64>)> {
    let mut parts = value.splitn(2, |byte| *byte == b'@').map(size);
    let first = parts.next()??;
    Some((
        first,
        parts.next().map_or(Some(None), |last| last.map(Some))?,
    ))
}

impl<'a, P: FnMut(Problem<'a>)> Reader<'a, '_, P> {
    pub(super) fn persist(&mut self) -> Option<Range<u64>> {
        let value = self.value("granule.persist=")?;
        let range = persist::range(value);
        if let Err(expected) = range {
            self.bad("granule.persist=", value, expected, Instead::KeepsNothing);
        }
        range.ok()
    }

    pub(super) fn guard(&mut self) -> Option<GuardPool> {
        let expected =
            "PAGES[,RATE]: a power of two from 4 to 256, and one of how many objects, as in 64,100";
        self.parsed("granule.guard=", expected, Instead::Ignores, guard_pool)
    }
    pub(super) fn crash_memory(&mut self) -> Option<CrashMemory> {
        let expected = "SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000";
        let at = |value| at(value).filter(|(bytes, _)| *bytes > 0);
        let (bytes, start) = self.parsed("crashkernel=", expected, Instead::NoCrashKernel, at)?;
        Some(CrashMemory { bytes, start })
    }

    pub(super) fn core_header(&mut self) -> Option<(u64, Option<u64>)> {
        let expected = "[SIZE@]ADDRESS, in bytes or with K, M or G, as in 0x5ff00000";
        match self.parsed("elfcorehdr=", expected, Instead::Ignores, at)? {
            (bytes, Some(start)) => Some((start, Some(bytes))),
            (start, None) => Some((start, None)),
        }
    }
}
