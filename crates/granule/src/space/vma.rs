//! VMAs: the ranges of a space that have memory, and the rights a program has there.
//!
//! The list is sorted, in storage that the caller lends and can enlarge. Tables and frames do not
//! belong here. Addresses are plain numbers: the space checks that they are page-aligned.

use super::error::SpaceError;
use super::rights::Rights;
use crate::arch::VirtualAddress;

/// A program's request about the size of the leaves of a VMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a program requests more, less or nothing"
)]
pub enum Advice {
    /// Nothing: the [policy](super::LargeLeaves) decides.
    #[default]
    None,
    /// Blocks too, where the [policy](super::LargeLeaves) has large leaves and within its limit.
    Large,
    /// Pages alone.
    Pages,
}

/// A range with uniform rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The first address.
    pub start: VirtualAddress,
    /// The first address behind the VMA.
    pub end: VirtualAddress,
    /// The rights of a program in it.
    pub rights: Rights,
    /// A tag that the kernel gives VMAs (a heap, a stack). Neighbours with the same rights, label
    /// and advice become one VMA.
    pub label: u8,
    /// The size of the leaves that its pages are first mapped by.
    pub advice: Advice,
}

impl Vma {
    /// An empty VMA, to initialise storage.
    pub const EMPTY: Self = Self {
        start: VirtualAddress(0),
        end: VirtualAddress(0),
        rights: Rights::NONE,
        label: 0,
        advice: Advice::None,
    };

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether `address` lies in the VMA.
    #[must_use]
    pub fn contains(&self, address: VirtualAddress) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether `next` can be merged into this VMA.
    fn continues_in(&self, next: &Self) -> bool {
        self.end == next.start
            && self.rights == next.rights
            && self.label == next.label
            && self.advice == next.advice
    }
}

/// VMAs in ascending order that do not overlap. Neighbours that could be merged are one VMA.
#[derive(Debug)]
pub struct Vmas<'s> {
    storage: &'s mut [Vma],
    count: usize,
    /// The index of the VMA that was looked for last; it may be another one's by now.
    recent: usize,
}

impl<'s> Vmas<'s> {
    /// An empty list with room for `storage.len()` VMAs.
    #[must_use]
    pub const fn new(storage: &'s mut [Vma]) -> Self {
        Self {
            storage,
            count: 0,
            recent: 0,
        }
    }

    /// All VMAs, in ascending order.
    #[must_use]
    pub fn all(&self) -> &[Vma] {
        self.storage.get(..self.count).unwrap_or_default()
    }

    /// The number of VMAs that the storage holds.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// The index of the first VMA that ends behind `address`.
    fn position(&self, address: VirtualAddress) -> usize {
        self.all().partition_point(|vma| vma.end <= address)
    }

    /// The VMA that contains `address`.
    #[must_use]
    pub fn find(&self, address: VirtualAddress) -> Option<&Vma> {
        let vma = self.all().get(self.position(address))?;
        vma.contains(address).then_some(vma)
    }

    /// As [`find`](Self::find), first where the last call found one: a program that touches one page of a VMA
    /// goes on with others.
    #[inline(always)]
    pub(super) fn find_near(&mut self, address: VirtualAddress) -> Option<Vma> {
        let recent = self.all().get(self.recent).copied();
        recent
            .filter(|vma| vma.contains(address))
            .or_else(|| self.find_elsewhere(address))
    }

    #[inline(never)]
    fn find_elsewhere(&mut self, address: VirtualAddress) -> Option<Vma> {
        self.recent = self.position(address);
        self.find(address).copied()
    }

    /// The VMAs that overlap the range from `start` to `end`.
    #[must_use]
    pub fn overlapping(&self, start: VirtualAddress, end: VirtualAddress) -> &[Vma] {
        let first = self.position(start);
        let rest = self.all().get(first..).unwrap_or_default();
        let count = rest.partition_point(|vma| vma.start < end);
        rest.get(..count).unwrap_or_default()
    }

