//! Changing any attribute of mapped leaves: by a function of the attributes that a leaf has.
//!
//! Where the rules allow it, a leaf is changed in place, as by `protect`. A change of memory type,
//! shareability or output space, or from non-global to global, needs break-before-make on live tables
//! (RWHZWS). It breaks all leaves that it concerns, invalidates once, and then makes them valid again. A
//! leaf is broken like a present-invalid one, and bit 1 tells the two apart, so no memory is needed to
//! remember which leaves to make valid again. Each break is atomic, so no update by hardware is lost.
//!
//! The function's result becomes a [`BitChange`] in one place ([`PageTables::change_of`]). The rest
//! handles any change of bits, and asks [`classify`] what each leaf needs.

use super::protect::Holes;
use super::split::OfLeaf;
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, BitPattern, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::{Change, classify};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, Geometry, PhysicalAddress};

/// A leaf that is broken and will be made valid again: present-invalid, with the other value of the
/// bit that tells a page from a block.
const fn is_broken(entry: Descriptor, level: Level) -> bool {
    let invalid = entry.0 & Descriptor::VALID == 0 && entry.0 & Descriptor::PRESENT_INVALID != 0;
    invalid && (entry.0 & Descriptor::TABLE_OR_PAGE != 0) != level.is_last()
}

/// The change that breaks a valid leaf.
const fn breaking(level: Level) -> BitChange {
    let of = Descriptor::VALID;
    let set = Descriptor::PRESENT_INVALID;
    if level.is_last() {
        let clear = Descriptor::VALID | Descriptor::TABLE_OR_PAGE;
        BitChange { of, clear, set }
    } else {
        let clear = Descriptor::VALID;
        let set = set | Descriptor::TABLE_OR_PAGE;
        BitChange { of, clear, set }
    }
}

