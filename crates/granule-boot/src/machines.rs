//! The table of machines that prefer or forbid page sizes, as data.
//!
//! The CPU's ID registers alone do not give a page size that works: an IOMMU may protect memory
//! only in units larger than a page, and a machine with little or very much memory has a size that
//! suits it. This table states the facts for each machine. [`choice`](super::choice) decides what
//! follows from them.
//!
//! # Adding a machine
//!
//! Add one [`KnownMachine`] to [`MACHINES`]. The first match counts, so put narrower entries before
//! wider ones:
//! - `is`: the marks that identify the machine. The root `compatible` of the device tree is best. A
//!   MIDR names a core, which many machines have *and every virtual machine that runs on them*,
//!   with other devices: use a MIDR for preferences that hold wherever the core is, never to
//!   forbid. The SoC identity (SMCCC_ARCH_SOC_ID) is for machines that only firmware calls
//!   identify.
//! - `preferred`: the sizes to try, best first. A size that the CPU lacks leaves a note.
//! - `forbidden`: sizes that are used only if the command line selects them, with a warning. A size
//!   belongs here if the machine does not work with it or protects less than it promises, not if it
//!   is merely slow. A device whose unit is *smaller* than the page is not an obstacle, because one
//!   page is then several of its units. A device whose unit is *larger* cannot separate
//!   neighbouring pages.
//! - `reason`: half a sentence that a person understands.
//!
//! The tests check that no entry prefers a size that it forbids, and that no earlier entry hides a
//! later one. `make test-peers` demands an entry for each machine of Apple's among the trees of
//! Debian's kernels.

use super::bytes::same;
use super::sizes::SizeSet;
use core::fmt;
use granule::arch::PageSize::{self, K4, K16, K64};

/// A machine, or a family of machines, with its preferred and forbidden page sizes.
#[derive(Clone, Copy, Debug)]
pub struct KnownMachine {
    /// The common name.
    pub name: &'static str,
    /// Identifying marks: any one of them suffices.
    pub is: &'static [Mark],
    /// The sizes to try if the command line names none, best first.
    pub preferred: &'static [PageSize],
    /// The sizes that the machine must not use.
    pub forbidden: SizeSet,
    /// The reason for these sizes.
    pub reason: &'static str,
}

/// A mark that identifies a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// One of the strings in the `compatible` property of the device tree's root.
    Compatible(&'static str),
    /// The boot CPU's MIDR_EL1: the implementer, and the part number unless any part matches.
    Midr {
        /// MIDR_EL1 bits 31:24.
        implementer: u8,
        /// MIDR_EL1 bits 15:4.
        part: Option<u16>,
    },
    /// The SoC's identity from firmware (SMCCC_ARCH_SOC_ID, type 0): the manufacturer's JEP-106
    /// bank and code in bits 30:16, the SoC in bits 15:0.
    Soc(u32),
}

/// The identity of the machine that the kernel runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<C> {
    /// The strings of the root's `compatible` property.
    pub compatible: C,
    /// The boot CPU's MIDR_EL1.
    pub midr: Option<u64>,
    /// The answer to SMCCC_ARCH_SOC_ID, if firmware has that call.
    pub soc: Option<u32>,
}

const NONE: SizeSet = SizeSet::NONE;

/// The known machines with preferred or forbidden sizes.
pub const MACHINES: &[KnownMachine] = &[
    KnownMachine {
        name: "Apple M1, M2 or M3",
        is: &[
            Mark::Compatible("apple,t8103"),
            Mark::Compatible("apple,t6000"),
            Mark::Compatible("apple,t6001"),
            Mark::Compatible("apple,t6002"),
            Mark::Compatible("apple,t8112"),
            Mark::Compatible("apple,t6020"),
            Mark::Compatible("apple,t6021"),
            Mark::Compatible("apple,t6022"),
            Mark::Compatible("apple,t8122"),
            Mark::Compatible("apple,t6030"),
            Mark::Compatible("apple,t6031"),
            Mark::Compatible("apple,t6032"),
            Mark::Compatible("apple,t6033"),
            Mark::Compatible("apple,t6034"),
        ],
        preferred: &[K16],
        forbidden: NONE.with(K4),
        reason: "its IOMMU (DART) has 16k pages and cannot tell smaller ones apart",
    },
    // The DART of these SoCs has 4K pages. Every page size of the CPU is a multiple, so none is
    // forbidden. 64K, which all of them have too, would waste much of 1 to 4 GiB.
    KnownMachine {
        name: "Apple A7, A8 or A8X",
        is: &[
            Mark::Compatible("apple,s5l8960x"),
            Mark::Compatible("apple,t7000"),
            Mark::Compatible("apple,t7001"),
        ],
        preferred: &[K4],
        forbidden: NONE,
        reason: "little memory, an IOMMU (DART) with 4k pages, and a CPU with 4k and 64k",
    },
    KnownMachine {
        name: "Apple A9, A10, A11 or T2",
        is: &[
            Mark::Compatible("apple,s8000"),
            Mark::Compatible("apple,s8001"),
            Mark::Compatible("apple,s8003"),
            Mark::Compatible("apple,t8010"),
            Mark::Compatible("apple,t8011"),
            Mark::Compatible("apple,t8012"),
            Mark::Compatible("apple,t8015"),
        ],
        preferred: &[K16],
        forbidden: NONE,
        reason: "little memory, an IOMMU (DART) with 4k pages, and a CPU with 16k and 64k",
    },
    // A MIDR does not identify Grace: its cores are Neoverse V2, and so are those of other makers'
    // servers.
    KnownMachine {
        name: "NVIDIA Grace",
        is: &[Mark::Soc(0x036b_0241)],
        preferred: &[K64],
        forbidden: NONE,
        reason: "very much memory; its maker recommends 64k",
    },
];

/// The first entry of [`MACHINES`] that matches.
#[must_use]
pub fn find<'a>(
    identity: &Identity<impl Iterator<Item = &'a [u8]> + Clone>,
) -> Option<&'static KnownMachine> {
    find_in(MACHINES, identity)
}

/// The first entry of `machines` that matches, for kernels with their own table.
#[must_use]
pub fn find_in<'m, 'a>(
    machines: &'m [KnownMachine],
    identity: &Identity<impl Iterator<Item = &'a [u8]> + Clone>,
) -> Option<&'m KnownMachine> {
    machines
        .iter()
        .find(|machine| machine.is.iter().any(|mark| mark.fits(identity)))
}

impl Mark {
    fn fits<'a>(&self, identity: &Identity<impl Iterator<Item = &'a [u8]> + Clone>) -> bool {
        match *self {
            Self::Compatible(name) => identity
                .compatible
                .clone()
                .any(|own| same(own, name.as_bytes())),
            Self::Midr { implementer, part } => identity.midr.is_some_and(|midr| {
                (midr >> 24) & 0xff == u64::from(implementer)
                    && part.is_none_or(|part| (midr >> 4) & 0xfff == u64::from(part))
            }),
            Self::Soc(soc) => identity.soc == Some(soc),
        }
    }
}

impl fmt::Display for KnownMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: prefers", self.name)?;
        let mut separator = " ";
        for size in self.preferred {
            write!(f, "{separator}{size}")?;
            separator = ", ";
        }
        if self.preferred.is_empty() {
            f.write_str(" nothing")?;
        }
        write!(f, "; must not use {}; {}", self.forbidden, self.reason)
    }
}
