//! The place of the linear map: the distance from physical to virtual addresses.
//!
//! Pure code. A leaf needs virtual and physical addresses that agree in the bits below its size, so
//! the distance decides which leaf sizes are possible.

use crate::arch::{Geometry, Level, PhysicalAddress, VirtualAddress};

/// The place of a linear map: physical address `origin` is mapped at virtual address `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The first virtual address of the window.
    pub base: VirtualAddress,
    /// The physical address there.
    pub origin: PhysicalAddress,
    /// The bytes of the window.
    pub span: u64,
}

impl Placement {
    /// Chooses the origin for RAM from `ram_start` to `ram_end` in a window of `span` bytes at
    /// `base`. The origin is the start of RAM rounded down to the largest leaf size with which all
    /// of RAM still fits. If RAM fits with no block size, the origin is rounded to the smallest
    /// block, and RAM beyond the window stays unmapped.
    ///
    /// `base` must be aligned to the largest leaf of `geometry`. The base of a half is, unless the
    /// half is smaller than that leaf.
    #[must_use]
    pub fn choose(
        geometry: &Geometry,
        base: VirtualAddress,
        span: u64,
        ram_start: PhysicalAddress,
        ram_end: PhysicalAddress,
    ) -> Self {
        let mut origin = ram_start.0 & !(geometry.page_size().bytes() - 1);
        for leaf in geometry.leaf_sizes() {
            if leaf.level.is_last() {
                break;
            }
            // A window smaller than the leaf cannot hold one.
            if leaf.bytes > span || base.0 & (leaf.bytes - 1) != 0 {
                continue;
            }
            origin = ram_start.0 & !(leaf.bytes - 1);
            if ram_end.0.saturating_sub(origin) <= span {
                break;
            }
        }
        Self {
            base,
            origin: PhysicalAddress(origin),
            span,
        }
    }

    /// The virtual address of physical `address`, if it lies in the window.
    #[must_use]
    pub const fn virtual_address(&self, address: PhysicalAddress) -> Option<VirtualAddress> {
        let offset = address.0.wrapping_sub(self.origin.0);
        if offset < self.span {
            Some(VirtualAddress(self.base.0.wrapping_add(offset)))
        } else {
            None
        }
    }

    /// The physical address behind virtual `address`, if it lies in the window.
    #[must_use]
    pub const fn physical_address(&self, address: VirtualAddress) -> Option<PhysicalAddress> {
        let offset = address.0.wrapping_sub(self.base.0);
        if offset < self.span {
            Some(PhysicalAddress(self.origin.0.wrapping_add(offset)))
        } else {
            None
        }
    }

    /// The number to add to a physical address, with wrapping, to get its virtual address.
    #[must_use]
    pub const fn distance(&self) -> u64 {
        self.base.0.wrapping_sub(self.origin.0)
    }

    /// The places in this window where the map of RAM from `ram_start` to `ram_end` has the same
    /// leaves and the same number of tables as here, for a kernel that randomises its addresses.
    ///
    /// RAM that does not fit the window has one place: this one.
    #[must_use]
    pub fn places(
        &self,
        geometry: &Geometry,
        ram_start: PhysicalAddress,
        ram_end: PhysicalAddress,
    ) -> Places {
        Places::find(self, geometry, ram_start.0, ram_end.0).unwrap_or_else(|| Places::only(self))
    }
}

/// The places at which a linear map has the same leaves and the same number of tables, from
/// [`Placement::places`].
///
/// A place differs from the given one by a multiple of a *step*: the largest leaf that RAM can
/// contain, or the range of a table if RAM crosses from one such table into the next. So RAM keeps
/// its offset in every leaf and in every table of up to a step. Larger tables hold all of RAM, here
/// and at every place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The placement at place 0.
    first: Placement,
    step: u64,
    /// The number of places in each range, which is that of the smallest table above a step.
    in_range: u64,
    /// The bytes of a range.
    range: u64,
    ranges: u64,
}

impl Places {
    /// `placement` alone.
    const fn only(placement: &Placement) -> Self {
        Self {
            first: *placement,
            step: 0,
            in_range: 1,
            range: 0,
            ranges: 1,
        }
    }

    /// The places for RAM from `start` to `end`; `None` if there is none to move to.
    fn find(window: &Placement, geometry: &Geometry, start: u64, end: u64) -> Option<Self> {
        let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
        let size = geometry.page_size();
        // All positions are offsets in the half, whose base is aligned to every table.
        let window_start = geometry.offset(window.base)?;
        let window_end = window_start.checked_add(window.span)?;
        let here = window_start.checked_add(start.checked_sub(window.origin.0)?)?;
        let here_end = here.checked_add(bytes)?;
        if here_end > window_end {
            return None;
        }
        let possible = geometry.leaf_sizes().filter(|leaf| leaf.bytes <= bytes);
        let mut step = possible.map(|leaf| leaf.bytes).max()?;
        // The ranges of all tables but the root.
        let tables = || {
            let below_root = |level: &Level| *level >= geometry.start_level() && !level.is_last();
            let levels = Level::ALL.into_iter().filter(below_root);
            levels.map(|level| size.entry_bytes(level))
        };
        let is_crossed = |range: &u64| here / range != (here_end - 1) / range;
        step = tables().filter(is_crossed).fold(step, u64::max);
        let (first, range, ranges) = match tables().filter(|range| *range > step).min() {
            // Only the root is larger than a step.
            None => (window_start.next_multiple_of(step), window.span, 1),
            Some(range) => {
                let first = window_start.next_multiple_of(range);
                match window_end.saturating_sub(first) / range {
                    0 if window_start / range != (window_end - 1) / range => return None,
                    // The window lies in one table.
                    0 => (window_start.next_multiple_of(step), window.span, 1),
                    ranges => (first, range, ranges),
                }
            }
        };
        let room = range.min(window_end.checked_sub(first)?);
        let at = first.checked_add(here % step)?;
        let in_range = room.checked_sub(here % step + bytes)? / step + 1;
        let origin = start & !(size.bytes() - 1);
        let base = at.checked_sub(start - origin)?;
        Some(Self {
            first: Placement {
                base: VirtualAddress(geometry.base().0 + base),
                origin: PhysicalAddress(origin),
                span: window_end - base,
            },
            step,
            in_range,
            range,
            ranges,
        })
    }

    /// The number of places, at least 1.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.in_range * self.ranges
    }

    /// The placement at place `number`; `None` from [`count`](Self::count) on.
    #[must_use]
    pub const fn get(&self, number: u64) -> Option<Placement> {
        if number >= self.count() {
            return None;
        }
        let moved = number / self.in_range * self.range + number % self.in_range * self.step;
        let Placement { base, origin, span } = self.first;
        Some(Placement {
            base: VirtualAddress(base.0 + moved),
            origin,
            span: span - moved,
        })
    }
}
