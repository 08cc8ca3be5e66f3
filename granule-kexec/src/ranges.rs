//! A set of addresses as extents that ascend and do not touch, in storage that the caller lends.
//!
//! For what the transitional tables map: sources of pages come in any order, and neighbours make
//! larger leaves.

use super::segment::Extent;

/// The storage is full: as many extents that do not touch as it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The room.
    pub room: usize,
}

/// Extents that ascend and do not touch.
#[derive(Debug)]
pub struct Ranges<'a> {
    slots: &'a mut [Extent],
    used: usize,
}

impl<'a> Ranges<'a> {
    /// None yet, in `slots`, whatever is in them.
    #[must_use]
    pub const fn new(slots: &'a mut [Extent]) -> Self {
        Self { slots, used: 0 }
    }

    /// Adds an extent, which may overlap others. One that reaches beyond the last address ends
    /// there.
    ///
    /// # Errors
    ///
    /// [`Full`]; the set is as it was.
    pub fn insert(&mut self, new: Extent) -> Result<(), Full> {
        if new.bytes == 0 {
            return Ok(());
        }
        let end = new.start.saturating_add(new.bytes);
        let all = self.all();
        // Those from `first` to before `behind` touch it and become one with it.
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
            *slot = Extent::new(start, last - start);
        }
        Ok(())
    }

    /// What is in it.
    #[must_use]
    pub fn all(&self) -> &[Extent] {
        self.slots.get(..self.used).unwrap_or_default()
    }
}
