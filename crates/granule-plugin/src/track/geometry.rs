//! The shape of a tree of tables, from the values of the registers that name it. Pure functions.

/// Bit 0 of a descriptor.
const VALID: u64 = 1;
/// Bits 1:0 of a table descriptor, and of a page.
const TABLE: u64 = 0b11;

/// The form of the descriptors of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// Bits of the page size: 12, 14 or 16.
    pub granule: u8,
    /// Whether 4K and 16K descriptors have the addresses of TCR.DS.
    pub ds: bool,
    /// Whether 64K descriptors hold bits 51:48 of an address.
    pub wide: bool,
}

/// The place and shape of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TablePlace {
    /// The physical address of the first entry.
    pub base: u64,
    /// The number of entries.
    pub entries: u32,
    /// The level, -1 to 3.
    pub level: i8,
    /// The form of its descriptors.
    pub form: Form,
}

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// No translation.
    Invalid,
    /// A block or page at this address.
    Leaf(u64),
    /// A table at this address.
    Table(u64),
}

impl Form {
    /// Returns the number of address bits that an entry of this level leaves untranslated.
    #[must_use]
    pub const fn shift(self, level: i8) -> u32 {
        let granule = self.granule as u32;
        granule + (3 - level) as u32 * (granule - 3)
    }

    /// Decodes the address in a descriptor, of an object of `1 << low` bytes.
    const fn address(self, descriptor: u64, low: u32) -> u64 {
        let (top, high) = if self.granule == 16 {
            let high = if self.wide { descriptor >> 12 & 15 } else { 0 };
            (48, high << 48)
        } else if self.ds {
            (50, (descriptor >> 8 & 3) << 50)
        } else {
            (48, 0)
        };
        descriptor & ((1 << top) - 1) & !((1 << low) - 1) | high
    }

    /// Decodes a descriptor at a level.
    #[must_use]
    pub const fn entry(self, descriptor: u64, level: i8) -> Entry {
        if descriptor & VALID == 0 {
            return Entry::Invalid;
        }
        let is_table = descriptor & TABLE == TABLE;
        match (level, is_table) {
            (3, true) => Entry::Leaf(self.address(descriptor, self.granule as u32)),
            (3, false) => Entry::Invalid,
            (_, true) => Entry::Table(self.address(descriptor, self.granule as u32)),
            (level, false) if self.has_blocks(level) => {
                Entry::Leaf(self.address(descriptor, self.shift(level)))
            }
            _ => Entry::Invalid,
        }
    }

    const fn has_blocks(self, level: i8) -> bool {
        match (self.granule, level) {
            (_, 2) => true,
            (12, 1) => true,
            (12, 0) | (14, 1) => self.ds,
            (16, 1) => self.wide,
            _ => false,
        }
    }
}

