//! The loops that change entries of tables in mapped memory, for [`entries`](super::entries).
//!
//! Nothing here knows an address: the entries are slices. Private ones are plain numbers, which the
//! compiler may load and store in pairs or as vectors; those that walkers may read are atomics.

use super::chunks::{as_chunks, as_chunks_mut};
use super::memory::{BitChange, BitPattern};
use crate::arch::Descriptor;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The entries that bulk loops handle in one round. On arm64 chunks of this size compile to paired
/// stores at 1.5 to 1.6 instructions for each entry. A rolled loop costs 3, and chunks of 128 and
/// more are rolled again. On other CPUs the compiler vectorises only rolled loops.
pub(super) const CHUNK: usize = if cfg!(target_arch = "aarch64") {
    64
} else {
    128
};

/// The entries of a cache line on most CPUs.
const LINE: usize = 8;

/// The lines of private entries that change together: on arm64 as many as fit in registers,
/// elsewhere as many as stay in the nearest cache.
const LINES: usize = if cfg!(target_arch = "aarch64") {
    1
} else {
    CHUNK / LINE
};

/// Applies `change` to private entries if all match `pattern`, and else to none of them.
#[inline(always)]
fn change_all(chunk: &mut [[u64; LINE]], pattern: BitPattern, change: BitChange) -> bool {
    // Line by line memory is read in ascending order, as prefetchers expect; of a whole chunk at
    // once compilers have read the end first.
    let ones = pattern.value == pattern.mask;
    let mut all = [if ones { u64::MAX } else { 0 }; LINE];
    for line in &*chunk {
        for (all, entry) in all.iter_mut().zip(line) {
            if ones {
                *all &= entry;
            } else {
                *all |= entry ^ pattern.value;
            }
        }
    }
    let different = if ones {
        !all.iter().fold(u64::MAX, |all, entry| all & entry)
    } else {
        all.iter().fold(0, |any, entry| any | entry)
    };
    if different & pattern.mask != 0 {
        return false;
    }
    // The second loop finds the chunk in registers or in the nearest cache.
    for line in chunk {
        for entry in line {
            *entry = change.apply(Descriptor(*entry)).0;
        }
    }
    true
}

/// [`TableEnvironment::update`](super::TableEnvironment::update) for private entries. One copy serves all page sizes.
#[inline(never)]
pub(super) fn update_private(entries: &mut [u64], change: BitChange) -> usize {
    // If all entries of a chunk share one of the `of` bits, none of them needs its own test; in
    // most tables all entries are valid.
    let shared = if change.of & Descriptor::VALID != 0 {
        Descriptor::VALID
    } else {
        Descriptor::PRESENT_INVALID
    };
    let pattern = BitPattern {
        mask: shared,
        value: shared,
    };
    let (lines, rest) = as_chunks_mut::<_, LINE>(entries);
    let mut changed = 0;
    for chunk in lines.chunks_mut(LINES) {
        if change_all(chunk, pattern, change) {
            changed += chunk.len() * LINE;
        } else {
            changed += update_some(chunk.as_flattened_mut(), change);
        }
    }
    changed + update_some(rest, change)
}

/// [`TableEnvironment::update_alike`](super::TableEnvironment::update_alike) for private entries.
#[inline(never)]
pub(super) fn update_alike_private(
    entries: &mut [u64],
    pattern: BitPattern,
    change: BitChange,
) -> usize {
    let (lines, _) = as_chunks_mut::<_, LINE>(entries);
    let mut done = 0;
    for chunk in lines.chunks_mut(LINES) {
        if !change_all(chunk, pattern, change) {
            break;
        }
        done += chunk.len() * LINE;
    }
    for entry in entries.iter_mut().skip(done) {
        if !pattern.matches(Descriptor(*entry)) {
            break;
        }
        *entry = change.apply(Descriptor(*entry)).0;
        done += 1;
    }
    done
}

/// The entries of a live table that change together: on arm64 as many as fit in registers.
pub(super) const LIVE_CHUNK: usize = if cfg!(target_arch = "aarch64") { 8 } else { 64 };

/// The pattern of an entry that hardware does not update: with the access flag and without the
/// dirty modifier, or not valid.
const fn settled(change: BitChange) -> BitPattern {
    if change.of & Descriptor::VALID != 0 {
        BitPattern {
            mask: Descriptor::VALID | Descriptor::ACCESS_FLAG | Descriptor::DIRTY_MODIFIER,
            value: Descriptor::VALID | Descriptor::ACCESS_FLAG,
        }
    } else {
        BitPattern {
            mask: Descriptor::PRESENT_INVALID | Descriptor::VALID,
            value: Descriptor::PRESENT_INVALID,
        }
    }
}

