//! The expected contents of the tables, as a plain map: no tables, no levels, no leaves.

use crate::stage::Staged;
use granule::arch::{Geometry, OutputFormat, Shareability};
use granule::table::Stage1;
use granule_model::{Access, AccessKind, FaultKind, Outcome, Translation};
use granule_testing::walk::Arch;
use std::collections::BTreeMap;

/// Addresses mapped alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch<S: Staged = Stage1> {
    pub(crate) bytes: u64,
    pub(crate) output: u64,
    pub(crate) attributes: S::Attributes,
    /// Made invalid for a while.
    pub(crate) present_invalid: bool,
}

/// Offsets in the half to what they map to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reference<S: Staged = Stage1> {
    stretches: BTreeMap<u64, Stretch<S>>,
    /// Hardware sets access flags and makes pages dirty whenever it likes, so that neither is
    /// known.
    pub(crate) hardware: bool,
}

impl<S: Staged> Reference<S> {
    pub(crate) fn new(hardware: bool) -> Self {
        Self {
            hardware,
            ..Self::default()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.stretches.len()
    }

    /// The bytes that translate to something.
    pub(crate) fn bytes(&self) -> u64 {
        let shown = self
            .stretches
            .values()
            .filter(|stretch| !stretch.present_invalid);
        shown.map(|stretch| stretch.bytes).sum()
    }

    /// The bytes between two offsets that there are leaves for, present-invalid or not.
    pub(crate) fn bytes_between(&self, from: u64, to: u64) -> u64 {
        let inside = self.stretches.iter().map(|(&at, stretch)| {
            let end = to.min(at + stretch.bytes);
            end.saturating_sub(from.max(at))
        });
        inside.sum()
    }

    /// The `which`th stretch: its offset and itself.
    pub(crate) fn nth(&self, which: usize) -> Option<(u64, Stretch<S>)> {
        self.stretches
            .iter()
            .nth(which)
            .map(|(&at, &one)| (at, one))
    }

    fn stretch(&self, offset: u64) -> Option<(u64, &Stretch<S>)> {
        let (&from, stretch) = self.stretches.range(..=offset).next_back()?;
        (offset - from < stretch.bytes).then_some((offset - from, stretch))
    }

    /// The `which`th present-invalid stretch, or the last: its offset and bytes.
    pub(crate) fn present_invalid(&self, which: usize) -> Option<(u64, u64)> {
        let present_invalid = self.stretches.iter().filter(|(_, one)| one.present_invalid);
        let (&at, stretch) = present_invalid.take(which + 1).last()?;
        Some((at, stretch.bytes))
    }

    /// Where `offset` leads, or would if it were not present-invalid.
    pub(crate) fn output(&self, offset: u64) -> Option<u64> {
        let (inside, stretch) = self.stretch(offset)?;
        Some(stretch.output + inside)
    }

    pub(crate) fn at(&self, offset: u64) -> Option<(u64, S::Attributes)> {
        let (inside, stretch) = self.stretch(offset)?;
        let attributes = self.known(stretch.attributes);
        (!stretch.present_invalid).then_some((stretch.output + inside, attributes))
    }

    /// Normalises attributes, so that what hardware may change always compares equal.
    pub(crate) fn known(&self, mut attributes: S::Attributes) -> S::Attributes {
        if self.hardware {
            let parts = S::parts(&mut attributes);
            *parts.accessed = true;
            *parts.writable |= *parts.dirty_modifier;
        }
        attributes
    }

    /// The longest parts of a range of which this is true, present-invalid or not: their first
    /// offsets and ends.
    pub(crate) fn parts_where(
        &self,
        (from, to): (u64, u64),
        is: impl Fn(S::Attributes) -> bool,
    ) -> Vec<(u64, u64)> {
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for (&at, stretch) in self.stretches.iter().filter(|(_, one)| is(one.attributes)) {
            let (start, end) = (at.max(from), (at + stretch.bytes).min(to));
            match parts.last_mut() {
                _ if start >= end => {}
                Some(last) if last.1 == start => last.1 = end,
                _ => parts.push((start, end)),
            }
        }
        parts
    }

    /// The first mapped offset of a range.
    pub(crate) fn first_mapped(&self, from: u64, to: u64) -> Option<u64> {
        if from < to && self.stretch(from).is_some() {
            return Some(from);
        }
        self.stretches.range(from..to).next().map(|(&at, _)| at)
    }

    /// The first offset of a range where there is nothing, present-invalid or not.
    pub(crate) fn first_hole(&self, from: u64, to: u64) -> Option<u64> {
        let mut at = from;
        while at < to {
            let Some((&start, stretch)) = self.stretches.range(..=at).next_back() else {
                return Some(at);
            };
            if at - start >= stretch.bytes {
                return Some(at);
            }
            at = start + stretch.bytes;
        }
        None
    }

    /// Makes `at` the beginning of a stretch if it is inside one.
    fn cut(&mut self, at: u64) {
        let Some((&from, &whole)) = self.stretches.range(..at).next_back() else {
            return;
        };
        let first = at - from;
        if first >= whole.bytes {
            return;
        }
        let rest = Stretch {
            bytes: whole.bytes - first,
            output: whole.output + first,
            ..whole
        };
        self.stretches.insert(at, rest);
        self.stretches.insert(
            from,
            Stretch {
                bytes: first,
                ..whole
            },
        );
    }

    pub(crate) fn map(&mut self, from: u64, stretch: Stretch<S>) {
        if stretch.bytes == 0 {
            return;
        }
        // Pages that are mapped one by one are one stretch where they go on alike.
        if let Some((&at, last)) = self.stretches.range_mut(..from).next_back() {
            let goes_on = Stretch {
                bytes: stretch.bytes,
                output: last.output + last.bytes,
                ..*last
            };
            if at + last.bytes == from && goes_on == stretch {
                last.bytes += stretch.bytes;
                return;
            }
        }
        self.stretches.insert(from, stretch);
    }

    pub(crate) fn unmap(&mut self, from: u64, to: u64) {
        self.cut(from);
        self.cut(to);
        self.stretches.retain(|&at, _| at < from || at >= to);
    }

    /// Changes attributes of all that there is in a range.
    pub(crate) fn change(
        &mut self,
        geometry: &Geometry,
        (from, to): (u64, u64),
        change: impl Fn(S::Attributes) -> S::Attributes,
    ) {
        self.cut(from);
        self.cut(to);
        let arch = Arch::of(geometry);
        for (_, stretch) in self.stretches.range_mut(from..to) {
            stretch.attributes = S::as_decoded(change(stretch.attributes), &arch);
        }
    }

    pub(crate) fn set_invalid(&mut self, from: u64, to: u64, present_invalid: bool) {
        self.cut(from);
        self.cut(to);
        for (_, stretch) in self.stretches.range_mut(from..to) {
            stretch.present_invalid = present_invalid;
        }
    }

    pub(crate) fn outcome(&self, geometry: &Geometry, offset: u64, access: Access) -> Outcome {
        let Some((address, attributes)) = self.at(offset) else {
            return Outcome::Fault(FaultKind::Translation);
        };
        let Some((given, shareability)) = S::given(&attributes) else {
            return Outcome::Fault(FaultKind::AccessFlag);
        };
        let rights = if access.user {
            given.user
        } else {
            given.privileged
        };
        let allowed = match access.kind {
            AccessKind::Read => rights.read,
            AccessKind::Write => rights.write,
            AccessKind::Fetch => rights.execute,
        };
        if !allowed {
            return Outcome::Fault(FaultKind::Permission);
        }
        Outcome::Memory(Translation {
            address,
            memory: given.memory,
            // With TCR.DS it is TCR's, where the library has inner shareable.
            shareability: if geometry.format() == OutputFormat::Lpa2 {
                0b11
            } else {
                match shareability {
                    Shareability::None => 0b00,
                    Shareability::Outer => 0b10,
                    Shareability::Inner => 0b11,
                }
            },
            privileged: given.privileged,
            user: given.user,
        })
    }
}
