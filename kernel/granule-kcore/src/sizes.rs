//! The page sizes that this build has code for: all of them, or one (features `fixed-4k` and so on;
//! build.rs turns them into `page_4k`, `page_16k` and `page_64k`).
//!
//! [`MAX`] sizes and aligns static storage, as `LARGEST_PAGE` does in the linker script; [`MIN`]
//! bounds counts. The layout of the address space does not depend on them: it is the same in every
//! build.
//!
//! VA size and 52-bit formats are chosen at boot in every build. A request for a size without code is ignored
//! with a line that has the reason; a CPU without any of the sizes is refused.

use granule::arch::Page;
#[cfg(page_4k)]
use granule::arch::Page4K;
#[cfg(page_16k)]
use granule::arch::Page16K;
use granule::arch::{Dispatch, PageSize};
use granule_boot::sizes::SizeSet;

/// The page sizes that this build has code for.
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
type Largest = granule::arch::Page64K;
#[cfg(all(page_16k, not(page_64k)))]
type Largest = granule::arch::Page16K;
#[cfg(not(any(page_16k, page_64k)))]
type Largest = granule::arch::Page4K;

/// The largest of them.
pub const MAX: PageSize = Largest::SIZE;

/// Calls `what` with the type of `size`, which must be in [`BUILT`]: the choice at boot takes care of
/// that (`mmu_off::peek`). Any other size is replaced by the largest.
pub fn dispatch<D: Dispatch>(size: PageSize, what: D) -> D::Output {
    match size {
        #[cfg(page_4k)]
        PageSize::K4 if MAX != PageSize::K4 => what.run::<Page4K>(),
        #[cfg(page_16k)]
        PageSize::K16 if MAX != PageSize::K16 => what.run::<Page16K>(),
        _ => what.run::<Largest>(),
    }
}
