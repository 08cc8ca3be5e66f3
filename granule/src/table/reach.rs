//! The memory of tables through pointers, for whoever can turn a table's physical address into one
//! ([`Reach`]), and how many entries are written at once where that is cheaper.
//!
//! What may be stored how is [`TableMemory`]'s to say.

use super::memory::{BitChange, TableMemory, Visibility};
use crate::arch::{Descriptor, PhysicalAddress};
use core::sync::atomic::{AtomicU64, Ordering};

/// Turns the physical address of a table into a pointer to it.
///
/// # Safety
///
/// For every table that was handed to the walker (by its root or its allocator)
/// [`pointer`](Self::pointer) must give a pointer that is valid for reads and writes of the whole
/// table, aligned to 8 bytes, for as long as the walker lives.
pub unsafe trait Reach {
    /// A pointer to the first entry of `table`.
    fn pointer(&self, table: PhysicalAddress) -> *mut u64;
}

/// Memory at a constant distance from its physical address: an identity map (0) or a linear map.
#[derive(Clone, Copy, Debug)]
pub struct Offset(u64);

impl Offset {
    /// Physical addresses plus `offset`, wrapping, are the addresses to use.
    ///
    /// # Safety
    ///
    /// All tables handed to a walker that uses this must be mapped there, readable and writable
    /// (or the MMU off and `offset` zero).
    #[must_use]
    pub const unsafe fn new(offset: u64) -> Self {
        Self(offset)
    }
}

// SAFETY: the caller of `new` vouched that the tables are mapped at the offset.
unsafe impl Reach for Offset {
    #[inline(always)]
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut(table.0.wrapping_add(self.0) as usize)
    }
}

/// Entries that the bulk loops write a round. Chunks of this size compile to paired stores at
/// 1.5 to 1.6 instructions an entry on arm64; rolled loops cost 3, and from 128 on they are
/// rolled again. Elsewhere a rolled loop is what becomes vectors.
const CHUNK: usize = if cfg!(target_arch = "aarch64") {
    64
} else {
    128
};

/// Table memory that is reached through pointers.
#[derive(Clone, Copy, Debug)]
pub struct Reached<R>(pub R);

impl<R: Reach> Reached<R> {
    #[inline(always)]
    fn entry(&self, table: PhysicalAddress, index: usize) -> *mut u64 {
        self.0.pointer(table).wrapping_add(index)
    }
}

/// A view of an entry for stores that walkers may see.
///
/// # Safety
///
/// `entry` must be valid for writes and aligned, and no Rust reference to it may exist.
#[inline(always)]
unsafe fn atomic<'a>(entry: *mut u64) -> &'a AtomicU64 {
    // SAFETY: the caller vouches for the pointer; walkers read single 64-bit words.
    unsafe { AtomicU64::from_ptr(entry) }
}

// SAFETY: every method touches the named entries only; live stores are relaxed atomics (one
// 64-bit access each), publishing ones are store-releases.
unsafe impl<R: Reach> TableMemory for Reached<R> {
    #[inline(always)]
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: the caller vouches that the entry is inside a reached table.
        Descriptor(unsafe { self.entry(table, index).read_volatile() })
    }

    #[inline(always)]
    unsafe fn find_mapped(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> Option<usize> {
        let start = self.entry(table, first);
        let mut done = 0;
        while done + CHUNK <= count {
            let mut valid = 0;
            for index in done..done + CHUNK {
                // SAFETY: inside the `count` entries that the caller vouches for.
                valid |= unsafe { atomic(start.wrapping_add(index)).load(Ordering::Relaxed) };
            }
            if valid & BitChange::LEAVES != 0 {
                break;
            }
            done += CHUNK;
        }
        // SAFETY: as above.
        (done..count)
            .find(|&index| unsafe { self.load(table, first + index) }.0 & BitChange::LEAVES != 0)
    }

    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        let entry = self.entry(table, index);
        // SAFETY: the caller vouches that the entry is inside a reached table and that nobody
        // else writes it; a private one is read by nobody.
        unsafe {
            match visibility {
                Visibility::Private => entry.write(descriptor.0),
                Visibility::Live | Visibility::Exchange => {
                    atomic(entry).store(descriptor.0, Ordering::Relaxed);
                }
                Visibility::Publish => atomic(entry).store(descriptor.0, Ordering::Release),
            }
        }
    }

    #[inline(always)]
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        let entry = self.entry(table, index);
        // SAFETY: as for `store`.
        Descriptor(unsafe {
            match visibility {
                Visibility::Private => entry.replace(descriptor.0),
                Visibility::Live | Visibility::Exchange => {
                    atomic(entry).swap(descriptor.0, Ordering::Relaxed)
                }
                Visibility::Publish => atomic(entry).swap(descriptor.0, Ordering::Release),
            }
        })
    }

    #[inline(always)]
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        let start = self.entry(table, first);
        // SAFETY: as for `store`, for each of the `count` entries; who says that they are private
        // says that nobody else reads or writes them.
        unsafe {
            match visibility {
                Visibility::Private => fill_private(start, count, descriptor.0, step),
                Visibility::Live | Visibility::Exchange => {
                    fill_live(start, count, descriptor.0, step, Ordering::Relaxed);
                }
                Visibility::Publish => {
                    fill_live(start, count, descriptor.0, step, Ordering::Release)
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let start = self.entry(table, first);
        let order = match visibility {
            Visibility::Private => {
                // SAFETY: the entries are inside a reached table that nobody else reads or
                // writes.
                let entries = unsafe { core::slice::from_raw_parts_mut(start, count) };
                return update_private(entries, change);
            }
            Visibility::Live | Visibility::Exchange => Ordering::Relaxed,
            Visibility::Publish => Ordering::Release,
        };
        // SAFETY: as for `load` and `store`; atomics may be shared with the walkers.
        let entries = unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>(), count) };
        update_live(entries, change, order)
    }
}

