//! Sets of page sizes: the sizes that a CPU has, that a kernel build supports, that a driver
//! accepts, or that a machine forbids.

use core::fmt;
use granule::arch::{CpuFeatures, PageSize, Support};

/// A set of page sizes, stored as the sum of their bytes: each size is a distinct power of two.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SizeSet(u64);

impl SizeSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// All page sizes.
    pub const ALL: Self = Self::NONE
        .with(PageSize::K4)
        .with(PageSize::K16)
        .with(PageSize::K64);

    /// This set with `size` added.
    #[must_use]
    pub const fn with(self, size: PageSize) -> Self {
        Self(self.0 | size.bytes())
    }

    /// Whether `size` is in the set.
    #[must_use]
    pub const fn has(self, size: PageSize) -> bool {
        self.0 & size.bytes() != 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The smallest size in the set that is not in `forbidden`.
    pub(crate) fn smallest_except(self, forbidden: Self) -> Option<PageSize> {
        PageSize::ALL
            .into_iter()
            .find(|size| self.has(*size) && !forbidden.has(*size))
    }
}

impl From<&CpuFeatures> for SizeSet {
    fn from(cpu: &CpuFeatures) -> Self {
        PageSize::ALL
            .into_iter()
            .filter(|size| cpu.page_size(*size) != Support::No)
            .collect()
    }
}

impl FromIterator<PageSize> for SizeSet {
    fn from_iter<I: IntoIterator<Item = PageSize>>(sizes: I) -> Self {
        sizes.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for SizeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for size in PageSize::ALL {
            if self.has(size) {
                write!(f, "{separator}{size}")?;
                separator = ", ";
            }
        }
        if separator.is_empty() {
            f.write_str("none")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for SizeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
