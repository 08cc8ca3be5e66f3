//! Ranges of CPUs by MIDR_EL1, for the tables of errata and of trusted CPUs.

/// CPUs of one kind, from one revision to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MidrRange {
    /// MIDR implementer.
    pub implementer: u8,
    /// MIDR part number.
    pub part: u16,
    /// The first variant and revision, as `variant << 4 | revision` (r1p2 is 0x12).
    pub first: u8,
    /// The last variant and revision, in the same encoding.
    pub last: u8,
}

pub(crate) const ARM: u8 = 0x41;
pub(crate) const CAVIUM: u8 = 0x43;
pub(crate) const FUJITSU: u8 = 0x46;
pub(crate) const NVIDIA: u8 = 0x4e;
pub(crate) const QUALCOMM: u8 = 0x51;
pub(crate) const MICROSOFT: u8 = 0x6d;
pub(crate) const AMPERE: u8 = 0xc0;

impl MidrRange {
    /// Whether the CPU with this MIDR is in the range.
    pub(super) const fn contains(&self, midr: u64) -> bool {
        let implementer = (midr >> 24) as u8;
        let part = ((midr >> 4) & 0xfff) as u16;
        let version = (((midr >> 20) & 0xf) << 4 | (midr & 0xf)) as u8;
        implementer == self.implementer
            && part == self.part
            && version >= self.first
            && version <= self.last
    }
}
