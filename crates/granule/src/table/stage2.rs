//! The changes of permissions at stage 2.
//!
//! A [`Stage2PermissionChange`] can express only changes that rule RWHZWS allows without
//! break-before-make, as [`PermissionChange`](super::PermissionChange) does for stage 1. How a
//! change is made is in [`protect`](super::protect), for both stages.
//!
//! # An example
//!
//! A guest of 64 MiB whose RAM begins at 1 GiB. The tables are in a plain vector and no CPU walks
//! them; a hypervisor implements [`TableEnvironment`], with `hw::issue` for the instructions.
//!
//! ```
//! use granule::arch::Vtcr;
//! use granule::arch::{
//!     CpuFeatures, IntermediateAddress, Page4K, PageSize, PhysicalAddress,
//!     Stage2Attributes, Stage2Geometry, Stage2Permissions,
//! };
//! use granule::table::{FreeList, Holes, Leaves, Offset, PageTables, Stage2, Stage2PermissionChange};
//!
//! // A CPU with 48 bits of physical address and 4K pages.
//! let cpu = CpuFeatures { mmfr0: 5, ..CpuFeatures::NONE };
//! let geometry = Stage2Geometry::new(&cpu, PageSize::K4, 40)?;
//! // One table of level 1 translates 39 bits, so 40 bits take two that follow each other.
//! assert_eq!(geometry.shape().root_tables(), 2);
//! assert_eq!(Vtcr::new(&cpu, &geometry).0 & 0xff, 24 | 0b01 << 6);
//!
//! let mut pages = vec![0u64; 17 * 512];
//! let start = PhysicalAddress(pages.as_mut_ptr().expose_provenance() as u64);
//! let end = PhysicalAddress(start.0 + 17 * 4096);
//! // SAFETY: the vector is nobody else's and lives longer than the tables.
//! let pages = unsafe {
//!     let mut pages = FreeList::new(Offset::new(0), PageSize::K4);
//!     pages.add(start, end);
//!     pages
//! };
//! let mut guest = PageTables::<Page4K, _, Stage2>::new(geometry, pages.environment())?;
//! let ram = IntermediateAddress(1 << 30);
//! let host = PhysicalAddress(0x8_0000_0000);
//! let all = Stage2Attributes::normal(Stage2Permissions::ALL);
//! guest.map(ram, host, 64 << 20, all, Leaves::LARGEST)?;
//!
//! // No CPU has the VMID in use, and the environment issues no instruction.
//! // SAFETY: no CPU walks the tables of this example.
//! let mut guest = unsafe { guest.make_live() };
//! assert_eq!(guest.vttbr(7).bits(), guest.root_table().0 | 7 << 48);
//! // The guest's first 32 MiB become read-only: the TLBIs by intermediate physical address, then
//! // VMALLE1IS for what the guest's CPUs combined with their own tables.
//! let read_only = Stage2PermissionChange { writable: Some(false), ..Stage2PermissionChange::NONE };
//! // SAFETY: nothing of the hypervisor relies on the guest's stores.
//! unsafe { guest.changes() }.protect(ram, 32 << 20, read_only, Holes::Refuse)?;
//! let there = guest.query(ram).ok_or("not mapped")?;
//! assert_eq!(there.output, host);
//! assert!(!there.attributes.permissions.writable);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! The types of the stages do not mix. A virtual address is none of a guest:
//!
//! ```compile_fail,E0308
//! use granule::arch::{Page4K, VirtualAddress};
//! use granule::table::{PageTables, Stage2, TableEnvironment, TableError};
//!
//! fn unmap<E: TableEnvironment>(
//!     guest: &mut PageTables<Page4K, E, Stage2>,
//! ) -> Result<(), TableError> {
//!     guest.unmap(VirtualAddress(0x1000), 0x1000)
//! }
//! ```
//!
//! and a guest's tables are for VTTBR_EL2 alone:
//!
//! ```compile_fail,E0599
//! use granule::arch::Page4K;
//! use granule::table::{Live, PageTables, Stage2, TableEnvironment};
//!
//! fn ttbr<E: TableEnvironment>(guest: &Live<PageTables<Page4K, E, Stage2>>) -> u64 {
//!     guest.ttbr(0).bits()
//! }
//! ```

use super::memory::BitChange;
use crate::arch::stage2::Execute;
use crate::arch::{Descriptor, Geometry};

/// A change of permissions at stage 2. `None` leaves a permission unchanged, for example
/// `Stage2PermissionChange { writable: Some(false), ..Stage2PermissionChange::NONE }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage2PermissionChange {
    /// Whether loads are allowed.
    pub readable: Option<bool>,
    /// Whether stores are allowed. `Some(false)` also clears the dirty modifier (DBM) unless
    /// [`dirty_modifier`](Self::dirty_modifier) is `Some(true)`, because under VTCR_EL2.HD hardware
    /// would otherwise allow stores again.
    ///
    /// **The dirty state is lost with the modifier**, and a harvest of it before the call misses the
    /// stores in between. [`PageTables::protect`](super::PageTables::protect) has the way that loses
    /// none.
    pub writable: Option<bool>,
    /// The privileges that may execute.
    pub execute: Option<Execute>,
    /// Whether hardware manages the dirty state under VTCR_EL2.HD (DBM): as
    /// [`PermissionChange::dirty_modifier`](super::PermissionChange::dirty_modifier).
    ///
    /// For a guest that runs, `NONE.writable(false).dirty_modifier(true)` of its RAM makes every page
    /// clean. [`Harvest::Dirty`](super::Harvest::Dirty) then gives what the guest wrote since, as
    /// often as it is asked. `NONE.writable(true).dirty_modifier(false)` ends that.
    pub dirty_modifier: Option<bool>,
    /// Software's four bits; the upper four are ignored.
    pub software: Option<u8>,
}

impl Stage2PermissionChange {
    /// No change.
    pub const NONE: Self = Self {
        readable: None,
        writable: None,
        execute: None,
        dirty_modifier: None,
        software: None,
    };

    /// The change as descriptor bits.
    pub(super) fn bits(self, geometry: &Geometry) -> BitChange {
        let mut change = BitChange {
            of: BitChange::LEAVES,
            clear: 0,
            set: 0,
        };
        let mut replace = |mask: u64, bits: Option<u64>| {
            if let Some(bits) = bits {
                change.clear |= mask;
                change.set |= bits;
            }
        };
        let bit = |mask: u64, value: Option<bool>| value.map(|on| if on { mask } else { 0 });
        replace(
            Descriptor::S2AP_READ,
            bit(Descriptor::S2AP_READ, self.readable),
        );
        replace(
            Descriptor::S2AP_WRITE,
            bit(Descriptor::S2AP_WRITE, self.writable),
        );
        let read_only = (self.writable == Some(false)).then_some(false);
        replace(
            Descriptor::DIRTY_MODIFIER,
            bit(
                Descriptor::DIRTY_MODIFIER,
                self.dirty_modifier.or(read_only),
            ),
        );
        let by_privilege = geometry.execute_by_privilege();
        replace(
            Descriptor::STAGE2_XN,
            self.execute.map(|execute| execute.encode(by_privilege)),
        );
        replace(
            Descriptor::SOFTWARE,
            self.software.map(|bits| (u64::from(bits) & 0b1111) << 55),
        );
        change
    }
}
