//! How firmware's runtime services are mapped: from the EFI memory map and the memory attributes table to a
//! list of pages with their permissions, for any page size.
//!
//! [`Plan`] says the list, and refuses what cannot be mapped with code that is never writable. Nothing here
//! maps or calls anything, and all input comes from firmware: it is bounded, and no list of it is kept, so that
//! it may be as long as firmware likes.

mod refusal;
mod regions;
#[cfg(test)]
mod tests;

pub use refusal::Refusal;

use granule::arch::{
    Attributes, Geometry, MemoryType, Permissions, PhysicalAddress, Shareability, VirtualAddress,
};
use granule::table::{Leaves, Piece};
use granule_boot::efi::Map;
use granule_boot::tree::Range;
use regions::{Part, Parts, Region};

/// The most regions, and the most descriptors of the memory attributes table: far more than firmware has. For each
/// of them the whole list that it is in is looked through, a few times, and readers bound a list at 1 MiB.
pub const MOST: usize = 1024;

/// What the runtime services need mapped.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    map: Map<'a>,
    attributes: Option<Map<'a>>,
    geometry: Geometry,
    regions: usize,
}

impl<'a> Plan<'a> {
    /// Checks that firmware's memory can be mapped in the lower half that `geometry` describes. `attributes` are
    /// the descriptors of the memory attributes table.
    ///
    /// # Errors
    ///
    /// Why the runtime services stay off.
    pub fn new(
        map: Map<'a>,
        attributes: Option<Map<'a>>,
        geometry: &Geometry,
    ) -> Result<Self, Refusal> {
        let mut plan = Self {
            map,
            attributes,
            geometry: *geometry,
            regions: 0,
        };
        plan.regions = regions::check(map, attributes)?;
        for piece in plan.walk() {
            piece?;
        }
        Ok(plan)
    }

    /// The number of regions that firmware asks for.
    #[must_use]
    pub const fn regions(&self) -> usize {
        self.regions
    }

    /// The pages to map, by ascending physical addresses.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + Clone + use<'a> {
        // `new` has seen that none of them is an error.
        self.walk().map_while(Result::ok)
    }

    /// Where firmware finds memory that has this physical address; `None` if it is not in a region.
    #[must_use]
    pub fn address(&self, physical: u64) -> Option<u64> {
        let mut all = regions::all(self.map);
        all.find_map(|region| {
            let range = region.range;
            let offset = physical.checked_sub(range.start)?;
            (offset < range.bytes).then(|| physical.wrapping_add(region.distance))
        })
    }

    const fn walk(&self) -> Walk<'a> {
        let page = self.geometry.page_size().bytes();
        Walk {
            plan: *self,
            page,
            parts: Parts::new(self.map, self.attributes),
            pending: None,
            rest: None,
        }
    }
}

/// Pages with the same attributes and the same distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first physical address, and the one behind the last page.
    start: u64,
    end: u64,
    /// Virtual minus physical address.
    distance: u64,
    memory: MemoryType,
    permissions: Permissions,
}

impl Run {
    /// Whether both differ in nothing but the range.
    fn is_like(&self, other: &Self) -> bool {
        Self {
            start: self.start,
            end: self.end,
            ..*other
        } == *self
    }
}

/// The parts of regions, turned into pages. Parts that share a page of this size get one, with the permissions
/// of both.
#[derive(Clone, Copy)]
struct Walk<'a> {
    plan: Plan<'a>,
    page: u64,
    parts: Parts<'a>,
    /// What is complete but for its last page, which the next part may share.
    pending: Option<Run>,
    /// What follows `pending`.
    rest: Option<Run>,
}

