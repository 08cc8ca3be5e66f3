//! The expected mappings, as an ordered map of leaves, and the expected result of each operation.
//!
//! The rules are those of the operations' documentation; the leaves are chosen by
//! [`Arch::greedy`].

use granule::arch::bbm::BbmLevel;
use granule::arch::{Geometry, PhysicalAddress, VirtualAddress};
use granule::table::{Harvest, Holes, Leaves, Merged, Piece, Stage1, TableError};
use granule_testing::stage::{AttributeChangeOf, TestStage};
use granule_testing::walk::{Arch, Leaf, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// One leaf entry as it should be.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<S: TestStage = Stage1> {
    pub leaf: Leaf,
    /// The contiguous group it belongs to: first offset and bytes.
    pub group: Option<(u64, u64)>,
    pub attributes: S::Attributes,
    /// Made invalid for a while.
    pub present_invalid: bool,
}

impl<S: TestStage> Mapped<S> {
    /// Returns what a walker cannot distinguish: the entry or the group, as first offset and bytes.
    pub fn whole(&self) -> (u64, u64) {
        self.group.unwrap_or((self.leaf.offset, self.leaf.bytes))
    }

    /// Computes the word from all other fields.
    fn encoded(mut self, arch: &Arch) -> Self {
        let leaf = &mut self.leaf;
        let contiguous = self.group.is_some();
        leaf.word = arch.leaf_word::<S>(leaf.output, leaf.level, contiguous, &self.attributes);
        if self.present_invalid {
            leaf.word = leaf.word & !1 | 1 << 63;
        }
        self
    }
}

/// The reference.
pub struct Reference<S: TestStage = Stage1> {
    pub arch: Arch,
    pub live: bool,
    /// The level of FEAT_BBM that was set for the tables.
    pub bbm: u32,
    pub mapped: BTreeMap<u64, Mapped<S>>,
}

