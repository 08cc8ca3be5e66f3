//! Changing permissions in place.
//!
//! [`PermissionChange`] can express only changes that rule RWHZWS allows without break-before-make.
//! A leaf that an end of the range cuts is split first, where the rules allow it.

use super::stage::Stage;
use super::unmap::EmptyTables;
use super::walk::{Place, Slot};
use super::{BitChange, BitPattern, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::PageChoice;
use crate::arch::{Descriptor, Kind, Regime};

/// A change of permissions. `None` leaves a permission unchanged; for example
/// `PermissionChange { writable: Some(false), ..PermissionChange::NONE }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermissionChange {
    /// Whether stores are allowed. `Some(false)` also clears the dirty modifier (DBM) unless
    /// [`dirty_modifier`](Self::dirty_modifier) is `Some(true)`, because under TCR.HD hardware would
    /// otherwise allow stores again.
    ///
    /// **The dirty state is lost with the modifier**, and a harvest of it before the call misses the
    /// stores in between. [`PageTables::protect`] has the way that loses none.
    pub writable: Option<bool>,
    /// Whether EL0 may access; no effect in a regime with one privilege.
    pub user: Option<bool>,
    /// Whether the privileged level may execute.
    pub privileged_execute: Option<bool>,
    /// Whether EL0 may execute; no effect in a regime with one privilege.
    pub user_execute: Option<bool>,
    /// Whether indirect branches must land on BTI instructions.
    pub guarded: Option<bool>,
    /// Whether hardware manages the dirty state under TCR.HD (DBM).
    ///
    /// `Some(true)` makes a writable leaf a dirty one. **A leaf that is not writable becomes a clean
    /// one, which the next store makes writable**: name only ranges that may be written. With
    /// `writable(false)` all leaves become clean, and hardware notes the stores from then on.
    ///
    /// `Some(false)` leaves each leaf as hardware noted it: a dirty one is writable, a clean one is
    /// not, and a contiguous group is writable if any of its members was dirty.
    pub dirty_modifier: Option<bool>,
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
        dirty_modifier: None,
        software: None,
    };

    /// The change as descriptor bits.
    #[inline(always)]
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
        // Where TCR.HD is set, DBM with AP[2] means "writable, clean", not "read-only".
        let read_only = (self.writable == Some(false)).then_some(false);
        bit(
            Descriptor::DIRTY_MODIFIER,
            self.dirty_modifier.or(read_only),
        );
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
    /// Refuse the whole range. Live tables take an extra walk of the range first. Tables that no CPU
    /// walks are changed at once, and changed back if there is a hole.
    Refuse,
    /// Skip unmapped addresses.
    Skip,
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Changes permissions of `bytes` bytes from `start`. On live tables it invalidates the TLB for
    /// the range before it returns. A leaf that an end of the range cuts is split first. A change
    /// that alters no leaf stores nothing and issues nothing. An empty change checks only the range.
    ///
    /// Pages whose dirty state hardware manages become read-only in three steps, so that no note of
    /// a store is lost. CPUs may go on to store meanwhile:
    ///
    /// ```
    /// use granule::arch::{PageChoice, VirtualAddress};
    /// use granule::table::{Holes, PageTables, PermissionChange, TableEnvironment, TableError};
    ///
    /// /// Makes a range read-only and reports what of it has been written.
    /// fn write_protect<P: PageChoice, E: TableEnvironment>(
    ///     tables: &mut PageTables<P, E>,
    ///     start: VirtualAddress,
    ///     bytes: u64,
    ///     mut written: impl FnMut(VirtualAddress, u64),
    /// ) -> Result<(), TableError> {
    ///     // From here on hardware notes nothing. What was dirty is writable, the rest is not.
    ///     let noted = PermissionChange { dirty_modifier: Some(false), ..PermissionChange::NONE };
    ///     tables.protect(start, bytes, noted, Holes::Skip)?;
    ///     tables.for_each(start, bytes, |leaf| {
    ///         if leaf.attributes.permissions.writable {
    ///             written(leaf.start, leaf.bytes);
    ///         }
    ///     })?;
    ///     let read_only = PermissionChange { writable: Some(false), ..PermissionChange::NONE };
    ///     tables.protect(start, bytes, read_only, Holes::Skip)
    /// }
    /// # use granule::arch::tlbi::TlbCapabilities;
    /// # use granule::arch::{
    /// #     Attributes, CpuFeatures, Geometry, Page4K, PageSize, Permissions, PhysicalAddress,
    /// #     Regime, VaRange,
    /// # };
    /// # use granule::table::{FreeList, Leaves, Offset};
    /// # let mut pages = vec![0u64; 5 * 512];
    /// # let start = PhysicalAddress(pages.as_mut_ptr().expose_provenance() as u64);
    /// # // SAFETY: the vector is nobody else's and lives longer than the tables.
    /// # let pages = unsafe {
    /// #     let mut pages = FreeList::new(Offset::new(0), PageSize::K4);
    /// #     pages.add(start, PhysicalAddress(start.0 + 5 * 4096));
    /// #     pages
    /// # };
    /// # let cpu = CpuFeatures { mmfr0: 5, ..CpuFeatures::NONE };
    /// # let geometry = Geometry::new(&cpu, PageSize::K4, 39, VaRange::Lower, Regime::El1And0)?;
    /// # let mut tables = PageTables::<Page4K, _>::new(geometry, pages.environment())?;
    /// # let clean = Permissions { dirty_modifier: true, ..Permissions::READ };
    /// # let clean = Attributes::normal(clean);
    /// # tables.map(VirtualAddress(0), PhysicalAddress(0), 0x4000, clean, Leaves::PAGES)?;
    /// # tables.modify(VirtualAddress(0x2000), 0x1000, Holes::Refuse, |a| a.permissions.writable = true)?;
    /// # let mut all = Vec::new();
    /// # write_protect(&mut tables, VirtualAddress(0), 0x4000, |start, bytes| all.push((start, bytes)))?;
    /// # assert_eq!(all, [(VirtualAddress(0x2000), 0x1000)]);
    /// # let there = tables.query(VirtualAddress(0x2000)).ok_or("not mapped")?;
    /// # assert_eq!(there.attributes.permissions, Permissions::READ);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) where a leaf must be split and the CPUs' level of
    /// FEAT_BBM does not allow it ([`set_bbm`](Self::set_bbm)),
    /// [`OutOfTables`](TableError::OutOfTables), and with [`Holes::Refuse`]
    /// [`NotMapped`](TableError::NotMapped).
    #[inline(always)]
    pub fn protect(
        &mut self,
        start: S::Input,
        bytes: u64,
        change: S::PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        let bits = S::bits(change, &self.geometry);
        if self.change_near(start, bytes, bits, EmptyTables::Keep) {
            return Ok(());
        }
        self.change(start, bytes, bits, holes)
    }

    /// Changes bits of all leaves of a range in place. A leaf that an end of the range cuts is
    /// split first.
    ///
    /// One walk plans and changes where nothing can fail. Splits and holes are looked for before.
    #[inline(never)]
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
        let ends_dirty_state = self.ends_dirty_state(change);
        if holes == Holes::Refuse {
            // A change of all leaves keeps the bits that make them leaves.
            let restorable = self.liveness == Liveness::Private
                && change.of == BitChange::LEAVES
                && !ends_dirty_state;
            if restorable && !self.splits_edges(from, to, &|_| change)? {
                return self.change_or_restore(from, to, change);
            }
            self.check_mapped(from, to)?;
        }
        if self.liveness == Liveness::Live && !self.alters(from, to, change) {
            // Nothing is stored, so no TLB needs to drop anything.
            return Ok(());
        }
        self.split_edges(from, to, &|_| change)?;
        self.change_leaves(from, to, change, None);
        if ends_dirty_state {
            self.level_groups(from, to);
        }
        self.pending.within(from, to);
        self.flush();
        Ok(())
    }

    /// Changes private tables, in which nothing is split, or finds a hole and restores what it
    /// changed. As long as the leaves are like the first one in the bits that change, one pass does
    /// both, because one change restores them all.
    fn change_or_restore(
        &mut self,
        from: u64,
        to: u64,
        change: BitChange,
    ) -> Result<(), TableError> {
        let bits = change.clear | change.set;
        let alike = BitPattern {
            mask: bits,
            value: self.place(from).entry.0 & bits,
        };
        let done = self.change_leaves(from, to, change, Some(alike));
        let mapped = self.check_mapped(done, to);
        if mapped.is_ok() {
            self.change_leaves(done, to, change, None);
        } else {
            let restore = BitChange {
                of: change.of,
                clear: bits,
                set: alike.value,
            };
            self.change_leaves(from, done, restore, None);
        }
        self.pending.within(from, to);
        self.flush();
        mapped
    }

    /// Applies `change` to every whole leaf between two offsets that it concerns, and records it.
    /// Returns `to`. With `alike` it stops at the first entry that is not a whole valid leaf that
    /// matches, and returns the offset of that entry.
    pub(super) fn change_leaves(
        &mut self,
        from: u64,
        to: u64,
        change: BitChange,
        alike: Option<BitPattern>,
    ) -> u64 {
        let mut at = from;
        while at < to {
            let Place { slot, level, entry } = self.place(at);
            let Slot { table, index } = slot;
            let count = self.whole(at, level, to);
            let end = self.end_of(at, level);
            // A leaf that is only partly in the range was not split, because it already has the
            // change.
            let is_whole = self.is_whole(at, level, to);
            let kind = entry.kind(&self.geometry, level);
            let is_leaf = kind == Kind::Leaf && is_whole;
            let mut behind = end;
            let changed = match alike {
                Some(alike) if !is_leaf || !alike.matches(entry) => return at,
                // A run of pages is one update, whatever its entries are.
                None if level.is_last() => {
                    behind = self.behind(at, level, count);
                    self.update(table, index, count, change)
                }
                _ if is_leaf && change.concerns(entry) => {
                    let pattern = BitPattern::leaf(level).and(alike.unwrap_or(BitPattern::ANY));
                    let changed = self.update_alike(table, index, count, pattern, change);
                    behind = self.behind(at, level, changed);
                    changed
                }
                _ if kind == Kind::PresentInvalid && is_whole => {
                    self.update(table, index, 1, change)
                }
                _ => 0,
            };
            if changed > 0 {
                self.pending.changed(change, self.size().entry_bytes(level));
            }
            at = behind;
        }
        to
    }

    /// Whether `change` alters an entry between two offsets, which differ. Usually it alters the
    /// first one.
    pub(super) fn alters(&self, from: u64, to: u64, change: BitChange) -> bool {
        let mut at = from;
        let mut place = self.place(at);
        loop {
            if Self::changes(place.entry, change) {
                return true;
            }
            at = self.end_of(at, place.level);
            if at >= to {
                return false;
            }
            place = self.beside(&place, at);
        }
    }

    /// Checks that no offset between two is unmapped; present-invalid leaves are mapped.
    #[inline(never)]
    pub(super) fn check_mapped(&self, from: u64, to: u64) -> Result<(), TableError> {
        let mut at = from;
        while at < to {
            let Place { slot, level, entry } = self.place(at);
            match entry.kind(&self.geometry, level) {
                Kind::Leaf => {
                    let end = self.end_of(at, level);
                    at = self.leaves_end(slot, level, at, to).max(end);
                }
                Kind::PresentInvalid => at = self.end_of(at, level),
                Kind::Invalid | Kind::Table => {
                    let address = self.address(at);
                    return Err(TableError::NotMapped { address });
                }
            }
        }
        Ok(())
    }
}
