//! Iteration over ranges without the holes in them.

use super::Region;

/// Iterator over the parts of ranges that lie in no hole, ascending.
///
/// All lists are sorted. Each step looks only at the first range and the first hole that are not
/// behind it, so a whole walk looks at every range and hole about once.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    ranges: Rounded<'a>,
    holes: [Rounded<'a>; 2],
    /// The walk is done below this address.
    at: u64,
}

/// Ranges, and the page size to which they are rounded (1: no rounding).
#[derive(Clone, Copy, Debug)]
struct Rounded<'a> {
    regions: &'a [Region],
    page: u64,
}

impl Rounded<'_> {
    const NONE: Self = Self {
        regions: &[],
        page: 1,
    };

    fn drop_first(&mut self) {
        self.regions = self.regions.split_first().map_or(&[], |(_, rest)| rest);
    }

    /// The first hole, rounded outward, that ends above `at`.
    fn hole_above(&mut self, at: u64) -> Option<Region> {
        loop {
            let hole = self.regions.first()?.rounded_outward(self.page);
            if hole.end() > at {
                return Some(hole);
            }
            self.drop_first();
        }
    }
}

impl<'a> Pieces<'a> {
    /// The ranges without any holes removed.
    pub(super) fn of(regions: &'a [Region]) -> Self {
        Self {
            ranges: Rounded { regions, page: 1 },
            holes: [Rounded::NONE; 2],
            at: 0,
        }
    }

    /// Keeps only the whole pages of each range.
    pub(super) fn whole(mut self, page: u64) -> Self {
        self.ranges.page = page;
        self
    }

    /// Removes these ranges, exact to the byte.
    pub(super) fn without(mut self, holes: &'a [Region]) -> Self {
        self.holes[0] = Rounded {
            regions: holes,
            page: 1,
        };
        self
    }

    /// Removes every page that one of these ranges touches.
    pub(super) fn without_pages_of(mut self, holes: &'a [Region], page: u64) -> Self {
        self.holes[1] = Rounded {
            regions: holes,
            page,
        };
        self
    }
}

impl Iterator for Pieces<'_> {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        loop {
            let first = self
                .ranges
                .regions
                .first()?
                .rounded_inward(self.ranges.page);
            let Some(mut piece) = first.and_then(|range| range.inside(self.at, u64::MAX)) else {
                self.ranges.drop_first();
                continue;
            };
            let mut covered = None;
            for holes in &mut self.holes {
                let Some(hole) = holes.hole_above(piece.start()) else {
                    continue;
                };
                match Region::new(piece.start(), piece.end().min(hole.start())) {
                    Some(before) => piece = before,
                    None => covered = Some(hole.end()),
                }
            }
            if let Some(end) = covered {
                self.at = end;
                continue;
            }
            self.at = piece.end();
            return Some(piece);
        }
    }
}
