//! Data shared between a CPU that parks the others and the parked CPUs, which are off the kernel's tables,
//! and the arguments of the parking code. `cpu::parking` uses it; the code is `early::head::parked`.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use granule_kcore::cpus::MOST_CPUS;

/// The flags, whose pages are also mapped 1:1.
#[repr(C, align(4096))]
pub(crate) struct Control {
    /// The number of the last parking that is over.
    pub(crate) released: AtomicU64,
    pub(crate) slots: [Slot; MOST_CPUS],
}

/// A parked CPU's report, written from the identity map.
#[repr(C)]
pub(crate) struct Slot {
    /// The number of the parking that the CPU is in, or was in last.
    pub(crate) parked: AtomicU64,
    /// PAR_EL1 of translating a kernel address: bit 0 is set if it does not translate.
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

/// Offset for `head::parked`.
pub(crate) const SLOT_PARKED: usize = offset_of!(Slot, parked);
/// Offset for `head::parked`.
pub(crate) const SLOT_TRANSLATION: usize = offset_of!(Slot, translation);

/// The arguments of the code in the identity map, which can access no other memory.
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

/// The addresses that parking needs mapped 1:1 and writable.
pub(crate) fn addresses() -> core::ops::Range<u64> {
    let start = &raw const CONTROL as u64;
    start..start + size_of::<Control>() as u64
}
