//! Address spaces of user programs: areas, pages that come at the first touch, copy-on-write.
//!
//! A [`Space`] is what one process has: the tables of the lower half and the [areas](area) that say
//! what may be there. Frames come from whoever implements [`UserFrames`], table pages, barriers and
//! TLBIs from the same [`Environment`] as everywhere. What a CPU needs to switch between spaces is
//! in [`asid`].
//!
//! Nothing in here allocates, waits or knows of processes, files or registers. One space is changed
//! by one CPU at a time (`&mut`: a kernel's lock) while others may run in it, walk its tables, and,
//! with TCR.HA and TCR.HD, update its entries.
//!
//! # What holds
//!
//! - Only pages and contiguous groups of them are mapped; they are not global, never executable by
//!   EL1, and accessible to EL0 exactly as their area allows. An area may be writable and executable
//!   if that is asked for, as the Linux ABI has it.
//! - A page that an area allows to write, but whose entry does not (AP\[2\] set, DBM clear), is
//!   shared with another space, or was: the first write finds out.
//! - A frame is given back only after no CPU can reach it by a cached translation.
//! - No update by hardware is lost: entries that it may be updating are changed in one step. Where
//!   dirty pages become read-only, software's dirty bit keeps that they are.

pub mod area;
pub mod asid;
mod change;
mod error;
mod fault;
mod fork;
pub mod frames;
pub mod rights;

pub use area::{Area, Areas};
pub use asid::{AsidCpu, AsidMap, Asids, SpaceAsid};
pub use error::SpaceError;
pub use fault::Fault;
pub use frames::{UserFrames, Wanted};
pub use rights::{Access, Rights};

use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, Page};
use crate::arch::{Attributes, Descriptor, Geometry, Permissions, PhysicalAddress, VirtualAddress};
use crate::table::group::DIRTY;
use crate::table::{Environment, Liveness, PageTables};

/// What the CPUs that a space runs on can do for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// TCR.HA is set on every CPU: pages that only the kernel used so far have no access flag.
    pub hardware_access: bool,
    /// TCR.HD is set on every CPU: pages that were only read so far are writable and clean.
    pub hardware_dirty: bool,
    /// Whole, aligned groups of pages get the contiguous hint.
    pub contiguous: bool,
    /// How far the hint may change in place, see [`PageTables::set_bbm`]; with level 0 groups are
    /// made and taken apart by break-before-make.
    pub bbm: BbmLevel,
    /// Pages that may be executed no more are broken before they are made so, for an erratum of some
    /// CPU ([`BreakOnExecuteRemoval`](crate::arch::errata::Workaround::BreakOnExecuteRemoval)).
    pub break_execute: bool,
}

impl Settings {
    /// What every CPU can do, and groups.
    pub const PLAIN: Self = Self {
        hardware_access: false,
        hardware_dirty: false,
        contiguous: true,
        bbm: BbmLevel::Level0,
        break_execute: false,
    };
}

/// What a space has, and what was done in it so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Pages that are mapped now.
    pub resident: u64,
    /// Pages that came at their first touch.
    pub mapped: u64,
    /// Pages that were copied at the first write after a fork.
    pub copied: u64,
    /// Pages that were shared once and became writable without a copy.
    pub reused: u64,
    /// Faults for which there was nothing to do.
    pub spurious: u64,
    /// Groups that got the contiguous hint.
    pub folded: u64,
    /// Groups that lost it.
    pub unfolded: u64,
}

impl Stats {
    /// Nothing.
    pub const NONE: Self = Self {
        resident: 0,
        mapped: 0,
        copied: 0,
        reused: 0,
        spurious: 0,
        folded: 0,
        unfolded: 0,
    };

    /// Of two spaces together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            mapped: self.mapped + other.mapped,
            copied: self.copied + other.copied,
            reused: self.reused + other.reused,
            spurious: self.spurious + other.spurious,
            folded: self.folded + other.folded,
            unfolded: self.unfolded + other.unfolded,
        }
    }
}

/// What one page of a space is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Its frame.
    pub frame: PhysicalAddress,
    /// The entry lets EL0 write, or hardware would make it.
    pub writable: bool,
    /// It was used, as far as the access flag tells.
    pub accessed: bool,
    /// It may have been written since it was mapped.
    pub dirty: bool,
    /// It is part of a group with the contiguous hint.
    pub contiguous: bool,
}

/// The address space of one process.
#[derive(Debug)]
pub struct Space<'s, P: Page, E> {
    tables: PageTables<P, E>,
    areas: Areas<'s>,
    settings: Settings,
    /// The bits of every page, whatever may be done with it.
    common: u64,
    stats: Stats,
}

