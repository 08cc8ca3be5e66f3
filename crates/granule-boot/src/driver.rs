//! The page sizes that a driver can work with, checked when the driver is probed.
//!
//! Some devices work with one page size only: an IOMMU that has only 16K pages, or a hypervisor
//! whose ring is made of 4K pages. A driver states this as a [`Requirement`]. The code that probes
//! drivers calls [`Requirement::check`] first and leaves out every driver that cannot work. Buses,
//! devices and the search for drivers do not belong here.
//!
//! ```
//! use granule::arch::PageSize::{K16, K64};
//! use granule_boot::driver::Requirement;
//!
//! let iommu = Requirement::Exactly(K16);
//! assert!(iommu.check("dart", K16).is_ok());
//! assert_eq!(
//!     iommu.check("dart", K64).unwrap_err().to_string(),
//!     "driver dart works with 16k pages only and the kernel runs with 64k: \
//!      left out; boot with arm64.pagesize=16k to have it"
//! );
//! ```

use crate::sizes::SizeSet;
use core::fmt;
use granule::arch::PageSize;

/// The kernel page sizes that a driver can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// Every size: the driver reads the page size or does not depend on it. Every driver should
    /// be like this.
    Any,
    /// Only this size.
    Exactly(PageSize),
    /// The sizes of the set.
    OneOf(SizeSet),
    /// This size and smaller, for data that must fit a page of the device.
    AtMost(PageSize),
    /// This size and larger, for data that must fit a page of the kernel.
    AtLeast(PageSize),
}

impl Requirement {
    /// Whether the driver works in a kernel with page size `running`.
    #[must_use]
    pub const fn accepts(self, running: PageSize) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(size) => size.shift() == running.shift(),
            Self::OneOf(set) => set.has(running),
            Self::AtMost(size) => running.shift() <= size.shift(),
            Self::AtLeast(size) => running.shift() >= size.shift(),
        }
    }

    /// All page sizes that the driver accepts.
    #[must_use]
    pub fn sizes(self) -> SizeSet {
        PageSize::ALL
            .into_iter()
            .filter(|size| self.accepts(*size))
            .collect()
    }

    /// Checks `driver` when it is probed, before it touches its device.
    ///
    /// # Errors
    ///
    /// Fails with a one-line message when the driver must be left out.
    pub fn check(self, driver: &str, running: PageSize) -> Result<(), Mismatch<'_>> {
        if self.accepts(running) {
            return Ok(());
        }
        Err(Mismatch {
            driver,
            requirement: self,
            running,
        })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Exactly(size) => write!(f, "{size}"),
            Self::AtMost(size) => write!(f, "at most {size}"),
            Self::AtLeast(size) => write!(f, "at least {size}"),
            Self::OneOf(set) => write!(f, "{set}"),
        }
    }
}

/// The driver cannot work with the chosen page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch<'a> {
    driver: &'a str,
    requirement: Requirement,
    running: PageSize,
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            driver,
            requirement,
            running,
        } = self;
        let sizes = requirement.sizes();
        if sizes == SizeSet::NONE {
            return write!(
                f,
                "driver {driver} works with no page size and is left out: correct what it requires"
            );
        }
        match requirement {
            Requirement::Exactly(size) => {
                write!(f, "driver {driver} works with {size} pages only")?
            }
            _ => write!(f, "driver {driver} works with pages of {requirement}")?,
        }
        write!(
            f,
            " and the kernel runs with {running}: left out; boot with arm64.pagesize="
        )?;
        let mut separator = "";
        for size in PageSize::ALL.into_iter().filter(|size| sizes.has(*size)) {
            write!(f, "{separator}{size}")?;
            separator = " or ";
        }
        f.write_str(" to have it")
    }
}

impl core::error::Error for Mismatch<'_> {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use PageSize::{K4, K16, K64};
    use std::string::ToString;

    const TABLE: [(Requirement, [bool; 3], &str); 8] = [
        (Requirement::Any, [true, true, true], "any"),
        (Requirement::Exactly(K4), [true, false, false], "4k"),
        (Requirement::Exactly(K16), [false, true, false], "16k"),
        (Requirement::Exactly(K64), [false, false, true], "64k"),
        (
            Requirement::OneOf(SizeSet::NONE.with(K4).with(K64)),
            [true, false, true],
            "4k, 64k",
        ),
        (Requirement::AtMost(K16), [true, true, false], "at most 16k"),
        (
            Requirement::AtLeast(K16),
            [false, true, true],
            "at least 16k",
        ),
        (Requirement::OneOf(SizeSet::NONE), [false; 3], "none"),
    ];

    #[test]
    fn each_requirement_accepts_what_it_says() {
        for (requirement, accepted, text) in TABLE {
            assert_eq!(
                PageSize::ALL.map(|size| requirement.accepts(size)),
                accepted
            );
            assert_eq!(requirement.to_string(), text);
            for (size, accepted) in PageSize::ALL.into_iter().zip(accepted) {
                assert_eq!(requirement.sizes().has(size), accepted);
                assert_eq!(requirement.check("d", size).is_ok(), accepted);
            }
        }
    }

    #[test]
    fn a_mismatch_is_one_line_that_says_what_to_do() {
        for (requirement, accepted, _) in TABLE {
            for (size, accepted) in PageSize::ALL.into_iter().zip(accepted) {
                let Err(mismatch) = requirement.check("net", size) else {
                    assert!(accepted);
                    continue;
                };
                let line = mismatch.to_string();
                assert_eq!(line.lines().count(), 1);
                assert!(
                    line.contains("driver net ") && line.contains("left out"),
                    "{line}"
                );
                if requirement.sizes() == SizeSet::NONE {
                    continue;
                }
                // The message names the running size and every size that the driver accepts, no
                // other.
                assert!(line.contains(size.name()), "{line}");
                let (_, words) = line.split_once("arm64.pagesize=").unwrap();
                for other in PageSize::ALL {
                    let named = words.split(' ').any(|word| word == other.name());
                    assert_eq!(named, requirement.accepts(other), "{line}");
                }
            }
        }
        let line = Requirement::AtMost(K16).check("ring", K64).unwrap_err();
        assert_eq!(
            line.to_string(),
            "driver ring works with pages of at most 16k and the kernel runs with 64k: left out; \
             boot with arm64.pagesize=4k or 16k to have it"
        );
    }
}