    /// The first address from `start` to `end` that no VMA contains.
    #[must_use]
    pub fn first_hole(&self, start: VirtualAddress, end: VirtualAddress) -> Option<VirtualAddress> {
        let mut at = start;
        for vma in self.overlapping(start, end) {
            if vma.start > at {
                return Some(at);
            }
            at = vma.end;
        }
        (at < end).then_some(at)
    }

    /// The highest address, a multiple of `align`, at which `bytes` bytes are free between `low`
    /// and `high`. `align` is a power of two.
    #[must_use]
    pub fn find_gap(
        &self,
        bytes: u64,
        align: u64,
        low: VirtualAddress,
        high: VirtualAddress,
    ) -> Option<VirtualAddress> {
        let fits = |from: u64, to: u64| {
            let start = to.checked_sub(bytes)? & !(align - 1);
            (start >= from && from <= to).then_some(VirtualAddress(start))
        };
        let mut end = high.0;
        for vma in self.overlapping(low, high).iter().rev() {
            if let Some(start) = fits(vma.end.0.max(low.0), end) {
                return Some(start);
            }
            end = vma.start.0;
        }
        fits(low.0, end)
    }

    const fn full(&self) -> SpaceError {
        SpaceError::VmasFull {
            capacity: self.storage.len(),
        }
    }

    /// Opens a gap of `grow` places at `index`, or closes one of `shrink` places, by moving the
    /// VMAs behind.
    fn shift(&mut self, index: usize, grow: usize, shrink: usize) -> Result<(), SpaceError> {
        let count = self.count + grow - shrink;
        if count > self.storage.len() || index + shrink > self.count {
            return Err(self.full());
        }
        self.storage
            .copy_within(index + shrink..self.count, index + grow);
        self.count = count;
        Ok(())
    }

    fn set(&mut self, index: usize, vma: Vma) {
        if let Some(place) = self.storage.get_mut(index) {
            *place = vma;
        }
    }

    /// Replaces `old` VMAs from `index` on by `new`. On error nothing has changed.
    fn replace(&mut self, index: usize, old: usize, new: &[Vma]) -> Result<(), SpaceError> {
        self.shift(index, new.len(), old)?;
        for (place, vma) in new.iter().enumerate() {
            self.set(index + place, *vma);
        }
        Ok(())
    }

    /// Adds a VMA and merges it with like neighbours. An empty VMA adds nothing.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Occupied`], [`SpaceError::VmasFull`].
    pub fn insert(&mut self, vma: Vma) -> Result<(), SpaceError> {
        if vma.start >= vma.end {
            return Ok(());
        }
        if let Some(there) = self.overlapping(vma.start, vma.end).first() {
            return Err(SpaceError::Occupied {
                address: there.start.max(vma.start),
            });
        }
        let index = self.position(vma.start);
        let (mut joined, mut from, mut old) = (vma, index, 0);
        let before = index.checked_sub(1).and_then(|at| self.all().get(at));
        if let Some(before) = before.filter(|before| before.continues_in(&vma)) {
            joined.start = before.start;
            from -= 1;
            old += 1;
        }
        let behind = self.all().get(index);
        if let Some(behind) = behind.filter(|behind| vma.continues_in(behind)) {
            joined.end = behind.end;
            old += 1;
        }
        self.replace(from, old, &[joined])
    }

    /// Removes all VMAs, and parts of VMAs, from `start` to `end`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::VmasFull`] where one VMA becomes two. Nothing has changed then.
    pub fn remove(&mut self, start: VirtualAddress, end: VirtualAddress) -> Result<(), SpaceError> {
        if start >= end {
            return Ok(());
        }
        let (first, before, behind, count) = self.cut(start, end);
        match (before, behind) {
            (Some(before), Some(behind)) => self.replace(first, count, &[before, behind]),
            (Some(one), None) | (None, Some(one)) => self.replace(first, count, &[one]),
            (None, None) => self.replace(first, count, &[]),
        }
    }

