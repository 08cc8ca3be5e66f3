//! Words that set memory aside: `granule.persist=` and `granule.guard=`.

use super::{Instead, Problem, Reader, decimal};
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
}