/// [`TableMemory::fill`] of private entries. On arm64 one copy serves all callers and page sizes: a
/// call for each run costs less than the room that loops of paired stores take wherever there is one.
/// Elsewhere the loops become vectors, which take a step that is known where they are compiled: a
/// tenth of the time of a map whose tables are in the cache.
///
/// # Safety
///
/// The `count` entries from `entry` on must be valid for writes, and read or written by nobody else.
#[cfg_attr(target_arch = "aarch64", inline(never))]
#[cfg_attr(not(target_arch = "aarch64"), inline(always))]
unsafe fn fill_private(mut entry: *mut u64, count: usize, first: u64, step: u64) {
    let mut next = first;
    if step == 0 {
        // A third of the instructions: there is nothing to add.
        for _ in 0..count / CHUNK {
            // SAFETY: as below.
            let chunk = unsafe { &mut *entry.cast::<[core::mem::MaybeUninit<u64>; CHUNK]>() };
            for slot in chunk {
                slot.write(next);
            }
            entry = entry.wrapping_add(CHUNK);
        }
        for _ in 0..count % CHUNK {
            // SAFETY: as below.
            unsafe { entry.write(next) };
            entry = entry.wrapping_add(1);
        }
        return;
    }
    for _ in 0..count / CHUNK {
        // SAFETY: the chunk lies inside the `count` entries.
        let chunk = unsafe { &mut *entry.cast::<[core::mem::MaybeUninit<u64>; CHUNK]>() };
        let mut value = next;
        for slot in chunk {
            slot.write(value);
            value = value.wrapping_add(step);
        }
        entry = entry.wrapping_add(CHUNK);
        next = next.wrapping_add(step.wrapping_mul(CHUNK as u64));
    }
    for _ in 0..count % CHUNK {
        // SAFETY: as for the chunks.
        unsafe { entry.write(next) };
        entry = entry.wrapping_add(1);
        next = next.wrapping_add(step);
    }
}

/// [`TableMemory::fill`] of entries that walkers may read at any time.
///
/// # Safety
///
/// The `count` entries from `entry` on must be valid for writes, and written by nobody else.
#[inline(never)]
unsafe fn fill_live(mut entry: *mut u64, count: usize, first: u64, step: u64, order: Ordering) {
    let mut next = first;
    for _ in 0..count {
        // SAFETY: one of the entries.
        unsafe {
            if order == Ordering::Release {
                atomic(entry).store(next, Ordering::Release);
            } else {
                atomic(entry).store(next, Ordering::Relaxed);
            }
        }
        entry = entry.wrapping_add(1);
        next = next.wrapping_add(step);
    }
}

/// [`TableMemory::update`] for private entries. One copy serves all page sizes.
#[inline(never)]
fn update_private(entries: &mut [u64], change: BitChange) -> usize {
    // Where all have the same one of the bits asked for, as in most tables all are valid, none is
    // looked at alone. Both loops go over the whole run and stay rolled: compilers make vectors of
    // them where there are any, and go upward, as prefetchers expect; of fixed chunks they have
    // looked at the ends first.
    let all = entries.iter().fold(change.of, |all, entry| all & entry);
    if all == 0 {
        return update_some(entries, change);
    }
    for entry in &mut *entries {
        *entry = change.apply(Descriptor(*entry)).0;
    }
    entries.len()
}

/// Entries of a live table that are changed together: as many as registers hold.
const LIVE_CHUNK: usize = 8;

