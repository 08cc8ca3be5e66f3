//! The page sizes that this build has code for: all of them, or those whose features are on (`page-4k` and
//! so on).
//!
//! [`MAX`] sizes and aligns static storage, as `LARGEST_PAGE` does in the linker script; [`MIN`]
//! bounds counts. The layout of the address space does not depend on them: it is the same in every
//! build.
//!
//! VA size and 52-bit formats are chosen at boot in every build. A request for a size without code is ignored
//! with a line that has the reason; a CPU without any of the sizes is refused.

#[cfg(feature = "page-4k")]
use granule::arch::Page4K;
#[cfg(feature = "page-16k")]
use granule::arch::Page16K;
use granule::arch::{Dispatch, Page, PageSize};
use granule_boot::sizes::SizeSet;

#[cfg(not(any(feature = "page-4k", feature = "page-16k", feature = "page-64k")))]
compile_error!("a kernel needs a page size: feature page-4k, page-16k or page-64k");

/// The page sizes that this build has code for.
pub const BUILT: SizeSet = {
    let mut sizes = SizeSet::NONE;
    if cfg!(feature = "page-4k") {
        sizes = sizes.with(PageSize::K4);
    }
    if cfg!(feature = "page-16k") {
        sizes = sizes.with(PageSize::K16);
    }
    if cfg!(feature = "page-64k") {
        sizes = sizes.with(PageSize::K64);
    }
    sizes
};

/// The smallest of them.
pub const MIN: PageSize = if cfg!(feature = "page-4k") {
    PageSize::K4
} else if cfg!(feature = "page-16k") {
    PageSize::K16
} else {
    PageSize::K64
};

#[cfg(feature = "page-64k")]
type Largest = granule::arch::Page64K;
#[cfg(all(feature = "page-16k", not(feature = "page-64k")))]
type Largest = granule::arch::Page16K;
#[cfg(not(any(feature = "page-16k", feature = "page-64k")))]
type Largest = granule::arch::Page4K;

/// The largest of them.
pub const MAX: PageSize = Largest::SIZE;

/// Calls `what` with the type of `size`, which must be in [`BUILT`]: the choice at boot takes care of
/// that (`mmu_off::peek`). Any other size is replaced by the largest.
pub fn dispatch<D: Dispatch>(size: PageSize, what: D) -> D::Output {
    match size {
        #[cfg(feature = "page-4k")]
        PageSize::K4 if MAX != PageSize::K4 => what.run::<Page4K>(),
        #[cfg(feature = "page-16k")]
        PageSize::K16 if MAX != PageSize::K16 => what.run::<Page16K>(),
        _ => what.run::<Largest>(),
    }
}
