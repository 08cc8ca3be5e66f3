//! The stale entries that TLBs may hold: ranges, found by address.
//!
//! Ranges lie in buckets by half, entry size and address, so that an operation on one address looks
//! only at ranges near it, however many there are elsewhere.

use super::stale_range::{Settle, StaleKind, StaleRange};
use crate::arch::context::Space;
use crate::arch::regime::Regime;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A bucket holds the ranges of this many entries, as a power of 2.
const BUCKET_BITS: u32 = 9;
/// The most reported ranges that a bucket keeps before it drops the oldest. A range is kept after
/// its report so that it is reported once; a wrong program can make any number of them.
const MOST_REPORTED: usize = 64;

/// The bits of address in a stretch of memory that leaves lead to.
const STRETCH_BITS: u32 = 21;
/// The most stretches that a range is found by.
const MOST_STRETCHES: u64 = 1 << 10;

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
#[derive(Clone, Debug, Default)]
pub(crate) struct StaleTlb {
    buckets: BTreeMap<Bucket, Vec<StaleRange>>,
    /// The entry sizes ever used in each half, one bit each.
    shifts: [u64; Space::COUNT],
    /// Buckets with ranges that wait for a DSB or ISB.
    unsettled: BTreeSet<Bucket>,
    /// Buckets that have, or had, pointers to tables.
    tables: BTreeSet<Bucket>,
    /// The buckets with leaves that lead to each stretch of memory, or did.
    leading: HashMap<u64, BTreeSet<Bucket>>,
    /// The buckets with leaves that lead to more than [`MOST_STRETCHES`].
    leading_far: BTreeSet<Bucket>,
    /// For each ASID or VMID, the buckets with leaves that lead to memory of others, or did.
    reused: HashMap<(Regime, u16), BTreeSet<Bucket>>,
    /// The number of ranges ever added to each half.
    added: [u64; Space::COUNT],
}

impl StaleTlb {
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The number of ranges ever added to a half: while it stays, no entry became stale.
    pub(crate) const fn added(&self, space: Space) -> u64 {
        self.added[space.index()]
    }

    /// The number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }

    /// Adds a range, whose leaves lead to the memory that `output` gives for each. Returns the number
    /// of ranges that it was compared with.
    pub(crate) fn add(
        &mut self,
        space: Space,
        range: &StaleRange,
        output: impl Fn(u64) -> u64,
    ) -> u64 {
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
            if range.kind == StaleKind::Leaf {
                self.add_outputs(bucket, (at..at + count).map(&output));
            }
            at += count;
        }
        compared
    }

    fn add_part(&mut self, bucket: Bucket, range: StaleRange) -> usize {
        self.shifts[bucket.space.index()] |= 1 << bucket.shift;
        self.added[bucket.space.index()] += 1;
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

    fn add_outputs(&mut self, bucket: Bucket, outputs: impl Iterator<Item = u64>) {
        let stretches = (1 << bucket.shift) >> STRETCH_BITS;
        let mut last = None;
        for output in outputs {
            let first = output >> STRETCH_BITS;
            if stretches > MOST_STRETCHES {
                self.leading_far.insert(bucket);
            } else if last != Some(first) || stretches > 1 {
                for stretch in first..first + stretches.max(1) {
                    self.leading.entry(stretch).or_default().insert(bucket);
                }
                last = Some(first);
            }
        }
    }

    /// Decides the fate of the stale leaves that may lead to a range of memory, and of others.
    pub(crate) fn rewrite_leading_to(
        &mut self,
        address: u64,
        bytes: u64,
        mut decide: impl FnMut(&StaleRange) -> Fate,
    ) {
        if self.buckets.is_empty() {
            return;
        }
        let last = address.saturating_add(bytes.saturating_sub(1)) >> STRETCH_BITS;
        let mut found = self.leading_far.clone();
        for stretch in address >> STRETCH_BITS..=last {
            if let Some(buckets) = self.leading.get_mut(&stretch) {
                buckets.retain(|bucket| self.buckets.contains_key(bucket));
                found.extend(buckets.iter());
            }
        }
        for bucket in found {
            Self::rewrite_bucket(
                (&mut self.buckets, &mut self.tables),
                bucket,
                (0, u64::MAX),
                &mut |range| {
                    let fate = decide(range);
                    if let (Fate::Replace(parts), Some(asid)) = (&fate, range.asid)
                        && parts.iter().any(|part| part.reused != 0)
                    {
                        let key = (bucket.space.regime(), asid);
                        self.reused.entry(key).or_default().insert(bucket);
                    }
                    fate
                },
            );
        }
    }

    /// Decides the fate of the stale ranges of an ASID or VMID that lead to memory of others, and of some more.
    pub(crate) fn rewrite_reused(
        &mut self,
        key: (Regime, u16),
        mut decide: impl FnMut(&StaleRange) -> Fate,
    ) {
        for bucket in self.reused.remove(&key).unwrap_or_default() {
            let mut left = false;
            Self::rewrite_bucket(
                (&mut self.buckets, &mut self.tables),
                bucket,
                (0, u64::MAX),
                &mut |range| {
                    left |= range.reused != 0 && !range.reported && range.asid == Some(key.1);
                    decide(range)
                },
            );
            if left {
                self.reused.entry(key).or_default().insert(bucket);
            }
        }
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
            Self::rewrite_bucket(
                (&mut self.buckets, &mut self.tables),
                bucket,
                (first, last),
                &mut decide,
            );
        }
    }

    fn rewrite_bucket(
        (buckets, tables): (
            &mut BTreeMap<Bucket, Vec<StaleRange>>,
            &mut BTreeSet<Bucket>,
        ),
        bucket: Bucket,
        (first, last): (u64, u64),
        decide: &mut impl FnMut(&StaleRange) -> Fate,
    ) {
        let Some(ranges) = buckets.get_mut(&bucket) else {
            return;
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
            buckets.remove(&bucket);
            tables.remove(&bucket);
        }
    }

    /// A range with a pointer to a table in the `bytes` bytes from `address` that some CPU may
    /// hold, if there is one. `target` gives the table, as address and bytes, that an entry of a range
    /// points to.
    pub(crate) fn pointing_into(
        &self,
        address: u64,
        bytes: u64,
        target: impl Fn(&StaleRange, u64) -> (u64, u64),
    ) -> Option<StaleRange> {
        for bucket in &self.tables {
            for range in self.buckets.get(bucket).map_or(&[][..], Vec::as_slice) {
                if range.kind == StaleKind::Table
                    && let Some(index) = (0..range.count).find(|&index| {
                        let (to, size) = target(range, index);
                        to < address.saturating_add(bytes) && address < to.saturating_add(size)
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
