//! Address spaces of user programs: VMAs, demand paging, copy-on-write.
//!
//! A [`Space`] belongs to one process. It consists of the page tables of the lower half and of the
//! [VMAs](vma::Vma) that define what may be mapped there, in a [tree](Vmas) whose memory the kernel lends.
//! Frames come from an implementation of [`UserFrames`]; table pages, barriers and TLBIs come from the
//! same [`TableEnvironment`] as for other tables. The numbers of spaces are in [`asid`], the way of a
//! CPU from one space to another in [`switch`].
//!
//! No code here allocates, waits, or depends on processes, files or registers. One CPU at a time
//! changes a space (`&mut`: a kernel's lock). Other CPUs may meanwhile run in the space, walk its
//! tables and, with TCR.HA and TCR.HD, update its entries.
//!
//! # Invariants
//!
//! - Only pages, contiguous groups of pages and blocks of level 2 are mapped, and a group or block
//!   is made only where one VMA has all of it. They are not global, never executable at EL1, and
//!   accessible to EL0 exactly as their VMA allows. A VMA may be both writable and executable if a
//!   caller requests it, as the Linux ABI permits.
//! - If a VMA allows writing but a page's entry does not (AP\[2\] set, DBM clear), the page, or
//!   another one of its group or block, is or was shared with another space. The first write finds
//!   out which.
//! - A frame is released only after no CPU can reach it by a cached translation.
//! - No hardware update is lost: entries that hardware may be updating are changed in one atomic
//!   step. When a dirty page becomes read-only, the software dirty bit keeps the fact.
//!
//! # The operations
//!
//! - **First touch**: missing tables are filled empty and linked by one store-release, frames are zeroed,
//!   entries are stored; then DSB ISHST, ISB. No TLBI is needed, because an invalid entry is not cached
//!   (IWZCBG).
//! - **Fold**, when the last page of a group comes that could not be mapped at once: each member is exchanged
//!   for an empty entry, its bits are gathered, each member is invalidated, then all are stored with the
//!   hint. Hardware may have set the access flag or the dirty state in one member for all (RXDPXQ, RLCGVS),
//!   and a TLBI does not follow the hint (RLQLSD). **Unfold** does the same before a member changes alone,
//!   because members must agree (RJQQTC). Where FEAT_BBM level 1 allows it and hardware has nothing left to
//!   set, one store of the hint in each member does both (RPVTFW).
//! - **Split of a block**: a table is reserved; the entry is exchanged for an empty one and invalidated; the
//!   table is filled with groups while private and linked by a store-release. This is so at every level of
//!   FEAT_BBM, so no CPU takes a conflict abort: other CPUs fault meanwhile and wait for the lock.
//! - **Fork**: the child's tables are reserved; one pass makes the parent's entries read-only in place
//!   (RWHZWS), fills the child's front to back while private, and shares the frames, all in runs; one TLBI.
//! - **Write to a shared page**: break-before-make with the copy (RWHZWS), then the old frame is released; in
//!   a block the same break serves its split. `copy` decides when a whole group is copied.
//! - **Write to a page that is no longer shared**: made writable in place with its whole group or block,
//!   TLBI. A block of which other spaces have a part is split.
//! - **Change of rights to writable**: one pass makes pages with one owner writable in place, in whole groups
//!   only; one TLBI; then groups within the range are folded again, and what the ends cut stays cut. A shared
//!   page, and a group with such a page, waits for its next write.
//! - **Unmap, exit**: blocks that an end cuts are split before the VMAs change. Entries become
//!   present-invalid, or the one entry that leads to a table without other content does; one TLBI; then those
//!   entries are visited, frames released in runs and tables freed. Gathering takes no memory.
//!
//! Tables, frames and nodes for VMAs are reserved before the first store. So running out of memory at any point is an error
//! without partial effects, and a fork that fails changes nothing in the parent and leaves the child empty.

pub mod asid;
mod change;
mod copy;
mod error;
mod fault;
mod fork;
mod frames;
mod leaf_size;
mod rights;
mod shared;
pub mod switch;
mod vma;
mod vmas;

pub use error::SpaceError;
pub use fault::Fault;
pub use frames::{UserFrames, Wanted};
pub use leaf_size::{LargeLeaves, LargestLeaf};
pub use rights::{Access, Rights};
pub use vma::{Advice, Vma};
pub use vmas::{VmaNode, Vmas};

use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, PageChoice, PageSize};
use crate::arch::registers::Ttbr;
use crate::arch::{Attributes, Descriptor, Geometry, Permissions, PhysicalAddress, VirtualAddress};
use crate::table::group::DIRTY;
use crate::table::page::{PagePlace, Slot};
use crate::table::{PageTables, TableEnvironment};
use core::marker::PhantomData;

