//! The page sizes that this build has code for: all of them, or one (features `fixed-4k` and so on;
//! build.rs makes them into `page_4k`, `page_16k` and `page_64k`).
//!
//! Static storage is sized and aligned by [`MAX`], as the linker script is by `LARGEST_PAGE`, and
//! counts are bounded by [`MIN`]. What decides the layout of the address space is not: it is the
//! same in every build.

use granule::arch::page_size::Page;
#[cfg(page_4k)]
use granule::arch::page_size::Page4K;
#[cfg(page_16k)]
use granule::arch::page_size::Page16K;
use granule::arch::{Dispatch, PageSize};
use granule_boot::sizes::SizeSet;

/// The page sizes there is code for.
pub const BUILT: SizeSet = {
    let mut sizes = SizeSet::NONE;
    if cfg!(page_4k) {
        sizes = sizes.with(PageSize::K4);
    }
    if cfg!(page_16k) {
        sizes = sizes.with(PageSize::K16);
    }
    if cfg!(page_64k) {
        sizes = sizes.with(PageSize::K64);
    }
    sizes
};

/// The smallest of them.
pub const MIN: PageSize = if cfg!(page_4k) {
    PageSize::K4
} else if cfg!(page_16k) {
    PageSize::K16
} else {
    PageSize::K64
};

#[cfg(page_64k)]
type Largest = granule::arch::page_size::Page64K;
#[cfg(all(page_16k, not(page_64k)))]
type Largest = granule::arch::page_size::Page16K;
#[cfg(not(any(page_16k, page_64k)))]
type Largest = granule::arch::page_size::Page4K;

/// The largest of them.
pub const MAX: PageSize = Largest::SIZE;

/// Calls `what` with the type of `size`, which must be one of those that there is code for: the
/// choice at boot is among them (`mmu_off::peek`). For any other it is called with the largest.
pub fn dispatch<D: Dispatch>(size: PageSize, what: D) -> D::Output {
    match size {
        #[cfg(page_4k)]
        PageSize::K4 if MAX != PageSize::K4 => what.run::<Page4K>(),
        #[cfg(page_16k)]
        PageSize::K16 if MAX != PageSize::K16 => what.run::<Page16K>(),
        _ => what.run::<Largest>(),
    }
}
