//! The identity map as a CPU uses it that is off the kernel's tables: the values of its registers, and
//! physical addresses of the image. `smp::identity` makes the map.

use crate::trace::bring_up;
use core::sync::atomic::{AtomicU64, Ordering};

/// TTBR values: the identity map, and nothing at all for each half.
static IDENTITY: AtomicU64 = AtomicU64::new(0);
static EMPTY: AtomicU64 = AtomicU64::new(0);
/// Virtual minus physical address of the image.
static IMAGE_DISTANCE: AtomicU64 = AtomicU64::new(0);

/// TTBR0 of the identity map.
pub(crate) fn identity() -> u64 {
    IDENTITY.load(Ordering::Relaxed)
}

/// TTBR0 or TTBR1 with nothing mapped.
pub(crate) fn empty() -> u64 {
    EMPTY.load(Ordering::Relaxed)
}

/// The physical address of something in the image.
pub(crate) fn physical(address: u64) -> u64 {
    address.wrapping_sub(IMAGE_DISTANCE.load(Ordering::Relaxed))
}

/// Sets all three: TTBR0 of the identity map, a TTBR with nothing mapped, and the image's virtual minus
/// physical address.
pub(crate) fn set(identity: u64, empty: u64, image_distance: u64) {
    IDENTITY.store(identity, Ordering::Relaxed);
    EMPTY.store(empty, Ordering::Relaxed);
    IMAGE_DISTANCE.store(image_distance, Ordering::Relaxed);
}

/// Takes this CPU off the identity map: until it is parked, its lower half has nothing in it.
pub(crate) fn leave() {
    // SAFETY: the kernel runs in the upper half; nothing is reached through the lower one.
    unsafe { bring_up::set_ttbr0_el1(empty()) };
    bring_up::tlbi_vmalle1_local();
}