/// Features that every CPU of a space has, and choices about mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// TCR.HA is set on every CPU: a page that only the kernel has used has no access flag yet.
    pub hardware_access: bool,
    /// TCR.HD is set on every CPU: a page that has only been read is writable and clean.
    pub hardware_dirty: bool,
    /// The leaves that a first touch maps. Unless they are pages alone, whole and aligned groups of
    /// pages that came one by one get the contiguous hint too.
    pub large_leaves: LargeLeaves,
    /// The level of FEAT_BBM, which limits in-place changes of the hint, see
    /// [`PageTables::set_bbm`]. At level 0 groups are made and split by break-before-make.
    pub bbm: BbmLevel,
    /// Pages that lose the right to execute go through break-before-make, for a CPU erratum
    /// ([`BreakOnExecuteRemoval`](crate::arch::errata::Workaround::BreakOnExecuteRemoval)).
    pub break_execute: bool,
    /// The most VMAs of a space. An operation that would leave more is refused and changes nothing.
    pub most_vmas: usize,
}

impl Settings {
    /// As many VMAs as a process of Linux may have by default (`vm.max_map_count`).
    pub const MOST_VMAS: usize = 65_530;

    /// The features that every CPU has, with large leaves.
    pub const PLAIN: Self = Self {
        hardware_access: false,
        hardware_dirty: false,
        large_leaves: LargeLeaves::BLOCKS,
        bbm: BbmLevel::Level0,
        break_execute: false,
        most_vmas: Self::MOST_VMAS,
    };
}

/// Counters of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Pages mapped now.
    pub resident: u64,
    /// Pages mapped at their first touch, or with the first touch of another page of their leaf.
    pub mapped: u64,
    /// Groups of them that were mapped at once, with the contiguous hint.
    pub groups: u64,
    /// Blocks of them.
    pub blocks: u64,
    /// Blocks that became pages and groups.
    pub split: u64,
    /// Groups of a whole table that became a block again.
    pub merged: u64,
    /// Pages copied at the first write after a fork, or with the first write to another page of their group.
    pub copied: u64,
    /// Formerly shared pages that became writable without a copy.
    pub reused: u64,
    /// Faults that needed no change.
    pub spurious: u64,
    /// Groups that got the contiguous hint.
    pub folded: u64,
    /// Groups that lost it.
    pub unfolded: u64,
}

impl Stats {
    /// All counters zero.
    pub const NONE: Self = Self {
        resident: 0,
        mapped: 0,
        groups: 0,
        blocks: 0,
        split: 0,
        merged: 0,
        copied: 0,
        reused: 0,
        spurious: 0,
        folded: 0,
        unfolded: 0,
    };

    /// The sum of the counters of two spaces.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            mapped: self.mapped + other.mapped,
            groups: self.groups + other.groups,
            blocks: self.blocks + other.blocks,
            split: self.split + other.split,
            merged: self.merged + other.merged,
            copied: self.copied + other.copied,
            reused: self.reused + other.reused,
            spurious: self.spurious + other.spurious,
            folded: self.folded + other.folded,
            unfolded: self.unfolded + other.unfolded,
        }
    }
}

/// The state of one page of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Its frame.
    pub frame: PhysicalAddress,
    /// EL0 may write, or hardware will permit the first write and note it.
    pub writable: bool,
    /// The page was used, as far as the access flag shows.
    pub accessed: bool,
    /// The page may have been written since it was mapped.
    pub dirty: bool,
    /// The page is part of a group with the contiguous hint.
    pub contiguous: bool,
    /// The page is part of a block.
    pub block: bool,
}

/// The address space of one process. `F` gives its frames and takes them back: all calls take a
/// value of this one type, because frames must return to the account that they came from.
#[derive(Debug)]
pub struct Space<'s, P: PageChoice, E, F> {
    tables: PageTables<P, E>,
    vmas: Vmas<'s>,
    settings: Settings,
    /// The descriptor bits of a page that allows nothing and was not used.
    common: u64,
    stats: Stats,
    frames: PhantomData<fn(F)>,
}

