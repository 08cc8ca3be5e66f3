//! What a CPU that parks the others shares with them while they are off the kernel's tables, and what
//! the code that parks them is given. `cpu::parking` does it; `early::head::parked` is that code.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use granule_kcore::cpus::MOST_CPUS;

/// The flags, alone in a page of the smallest size. Mapped 1:1 too.
#[repr(C, align(4096))]
pub(crate) struct Control {
    /// The number of the parking that is over.
    pub(crate) released: AtomicU64,
    pub(crate) slots: [Slot; MOST_CPUS],
}

/// What a parked CPU says: one cache line, written from the identity map.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The number of the parking that it is in, or was in last.
    pub(crate) parked: AtomicU64,
    /// PAR_EL1 after asking for a kernel address: bit 0 says that it does not translate.
    pub(crate) translation: AtomicU64,
}

pub(crate) static CONTROL: Control = Control {
    released: AtomicU64::new(0),
    slots: [const {
        Slot {
            parked: AtomicU64::new(0),
            translation: AtomicU64::new(0),
        }
    }; MOST_CPUS],
};

/// For `head::parked`.
pub(crate) const SLOT_PARKED: usize = offset_of!(Slot, parked);
/// For `head::parked`.
pub(crate) const SLOT_TRANSLATION: usize = offset_of!(Slot, translation);

/// What the code in the identity map needs; it cannot reach any other memory.
#[repr(C)]
pub(crate) struct Arguments {
    /// Physical addresses of the slot, of the flag and of the code.
    pub(crate) slot: u64,
    pub(crate) released: u64,
    pub(crate) code: u64,
    /// TTBR values.
    pub(crate) identity: u64,
    pub(crate) empty: u64,
    /// The number of this parking.
    pub(crate) epoch: u64,
    /// A kernel address that must not translate while parked.
    pub(crate) probe: u64,
}

/// The address of the page that parking needs mapped 1:1, writable.
pub(crate) fn page() -> u64 {
    &raw const CONTROL as u64
}

const _: () = assert!(size_of::<Control>() as u64 <= granule::arch::PageSize::MIN.bytes());
