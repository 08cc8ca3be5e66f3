//! Accesses to entries through pointers. The loops here write several entries at once where that is
//! cheaper. [`TableEnvironment`](super::TableEnvironment) defines how entries must be stored.

#![allow(unsafe_code, reason = "tables through pointers")]

use super::memory::{BitChange, BitPattern, Visibility};
use super::update::{
    CHUNK, find_live, find_private, update_alike_live, update_alike_private, update_live,
    update_private,
};
use crate::arch::PhysicalAddress;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Converts the physical address of a table to a pointer.
///
/// # Safety
///
/// For every table of the page tables (the root, and all that are allocated)
/// [`pointer`](Self::pointer) must return a pointer that is valid for reads and writes of the whole
/// table, aligned to 8 bytes, as long as the page tables exist.
pub unsafe trait PhysToVirt {
    /// A pointer to the first entry of `table`.
    fn pointer(&self, table: PhysicalAddress) -> *mut u64;
}

/// Memory at a constant offset from its physical address: an identity map (0) or a linear map.
#[derive(Clone, Copy, Debug)]
pub struct Offset(u64);

impl Offset {
    /// Adds `offset` to physical addresses, wrapping.
    ///
    /// # Safety
    ///
    /// All tables of page tables that use this value must be mapped at that offset, readable and
    /// writable (or the MMU must be off and `offset` zero).
    #[must_use]
    pub const unsafe fn new(offset: u64) -> Self {
        Self(offset)
    }
}

// SAFETY: the caller of `new` promises that the tables are mapped at the offset.
unsafe impl PhysToVirt for Offset {
    #[inline(always)]
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut(table.0.wrapping_add(self.0) as usize)
    }
}

/// An entry as an atomic, for loads and stores beside walkers and other code.
///
/// # Safety
///
/// `entry` must be valid for writes and aligned, and no Rust reference to it may exist.
#[inline(always)]
unsafe fn atomic<'a>(entry: *mut u64) -> &'a AtomicU64 {
    // SAFETY: the caller promises a valid, aligned pointer; walkers read single 64-bit words.
    unsafe { AtomicU64::from_ptr(entry) }
}

/// Loads an entry. The load is atomic, because `lock_free::set_valid` may store into a live table at
/// the same time.
///
/// # Safety
///
/// `entry` must be valid for reads and aligned, and no Rust reference to it may exist.
#[inline(always)]
pub(super) unsafe fn load(entry: *mut u64) -> u64 {
    // SAFETY: the caller keeps the rules.
    unsafe { atomic(entry) }.load(Ordering::Relaxed)
}

/// Stores an entry.
///
/// # Safety
///
/// As for [`load`], and for writes. No other code may write the entry, and no walker may read a private
/// one.
#[inline(always)]
pub(super) unsafe fn store(entry: *mut u64, descriptor: u64, visibility: Visibility) {
    // SAFETY: the caller keeps the rules.
    unsafe {
        match visibility {
            Visibility::Private => entry.write(descriptor),
            Visibility::Live | Visibility::Exchange => {
                atomic(entry).store(descriptor, Ordering::Relaxed);
            }
            Visibility::Publish => atomic(entry).store(descriptor, Ordering::Release),
        }
    }
}

/// Stores an entry and returns the old one.
///
/// # Safety
///
/// As for [`store`].
#[inline(always)]
pub(super) unsafe fn exchange(entry: *mut u64, descriptor: u64, visibility: Visibility) -> u64 {
    // SAFETY: the caller keeps the rules.
    unsafe {
        match visibility {
            Visibility::Private => entry.replace(descriptor),
            Visibility::Live | Visibility::Exchange => {
                atomic(entry).swap(descriptor, Ordering::Relaxed)
            }
            Visibility::Publish => atomic(entry).swap(descriptor, Ordering::Release),
        }
    }
}

/// [`TableEnvironment::update`](super::TableEnvironment::update).
///
/// # Safety
///
/// As for [`store`], for the `count` entries from `start` on.
#[inline(always)]
pub(super) unsafe fn update(
    start: *mut u64,
    count: usize,
    change: BitChange,
    visibility: Visibility,
) -> usize {
    if visibility == Visibility::Private {
        // SAFETY: the caller promises that the entries are inside a table that no other code reads
        // or writes.
        let entries = unsafe { core::slice::from_raw_parts_mut(start, count) };
        return update_private(entries, change);
    }
    // SAFETY: as for `load` and `store`; atomics may be shared with the walkers.
    let entries = unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>(), count) };
    match visibility {
        Visibility::Publish => published(entries, |one| update_live(one, change)).sum(),
        _ => update_live(entries, change),
    }
}

