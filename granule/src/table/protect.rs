//! Changing permissions in place.
//!
//! [`PermissionChange`] can express only changes that rule RWHZWS allows without break-before-make.
//! A leaf that an end of the range cuts is split first, where the rules allow it.

use super::stage::Stage;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Kind, PhysicalAddress, Regime};
use crate::setters::setters;

/// A change of permissions. `None` leaves a permission unchanged; each field can be set by the
/// method of its name: `PermissionChange::NONE.writable(false)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermissionChange {
    /// Whether stores are allowed. `Some(false)` also clears the dirty modifier (DBM), because
    /// under TCR.HD hardware would otherwise allow stores again.
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
    /// No change.
    pub const NONE: Self = Self {
        writable: None,
        user: None,
        privileged_execute: None,
        user_execute: None,
        guarded: None,
        software: None,
    };

    setters! {
        writable: Some(bool),
        user: Some(bool),
        privileged_execute: Some(bool),
        user_execute: Some(bool),
        guarded: Some(bool),
        software: Some(u8),
    }

    /// The change as descriptor bits.
    pub(super) fn bits(self, regime: Regime) -> BitChange {
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
            // Where TCR.HD is set, DBM with AP[2] means "writable, clean", not "read-only".
            change.clear |= Descriptor::DIRTY_MODIFIER;
        }
        if let Some(software) = self.software {
            change.clear |= Descriptor::SOFTWARE;
            change.set |= (u64::from(software) & 0b1111) << 55;
        }
        change
    }
}

/// The treatment of unmapped addresses in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum Holes {
    /// Refuse the whole range. This costs an extra walk of the range.
    Refuse,
    /// Skip unmapped addresses.
    Skip,
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Changes permissions of `bytes` bytes from `start`. On live tables it invalidates the TLB for
    /// the range before it returns. A leaf that an end of the range cuts is split first. An empty
    /// change does nothing and checks only the range.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) where a leaf must be split and the CPUs' level of
    /// FEAT_BBM does not allow it ([`set_bbm`](Self::set_bbm)),
    /// [`OutOfTables`](TableError::OutOfTables), and with [`Holes::Refuse`]
    /// [`NotMapped`](TableError::NotMapped).
    pub fn protect(
        &mut self,
        start: S::Input,
        bytes: u64,
        change: S::PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.change(start, bytes, S::bits(change, &self.geometry), holes)
    }

    /// Changes bits of all leaves of a range in place. A leaf that an end of the range cuts is
    /// split first.
    pub(crate) fn change(
        &mut self,
        start: S::Input,
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
            let mut at = from;
            while at < to {
                let next = self.root_end(at, to);
                self.check_mapped(self.root_of(at), level, at, next)?;
                at = next;
            }
        }
        self.split_edges(from, to, change)?;
        let mut at = from;
        while at < to {
            let next = self.root_end(at, to);
            self.change_in(self.root_of(at), level, at, next, change);
            at = next;
        }
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
                Kind::Leaf | Kind::PresentInvalid => {}
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    self.check_mapped(below, level.next(), at, next)?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Applies `change` to every leaf between two offsets, and records the change.
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
                Kind::PresentInvalid if next - at == bytes => {
                    self.change_run(table, level, at, next, change);
                }
                // Whole leaves were changed above. A leaf that is only partly in the range was not
                // split, because it already has the change.
                Kind::Invalid | Kind::Leaf | Kind::PresentInvalid => {}
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

    /// The end, at most `to`, of the run of whole valid leaves from `at` on in a table above the
    /// last level; `at` itself if there is none. `at` must not cut a leaf.
    pub(super) fn leaves_end(&self, table: PhysicalAddress, level: Level, at: u64, to: u64) -> u64 {
        if !self.geometry.leaf_allowed(level) {
            return at;
        }
        let first = Self::index(at, level);
        // Rounding down leaves out the entry that `to` cuts.
        let count = ((to - (at & !(P::SIZE.entry_bytes(level) - 1))) >> P::SIZE.level_shift(level))
            as usize;
        // The difference of an entry from a block in the two bits that give the kind; 0 for a
        // block.
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

/// The entries that one round of the search for the end of a run reads.
const SCANNED: usize = 8;
