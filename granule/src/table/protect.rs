//! Changing permissions in place.
//!
//! Only what rule RWHZWS allows without break-before-make can be asked for: the type
//! [`PermissionChange`] has nothing else. A range that ends inside a
//! leaf splits it first, where the rules allow that.

use super::{BitChange, Environment, PageTables, TableError};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress, Regime, VirtualAddress};

/// What to change; `None` leaves a permission as each page has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermissionChange {
    /// Whether stores are allowed. Refusing them also clears the dirty modifier (DBM), which
    /// under TCR.HD would let hardware allow them again.
    pub writable: Option<bool>,
    /// Whether EL0 may access; no effect in a regime with one privilege.
    pub user: Option<bool>,
    /// Whether the privileged level may execute.
    pub privileged_execute: Option<bool>,
    /// Whether EL0 may execute; no effect in a regime with one privilege.
    pub user_execute: Option<bool>,
    /// Whether indirect branches must land on BTI instructions.
    pub guarded: Option<bool>,
    /// Software's four bits; the upper four are ignored.
    pub software: Option<u8>,
}

impl PermissionChange {
    /// The change as descriptor bits.
    fn bits(self, regime: Regime) -> BitChange {
        let mut change = BitChange {
            of: BitChange::LEAVES,
            clear: 0,
            set: 0,
        };
        let mut bit = |mask: u64, value: Option<bool>| match value {
            Some(true) => change.set |= mask,
            Some(false) => change.clear |= mask,
            None => {}
        };
        bit(
            Descriptor::AP_READ_ONLY,
            self.writable.map(|allowed| !allowed),
        );
        bit(Descriptor::GUARDED, self.guarded);
        if regime.has_user() {
            bit(Descriptor::AP_USER, self.user);
            bit(
                Descriptor::PXN,
                self.privileged_execute.map(|allowed| !allowed),
            );
            bit(Descriptor::UXN, self.user_execute.map(|allowed| !allowed));
        } else {
            bit(
                Descriptor::UXN,
                self.privileged_execute.map(|allowed| !allowed),
            );
        }
        if self.writable == Some(false) {
            // DBM with AP[2] set means "writable, clean" where TCR.HD is set: not read-only.
            change.clear |= Descriptor::DIRTY_MODIFIER;
        }
        if let Some(software) = self.software {
            change.clear |= Descriptor::SOFTWARE;
            change.set |= (u64::from(software) & 0b1111) << 55;
        }
        change
    }
}

/// What to do about addresses in a range that are not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holes {
    /// Refuse the whole range, which costs a walk of it beforehand.
    Refuse,
    /// Pass them over.
    Skip,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Changes permissions of `bytes` bytes from `start`, and on live tables invalidates the
    /// TLB for them before it returns. A leaf that the range begins or ends in is split first. A change
    /// of nothing does nothing, and looks at nothing either.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) where a leaf would have to be split and the CPUs'
    /// level of FEAT_BBM does not allow it ([`set_bbm`](Self::set_bbm)),
    /// [`OutOfTables`](TableError::OutOfTables), and with [`Holes::Refuse`]
    /// [`NotMapped`](TableError::NotMapped).
    pub fn protect(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        change: PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.change(start, bytes, change.bits(self.geometry.regime()), holes)
    }

    /// Changes bits of all leaves of a range that take it in place; what the ends of the range cut is split
    /// first.
    pub(crate) fn change(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        change: BitChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        if from == to || change.clear | change.set == 0 {
            return Ok(());
        }
        let level = self.geometry.start_level();
        if holes == Holes::Refuse {
            self.check_mapped(self.root, level, from, to)?;
        }
        self.split_edges(from, to, change)?;
        self.change_in(self.root, level, from, to, change);
        self.pending.within(from, to);
        self.flush();
        Ok(())
    }

    fn check_mapped(
        &self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
    ) -> Result<(), TableError> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let next = to.min((at & !(bytes - 1)) + bytes);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Invalid => {
                    return Err(TableError::NotMapped {
                        address: self.address(at),
                    });
                }
                Kind::Leaf | Kind::Hidden => {}
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    self.check_mapped(below, level.next(), at, next)?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Applies `change` to every leaf in the offsets from `from` to `to` and records it.
    pub(super) fn change_in(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        change: BitChange,
    ) {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            // A run of leaves is one update, and so is a whole table of pages.
            let run = if level.is_last() {
                to
            } else if at & (bytes - 1) == 0 {
                self.leaves_end(table, level, at, to)
            } else {
                at
            };
            if run > at {
                self.change_run(table, level, at, run, change);
                at = run;
                continue;
            }
            let next = to.min((at & !(bytes - 1)) + bytes);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    self.change_in(below, level.next(), at, next, change);
                }
                Kind::Hidden if next - at == bytes => {
                    self.change_run(table, level, at, next, change);
                }
                // Whole leaves were dealt with above. One that only a part of is in the range was
                // not split, because it has the change already.
                Kind::Invalid | Kind::Leaf | Kind::Hidden => {}
            }
            at = next;
        }
    }

    /// Applies `change` to the entries from `at` to `end` of one table.
    fn change_run(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        at: u64,
        end: u64,
        change: BitChange,
    ) {
        let count = ((end - at) >> P::SIZE.level_shift(level)) as usize;
        let changed = self.update(table, Self::index(at, level), count, change);
        if changed > 0 {
            self.pending.changed(change, P::SIZE.entry_bytes(level));
        }
    }

    /// The end of the whole valid leaves that follow each other from `at` on in a table of `level`,
    /// which is not the last, up to `to`; `at` itself if there is none. `at` cuts no leaf.
    pub(super) fn leaves_end(&self, table: PhysicalAddress, level: Level, at: u64, to: u64) -> u64 {
        if !self.geometry.leaf_allowed(level) {
            return at;
        }
        let first = Self::index(at, level);
        // Rounding down leaves out what `to` cuts: a table, or a leaf of which a part is not meant.
        let count = ((to - (at & !(P::SIZE.entry_bytes(level) - 1))) >> P::SIZE.level_shift(level))
            as usize;
        // What there is in the two bits that tell a leaf from the others, but for a leaf's own.
        let other = |index| {
            let entry = self.load(table, first + index);
            (entry.0 ^ Descriptor::VALID) & (Descriptor::TABLE_OR_PAGE | Descriptor::VALID)
        };
        let mut leaves = 0;
        while leaves + SCANNED <= count
            && (leaves..leaves + SCANNED).fold(0, |any, index| any | other(index)) == 0
        {
            leaves += SCANNED;
        }
        while leaves < count && other(leaves) == 0 {
            leaves += 1;
        }
        at + ((leaves as u64) << P::SIZE.level_shift(level))
    }
}

/// Entries that are looked at together in search of one that is no leaf.
const SCANNED: usize = 8;
