//! The values of SCTLR that the kernel sets, with the MMU off and on.

/// SCTLR_EL1 with the MMU and caches off: the bits that are RES1 without later extensions
/// (LSMAOE, nTLSMD, SPAN, EIS, TSCXT, EOS), all else 0; so little endian, no
/// alignment checks beyond those of Device memory. With E2H set SCTLR_EL2 has
/// this same layout.
pub(crate) const SCTLR_MMU_OFF: u64 = 0x30d0_0800;

/// SCTLR_EL2 with the MMU off, without E2H: its RES1 bits.
pub(crate) const SCTLR_EL2_MMU_OFF: u64 = 0x30c5_0830;

/// SCTLR of the running kernel: M, C, I, and SA so that a misaligned stack pointer
/// faults. Not WXN: the tables decide which pages execute, and a user's JIT may want
/// a page that WXN would forbid.
pub(crate) const SCTLR_MMU_ON: u64 = SCTLR_MMU_OFF | 1 << 0 | 1 << 2 | 1 << 3 | 1 << 12;