/// [`TableMemory::update`] for entries that walkers may read at any time.
#[inline(never)]
fn update_live(entries: &[AtomicU64], change: BitChange, order: Ordering) -> usize {
    let (chunks, rest) = entries.as_chunks::<LIVE_CHUNK>();
    let mut changed = 0;
    for chunk in chunks {
        // Nobody else writes the entries between the loads and the stores, hardware included if all
        // have the access flag and none the dirty modifier.
        let old = chunk.each_ref().map(|entry| entry.load(Ordering::Relaxed));
        let all = old.iter().fold(u64::MAX, |all, old| all & old);
        let any = old.iter().fold(0, |any, old| any | old);
        let settled = all & Descriptor::ACCESS_FLAG != 0 && any & Descriptor::DIRTY_MODIFIER == 0;
        if settled && all & change.of != 0 {
            for (entry, old) in chunk.iter().zip(old) {
                entry.store(change.apply(Descriptor(old)).0, order);
            }
            changed += LIVE_CHUNK;
        } else {
            changed += update_some_live(chunk, change, order);
        }
    }
    changed + update_some_live(rest, change, order)
}

/// Changes those of some private entries that the change concerns and gives back how many.
fn update_some(entries: &mut [u64], change: BitChange) -> usize {
    let mut changed = 0;
    for entry in entries {
        let old = Descriptor(*entry);
        if change.concerns(old) {
            *entry = change.apply(old).0;
            changed += 1;
        }
    }
    changed
}

/// As [`update_some`], for entries that walkers may read at any time.
fn update_some_live(entries: &[AtomicU64], change: BitChange, order: Ordering) -> usize {
    let mut changed = 0;
    for entry in entries {
        let old = Descriptor(entry.load(Ordering::Relaxed));
        if !change.concerns(old) {
            continue;
        }
        if old.may_be_updated() {
            update_beside_hardware(entry, old, change, order);
        } else {
            entry.store(change.apply(old).0, order);
        }
        changed += 1;
    }
    changed
}

/// Changes an entry that hardware may be updating. It stays one that the change concerns: hardware
/// makes no entry valid or invalid.
fn update_beside_hardware(entry: &AtomicU64, old: Descriptor, change: BitChange, order: Ordering) {
    let mut old = old.0;
    loop {
        let new = change.apply(Descriptor(old)).0;
        match entry.compare_exchange_weak(old, new, order, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    /// An entry of the test: nothing in it that a leaf is told by, valid, or hidden.
    #[derive(Clone, Copy, PartialEq)]
    enum Is {
        Empty,
        Valid,
        Hidden,
    }

    /// `count` entries, each what `is` says.
    fn entries(count: usize, is: impl Fn(usize) -> Is) -> Vec<u64> {
        let entry = |index| {
            let bits = Descriptor::AP_USER | (index as u64) << 12;
            bits | match is(index) {
                Is::Empty => 0,
                Is::Valid => Descriptor::VALID,
                Is::Hidden => Descriptor::HIDDEN,
            }
        };
        (0..count).map(entry).collect()
    }

    /// Updates some of 300 entries, which is more than two chunks, and compares each with what
    /// the trait says becomes of it.
    fn check(first: usize, count: usize, visibility: Visibility, is: impl Fn(usize) -> Is) {
        for (of, concerned) in [
            (Descriptor::VALID, &[Is::Valid][..]),
            (Descriptor::HIDDEN, &[Is::Hidden]),
            (BitChange::LEAVES, &[Is::Valid, Is::Hidden]),
        ] {
            let change = BitChange {
                of,
                clear: Descriptor::AP_USER,
                set: Descriptor::AP_READ_ONLY,
            };
            let before = entries(300, &is);
            let mut table = before.clone();
            // SAFETY: the vector is reached at its own address and used by nobody else.
            let (mut memory, at) = unsafe {
                let at = table.as_mut_ptr().expose_provenance() as u64;
                (Reached(Offset::new(0)), PhysicalAddress(at))
            };
            // SAFETY: first and count are inside the vector.
            let changed = unsafe { memory.update(at, first, count, change, visibility) };
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
            // Under Miri those that reach every loop's whole rounds and its rest.
            for (first, count) in runs.into_iter().take(if cfg!(miri) { 3 } else { 6 }) {
                let one_of = |yes: bool, other| if yes { Is::Valid } else { other };
                check(first, count, visibility, |_| Is::Valid);
                check(first, count, visibility, |_| Is::Empty);
                check(first, count, visibility, |_| Is::Hidden);
                check(first, count, visibility, |i| one_of(i != 9, Is::Empty));
                check(first, count, visibility, |i| one_of(i != 9, Is::Hidden));
                check(first, count, visibility, |i| one_of(i >= CHUNK, Is::Hidden));
                check(first, count, visibility, |i| match i % 3 {
                    0 => Is::Valid,
                    1 => Is::Hidden,
                    _ => Is::Empty,
                });
            }
        }
    }
}