/// The leaf that was broken, valid again.
const fn mended(broken: Descriptor) -> Descriptor {
    let bits = (broken.0 ^ Descriptor::TABLE_OR_PAGE) & !Descriptor::PRESENT_INVALID;
    Descriptor(bits | Descriptor::VALID)
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Gives each leaf of `bytes` bytes from `start` the attributes that `modify` makes of its own. A
    /// leaf that an end of the range cuts is split first, where the rules allow it. Present-invalid
    /// leaves change and stay present-invalid. [`protect`](Self::protect) changes permissions alone,
    /// in fewer instructions.
    ///
    /// On live tables permissions and the access flag are changed in place, and stale entries are
    /// invalidated before this method returns. A change of the memory type, shareability or output
    /// space, or from non-global to global, uses break-before-make: all concerned leaves are made invalid,
    /// the range is invalidated once, and the new leaves are stored. **Every access to these leaves
    /// faults meanwhile**, so the range must hold no code, stack or data that this CPU uses here or to
    /// handle the fault, and none of these tables. Leaves that already have the attributes never fault.
    ///
    /// The caller cleans or invalidates caches, because memory whose type changes may have lines in
    /// them.
    ///
    /// `modify` is called once or more for leaves that are alike, in any order, so its result must depend
    /// on the attributes alone. A contiguous group counts as one leaf with the notes of hardware in any of
    /// its members (RXDPXQ). Where hardware may set the access flag or the dirty state meanwhile,
    /// `modify` is called with both values. Each of the two is changed only if the result is the same
    /// both times, and is left to hardware otherwise. If `modify` panics, leaves that were changed before stay
    /// so, and none stays broken.
    ///
    /// ```
    /// # use granule::arch::{
    /// #     Attributes, CpuFeatures, Geometry, MemoryType, Page4K, PageSize, Permissions,
    /// #     PhysicalAddress, Regime, VaRange, VirtualAddress,
    /// # };
    /// # use granule::table::{FreeList, Holes, Leaves, Offset, PageTables};
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
    /// # let ram = Attributes::normal(Permissions::READ_WRITE);
    /// # tables.map(VirtualAddress(0), PhysicalAddress(0), 0x4000, ram, Leaves::PAGES)?;
    /// // A buffer of a device that does not snoop caches.
    /// tables.modify(VirtualAddress(0x1000), 0x2000, Holes::Refuse, |attributes| {
    ///     attributes.memory = MemoryType::NormalNonCacheable;
    ///     attributes.permissions.privileged_execute = false;
    /// })?;
    /// # let there = tables.query(VirtualAddress(0x2000)).ok_or("not mapped")?;
    /// # assert_eq!(there.attributes.memory, MemoryType::NormalNonCacheable);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect).
    pub fn modify(
        &mut self,
        start: S::Input,
        bytes: u64,
        holes: Holes,
        modify: impl Fn(&mut S::Attributes),
    ) -> Result<(), TableError> {
        let (geometry, liveness) = (self.geometry, self.liveness);
        let change = |leaf| Self::change_of(&geometry, liveness, leaf, &modify);
        self.change_by(start, bytes, holes, &change)
    }

    /// The change that `modify` makes of a leaf. Bits that attributes do not have are left alone.
    fn change_of(
        geometry: &Geometry,
        liveness: Liveness,
        leaf: Descriptor,
        modify: impl Fn(&mut S::Attributes),
    ) -> BitChange {
        let after = |leaf: u64| {
            let mut attributes = S::decode(Descriptor(leaf), geometry);
            modify(&mut attributes);
            S::encode(&attributes, geometry)
        };
        let new = after(leaf.0);
        let mut changed = new ^ S::encode(&S::decode(leaf, geometry), geometry);
        let may_be_updated = liveness == Liveness::Live && geometry.may_be_updated(leaf);
        if may_be_updated || leaf.is_contiguous() {
            for noted in [Descriptor::ACCESS_FLAG, Descriptor::AP_READ_ONLY] {
                let differs = (after(leaf.0 | noted) ^ after(leaf.0 & !noted)) & noted != 0;
                // Assigned even if the leaf has the value now: hardware may change it until the store,
                // and the members of a group may differ in it.
                changed = changed & !noted | if differs { 0 } else { noted };
            }
        }
        BitChange {
            of: BitChange::LEAVES,
            clear: changed & !new,
            set: changed & new,
        }
    }

    /// Returns the steps that `change` of a leaf needs.
    fn way(&self, level: Level, entry: Descriptor, change: BitChange) -> Change {
        if !Self::changes(entry, change) {
            Change::Nothing
        } else if self.liveness == Liveness::Private {
            Change::Store
        } else {
            let new = change.apply(entry);
            classify(&self.geometry, level, entry, new, self.bbm)
        }
    }

    /// Changes each leaf of a range by its own attributes, by break-before-make where the rules need it.
    #[inline(never)]
    fn change_by(
        &mut self,
        start: S::Input,
        bytes: u64,
        holes: Holes,
        change: &OfLeaf<'_>,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        if from == to {
            return Ok(());
        }
        if holes == Holes::Refuse {
            self.check_mapped(from, to)?;
        }
        self.split_edges(from, to, change)?;
        let unbroken = Unbroken {
            tables: self,
            range: (from, to),
        };
        let tables = &mut *unbroken.tables;
        let found = tables.break_leaves(from, to, change);
        if found.ends_dirty_state {
            tables.level_groups(from, to);
        }
        if !found.broken {
            tables.flush();
        } else {
            tables.flush_now();
            tables.mend_leaves(from, to, change);
            tables.pending.made_valid();
            tables.publish();
        }
        core::mem::forget(unbroken);
        Ok(())
    }

    /// The change of the leaf at a place, and how many entries from there on it may hold for, of `most`. The
    /// members of a contiguous group have one change, by what they were before the first of them changed.
    fn change_here(
        &self,
        (at, place): (u64, &Place),
        most: usize,
        group: &mut Group,
        change: &OfLeaf<'_>,
    ) -> (BitChange, usize) {
        let Place { slot, level, entry } = *place;
        let (index, count) = self.group_at(slot.index, level, entry);
        if count == 1 {
            return (change(entry), most);
        }
        let left = most.min(index + count - slot.index);
        if at >= group.end {
            let noted = self.noted(Slot { index, ..slot }, level);
            group.change = change(noted.give(entry));
            group.end = self.behind(at, level, left);
        }
        (group.change, left)
    }

    /// Changes the whole leaves between two offsets in place where the rules allow it, and breaks
    /// the others.
    fn break_leaves(&mut self, from: u64, to: u64, change: &OfLeaf<'_>) -> Found {
        let mut found = Found::default();
        let mut group = Group::NONE;
        let mut at = from;
        while at < to {
            let place = self.place(at);
            let Place { slot, level, entry } = place;
            let end = self.end_of(at, level);
            // A leaf that is only partly in the range was not split, because it already has the
            // change.
            if !self.is_leaf(level, entry) || !self.is_whole(at, level, to) {
                at = end;
                continue;
            }
            let most = self.whole(at, level, to);
            let (change, most) = self.change_here((at, &place), most, &mut group, change);
            let bytes = self.size().entry_bytes(level);
            let way = self.way(level, entry, change);
            let stored = if way == Change::BreakBeforeMake {
                breaking(level)
            } else {
                change
            };
            let alike = self.like(entry);
            let count = match way {
                Change::Nothing => {
                    let unlike = self.find_unlike(slot.table, slot.index, most, alike);
                    unlike.unwrap_or(most)
                }
                _ if entry.is_valid() => {
                    self.update_alike(slot.table, slot.index, most, alike, stored)
                }
                _ => self.update(slot.table, slot.index, 1, stored),
            };
            // Hardware updated the entry since it was loaded, so it is looked at again.
            if count == 0 {
                continue;
            }
            let behind = self.behind(at, level, count);
            match way {
                Change::Nothing => {}
                Change::Store => {
                    if entry.is_valid() {
                        self.pending.made_valid();
                    }
                }
                Change::BreakBeforeMake
                | Change::StoreThenInvalidate
                | Change::StoreResized { .. } => self.pending.leaves(at, behind, level, bytes),
            }
            found.broken |= way == Change::BreakBeforeMake;
            found.ends_dirty_state |= self.ends_dirty_state(change);
            at = behind;
        }
        found
    }

    /// The entries that differ from one at most in their outputs.
    const fn like(&self, entry: Descriptor) -> BitPattern {
        let mask = !self
            .geometry
            .address_bits(PhysicalAddress(!(self.size().bytes() - 1)));
        BitPattern {
            mask,
            value: entry.0 & mask,
        }
    }

    /// Stores the broken leaves between two offsets again, with the change. Hardware updates no
    /// invalid entry.
    fn mend_leaves(&mut self, from: u64, to: u64, change: &OfLeaf<'_>) {
        let how = self.visibility();
        let mut group = Group::NONE;
        let mut at = from;
        while at < to {
            let place = self.place(at);
            let Place { slot, level, entry } = place;
            if is_broken(entry, level) {
                let entry = mended(entry);
                let was = Place { entry, ..place };
                let most = self.whole(at, level, to);
                let (change, _) = self.change_here((at, &was), most, &mut group, change);
                self.store(slot.table, slot.index, change.apply(entry), how);
            }
            at = self.end_of(at, level);
        }
    }
}

