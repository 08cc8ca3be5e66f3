//! The stale entries that TLBs may hold: ranges, found by address.
//!
//! Ranges lie in buckets by half, entry size and address, so that an operation on one address looks
//! only at ranges near it, however many there are elsewhere.

use super::stale_range::{Settle, StaleKind, StaleRange};
use crate::arch::context::Space;
use std::collections::{BTreeMap, BTreeSet};

/// A bucket holds the ranges of this many entries, as a power of 2.
const BUCKET_BITS: u32 = 9;
/// The most reported ranges that a bucket keeps before it drops the oldest. A range is kept after
/// its report so that it is reported once; a wrong program can make any number of them.
const MOST_REPORTED: usize = 64;

/// A half, an entry size, and the number of a stretch of 2^(shift + 9) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bucket {
    space: Space,
    shift: u32,
    stretch: u64,
}

/// The fate of a range, or of the part of one that was looked at.
pub(crate) enum Fate {
    /// It stays as it is.
    Keep,
    /// It is removed.
    Remove,
    /// These take its place.
    Replace(Vec<StaleRange>),
}

/// All stale entries.
#[derive(Debug, Default)]
pub(crate) struct StaleTlb {
    buckets: BTreeMap<Bucket, Vec<StaleRange>>,
    /// The entry sizes ever used in each half, one bit each.
    shifts: [u64; Space::COUNT],
    /// Buckets with ranges that wait for a DSB or ISB.
    unsettled: BTreeSet<Bucket>,
    /// Buckets that have, or had, pointers to tables.
    tables: BTreeSet<Bucket>,
}