/// [`TableEnvironment::update_alike`](super::TableEnvironment::update_alike).
///
/// # Safety
///
/// As for [`update`].
#[inline(always)]
pub(super) unsafe fn update_alike(
    start: *mut u64,
    count: usize,
    pattern: BitPattern,
    change: BitChange,
    visibility: Visibility,
) -> usize {
    if visibility == Visibility::Private {
        // SAFETY: as for `update`.
        let entries = unsafe { core::slice::from_raw_parts_mut(start, count) };
        return update_alike_private(entries, pattern, change);
    }
    // SAFETY: as for `update`.
    let entries = unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>(), count) };
    match visibility {
        Visibility::Publish => published(entries, |one| update_alike_live(one, pattern, change))
            .take_while(|done| *done > 0)
            .sum(),
        _ => update_alike_live(entries, pattern, change),
    }
}

/// Changes entries one by one, each after all stores before it. No operation changes a run of entries
/// in this way, so the loops are not made for it.
#[inline(always)]
fn published<'a>(
    entries: &'a [AtomicU64],
    change: impl Fn(&[AtomicU64]) -> usize + 'a,
) -> impl Iterator<Item = usize> + 'a {
    entries.chunks(1).map(move |one| {
        fence(Ordering::Release);
        change(one)
    })
}

/// [`TableEnvironment::find_unlike`](super::TableEnvironment::find_unlike). One copy serves all callers and page sizes.
///
/// # Safety
///
/// The `count` entries from `start` on must be valid for reads, and nothing may write private ones.
#[inline(never)]
pub(super) unsafe fn find_unlike(
    start: *mut u64,
    count: usize,
    pattern: BitPattern,
    visibility: Visibility,
) -> Option<usize> {
    if visibility == Visibility::Private {
        // SAFETY: the caller promises this.
        find_private(
            unsafe { core::slice::from_raw_parts(start, count) },
            pattern,
        )
    } else {
        // SAFETY: as above; atomics may be shared with other writers.
        let entries = unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>(), count) };
        find_live(entries, pattern)
    }
}

/// [`TableEnvironment::fill`](super::TableEnvironment::fill).
///
/// # Safety
///
/// The `count` entries from `start` on must be valid for writes. No other code may write them, and
/// nothing may read private ones.
#[inline(always)]
pub(super) unsafe fn fill(
    start: *mut u64,
    count: usize,
    first: u64,
    step: u64,
    visibility: Visibility,
) {
    // SAFETY: the caller promises what both need.
    unsafe {
        if visibility == Visibility::Private {
            fill_private(start, count, first, step);
        } else {
            fill_live(start, count, first, step, visibility == Visibility::Publish);
        }
    }
}

/// [`fill`] of private entries. On arm64 one copy serves all callers and page sizes, because a call for
/// each run costs less than many copies of loops with paired stores. On other CPUs the function is
/// inlined, because the compiler vectorises the loops only for a constant step; that saves about a
/// tenth of the time of a map whose tables are in the cache.
///
/// # Safety
///
/// The `count` entries from `entry` on must be valid for writes, and no other code may read or
/// write them.
#[cfg_attr(target_arch = "aarch64", inline(never))]
#[cfg_attr(not(target_arch = "aarch64"), inline(always))]
unsafe fn fill_private(mut entry: *mut u64, count: usize, first: u64, step: u64) {
    let mut next = first;
    if step == 0 {
        // Without the addition the loop has a third of the instructions.
        for _ in 0..count / CHUNK {
            // SAFETY: the chunk lies inside the `count` entries, which the caller promises are
            // writable.
            let chunk = unsafe { &mut *entry.cast::<[core::mem::MaybeUninit<u64>; CHUNK]>() };
            for slot in chunk {
                slot.write(next);
            }
            entry = entry.wrapping_add(CHUNK);
        }
        for _ in 0..count % CHUNK {
            // SAFETY: the pointer is to one of the `count` entries.
            unsafe { entry.write(next) };
            entry = entry.wrapping_add(1);
        }
        return;
    }
    // SAFETY: as the caller promises; the chunks of each size follow those of the one before.
    unsafe {
        fill_chunks::<CHUNK>(&mut entry, count / CHUNK, &mut next, step);
        // A contiguous group, and what is left beside one.
        fill_chunks::<8>(&mut entry, count % CHUNK / 8, &mut next, step);
        fill_chunks::<1>(&mut entry, count % 8, &mut next, step);
    }
}