    /// Describes the VMAs that overlap a range: the index of the first, the part of the first
    /// before the range, the part of the last behind it, and their number.
    fn cut(
        &self,
        start: VirtualAddress,
        end: VirtualAddress,
    ) -> (usize, Option<Vma>, Option<Vma>, usize) {
        let there = self.overlapping(start, end);
        let before = there.first().filter(|vma| vma.start < start);
        let behind = there.last().filter(|vma| vma.end > end);
        (
            self.position(start),
            before.map(|vma| Vma { end: start, ..*vma }),
            behind.map(|vma| Vma { start: end, ..*vma }),
            there.len(),
        )
    }

    /// Changes the rights of all VMAs from `start` to `end`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotMapped`] where there is a hole, [`SpaceError::VmasFull`]. Nothing has
    /// changed then.
    pub fn protect(
        &mut self,
        start: VirtualAddress,
        end: VirtualAddress,
        rights: Rights,
    ) -> Result<(), SpaceError> {
        self.change(start, end, |vma| vma.rights = rights)
    }

    /// Changes the advice of all VMAs from `start` to `end`.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect).
    pub fn advise(
        &mut self,
        start: VirtualAddress,
        end: VirtualAddress,
        advice: Advice,
    ) -> Result<(), SpaceError> {
        self.change(start, end, |vma| vma.advice = advice)
    }

    fn change(
        &mut self,
        start: VirtualAddress,
        end: VirtualAddress,
        change: impl Fn(&mut Vma),
    ) -> Result<(), SpaceError> {
        if start >= end {
            return Ok(());
        }
        if let Some(address) = self.first_hole(start, end) {
            return Err(SpaceError::NotMapped { address });
        }
        let (first, before, behind, count) = self.cut(start, end);
        let more = usize::from(before.is_some()) + usize::from(behind.is_some());
        // Neighbours may be merged below, but the split needs this many places for a moment.
        if self.count + more > self.storage.len() {
            return Err(self.full());
        }
        if let Some(before) = before {
            let rest = self.all().get(first).map(|vma| Vma { start, ..*vma });
            self.replace(first, 1, &[before, rest.unwrap_or(before)])?;
        }
        let from = first + usize::from(before.is_some());
        if let Some(behind) = behind {
            let last = from + count.saturating_sub(1);
            let rest = self.all().get(last).map(|vma| Vma { end, ..*vma });
            self.replace(last, 1, &[rest.unwrap_or(behind), behind])?;
        }
        for vma in self.storage.iter_mut().skip(from).take(count) {
            change(vma);
        }
        self.join(from.saturating_sub(1), count + 2);
        Ok(())
    }

    /// Merges like neighbours among `count` VMAs from `first` on.
    fn join(&mut self, first: usize, count: usize) {
        let end = (first + count).min(self.count);
        let mut kept = first;
        for index in first + 1..end {
            let (Some(&last), Some(&next)) = (self.storage.get(kept), self.storage.get(index))
            else {
                break;
            };
            if last.continues_in(&next) {
                self.set(
                    kept,
                    Vma {
                        end: next.end,
                        ..last
                    },
                );
            } else {
                kept += 1;
                self.set(kept, next);
            }
        }
        if kept + 1 < end {
            // The list only shrinks here, so there is room.
            let _ = self.shift(kept + 1, 0, end - kept - 1);
        }
    }

    /// Replaces the VMAs by those of `other`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::VmasFull`]. Nothing has changed then.
    pub fn copy_from(&mut self, other: &Vmas<'_>) -> Result<(), SpaceError> {
        let full = self.full();
        let places = self.storage.get_mut(..other.count).ok_or(full)?;
        places.copy_from_slice(other.all());
        self.count = other.count;
        Ok(())
    }

    /// Removes all VMAs.
    pub const fn clear(&mut self) {
        self.count = 0;
    }

    /// Moves the VMAs to other storage and returns the old storage.
    ///
    /// # Errors
    ///
    /// [`SpaceError::VmasFull`] when `storage` is too small.
    pub fn enlarge(&mut self, storage: &'s mut [Vma]) -> Result<&'s mut [Vma], SpaceError> {
        let full = SpaceError::VmasFull {
            capacity: storage.len(),
        };
        storage
            .get_mut(..self.count)
            .ok_or(full)?
            .copy_from_slice(self.all());
        Ok(core::mem::replace(&mut self.storage, storage))
    }
}
