//! The values of SCTLR that the kernel sets, with the MMU off and on, as constants for assembly.

use granule::arch::{Regime, Sctlr};

/// SCTLR_EL1 with the MMU and caches off. With E2H set SCTLR_EL2 has this same layout.
pub(crate) const SCTLR_MMU_OFF: u64 = Sctlr::off(Regime::El1And0).0;

/// SCTLR_EL2 with the MMU off, without E2H.
pub(crate) const SCTLR_EL2_MMU_OFF: u64 = Sctlr::off(Regime::El2).0;

/// SCTLR of the running kernel.
pub(crate) const SCTLR_MMU_ON: u64 = Sctlr::on(Regime::El1And0).0;

/// SCTLR.M, SCTLR.C and SCTLR.I, which have the same places at EL1 and at EL2, with E2H and without.
pub(crate) const MMU_AND_CACHES: u64 = 0x1005;