impl TablePlace {
    /// Returns the table at an address, one level below this one.
    #[must_use]
    pub const fn below(&self, address: u64) -> Self {
        Self {
            base: address,
            entries: 1 << (self.form.granule - 3),
            level: self.level + 1,
            form: self.form,
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.entries as u64 * 8
    }
}

/// The fields of a TCR that define one half.
#[derive(Clone, Copy, Debug)]
struct Fields {
    txsz: u64,
    granule: Option<u8>,
    ds: bool,
    wide: bool,
    /// The level of the top tables, if a field sets it.
    start: Option<i8>,
}

const fn granule0(tg: u64) -> Option<u8> {
    match tg & 3 {
        0 => Some(12),
        1 => Some(16),
        2 => Some(14),
        _ => None,
    }
}

const fn granule1(tg: u64) -> Option<u8> {
    match tg & 3 {
        1 => Some(14),
        2 => Some(12),
        3 => Some(16),
        _ => None,
    }
}

/// Returns the top table of a half of EL1&0, or `None` if its walks are disabled (EPD) or its size
/// is invalid.
#[must_use]
pub(super) const fn el1(tcr: u64, ttbr: u64, upper: bool) -> Option<TablePlace> {
    let half = if upper { tcr >> 16 } else { tcr };
    if half >> 7 & 1 != 0 {
        return None;
    }
    top(
        Fields {
            txsz: half & 63,
            granule: if upper {
                granule1(half >> 14)
            } else {
                granule0(half >> 14)
            },
            ds: tcr >> 59 & 1 != 0,
            wide: tcr >> 32 & 7 >= 6,
            start: None,
        },
        ttbr,
    )
}

/// Returns the top table of EL2 without VHE, or of EL3.
#[must_use]
pub(super) const fn el2(tcr: u64, ttbr: u64) -> Option<TablePlace> {
    top(
        Fields {
            txsz: tcr & 63,
            granule: granule0(tcr >> 14),
            ds: tcr >> 32 & 1 != 0,
            wide: tcr >> 16 & 7 >= 6,
            start: None,
        },
        ttbr,
    )
}

/// Returns the top tables of stage 2, which may be concatenated.
#[must_use]
pub(super) const fn stage2(vtcr: u64, vttbr: u64) -> Option<TablePlace> {
    let granule = granule0(vtcr >> 14);
    let ds = vtcr >> 32 & 1 != 0;
    let sl0 = (vtcr >> 6 & 3) as i8;
    let start = match granule {
        // SL2 is bit 33, and means level -1 with DS.
        Some(12) if ds && vtcr >> 33 & 1 != 0 => -1,
        Some(12) => match sl0 {
            3 => 3,
            sl0 => 2 - sl0,
        },
        _ => 3 - sl0,
    };
    top(
        Fields {
            txsz: vtcr & 63,
            granule,
            ds,
            wide: vtcr >> 16 & 7 >= 6,
            start: Some(start),
        },
        vttbr,
    )
}

const fn top(fields: Fields, ttbr: u64) -> Option<TablePlace> {
    let Some(granule) = fields.granule else {
        return None;
    };
    let form = Form {
        granule,
        ds: fields.ds && granule != 16,
        wide: fields.wide && granule == 16,
    };
    let most = if form.ds || granule == 16 { 52 } else { 48 };
    let Some(bits) = 64_u64.checked_sub(fields.txsz) else {
        return None;
    };
    // A size that is too large may be treated as the largest, as QEMU does.
    let bits = if bits > most { most } else { bits };
    if bits <= granule as u64 {
        return None;
    }
    let level = match fields.start {
        Some(level) => level,
        None => 3 - ((bits - 1 - granule as u64) / (granule as u64 - 3)) as i8,
    };
    if level < -1 || level > 3 {
        return None;
    }
    let shift = form.shift(level) as u64;
    // Concatenated tables: 16 at most. A top table has one entry at least.
    if bits > shift + granule as u64 - 3 + 4 {
        return None;
    }
    let entries: u32 = if bits > shift { 1 << (bits - shift) } else { 1 };
    let high = if form.ds || form.wide {
        (ttbr >> 2 & 15) << 48
    } else {
        0
    };
    let bytes = entries as u64 * 8;
    // With addresses of 52 bits the table is aligned to 64 bytes at least.
    let align = if high != 0 && bytes < 64 { 64 } else { bytes };
    Some(TablePlace {
        base: ttbr & 0x0000_ffff_ffff_fffe & !(align - 1) | high,
        entries,
        level,
        form,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn tcr(t0sz: u64, tg0: u64, t1sz: u64, tg1: u64) -> u64 {
        t0sz | tg0 << 14 | t1sz << 16 | tg1 << 30 | 0b101 << 32
    }

    #[test]
    fn top_tables_are_those_of_the_architecture() {
        // Bits of address, TG1, first level, entries: the table of DDI 0487, D8.2.
        for (bits, tg1, level, entries) in [
            (39, 2, 1, 512),
            (42, 2, 0, 8),
            (48, 2, 0, 512),
            (36, 1, 2, 2048),
            (47, 1, 1, 2048),
            (48, 1, 0, 2),
            (42, 3, 2, 8192),
            (48, 3, 1, 64),
            (52, 3, 1, 1024),
        ] {
            let place = el1(tcr(16, 0, 64 - bits, tg1), 0x4123_4000_0000, true).unwrap();
            assert_eq!((place.level, place.entries), (level, entries), "{bits}");
        }
        let ds = tcr(12, 0, 12, 2) | 1 << 59;
        let place = el1(ds, 0x4000_0000 | 0b1010 << 2, true).unwrap();
        assert_eq!((place.level, place.entries), (-1, 16));
        assert_eq!(place.base, 0xa_0000_4000_0000);
    }

    #[test]
    fn a_half_without_walks_or_granule_has_no_top() {
        assert_eq!(el1(tcr(16, 0, 16, 2) | 1 << 23, 0, true), None);
        assert_eq!(el1(tcr(16, 3, 16, 2), 0, false), None);
        assert_eq!(el1(tcr(16, 0, 16, 0), 0, true), None);
        assert!(el1(tcr(16, 0, 16, 2), 1 << 48 | 0x4000_0001, false).is_some());
    }

    #[test]
    fn stage_2_starts_at_the_level_of_sl0() {
        // 40 bits, 4K, from level 1: two concatenated tables.
        let place = stage2(24 | 1 << 6 | 2 << 16, 7 << 48 | 0x4000_2000).unwrap();
        assert_eq!((place.level, place.entries), (1, 1024));
        assert_eq!(place.base, 0x4000_2000);
        // 48 bits, 64K, from level 1.
        let place = stage2(16 | 2 << 6 | 1 << 14, 0x4000_0000).unwrap();
        assert_eq!((place.level, place.entries), (1, 64));
        assert_eq!(stage2(16 | 3 << 14, 0), None);
    }

    #[test]
    fn descriptors_are_decoded() {
        let form = |granule, ds, wide| Form { granule, ds, wide };
        let plain = form(12, false, false);
        assert_eq!(plain.entry(0x4000_0701, 3), Entry::Invalid);
        assert_eq!(plain.entry(0x4000_0703, 3), Entry::Leaf(0x4000_0000));
        assert_eq!(plain.entry(0x4020_0701, 2), Entry::Leaf(0x4020_0000));
        assert_eq!(plain.entry(0x4020_0701, 0), Entry::Invalid);
        assert_eq!(plain.entry(0x4020_3003, 2), Entry::Table(0x4020_3000));
        assert_eq!(plain.entry(0x4020_3002, 2), Entry::Invalid);
        let wide = form(16, false, true);
        assert_eq!(wide.entry(0x4003_a003, 2), Entry::Table(0xa_0000_4003_0000));
        let ds = form(12, true, false);
        assert_eq!(ds.entry(0x4000_1303, 3), Entry::Leaf(0xc_0000_4000_1000));
        assert_eq!(plain.below_shift(), 21);
    }

    impl Form {
        fn below_shift(self) -> u32 {
            self.shift(2)
        }
    }
}