impl<'s, P: Page, E: Environment> Space<'s, P, E> {
    /// An empty space, which no CPU walks yet. `geometry` is that of the lower half; `areas` is the
    /// room for areas.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] when there is no page for the root.
    pub fn new(
        geometry: Geometry,
        environment: E,
        areas: &'s mut [Area],
        settings: Settings,
    ) -> Result<Self, SpaceError> {
        let mut tables = PageTables::new(geometry, environment)?;
        tables.set_bbm(settings.bbm);
        let attributes = Attributes {
            accessed: false,
            global: false,
            ..Attributes::normal(Permissions::READ)
        };
        Ok(Self {
            common: attributes.encode(&geometry) & !Permissions::MASK,
            tables,
            areas: Areas::new(areas),
            settings,
            stats: Stats::default(),
        })
    }

    /// The root table, for TTBR0.
    #[must_use]
    pub const fn root(&self) -> PhysicalAddress {
        self.tables.root()
    }

    /// The shape of the lower half.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        self.tables.geometry()
    }

    /// Says that CPUs may walk the tables from now on: before the root is first written to a TTBR0.
    pub fn make_live(&mut self) {
        self.tables.make_live();
    }

    /// The ASID that CPUs run this space under from now on. No CPU may walk the tables under
    /// another one while `&mut self` is used elsewhere: TLBIs name this one.
    pub const fn set_asid(&mut self, asid: Option<u16>) {
        self.tables.set_asid(asid);
    }

    /// The areas.
    #[must_use]
    pub const fn areas(&self) -> &Areas<'s> {
        &self.areas
    }

    /// More room for areas, after [`SpaceError::AreasFull`]; gives back the room there was.
    ///
    /// # Errors
    ///
    /// [`SpaceError::AreasFull`] when `areas` does not have room for those there are.
    pub fn enlarge_areas(&mut self, areas: &'s mut [Area]) -> Result<&'s mut [Area], SpaceError> {
        self.areas.enlarge(areas)
    }

    /// What there is and what was done.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// What the tables stand on.
    pub const fn environment(&mut self) -> &mut E {
        self.tables.environment()
    }

    /// The tables, to be looked at.
    #[must_use]
    pub const fn tables(&self) -> &PageTables<P, E> {
        &self.tables
    }

    /// What the page of `address` is like, if it is mapped. What hardware noted in one member of a
    /// group counts for all of them (RXDPXQ).
    #[must_use]
    pub fn page(&self, address: VirtualAddress) -> Option<PageState> {
        let offset = self.geometry().offset(address)?;
        let (_, entry) = self.tables.page(offset)?;
        if !entry.is_valid() {
            return None;
        }
        let members = if entry.is_contiguous() {
            P::SIZE.contiguous_entries(Level::L3) as u64
        } else {
            1
        };
        let start = offset & !(members * P::SIZE.bytes() - 1);
        let mut state = PageState {
            frame: self.geometry().address_of(entry, Level::L3),
            writable: is_writable(entry),
            accessed: false,
            dirty: false,
            contiguous: entry.is_contiguous(),
        };
        for member in 0..members {
            let found = self.tables.page(start + member * P::SIZE.bytes());
            let member = found.map_or(entry, |(_, member)| member);
            state.accessed |= member.0 & Descriptor::ACCESS_FLAG != 0;
            state.dirty |= member.0 & DIRTY != 0 || member.0 & Descriptor::AP_READ_ONLY == 0;
        }
        Some(state)
    }

    /// Whether CPUs may be walking the tables.
    fn is_live(&self) -> bool {
        self.tables.liveness() == Liveness::Live
    }

    /// The bits of a page that this space owns alone.
    fn page_bits(&self, rights: Rights, written: bool, accessed: bool) -> u64 {
        let hardware = self.settings.hardware_dirty;
        let permissions = Permissions {
            writable: rights.write && (written || !hardware),
            user: rights.any(),
            privileged_execute: false,
            user_execute: rights.execute,
            guarded: false,
            dirty_modifier: rights.write && hardware,
            software: 0,
        };
        let mut bits = self.common | permissions.encode(self.geometry().regime());
        if accessed || !self.settings.hardware_access {
            bits |= Descriptor::ACCESS_FLAG;
        }
        if written {
            bits |= DIRTY;
        }
        bits
    }
}

/// Whether an entry allows to write, now or after the hardware made it dirty.
const fn is_writable(entry: Descriptor) -> bool {
    entry.0 & Descriptor::AP_READ_ONLY == 0 || entry.0 & Descriptor::DIRTY_MODIFIER != 0
}
