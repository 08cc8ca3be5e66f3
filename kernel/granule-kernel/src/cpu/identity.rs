//! Register values and physical addresses for a CPU that runs on the identity map, off the kernel's tables.
//! `smp::identity` makes the map.

#![allow(unsafe_code, reason = "registers of a CPU that leaves the tables")]

use crate::trace::bring_up;
use core::sync::atomic::{AtomicU64, Ordering};

/// TTBR0 of the identity map, and below it the TTBR value of an empty table for either VA range.
static IDENTITY: AtomicU64 = AtomicU64::new(0);
static EMPTY: AtomicU64 = AtomicU64::new(0);
/// Virtual minus physical address of the image.
static IMAGE_DISTANCE: AtomicU64 = AtomicU64::new(0);

/// TTBR0 of the identity map.
pub(crate) fn identity() -> u64 {
    IDENTITY.load(Ordering::Relaxed)
}

/// A TTBR0 or TTBR1 value with nothing mapped.
pub(crate) fn empty() -> u64 {
    EMPTY.load(Ordering::Relaxed)
}

pub(crate) fn physical(address: u64) -> u64 {
    address.wrapping_sub(IMAGE_DISTANCE.load(Ordering::Relaxed))
}

/// Sets all three values: TTBR0 of the identity map, a TTBR with nothing mapped, and the image's virtual
/// minus physical address.
pub(crate) fn set(identity: u64, empty: u64, image_distance: u64) {
    IDENTITY.store(identity, Ordering::Relaxed);
    EMPTY.store(empty, Ordering::Relaxed);
    IMAGE_DISTANCE.store(image_distance, Ordering::Relaxed);
}

/// Takes this CPU off the identity map: its lower VA range is empty until it is parked.
pub(crate) fn leave() {
    // SAFETY: the kernel runs in the upper VA range and accesses nothing through the lower one.
    unsafe { bring_up::set_ttbr0_el1(empty()) };
    bring_up::tlbi_vmalle1_local();
}