/// The change of all members of a contiguous group, for those before the offset `end`.
struct Group {
    end: u64,
    change: BitChange,
}

impl Group {
    const NONE: Self = Self {
        end: 0,
        change: UNCHANGED,
    };
}

const UNCHANGED: BitChange = BitChange {
    of: BitChange::LEAVES,
    clear: 0,
    set: 0,
};

/// Makes broken leaves valid as they were when it is dropped: when the function of attributes panics. No other
/// operation knows broken leaves.
struct Unbroken<'t, P: PageChoice, E: TableEnvironment, S: Stage> {
    tables: &'t mut PageTables<P, E, S>,
    range: (u64, u64),
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> Drop for Unbroken<'_, P, E, S> {
    fn drop(&mut self) {
        let (from, to) = self.range;
        self.tables.mend_leaves(from, to, &|_| UNCHANGED);
        self.tables.pending.made_valid();
        self.tables.flush();
    }
}

/// The events of a walk that changes leaves.
#[derive(Clone, Copy, Default)]
struct Found {
    /// A leaf was broken.
    broken: bool,
    /// Hardware manages the dirty state of a leaf no more.
    ends_dirty_state: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_leaf_is_neither_valid_nor_present_invalid_and_can_be_mended() {
        for level in [Level::L1, Level::L2, Level::L3] {
            let page = if level.is_last() { 0b10 } else { 0 };
            // The smallest leaf possible: every other bit is clear.
            for bits in [0, 0x0060_0000_4000_0704] {
                let leaf = Descriptor(bits | page | 1);
                assert!(!is_broken(leaf, level));
                assert!(!is_broken(leaf.present_invalid(), level));
                let broken = breaking(level).apply(leaf);
                assert!(is_broken(broken, level) && !broken.is_valid());
                assert_eq!(mended(broken), leaf);
            }
            assert!(!is_broken(Descriptor::INVALID, level));
        }
    }
}