impl<S: TestStage> Reference<S> {
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            arch: Arch::of(geometry),
            live: false,
            bbm: 0,
            mapped: BTreeMap::new(),
        }
    }

    pub fn address(&self, offset: u64) -> S::Input {
        S::at(self.arch.address(offset))
    }

    /// An address as an error has it.
    fn named(&self, offset: u64) -> VirtualAddress {
        VirtualAddress(self.arch.address(offset))
    }

    /// The leaf that translates `offset`.
    pub fn at(&self, offset: u64) -> Option<&Mapped<S>> {
        let (_, mapped) = self.mapped.range(..=offset).next_back()?;
        (offset < mapped.leaf.offset + mapped.leaf.bytes).then_some(mapped)
    }

    fn range_error(&self, offset: u64, bytes: u64) -> Result<(), TableError> {
        if offset >= self.arch.span() || bytes > self.arch.span() - offset {
            return Err(TableError::OutsideSpace {
                start: self.named(offset),
                bytes,
                va_bits: self.arch.va_bits,
            });
        }
        Ok(())
    }

    pub fn map(
        &mut self,
        offset: u64,
        output: u64,
        bytes: u64,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        self.map_pieces(&[Piece {
            start: self.address(offset),
            output: PhysicalAddress(output),
            bytes,
            attributes,
            leaves,
        }])
    }

    /// All of the pieces or none.
    pub fn map_pieces(
        &mut self,
        pieces: &[Piece<S::Input, S::Attributes>],
    ) -> Result<(), TableError> {
        let base = self.arch.address(0);
        let offset =
            |piece: &Piece<S::Input, S::Attributes>| S::address(piece.start).0.wrapping_sub(base);
        let mut end = 0;
        for piece in pieces {
            let (bytes, output) = (piece.bytes, piece.output);
            self.range_error(offset(piece), bytes)?;
            if u128::from(output.0) + u128::from(bytes) > 1 << self.arch.pa_bits {
                return Err(TableError::OutputTooLarge {
                    start: output,
                    bytes,
                    pa_bits: self.arch.pa_bits,
                });
            }
            if offset(piece) < end {
                return Err(TableError::Unsorted {
                    address: S::address(piece.start),
                });
            }
            end = offset(piece) + bytes;
        }
        for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
            let start = offset(piece);
            let taken = match self.at(start) {
                Some(_) => Some(start),
                None => {
                    let mut inside = self.mapped.range(start..start + piece.bytes);
                    inside.next().map(|(&at, _)| at)
                }
            };
            if let Some(at) = taken {
                return Err(TableError::AlreadyMapped {
                    address: self.named(at),
                });
            }
        }
        for piece in pieces {
            let attributes = piece.attributes;
            let (start, output) = (offset(piece), piece.output.0);
            for (leaf, group) in
                self.arch
                    .greedy::<S>(start, output, piece.bytes, piece.leaves, &attributes)
            {
                let mapped = Mapped {
                    leaf,
                    group,
                    attributes,
                    present_invalid: false,
                };
                self.mapped.insert(leaf.offset, mapped);
            }
        }
        Ok(())
    }

    /// Splits what the ends of a change cut, if the change would make the sides different, or
    /// refuses it.
    fn cut(
        &mut self,
        from: u64,
        to: u64,
        changes: impl Fn(&Mapped<S>) -> bool,
    ) -> Result<(), TableError> {
        let cut = |this: &Self, edge: u64| {
            let mapped = this.at(edge).copied()?;
            (mapped.whole().0 != edge && changes(&mapped)).then_some((edge, mapped))
        };
        let cuts: Vec<(u64, Mapped<S>)> = [from, to].iter().filter_map(|&e| cut(self, e)).collect();
        for (edge, mapped) in &cuts {
            // Between members of a group only the hint goes.
            let least = if *edge == mapped.leaf.offset { 1 } else { 2 };
            if self.live && !mapped.present_invalid && self.bbm < least {
                let (start, bytes) = mapped.whole();
                return Err(TableError::InsideLeaf {
                    edge: self.named(*edge),
                    leaf: self.named(start),
                    leaf_bytes: bytes,
                    takes: BbmLevel::from_number(least),
                });
            }
        }
        let arch = self.arch;
        // First the hints, as the parts of an entry may get some of their own.
        for (_, mapped) in &cuts {
            let (start, bytes) = mapped.whole();
            for (_, member) in self.mapped.range_mut(start..start + bytes) {
                if member.group.take().is_some() {
                    *member = member.encoded(&arch);
                }
            }
        }
        for (edge, mapped) in cuts {
            let leaf = mapped.leaf;
            let end = leaf.offset + leaf.bytes;
            // The other edge may have cut it already.
            if edge == leaf.offset || self.mapped[&leaf.offset].leaf.bytes != leaf.bytes {
                continue;
            }
            self.mapped.remove(&leaf.offset);
            let mut at = leaf.offset;
            for next in [from.clamp(at, end), to.clamp(at, end), end] {
                let output = leaf.output + (at - leaf.offset);
                let largest = Leaves::LARGEST;
                let parts = arch.greedy::<S>(at, output, next - at, largest, &mapped.attributes);
                for (leaf, group) in parts {
                    let part = Mapped {
                        leaf,
                        group,
                        ..mapped
                    };
                    self.mapped.insert(leaf.offset, part.encoded(&arch));
                }
                at = next;
            }
        }
        Ok(())
    }

    pub fn unmap(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.cut(offset, offset + bytes, |_| true)?;
        let mut rest = self.mapped.split_off(&offset);
        let mut above = rest.split_off(&(offset + bytes));
        self.mapped.append(&mut above);
        Ok(())
    }

    /// Changes all that is mapped in a range.
    fn change(
        &mut self,
        offset: u64,
        bytes: u64,
        holes: Holes,
        change: impl Fn(&mut Mapped<S>),
    ) -> Result<(), TableError> {
        if bytes == 0 {
            return Ok(());
        }
        let arch = self.arch;
        let end = offset + bytes;
        if holes == Holes::Refuse {
            let mut at = offset;
            while at < end {
                let Some(mapped) = self.at(at) else {
                    let address = self.named(at);
                    return Err(TableError::NotMapped { address });
                };
                at = mapped.leaf.offset + mapped.leaf.bytes;
            }
        }
        let changed = |mapped: &Mapped<S>| {
            let mut changed = *mapped;
            change(&mut changed);
            changed.encoded(&arch)
        };
        self.cut(offset, end, |mapped| {
            changed(mapped).leaf.word != mapped.leaf.word
        })?;
        for (_, mapped) in self.mapped.range_mut(offset..end) {
            *mapped = changed(mapped);
        }
        Ok(())
    }

    pub fn set_invalid(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        self.change(offset, bytes, Holes::Refuse, |mapped| {
            mapped.present_invalid = true
        })
    }

    pub fn set_valid(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        self.change(offset, bytes, Holes::Refuse, |mapped| {
            mapped.present_invalid = false
        })
    }

    pub fn protect(
        &mut self,
        offset: u64,
        bytes: u64,
        change: S::PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        if S::changes_nothing(&change, &self.arch) {
            return Ok(());
        }
        let arch = self.arch;
        self.change(offset, bytes, holes, |mapped| {
            mapped.attributes = S::changed(mapped.attributes, &change, &arch);
        })
    }

    pub fn modify(
        &mut self,
        offset: u64,
        bytes: u64,
        change: AttributeChangeOf<S>,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        let arch = self.arch;
        self.change(offset, bytes, holes, |mapped| {
            mapped.attributes = S::with_attributes(mapped.attributes, &change, &arch);
        })
    }

    /// The runs of whole leaves and groups that a range touches and that have the note.
    pub fn harvest(
        &mut self,
        offset: u64,
        bytes: u64,
        what: Harvest,
    ) -> Result<Vec<(u64, u64)>, TableError> {
        self.range_error(offset, bytes)?;
        let arch = self.arch;
        let end = offset + bytes;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for mapped in self.mapped.values_mut() {
            let (first, size) = mapped.whole();
            if first + size <= offset || first >= end || bytes == 0 {
                continue;
            }
            let attributes = mapped.attributes;
            let noted = match what {
                Harvest::Dirty => S::dirty_state(&attributes) == Some(true),
                _ => S::accessed(&attributes),
            };
            if !noted {
                continue;
            }
            mapped.attributes = match what {
                Harvest::Dirty => S::with_dirty_state(attributes, false),
                _ => S::with_attributes(attributes, &crate::changes::not_accessed::<S>(), &arch),
            };
            *mapped = mapped.encoded(&arch);
            let leaf = mapped.leaf;
            match runs.last_mut() {
                Some((at, run)) if *at + *run == leaf.offset => *run += leaf.bytes,
                _ => runs.push((leaf.offset, leaf.bytes)),
            }
        }
        Ok(runs)
    }

    /// Merges what is alike: tables into blocks, from the smallest leaves up, then groups.
    pub fn merge(&mut self, offset: u64, bytes: u64, leaves: Leaves) -> Result<Merged, TableError> {
        self.range_error(offset, bytes)?;
        let arch = self.arch;
        let end = offset + bytes;
        let mut merged = Merged::default();
        for level in (arch.start_level()..3).rev() {
            let allowed = arch.leaf_allowed(level) && level >= leaves.top.number();
            if !allowed || (self.live && self.bbm < 2) {
                continue;
            }
            let count = arch.entries() as u64;
            for first in self.runs(offset, end, level + 1, count) {
                let parts = first..first + arch.entry_bytes(level);
                let mut block = self.mapped[&first];
                let mut rest = self.mapped.split_off(&parts.end);
                self.mapped.split_off(&first);
                self.mapped.append(&mut rest);
                block.group = None;
                block.leaf.level = level;
                block.leaf.bytes = arch.entry_bytes(level);
                self.mapped.insert(first, block.encoded(&arch));
                merged.tables += 1;
            }
        }
        for level in arch.start_level()..=3 {
            let count = arch.contiguous(level);
            let allowed = leaves.contiguous && count > 1 && level >= leaves.top.number();
            if !allowed || (self.live && self.bbm < 1) {
                continue;
            }
            for first in self.runs(offset, end, level, count) {
                let group = (first, count * arch.entry_bytes(level));
                if self.mapped[&first].group.is_some() {
                    continue;
                }
                for (_, member) in self.mapped.range_mut(first..first + group.1) {
                    member.group = Some(group);
                    *member = member.encoded(&arch);
                }
                merged.groups += 1;
            }
        }
        Ok(merged)
    }

    /// Where, aligned both ways, `count` leaves of `level` between two offsets follow each other
    /// in every respect.
    fn runs(&self, from: u64, to: u64, level: i32, count: u64) -> Vec<u64> {
        let arch = self.arch;
        let entry = arch.entry_bytes(level);
        let bytes = count * entry;
        let follows = |first: &Mapped<S>, number: u64| {
            let other = self.mapped.get(&(first.leaf.offset + number * entry));
            other.is_some_and(|other| {
                other.leaf.level == level
                    && !other.present_invalid
                    // Hardware may update a live entry without AF, or one that is clean.
                    && !(self.live && arch.may_be_updated(other.leaf.word))
                    && other.leaf.output == first.leaf.output + number * entry
                    && arch.attributes_in(other.leaf.word) == arch.attributes_in(first.leaf.word)
            })
        };
        let inside = self.mapped.range(from..to);
        inside
            .filter(|&(&at, first)| {
                at % bytes == 0
                    && first.leaf.output % bytes == 0
                    && at + bytes <= to
                    && (0..count).all(|number| follows(first, number))
            })
            .map(|(&at, _)| at)
            .collect()
    }

    /// Returns the number of tables it takes, with the root's: one for each piece of address space that
    /// some leaf of a deeper level needs resolved.
    pub fn tables(&self) -> usize {
        let mut needed = BTreeSet::new();
        for mapped in self.mapped.values() {
            for level in self.arch.start_level() + 1..=mapped.leaf.level {
                let piece = mapped.leaf.offset >> self.arch.shift(level - 1);
                needed.insert((level, piece));
            }
        }
        self.arch.root_tables() + needed.len()
    }

    /// Panics unless `tree` is exactly this.
    pub fn compare(&self, tree: &Tree) {
        for (found, present_invalid) in [(&tree.leaves, false), (&tree.present_invalid, true)] {
            let expected = self
                .mapped
                .values()
                .filter(|m| m.present_invalid == present_invalid);
            let expected: Vec<&Leaf> = expected.map(|mapped| &mapped.leaf).collect();
            for (found, &expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "found, expected");
            }
            assert_eq!(
                found.len(),
                expected.len(),
                "leaves, present_invalid: {present_invalid}"
            );
            self.groups_agree(found);
        }
        assert_eq!(tree.tables.len(), self.tables(), "number of tables");
    }

    /// The members of a contiguous group: all there, consecutive, alike but for the address.
    fn groups_agree(&self, leaves: &[Leaf]) {
        let found: BTreeMap<u64, &Leaf> = leaves.iter().map(|l| (l.offset, l)).collect();
        let mut members: BTreeMap<u64, u64> = BTreeMap::new();
        for leaf in leaves.iter().filter(|l| l.word >> 52 & 1 != 0) {
            let count = self.arch.contiguous(leaf.level);
            assert!(count > 1, "the contiguous bit is reserved here: {leaf:x?}");
            let bytes = count * leaf.bytes;
            let first = leaf.offset / bytes * bytes;
            let head = found.get(&first).expect("a group without a head");
            assert_eq!(head.output % bytes, 0, "a group with a misaligned output");
            assert_eq!(leaf.output - head.output, leaf.offset - first);
            // All but the address bits, of whatever format.
            let rest = 0xfffc_0000_0000_0cff;
            assert_eq!(leaf.word & rest, head.word & rest);
            assert_eq!(leaf.level, head.level);
            *members.entry(first).or_default() += leaf.bytes;
        }
        for (first, bytes) in members {
            let whole = self.mapped[&first].group;
            assert_eq!(whole, Some((first, bytes)), "a group with members missing");
        }
    }
}
