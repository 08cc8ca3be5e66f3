//! What is mapped, as an ordered map of leaves, and what each operation should answer.
//!
//! The rules are those of the operations' documentation; the leaves are chosen by
//! [`Arch::greedy`].

use crate::common::walk::{Arch, Leaf, Tree};
use granule::arch::{Attributes, Geometry, PhysicalAddress, VirtualAddress};
use granule::table::{Holes, Leaves, PermissionChange, Piece, TableError};
use std::collections::{BTreeMap, BTreeSet};

/// One leaf entry as it should be.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    pub leaf: Leaf,
    /// The contiguous group it belongs to: first offset and bytes.
    pub group: Option<(u64, u64)>,
    pub attributes: Attributes,
}

/// The reference.
pub struct Reference {
    pub arch: Arch,
    pub mapped: BTreeMap<u64, Mapped>,
}

impl Reference {
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            arch: Arch::of(geometry),
            mapped: BTreeMap::new(),
        }
    }

    pub fn address(&self, offset: u64) -> VirtualAddress {
        VirtualAddress(self.arch.address(offset))
    }

    /// The leaf that translates `offset`.
    pub fn at(&self, offset: u64) -> Option<&Mapped> {
        let (_, mapped) = self.mapped.range(..=offset).next_back()?;
        (offset < mapped.leaf.offset + mapped.leaf.bytes).then_some(mapped)
    }

    fn range_error(&self, offset: u64, bytes: u64) -> Result<(), TableError> {
        if offset >= self.arch.span() || bytes > self.arch.span() - offset {
            return Err(TableError::OutsideSpace {
                start: self.address(offset),
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
        attributes: Attributes,
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
    pub fn map_pieces(&mut self, pieces: &[Piece]) -> Result<(), TableError> {
        let base = self.arch.address(0);
        let offset = |piece: &Piece| piece.start.0.wrapping_sub(base);
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
                    address: piece.start,
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
                    address: self.address(at),
                });
            }
        }
        for piece in pieces {
            let attributes = piece.attributes;
            let (start, output) = (offset(piece), piece.output.0);
            for (leaf, group) in
                self.arch
                    .greedy(start, output, piece.bytes, piece.leaves, &attributes)
            {
                let mapped = Mapped {
                    leaf,
                    group,
                    attributes,
                };
                self.mapped.insert(leaf.offset, mapped);
            }
        }
        Ok(())
    }

    /// Whether `edge` cuts a leaf or group.
    fn edge(&self, edge: u64) -> Result<(), TableError> {
        if let Some(mapped) = self.at(edge) {
            let (start, bytes) = mapped
                .group
                .unwrap_or((mapped.leaf.offset, mapped.leaf.bytes));
            if start != edge {
                return Err(TableError::InsideLeaf {
                    edge: self.address(edge),
                    leaf: self.address(start),
                    leaf_bytes: bytes,
                });
            }
        }
        Ok(())
    }

    pub fn unmap(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.edge(offset)?;
        self.edge(offset + bytes)?;
        let mut rest = self.mapped.split_off(&offset);
        let mut above = rest.split_off(&(offset + bytes));
        self.mapped.append(&mut above);
        Ok(())
    }

    pub fn protect(
        &mut self,
        offset: u64,
        bytes: u64,
        change: PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.range_error(offset, bytes)?;
        if bytes == 0 || self.changes_nothing(&change) {
            return Ok(());
        }
        self.edge(offset)?;
        self.edge(offset + bytes)?;
        if holes == Holes::Refuse {
            let mut at = offset;
            while at < offset + bytes {
                match self.mapped.get(&at) {
                    Some(mapped) => at += mapped.leaf.bytes,
                    None => {
                        return Err(TableError::NotMapped {
                            address: self.address(at),
                        });
                    }
                }
            }
        }
        let arch = self.arch;
        for (_, mapped) in self.mapped.range_mut(offset..offset + bytes) {
            let permissions = &mut mapped.attributes.permissions;
            let set = |to: &mut bool, from: Option<bool>| *to = from.unwrap_or(*to);
            set(&mut permissions.writable, change.writable);
            if change.writable == Some(false) {
                // With the modifier left set, hardware management of the dirty state would
                // let the store through.
                permissions.dirty_modifier = false;
            }
            set(&mut permissions.guarded, change.guarded);
            set(
                &mut permissions.privileged_execute,
                change.privileged_execute,
            );
            if arch.user {
                set(&mut permissions.user, change.user);
                set(&mut permissions.user_execute, change.user_execute);
            }
            if let Some(software) = change.software {
                permissions.software = software & 0b1111;
            }
            let leaf = &mut mapped.leaf;
            let contiguous = mapped.group.is_some();
            leaf.word = arch.leaf_word(leaf.output, leaf.level, contiguous, &mapped.attributes);
        }
        Ok(())
    }

    fn changes_nothing(&self, change: &PermissionChange) -> bool {
        let mut change = *change;
        if !self.arch.user {
            change.user = None;
            change.user_execute = None;
        }
        change == PermissionChange::default()
    }

    /// How many tables it takes, the root among them: one for each piece of address space that
    /// some leaf of a deeper level needs resolved.
    pub fn tables(&self) -> usize {
        let mut needed = BTreeSet::new();
        for mapped in self.mapped.values() {
            for level in self.arch.start_level() + 1..=mapped.leaf.level {
                let piece = mapped.leaf.offset >> self.arch.shift(level - 1);
                needed.insert((level, piece));
            }
        }
        1 + needed.len()
    }

    /// Panics unless `tree` is exactly this.
    pub fn compare(&self, tree: &Tree) {
        let expected = self.mapped.values().map(|mapped| &mapped.leaf);
        for (found, expected) in tree.leaves.iter().zip(expected) {
            assert_eq!(found, expected, "found, expected");
        }
        assert_eq!(tree.leaves.len(), self.mapped.len(), "number of leaves");
        assert_eq!(tree.tables.len(), self.tables(), "number of tables");
        self.groups_agree(tree);
    }

    /// The members of a contiguous group: all there, consecutive, alike but for the address.
    fn groups_agree(&self, tree: &Tree) {
        let found: BTreeMap<u64, &Leaf> = tree.leaves.iter().map(|l| (l.offset, l)).collect();
        for leaf in tree.leaves.iter().filter(|l| l.word >> 52 & 1 != 0) {
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
        }
    }
}