impl StaleTlb {
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }

    /// Adds a range. Returns the number of ranges that it was compared with.
    pub(crate) fn add(&mut self, space: Space, range: &StaleRange) -> u64 {
        let shift = range.shift;
        let mut compared = 0;
        let mut at = 0;
        while at < range.count {
            let va = range.entry_va(at);
            let stretch = va >> (shift + BUCKET_BITS);
            let rest = (1 << BUCKET_BITS) - ((va >> shift) & ((1 << BUCKET_BITS) - 1));
            let count = rest.min(range.count - at);
            let bucket = Bucket {
                space,
                shift,
                stretch,
            };
            compared += self.add_part(bucket, range.part(at, count)) as u64;
            at += count;
        }
        compared
    }

    fn add_part(&mut self, bucket: Bucket, range: StaleRange) -> usize {
        self.shifts[bucket.space.index()] |= 1 << bucket.shift;
        if !matches!(range.settle, Settle::At(_)) {
            self.unsettled.insert(bucket);
        }
        if range.kind == StaleKind::Table {
            self.tables.insert(bucket);
        }
        let ranges = self.buckets.entry(bucket).or_default();
        if let Some(same) = ranges.iter_mut().find(|other| other.same_as(&range)) {
            let reported = same.reported;
            let cpus = same.cpus | range.cpus;
            *same = range;
            same.cpus = cpus;
            same.reported = reported;
            return ranges.len();
        }
        ranges.push(range);
        if ranges.len() > MOST_REPORTED
            && ranges.iter().filter(|range| range.reported).count() > MOST_REPORTED
            && let Some(oldest) = ranges.iter().position(|range| range.reported)
        {
            ranges.remove(oldest);
        }
        ranges.len()
    }

    /// The number of buckets with pointers to tables.
    pub(crate) fn table_buckets(&self) -> u64 {
        self.tables.len() as u64
    }

    /// The buckets of a half that may hold ranges from `first` to `last`.
    fn buckets_of(&self, space: Space, first: u64, last: u64) -> Vec<Bucket> {
        let mut found = Vec::new();
        if self.buckets.is_empty() {
            return found;
        }
        let mut shifts = self.shifts[space.index()];
        while shifts != 0 {
            let shift = shifts.trailing_zeros();
            shifts &= shifts - 1;
            let bucket = |stretch| Bucket {
                space,
                shift,
                stretch,
            };
            let (from, to) = (
                first >> (shift + BUCKET_BITS),
                last >> (shift + BUCKET_BITS),
            );
            if from == to {
                if self.buckets.contains_key(&bucket(from)) {
                    found.push(bucket(from));
                }
            } else {
                found.extend(
                    self.buckets
                        .range(bucket(from)..=bucket(to))
                        .map(|(key, _)| *key),
                );
            }
        }
        found
    }

    /// Calls a function on every stale range that translates any address from `first` to `last`,
    /// cut to the entries that do.
    pub(crate) fn visit(
        &self,
        space: Space,
        first: u64,
        last: u64,
        mut look: impl FnMut(&StaleRange),
    ) {
        for bucket in self.buckets_of(space, first, last) {
            for range in &self.buckets[&bucket] {
                if let Some((from, count)) = range.touched(first, last) {
                    if count == range.count {
                        look(range);
                    } else {
                        look(&range.part(from, count));
                    }
                }
            }
        }
    }

    /// Decides the fate of every stale range that translates any address from `first` to `last`,
    /// cut to the entries that do.
    pub(crate) fn rewrite(
        &mut self,
        space: Space,
        first: u64,
        last: u64,
        mut decide: impl FnMut(&StaleRange) -> Fate,
    ) {
        for bucket in self.buckets_of(space, first, last) {
            let Some(ranges) = self.buckets.get_mut(&bucket) else {
                continue;
            };
            let mut added = Vec::new();
            let mut index = 0;
            while index < ranges.len() {
                let Some((from, count)) = ranges[index].touched(first, last) else {
                    index += 1;
                    continue;
                };
                let whole = count == ranges[index].count;
                let part = if whole {
                    None
                } else {
                    Some(ranges[index].part(from, count))
                };
                match decide(part.as_ref().unwrap_or(&ranges[index])) {
                    Fate::Keep => {
                        index += 1;
                        continue;
                    }
                    Fate::Remove => {}
                    Fate::Replace(parts) => added.extend(parts),
                }
                let range = ranges.swap_remove(index);
                if from > 0 {
                    added.push(range.part(0, from));
                }
                let end = from + count;
                if end < range.count {
                    added.push(range.part(end, range.count - end));
                }
            }
            added.retain(|range| range.count > 0 && range.cpus != 0);
            ranges.append(&mut added);
            if ranges.is_empty() {
                self.buckets.remove(&bucket);
                self.tables.remove(&bucket);
            }
        }
    }

    /// A range with a pointer to a table in the `bytes` bytes from `address` that some CPU may
    /// hold, if there is one. `target` gives the address that an entry of a range points to.
    pub(crate) fn pointing_into(
        &self,
        address: u64,
        bytes: u64,
        target: impl Fn(&StaleRange, u64) -> u64,
    ) -> Option<StaleRange> {
        for bucket in &self.tables {
            for range in self.buckets.get(bucket).map_or(&[][..], Vec::as_slice) {
                if range.kind == StaleKind::Table
                    && let Some(index) = (0..range.count).find(|&index| {
                        let to = target(range, index);
                        to >= address && to - address < bytes
                    })
                {
                    return Some(range.part(index, 1));
                }
            }
        }
        None
    }

    /// Settles the ranges that wait. For a range whose wait is over, `settled` gives the new state
    /// and the CPUs that it is settled for.
    pub(crate) fn settle(&mut self, mut settled: impl FnMut(&StaleRange) -> Option<(Settle, u64)>) {
        let waiting = std::mem::take(&mut self.unsettled);
        for bucket in waiting {
            let Some(ranges) = self.buckets.get_mut(&bucket) else {
                continue;
            };
            let mut split = Vec::new();
            let mut still = false;
            for range in ranges.iter_mut() {
                if matches!(range.settle, Settle::At(_)) {
                    continue;
                }
                match settled(range) {
                    Some((settle, cpus)) if range.cpus & !cpus == 0 => range.settle = settle,
                    Some((settle, cpus)) if range.cpus & cpus != 0 => {
                        let mut own = range.clone();
                        own.cpus &= cpus;
                        own.settle = settle;
                        split.push(own);
                        range.cpus &= !cpus;
                        still = true;
                    }
                    _ => still = true,
                }
            }
            ranges.append(&mut split);
            if still {
                self.unsettled.insert(bucket);
            }
        }
    }
}