impl Walk<'_> {
    /// The pages of a part.
    fn run(&self, part: &Part) -> Result<Run, Refusal> {
        let Region {
            range, distance, ..
        } = part.region;
        let mask = self.page.wrapping_sub(1);
        let start = part.start & !mask;
        // A range ends inside 64 bits, but the page that it ends in may not.
        let end = part.end.checked_add(mask).map(|end| end & !mask);
        let end = end.ok_or(Refusal::Beyond { start: range.start })?;
        if distance & mask != 0 {
            return Err(Refusal::Distance { start: range.start });
        }
        let geometry = &self.plan.geometry;
        let (first, bytes) = (start.wrapping_add(distance), end.wrapping_sub(start));
        let fits = |first: u64, span: u64| {
            let last = first.checked_add(bytes);
            last.is_some_and(|last| last <= span)
        };
        if !fits(first, geometry.span()) || !fits(start, 1 << geometry.pa_bits()) {
            return Err(Refusal::Beyond { start: range.start });
        }
        let is_wider = (start, end) != (part.start, part.end);
        if is_wider
            && part.region.memory == MemoryType::Normal
            && regions::meets_device(self.plan.map, start, end)
        {
            return Err(Refusal::Shared {
                page: start,
                bytes: self.page,
            });
        }
        let run = Run {
            start,
            end,
            distance,
            memory: part.region.memory,
            permissions: part.permissions,
        };
        self.check(run)
    }

    /// The run, unless it has code that is writable, or code in a device.
    fn check(&self, run: Run) -> Result<Run, Refusal> {
        let Run {
            start, permissions, ..
        } = run;
        if permissions.writable_and_executable() {
            return Err(Refusal::WriteExecute {
                page: start,
                bytes: self.page,
                has_table: self.plan.attributes.is_some(),
            });
        }
        if permissions.privileged_execute && run.memory != MemoryType::Normal {
            return Err(Refusal::Uncached { start });
        }
        Ok(run)
    }

    /// Joins a run with the one before it.
    fn join(&mut self, before: Run, run: Run) -> Result<Option<Run>, Refusal> {
        if before.end <= run.start {
            if before.end == run.start && before.is_like(&run) {
                self.pending = Some(Run {
                    start: before.start,
                    ..run
                });
                return Ok(None);
            }
            self.pending = Some(run);
            return Ok(Some(before));
        }
        // Regions do not overlap, so no more than a page is shared.
        let page = run.start;
        if (before.distance, before.memory) != (run.distance, run.memory) {
            return Err(Refusal::Shared {
                page,
                bytes: self.page,
            });
        }
        let (one, other) = (before.permissions, run.permissions);
        let permissions = Permissions::READ
            .writable(one.writable || other.writable)
            .privileged_execute(one.privileged_execute || other.privileged_execute);
        let end = page.saturating_add(self.page);
        let shared = self.check(Run {
            start: page,
            end,
            permissions,
            ..run
        })?;
        self.rest = (end < run.end).then_some(Run { start: end, ..run });
        let before = Run {
            end: page,
            ..before
        };
        self.pending = Some(shared);
        if before.start == before.end {
            return Ok(None);
        }
        self.join(before, shared)
    }

    fn advance(&mut self) -> Result<Option<Run>, Refusal> {
        loop {
            let next = match self.rest.take() {
                Some(rest) => Some(rest),
                None => match self.parts.next() {
                    Some(part) => Some(self.run(&part)?),
                    None => None,
                },
            };
            let Some(next) = next else {
                return Ok(self.pending.take());
            };
            let Some(before) = self.pending else {
                self.pending = Some(next);
                continue;
            };
            if let Some(done) = self.join(before, next)? {
                return Ok(Some(done));
            }
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Piece, Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        let run = self.advance().transpose()?;
        Some(run.map(|run| {
            let attributes = Attributes::normal(run.permissions).memory(run.memory);
            let shareability = match run.memory {
                MemoryType::Normal => Shareability::Inner,
                // As the architecture takes it in any case.
                _ => Shareability::Outer,
            };
            Piece {
                start: VirtualAddress(run.start.wrapping_add(run.distance)),
                output: PhysicalAddress(run.start),
                bytes: run.end.wrapping_sub(run.start),
                attributes: attributes.shareability(shareability),
                leaves: Leaves::LARGEST,
            }
        }))
    }
}

/// The address behind a range.
const fn end(range: Range) -> u64 {
    range.start.saturating_add(range.bytes)
}
