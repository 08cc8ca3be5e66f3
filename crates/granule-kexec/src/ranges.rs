//! A set of addresses, kept as ascending extents that do not touch, in storage lent by the caller.
//!
//! The transitional tables map such a set: source pages come in any order, and merged neighbours
//! allow larger leaves.

use super::segment::PhysRange;

/// The storage is full: the set would need more extents than it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The room, in extents.
    pub room: usize,
}

/// Ascending extents that do not touch.
#[derive(Debug)]
pub struct Ranges<'a> {
    slots: &'a mut [PhysRange],
    used: usize,
}

impl<'a> Ranges<'a> {
    /// An empty set that uses `slots` as storage and ignores their contents.
    #[must_use]
    pub const fn new(slots: &'a mut [PhysRange]) -> Self {
        Self { slots, used: 0 }
    }

    /// Adds an extent, which may overlap others. An extent that reaches beyond the last address
    /// ends there.
    ///
    /// # Errors
    ///
    /// Fails with [`Full`]; the set is unchanged.
    pub fn insert(&mut self, new: PhysRange) -> Result<(), Full> {
        if new.bytes == 0 {
            return Ok(());
        }
        let end = new.start.saturating_add(new.bytes);
        let all = self.all();
        // The extents from `first` up to `behind` touch the new one and merge with it.
        let first = all.partition_point(|one| one.start + one.bytes < new.start);
        let behind = all.partition_point(|one| one.start <= end);
        let joined = all.get(first..behind).unwrap_or_default();
        let start = joined
            .first()
            .map_or(new.start, |one| one.start.min(new.start));
        let last = joined
            .last()
            .map_or(end, |one| (one.start + one.bytes).max(end));
        if joined.is_empty() && self.used == self.slots.len() {
            return Err(Full {
                room: self.slots.len(),
            });
        }
        if joined.is_empty() {
            self.slots.copy_within(first..self.used, first + 1);
            self.used += 1;
        } else {
            self.slots.copy_within(behind..self.used, first + 1);
            self.used -= behind - first - 1;
        }
        if let Some(slot) = self.slots.get_mut(first) {
            *slot = PhysRange::new(start, last - start);
        }
        Ok(())
    }

    /// The extents of the set.
    #[must_use]
    pub fn all(&self) -> &[PhysRange] {
        self.slots.get(..self.used).unwrap_or_default()
    }
}
