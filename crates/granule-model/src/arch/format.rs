//! The shape of tables: levels, sizes of entries, and the levels of blocks and contiguous groups.
//!
//! Numbers only: [`descriptor`](super::descriptor) decodes the bits of a descriptor.

/// A translation granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Granule {
    /// 4 KiB.
    K4,
    /// 16 KiB.
    K16,
    /// 64 KiB.
    K64,
}

impl Granule {
    /// The bits of an offset in a page.
    pub(crate) const fn shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::K16 => 14,
            Self::K64 => 16,
        }
    }

    /// The address bits that a whole table resolves: a table is one page of 8-byte entries.
    pub(crate) const fn table_bits(self) -> u32 {
        self.shift() - 3
    }

    /// The address bits below the bits that select an entry of `level`.
    pub(crate) const fn level_shift(self, level: i8) -> u32 {
        self.shift() + (3 - level) as u32 * self.table_bits()
    }

    /// The level where the walk of `va_bits` bits of address starts.
    pub(crate) const fn start_level(self, va_bits: u32) -> i8 {
        3 - ((va_bits - 1 - self.shift()) / self.table_bits()) as i8
    }
}

/// The layout of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Format {
    pub(crate) granule: Granule,
    /// TCR.DS in effect: bits 9:8 and 49:48 are address bits (4K and 16K only).
    pub(crate) ds: bool,
    /// FEAT_LPA with 64K: bits 15:12 are address bits.
    pub(crate) lpa: bool,
}

impl Format {
    /// Whether a leaf (block, or page at level 3) may be at `level`.
    pub(crate) const fn leaf_allowed(self, level: i8) -> bool {
        match (self.granule, level) {
            (_, 3 | 2) | (Granule::K4, 1) => true,
            (Granule::K4, 0) | (Granule::K16, 1) => self.ds,
            (Granule::K64, 1) => self.lpa,
            _ => false,
        }
    }

    /// The members of a contiguous group at `level`; 1 where the bit has no meaning.
    pub(crate) const fn group(self, level: i8) -> u64 {
        match (self.granule, level) {
            (Granule::K4, 1..=3) => 16,
            (Granule::K16, 3) => 128,
            (Granule::K16, 2) | (Granule::K64, 2 | 3) => 32,
            _ => 1,
        }
    }

    /// The bits of output address that a descriptor can hold.
    pub(crate) const fn address_bits(self) -> u32 {
        if self.ds || self.lpa { 52 } else { 48 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Granule::{K4, K16, K64};

    /// Granule, VA bits, start level, entries of the top table.
    const STARTS: &[(Granule, u32, i8, u64)] = &[
        (K4, 36, 1, 64),
        (K4, 39, 1, 512),
        (K4, 42, 0, 8),
        (K4, 47, 0, 256),
        (K4, 48, 0, 512),
        (K4, 52, -1, 16),
        (K16, 36, 2, 2048),
        (K16, 39, 1, 8),
        (K16, 42, 1, 64),
        (K16, 47, 1, 2048),
        (K16, 48, 0, 2),
        (K16, 52, 0, 32),
        (K64, 36, 2, 128),
        (K64, 39, 2, 1024),
        (K64, 42, 2, 8192),
        (K64, 47, 1, 32),
        (K64, 48, 1, 64),
        (K64, 52, 1, 1024),
    ];

    #[test]
    fn walks_start_where_the_architecture_says() {
        for &(granule, va_bits, level, entries) in STARTS {
            assert_eq!(granule.start_level(va_bits), level, "{granule:?} {va_bits}");
            let top = va_bits - granule.level_shift(level);
            assert_eq!(1 << top, entries, "{granule:?} {va_bits}");
        }
    }

    #[test]
    fn entries_cover_what_the_architecture_says() {
        const GIB: u64 = 1 << 30;
        let sizes: &[(Granule, i8, u64)] = &[
            (K4, 0, 512 * GIB),
            (K4, 1, GIB),
            (K4, 2, 2 << 20),
            (K4, 3, 4 << 10),
            (K16, 0, 128 * 1024 * GIB),
            (K16, 1, 64 * GIB),
            (K16, 2, 32 << 20),
            (K16, 3, 16 << 10),
            (K64, 1, 4 * 1024 * GIB),
            (K64, 2, 512 << 20),
            (K64, 3, 64 << 10),
        ];
        for &(granule, level, bytes) in sizes {
            assert_eq!(
                1 << granule.level_shift(level),
                bytes,
                "{granule:?} {level}"
            );
        }
    }

    #[test]
    fn groups_span_what_the_architecture_says() {
        let spans: &[(Granule, i8, u64)] = &[
            (K4, 3, 64 << 10),
            (K4, 2, 32 << 20),
            (K4, 1, 16 << 30),
            (K16, 3, 2 << 20),
            (K16, 2, 1 << 30),
            (K64, 3, 2 << 20),
            (K64, 2, 16 << 30),
        ];
        for &(granule, level, bytes) in spans {
            let format = Format {
                granule,
                ds: false,
                lpa: false,
            };
            let span = format.group(level) << granule.level_shift(level);
            assert_eq!(span, bytes, "{granule:?} {level}");
        }
        for (granule, level) in [(K4, 0), (K16, 1), (K64, 1)] {
            let format = Format {
                granule,
                ds: true,
                lpa: true,
            };
            assert_eq!(format.group(level), 1, "{granule:?} {level}");
        }
    }

    #[test]
    fn blocks_are_where_the_architecture_allows_them() {
        // Granule, level, without any extension, with DS, with FEAT_LPA.
        let rows = [
            (K4, -1, false, false, false),
            (K4, 0, false, true, false),
            (K4, 1, true, true, true),
            (K4, 2, true, true, true),
            (K16, 0, false, false, false),
            (K16, 1, false, true, false),
            (K16, 2, true, true, true),
            (K64, 1, false, false, true),
            (K64, 2, true, true, true),
        ];
        for (granule, level, plain, with_ds, with_lpa) in rows {
            let allowed = |ds, lpa| Format { granule, ds, lpa }.leaf_allowed(level);
            assert_eq!(allowed(false, false), plain, "{granule:?} {level}");
            if granule != K64 {
                assert_eq!(allowed(true, false), with_ds, "{granule:?} {level}");
            } else {
                assert_eq!(allowed(false, true), with_lpa, "{granule:?} {level}");
            }
        }
    }
}
