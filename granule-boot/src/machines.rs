//! The table of machines with wishes about their page size, as data.
//!
//! The CPU's ID registers alone do not pick a size that works: an IOMMU may protect memory only
//! in units larger than a page, and a machine with little or very much memory has a size that
//! suits it. This table says so, machine by machine, and nothing else: what is done about it is
//! in [`choice`](super::choice).
//!
//! # Adding a machine
//!
//! Add one [`Machine`] to [`MACHINES`], narrower entries before wider ones, since the first match
//! counts:
//! - `is`: how it is recognised. The device tree's root `compatible` is best. A MIDR names a
//!   core, which sits in many machines *and in every virtual machine that runs on them*, where
//!   other devices are: use it for preferences that hold wherever the core is, not to forbid. The
//!   SoC identity (SMCCC_ARCH_SOC_ID) is for machines that are known by firmware calls alone.
//! - `preferred`: the sizes to try, best first. A CPU that lacks one leaves a note.
//! - `forbidden`: what is used only if the command line asks for it, with a warning. A size belongs here if the machine
//!   does not work with it or protects less than it promises, not if it is merely slow. Mind the
//!   direction: a device whose unit is *smaller* than the page is no obstacle, one page is then
//!   several of its units; a device whose unit is *larger* cannot tell neighbouring pages apart.
//! - `reason`: half a sentence a person understands.
//!
//! The tests check that no entry prefers what it forbids and none is hidden by one before it.

use super::bytes::same;
use super::sizes::SizeSet;
use core::fmt;
use granule::arch::PageSize::{self, K4, K16, K64};

/// A machine, or a family of machines, and the page sizes that it likes and dislikes.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// What people call it.
    pub name: &'static str,
    /// What it is recognised by: any one of these.
    pub is: &'static [Mark],
    /// The sizes to try if nobody asks for one, best first.
    pub preferred: &'static [PageSize],
    /// The sizes that it must not use.
    pub forbidden: SizeSet,
    /// Why.
    pub reason: &'static str,
}

/// What a machine is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// One of the strings in the `compatible` property of the device tree's root.
    Compatible(&'static str),
    /// The boot CPU's MIDR_EL1: implementer, and part number unless any part will do.
    Midr {
        /// MIDR_EL1 bits 31:24.
        implementer: u8,
        /// MIDR_EL1 bits 15:4.
        part: Option<u16>,
    },
    /// The SoC's identity as firmware tells it (SMCCC_ARCH_SOC_ID, type 0): the manufacturer's
    /// JEP-106 bank and code in bits 30:16, the SoC in bits 15:0.
    Soc(u32),
}

/// What is known about the machine that the kernel runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<C> {
    /// The strings of the root's `compatible` property.
    pub compatible: C,
    /// The boot CPU's MIDR_EL1.
    pub midr: Option<u64>,
    /// The answer to SMCCC_ARCH_SOC_ID, where firmware has that call.
    pub soc: Option<u32>,
}

const NONE: SizeSet = SizeSet::NONE;

/// The machines with wishes of their own.
pub const MACHINES: &[Machine] = &[
    Machine {
        name: "Apple M1 or M2",
        is: &[
            Mark::Compatible("apple,t8103"),
            Mark::Compatible("apple,t6000"),
            Mark::Compatible("apple,t6001"),
            Mark::Compatible("apple,t6002"),
            Mark::Compatible("apple,t8112"),
            Mark::Compatible("apple,t6020"),
            Mark::Compatible("apple,t6021"),
            Mark::Compatible("apple,t6022"),
        ],
        preferred: &[K16],
        forbidden: NONE.with(K4),
        reason: "its IOMMU (DART) has 16k pages and cannot tell smaller ones apart",
    },
    // Their DART has 4K pages, which any page size of the CPU can be put together from, so
    // nothing is forbidden. 64K, which all of them have too, would waste much of 1 to 4 GiB.
    Machine {
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
    Machine {
        name: "Apple A9, A10 or A11",
        is: &[
            Mark::Compatible("apple,s8000"),
            Mark::Compatible("apple,s8001"),
            Mark::Compatible("apple,s8003"),
            Mark::Compatible("apple,t8010"),
            Mark::Compatible("apple,t8011"),
            Mark::Compatible("apple,t8015"),
        ],
        preferred: &[K16],
        forbidden: NONE,
        reason: "little memory, an IOMMU (DART) with 4k pages, and a CPU with 16k and 64k",
    },
    // Not by MIDR: Grace's cores are Neoverse V2, and so are those of other makers' servers.
    Machine {
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
) -> Option<&'static Machine> {
    find_in(MACHINES, identity)
}

/// The first entry of `machines` that matches: for kernels with a table of their own.
#[must_use]
pub fn find_in<'m, 'a>(
    machines: &'m [Machine],
    identity: &Identity<impl Iterator<Item = &'a [u8]> + Clone>,
) -> Option<&'m Machine> {
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

impl fmt::Display for Machine {
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