/// Writes `count` chunks of `N` entries, and moves on behind them.
///
/// # Safety
///
/// As for [`fill_private`], for the entries of these chunks.
#[inline(always)]
unsafe fn fill_chunks<const N: usize>(
    entry: &mut *mut u64,
    count: usize,
    next: &mut u64,
    step: u64,
) {
    for _ in 0..count {
        // SAFETY: the caller promises that the chunk's entries are writable.
        let chunk = unsafe { &mut *entry.cast::<[core::mem::MaybeUninit<u64>; N]>() };
        let mut value = *next;
        for slot in chunk {
            slot.write(value);
            value = value.wrapping_add(step);
        }
        *entry = entry.wrapping_add(N);
        *next = next.wrapping_add(step.wrapping_mul(N as u64));
    }
}

/// [`TableEnvironment::fill`](super::TableEnvironment::fill) of entries that walkers may read at any time.
///
/// # Safety
///
/// The `count` entries from `entry` on must be valid for writes, and no other code may write them.
#[inline(never)]
unsafe fn fill_live(mut entry: *mut u64, count: usize, first: u64, step: u64, publish: bool) {
    let mut next = first;
    for _ in 0..count {
        // SAFETY: the pointer is to one of the `count` entries.
        unsafe {
            if publish {
                atomic(entry).store(next, Ordering::Release);
            } else {
                atomic(entry).store(next, Ordering::Relaxed);
            }
        }
        entry = entry.wrapping_add(1);
        next = next.wrapping_add(step);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::update::LIVE_CHUNK;
    use super::*;
    use crate::arch::Descriptor;
    use std::vec::Vec;

    /// The kind of a test entry.
    #[derive(Clone, Copy, PartialEq)]
    enum Is {
        Empty,
        Valid,
        PresentInvalid,
    }

    /// `count` entries of the kinds that `is` gives by index.
    fn entries(count: usize, is: impl Fn(usize) -> Is) -> Vec<u64> {
        let entry = |index| {
            let bits = Descriptor::AP_USER | (index as u64) << 12;
            bits | match is(index) {
                Is::Empty => 0,
                Is::Valid => Descriptor::VALID,
                Is::PresentInvalid => Descriptor::PRESENT_INVALID,
            }
        };
        (0..count).map(entry).collect()
    }

    /// Updates some of 300 entries, which is more than two chunks, and compares each with the
    /// result that the trait defines.
    fn check(first: usize, count: usize, visibility: Visibility, is: impl Fn(usize) -> Is) {
        for (of, concerned) in [
            (Descriptor::VALID, &[Is::Valid][..]),
            (Descriptor::PRESENT_INVALID, &[Is::PresentInvalid]),
            (BitChange::LEAVES, &[Is::Valid, Is::PresentInvalid]),
        ] {
            let change = BitChange {
                of,
                clear: Descriptor::AP_USER,
                set: Descriptor::AP_READ_ONLY,
            };
            let before = entries(300, &is);
            let mut table = before.clone();
            let start = table.as_mut_ptr().wrapping_add(first);
            // SAFETY: the entries are inside the vector, which no other code uses.
            let changed = unsafe { super::update(start, count, change, visibility) };
            let named = first..first + count;
            let expected = |index: &usize| concerned.contains(&is(*index));
            assert_eq!(changed, named.clone().filter(expected).count());
            for (index, (&old, &new)) in before.iter().zip(&table).enumerate() {
                let expected = if named.contains(&index) && expected(&index) {
                    (old & !Descriptor::AP_USER) | Descriptor::AP_READ_ONLY
                } else {
                    old
                };
                assert_eq!(new, expected, "entry {index}, {visibility:?}");
            }
        }
    }

    #[test]
    fn update_changes_the_entries_that_are_named_and_concerned_and_no_others() {
        for visibility in [Visibility::Private, Visibility::Live, Visibility::Publish] {
            let runs = [
                (5, 2 * CHUNK + 7),
                (3, 1),
                (2, LIVE_CHUNK + 1),
                (0, 300),
                (0, 0),
                (1, CHUNK),
            ];
            // Miri runs only the first three, which reach the whole rounds and the rest of every
            // loop.
            for (first, count) in runs.into_iter().take(if cfg!(miri) { 3 } else { 6 }) {
                let one_of = |yes: bool, other| if yes { Is::Valid } else { other };
                check(first, count, visibility, |_| Is::Valid);
                check(first, count, visibility, |i| match i % 3 {
                    0 => Is::Valid,
                    1 => Is::PresentInvalid,
                    _ => Is::Empty,
                });
                // The same loops with other results.
                if cfg!(miri) {
                    continue;
                }
                check(first, count, visibility, |_| Is::Empty);
                check(first, count, visibility, |_| Is::PresentInvalid);
                check(first, count, visibility, |i| one_of(i != 9, Is::Empty));
                check(first, count, visibility, |i| {
                    one_of(i != 9, Is::PresentInvalid)
                });
                check(first, count, visibility, |i| {
                    one_of(i >= CHUNK, Is::PresentInvalid)
                });
            }
        }
    }

    #[test]
    fn update_alike_stops_at_the_first_entry_that_is_something_else() {
        let change = BitChange {
            of: BitChange::LEAVES,
            clear: Descriptor::AP_USER,
            set: Descriptor::AP_READ_ONLY,
        };
        let valid = BitPattern {
            mask: Descriptor::VALID | Descriptor::TABLE_OR_PAGE,
            value: Descriptor::VALID,
        };
        let stops = [0, 1, 7, 8, 63, 64, 65, CHUNK, CHUNK + 3, 299, 300];
        for stop in stops.into_iter().take(if cfg!(miri) { 5 } else { 11 }) {
            for visibility in [Visibility::Private, Visibility::Live, Visibility::Publish] {
                for other in [0, Descriptor::VALID | Descriptor::TABLE_OR_PAGE] {
                    // Hardware may update every third entry and leaves the others alone.
                    let entry = |index: usize| {
                        let flag = u64::from(index % 3 != 0) * Descriptor::ACCESS_FLAG;
                        let is = if index == stop {
                            other
                        } else {
                            Descriptor::VALID
                        };
                        Descriptor::AP_USER | flag | (index as u64) << 12 | is
                    };
                    let before: Vec<u64> = (0..300).map(entry).collect();
                    let mut table = before.clone();
                    let start = table.as_mut_ptr().wrapping_add(2);
                    // SAFETY: the entries are inside the vector, which no other code uses.
                    let done =
                        unsafe { super::update_alike(start, 298, valid, change, visibility) };
                    let end = if stop < 2 { 300 } else { stop };
                    assert_eq!(done, end - 2, "{stop}, {visibility:?}");
                    for (index, (&old, &new)) in before.iter().zip(&table).enumerate() {
                        let changed = change.apply(Descriptor(old)).0;
                        let expected = if (2..end).contains(&index) {
                            changed
                        } else {
                            old
                        };
                        assert_eq!(new, expected, "entry {index}, {stop}, {visibility:?}");
                    }
                }
            }
        }
    }

    /// Of three entries of one kind and many of another, those of the first kind are changed.
    #[test]
    fn update_alike_compares_the_bits_that_hardware_updates() {
        let bits = Descriptor::ACCESS_FLAG | Descriptor::DIRTY_MODIFIER;
        let kinds = [0, Descriptor::ACCESS_FLAG, Descriptor::DIRTY_MODIFIER, bits];
        let change = BitChange {
            of: BitChange::LEAVES,
            clear: 0,
            set: Descriptor::AP_READ_ONLY,
        };
        for (first, other) in kinds.iter().flat_map(|a| kinds.map(|b| (*a, b))) {
            for visibility in [Visibility::Private, Visibility::Live] {
                let entry = |index| Descriptor::VALID | if index < 3 { first } else { other };
                let mut table: Vec<u64> = (0..2 * LIVE_CHUNK).map(entry).collect();
                let alike = BitPattern {
                    mask: Descriptor::VALID | bits,
                    value: Descriptor::VALID | first,
                };
                let (start, count) = (table.as_mut_ptr(), table.len());
                // SAFETY: the entries are inside the vector, which no other code uses.
                let done = unsafe { super::update_alike(start, count, alike, change, visibility) };
                assert_eq!(done, if first == other { count } else { 3 });
                let changed = |entry: &&u64| **entry & Descriptor::AP_READ_ONLY != 0;
                assert_eq!(table.iter().filter(changed).count(), done);
            }
        }
    }
}