#[allow(unsafe_code, reason = "tables of a space, live on the caller's word")]
impl<'s, P: PageChoice, E: TableEnvironment, F: UserFrames> Space<'s, P, E, F> {
    /// An empty space that no CPU walks yet. `geometry` is the geometry of the lower half; `nodes`
    /// are for the first VMAs.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] when there is no page for the root.
    pub fn new(
        geometry: Geometry,
        environment: E,
        nodes: &'s mut [VmaNode<'s>],
        settings: Settings,
    ) -> Result<Self, SpaceError> {
        let mut vmas = Vmas::new(settings.most_vmas);
        vmas.lend(nodes);
        let mut tables = PageTables::new(geometry, environment)?;
        // SAFETY: the private `tables` become live by `make_live` alone, whose caller vouches for the
        // settings. Before that no CPU walks them.
        unsafe { tables.set_bbm(settings.bbm) };
        let attributes = Attributes {
            // Where hardware does not set the flag, a page without it would fault.
            accessed: !settings.hardware_access,
            global: false,
            ..Attributes::normal(Permissions::READ)
        };
        Ok(Self {
            common: attributes.encode(&geometry),
            tables,
            vmas,
            settings,
            stats: Stats::default(),
            frames: PhantomData,
        })
    }

    /// The value of TTBR0 for this space under `asid`, once the space is live.
    #[must_use]
    pub fn ttbr(&self, asid: u16) -> Option<Ttbr> {
        // SAFETY: geometry and root are those of the private `tables`. They are live, so their changes
        // issue barriers and TLBIs.
        self.is_live()
            .then(|| unsafe { Ttbr::from_root(self.geometry(), self.tables.root_table(), asid) })
    }

    #[inline(always)]
    const fn size(&self) -> PageSize {
        self.tables.size()
    }

    /// Checks that frames are of this space's page size.
    #[inline(always)]
    fn check(&self, frames: &F) -> Result<(), SpaceError> {
        let (given, page) = (frames.page_size(), self.size());
        if given == page {
            Ok(())
        } else {
            Err(SpaceError::WrongFrames { given, page })
        }
    }

    /// The geometry of the lower half.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        self.tables.geometry()
    }

    /// Makes all earlier stores visible to walkers. From here on CPUs may walk the tables.
    ///
    /// # Safety
    ///
    /// As for [`PageTables::make_live`], and the CPUs have the features that the
    /// [`Settings`] name, as [`PageTables::set_bbm`] requires. The space maps frames for EL0 alone,
    /// so later changes need nobody to vouch for them.
    pub unsafe fn make_live(&mut self) {
        self.tables.go_live();
    }

    /// Sets the ASID that CPUs run this space under from now on.
    ///
    /// # Safety
    ///
    /// TLBIs name this ASID, so no CPU may walk the tables under another one while `&mut self` is
    /// used elsewhere.
    pub const unsafe fn set_asid(&mut self, asid: Option<u16>) {
        // SAFETY: no page of a space is global, and the caller keeps the rest.
        unsafe { self.tables.set_asid(asid) };
    }

    /// The VMAs.
    #[must_use]
    pub const fn vmas(&self) -> &Vmas<'s> {
        &self.vmas
    }

    /// Lends the space more nodes for VMAs, after [`SpaceError::OutOfVmaNodes`]. Whatever happens to the VMAs, the
    /// space may use their memory until it ends.
    pub fn lend_vma_nodes(&mut self, nodes: &'s mut [VmaNode<'s>]) {
        self.vmas.lend(nodes);
    }

    /// The counters of this space.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// The environment of the tables, to change it.
    ///
    /// # Safety
    ///
    /// As for [`PageTables::environment_mut`].
    pub const unsafe fn environment_mut(&mut self) -> &mut E {
        // SAFETY: the caller keeps the conditions.
        unsafe { self.tables.environment_mut() }
    }

    /// The tables, for reading.
    #[must_use]
    pub const fn tables(&self) -> &PageTables<P, E> {
        &self.tables
    }

    /// The state of the page at `address`, if it is mapped. Access flag and dirty state of one
    /// member of a group count for all of its members (RXDPXQ).
    #[must_use]
    pub fn page(&self, address: VirtualAddress) -> Option<PageState> {
        let offset = self.geometry().offset(address)? & !(self.size().bytes() - 1);
        let PagePlace { slot, level, entry } = self.tables.place(offset);
        if !entry.is_valid() {
            return None;
        }
        let frame = self.geometry().address_of(entry, level);
        let inside = offset & (self.size().entry_bytes(level) - 1);
        let mut state = PageState {
            frame: frame.wrapping_add(inside),
            writable: is_writable(entry),
            accessed: false,
            dirty: false,
            contiguous: entry.is_contiguous(),
            block: !level.is_last(),
        };
        let (first, members) = if entry.is_contiguous() {
            let members = self.size().contiguous_entries(Level::L3);
            (self.tables.first_of_group(slot), members)
        } else {
            (slot, 1)
        };
        for index in first.index..first.index + members {
            let member = self.tables.entry(Slot { index, ..first });
            state.accessed |= member.0 & Descriptor::ACCESS_FLAG != 0;
            state.dirty |= member.0 & DIRTY != 0 || member.0 & Descriptor::AP_READ_ONLY == 0;
        }
        Some(state)
    }

    /// Whether CPUs may be walking the tables.
    fn is_live(&self) -> bool {
        self.tables.is_live()
    }

    /// The descriptor bits of a page that this space owns alone.
    fn page_bits(&self, rights: Rights, written: bool, accessed: bool) -> u64 {
        let mut bits = self.common;
        if rights.any() {
            bits |= Descriptor::AP_USER;
        }
        if rights.execute {
            bits &= !Descriptor::UXN;
        }
        if rights.write {
            let hardware = self.settings.hardware_dirty;
            if hardware {
                bits |= Descriptor::DIRTY_MODIFIER;
            }
            if written || !hardware {
                bits &= !Descriptor::AP_READ_ONLY;
            }
        }
        if accessed {
            bits |= Descriptor::ACCESS_FLAG;
        }
        if written {
            bits |= DIRTY;
        }
        bits
    }
}

/// Whether an entry allows writing, at once or after hardware marks it dirty.
const fn is_writable(entry: Descriptor) -> bool {
    entry.0 & Descriptor::AP_READ_ONLY == 0 || entry.0 & Descriptor::DIRTY_MODIFIER != 0
}