/// Applies `change` to entries of a live table if all match `pattern`, which no entry does that
/// hardware may update, and else to none of them. No other code writes the entries between the
/// loads and the stores.
#[inline(always)]
fn change_all_live(
    chunk: &[AtomicU64; LIVE_CHUNK],
    pattern: BitPattern,
    change: BitChange,
) -> bool {
    let load = |entry: &AtomicU64| entry.load(Relaxed);
    // Usually a change clears nothing but what the pattern has clear already.
    let only_sets = pattern.is_clear(change.clear);
    let changed = |old| change.apply(Descriptor(old)).0;
    if cfg!(target_arch = "aarch64") {
        let old = chunk.each_ref().map(load);
        if !pattern.matches_all(old) {
            return false;
        }
        let both = chunk.iter().zip(old);
        if only_sets {
            both.for_each(|(entry, old)| entry.store(old | change.set, Relaxed));
        } else {
            both.for_each(|(entry, old)| entry.store(changed(old), Relaxed));
        }
    } else {
        if !pattern.matches_all(chunk.iter().map(load)) {
            return false;
        }
        // Fewer registers: the second load finds the entry in the nearest cache.
        let store = |entry: &AtomicU64, new| entry.store(new, Relaxed);
        if only_sets {
            chunk
                .iter()
                .for_each(|entry| store(entry, load(entry) | change.set));
        } else {
            chunk
                .iter()
                .for_each(|entry| store(entry, changed(load(entry))));
        }
    }
    true
}

/// [`TableEnvironment::update`](super::TableEnvironment::update) for entries that walkers may read at any time.
#[inline(never)]
pub(super) fn update_live(entries: &[AtomicU64], change: BitChange) -> usize {
    let settled = settled(change);
    let (chunks, rest) = as_chunks::<_, LIVE_CHUNK>(entries);
    let mut changed = 0;
    for chunk in chunks {
        if change_all_live(chunk, settled, change) {
            changed += LIVE_CHUNK;
        } else {
            changed += update_some_live(chunk, change);
        }
    }
    changed + update_some_live(rest, change)
}

/// [`TableEnvironment::update_alike`](super::TableEnvironment::update_alike) for entries that walkers may read at any time.
#[inline(never)]
pub(super) fn update_alike_live(
    entries: &[AtomicU64],
    pattern: BitPattern,
    change: BitChange,
) -> usize {
    let settled = settled(change);
    let both = BitPattern {
        mask: pattern.mask | settled.mask,
        value: pattern.value | settled.value,
    };
    let mut done = 0;
    // Of a pattern that only entries have which hardware may update, each is changed by itself.
    if !pattern.excludes(settled) {
        let (chunks, _) = as_chunks::<_, LIVE_CHUNK>(entries);
        for chunk in chunks {
            if !change_all_live(chunk, both, change) {
                break;
            }
            done += LIVE_CHUNK;
        }
    }
    for entry in entries.iter().skip(done) {
        let old = Descriptor(entry.load(Relaxed));
        if !pattern.matches(old) {
            break;
        }
        change_live(entry, old, change);
        done += 1;
    }
    done
}

/// The distance to the first of private entries that does not match a pattern.
#[inline(always)]
pub(super) fn find_private(entries: &[u64], pattern: BitPattern) -> Option<usize> {
    find_unlike(entries, |entry| *entry, pattern)
}

/// As [`find_private`], for entries that walkers may read at any time.
#[inline(always)]
pub(super) fn find_live(entries: &[AtomicU64], pattern: BitPattern) -> Option<usize> {
    find_unlike(entries, |entry| entry.load(Relaxed), pattern)
}

/// The entries that one round of [`find_unlike`] reads: enough to be fast on long runs, few enough
/// to be cheap where the first entry already differs.
const SCANNED: usize = if cfg!(target_arch = "aarch64") { 8 } else { 32 };

#[inline(always)]
fn find_unlike<T>(entries: &[T], load: impl Fn(&T) -> u64, pattern: BitPattern) -> Option<usize> {
    let mut done = 0;
    for chunk in entries.chunks_exact(SCANNED) {
        if !pattern.matches_all(chunk.iter().map(&load)) {
            break;
        }
        done += SCANNED;
    }
    let rest = entries.get(done..)?;
    let unlike = |entry| !pattern.matches(Descriptor(load(entry)));
    rest.iter().position(unlike).map(|index| done + index)
}

/// Applies `change` to the private entries that it concerns, and returns their number.
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
fn update_some_live(entries: &[AtomicU64], change: BitChange) -> usize {
    let mut changed = 0;
    for entry in entries {
        let old = Descriptor(entry.load(Relaxed));
        if !change.concerns(old) {
            continue;
        }
        change_live(entry, old, change);
        changed += 1;
    }
    changed
}

/// Changes one entry of a live table, which was loaded as `old`.
#[inline(always)]
fn change_live(entry: &AtomicU64, old: Descriptor, change: BitChange) {
    if old.changes_atomically() {
        update_beside_hardware(entry, old, change);
    } else {
        entry.store(change.apply(old).0, Relaxed);
    }
}

/// Changes an entry that hardware may update at the same time. The change still concerns the entry
/// after such an update, because hardware makes no entry valid or invalid.
fn update_beside_hardware(entry: &AtomicU64, old: Descriptor, change: BitChange) {
    let mut old = old.0;
    loop {
        let new = change.apply(Descriptor(old)).0;
        match entry.compare_exchange_weak(old, new, Relaxed, Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}
