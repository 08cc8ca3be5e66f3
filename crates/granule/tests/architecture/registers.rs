//! TCR, MAIR and TTBR, field by field.

use granule::arch::registers::{Mair, Tcr, TcrSingle, Ttbr};
use granule::arch::{
    CpuFeatures, Geometry, GeometryError, PageSize, PhysicalAddress, Regime, Translation, VaRange,
};
use granule_testing::shape::{Cpu, LARGE, PLAIN, WIDE_INPUT};

use PageSize::{K4, K16, K64};

const fn bits(value: u64, high: u32, low: u32) -> u64 {
    (value >> low) & ((1 << (high - low + 1)) - 1)
}

/// Page size, TG0 and TG1: two different encodings.
const GRANULES: [(PageSize, u64, u64); 3] =
    [(K4, 0b00, 0b10), (K16, 0b10, 0b01), (K64, 0b01, 0b11)];

/// VA bits and TxSZ.
const SIZES: [(u32, u64); 6] = [(36, 28), (39, 25), (42, 22), (47, 17), (48, 16), (52, 12)];

#[test]
fn both_halves() {
    for (size, tg0, tg1) in GRANULES {
        for (va_bits, txsz) in SIZES {
            for cpu in [PLAIN, LARGE, WIDE_INPUT] {
                let features = cpu.features();
                if va_bits > features.most_va_bits(size) {
                    continue;
                }
                let upper = cpu.geometry(size, va_bits, VaRange::Upper);
                let lower = upper
                    .with_va_range(&features, VaRange::Lower, 36, size)
                    .unwrap();
                let tcr = Tcr::new(&features, Some(&lower), Some(&upper)).0;
                assert_eq!(bits(tcr, 5, 0), 28, "T0SZ");
                assert_eq!(bits(tcr, 21, 16), txsz, "T1SZ");
                assert_eq!(bits(tcr, 15, 14), tg0, "TG0");
                assert_eq!(bits(tcr, 31, 30), tg1, "TG1");
                for (what, high, low, value) in [
                    ("EPD0", 7, 7, 0),
                    ("EPD1", 23, 23, 0),
                    ("IRGN0 write-back", 9, 8, 0b01),
                    ("ORGN0 write-back", 11, 10, 0b01),
                    ("SH0 inner", 13, 12, 0b11),
                    ("IRGN1 write-back", 25, 24, 0b01),
                    ("ORGN1 write-back", 27, 26, 0b01),
                    ("SH1 inner", 29, 28, 0b11),
                    ("A1", 22, 22, 0),
                    ("AS", 36, 36, 1),
                    ("TBI, HA, HD, HPD", 42, 37, 0),
                    ("the rest below DS", 58, 43, 0),
                    ("the rest", 63, 60, 0),
                ] {
                    assert_eq!(bits(tcr, high, low), value, "{what}");
                }
                // Only 4K and 16K have DS, and only where addresses of more than 48 bits may
                // occur; 64K's output size alone decides its format.
                let ds = size != K64 && (va_bits == 52 || cpu.parange == 6);
                assert_eq!(bits(tcr, 59, 59), u64::from(ds), "DS {size} {va_bits}");
                let ips = if cpu.parange == 6 { 0b110 } else { 0b101 };
                assert_eq!(bits(tcr, 34, 32), ips, "IPS");
            }
        }
    }
}

#[test]
fn output_sizes() {
    // PARange, IPS and PS: the encodings are the same; above 48 bits only in a 52-bit format.
    for (parange, size, expected) in [
        (0, K4, 0b000),
        (1, K4, 0b001),
        (2, K4, 0b010),
        (3, K4, 0b011),
        (4, K4, 0b100),
        (5, K4, 0b101),
        (6, K4, 0b101),
        (6, K64, 0b110),
        (7, K64, 0b110),
    ] {
        let cpu = Cpu { parange, ..PLAIN };
        let geometry = cpu.geometry(size, 48, VaRange::Upper);
        let tcr = Tcr::new(&cpu.features(), None, Some(&geometry)).0;
        assert_eq!(bits(tcr, 34, 32), expected, "IPS for PARange {parange}");
        let single = tcr_single(&cpu, &cpu.single(size, 48, Regime::El2));
        assert_eq!(bits(single, 18, 16), expected, "PS for PARange {parange}");
    }
}

/// TCR of the tables of a regime with one half.
fn tcr_single(cpu: &Cpu, geometry: &Geometry) -> u64 {
    let half = (geometry, Ttbr::NONE);
    Translation::new(&cpu.features(), Some(half), None)
        .unwrap()
        .tcr
}

#[test]
fn a_half_that_is_not_used_makes_no_walks() {
    let features = PLAIN.features();
    let upper = PLAIN.geometry(K16, 47, VaRange::Upper);
    let tcr = Tcr::new(&features, None, Some(&upper)).0;
    assert_eq!((bits(tcr, 7, 7), bits(tcr, 23, 23)), (1, 0));
    assert_eq!(bits(tcr, 31, 30), 0b01);
    let lower = PLAIN.geometry(K16, 47, VaRange::Lower);
    let tcr = Tcr::new(&features, Some(&lower), None).0;
    assert_eq!((bits(tcr, 7, 7), bits(tcr, 23, 23)), (0, 1));
    assert_eq!(bits(tcr, 15, 14), 0b10);
    assert_eq!((Tcr::EPD0, Tcr::EPD1), (1 << 7, 1 << 23));
    assert_eq!((Tcr::DS, Tcr::AS), (1 << 59, 1 << 36));
}

#[test]
fn small_asids() {
    let mut cpu = PLAIN.features();
    cpu.mmfr0 &= !0xf0;
    let geometry = PLAIN.geometry(K4, 48, VaRange::Lower);
    let tcr = Tcr::new(&cpu, Some(&geometry), None).0;
    assert_eq!(bits(tcr, 36, 36), 0, "AS without 16-bit ASIDs");
}

#[test]
fn one_half() {
    for regime in [Regime::El2, Regime::El3] {
        for (size, tg0, _) in GRANULES {
            for (va_bits, txsz) in SIZES {
                let tcr = tcr_single(&LARGE, &LARGE.single(size, va_bits, regime));
                for (what, high, low, value) in [
                    ("T0SZ", 5, 0, txsz),
                    ("IRGN0", 9, 8, 0b01),
                    ("ORGN0", 11, 10, 0b01),
                    ("SH0", 13, 12, 0b11),
                    ("TG0", 15, 14, tg0),
                    ("PS", 18, 16, 0b110),
                    ("TBI", 20, 20, 0),
                    ("HA and HD", 22, 21, 0),
                    ("RES1", 23, 23, 1),
                    ("HPD and others", 30, 24, 0),
                    ("RES1", 31, 31, 1),
                    ("DS", 32, 32, u64::from(size != K64)),
                    ("the rest", 63, 33, 0),
                ] {
                    assert_eq!(bits(tcr, high, low), value, "{what} {size} {va_bits}");
                }
            }
        }
    }
}

fn base_register(geometry: &Geometry, root: PhysicalAddress, asid: u16) -> Ttbr {
    // SAFETY: no CPU gets the value.
    unsafe { Ttbr::from_root(geometry, root, asid) }
}

#[test]
fn table_base() {
    // Base in 47:1, ASID in 63:48; in a 52-bit format 5:2 hold address bits 51:48.
    let plain = PLAIN.geometry(K4, 48, VaRange::Lower);
    let ttbr = base_register(&plain, PhysicalAddress(0x8765_4321_f000), 0xbeef).bits();
    assert_eq!(ttbr, 0xbeef_8765_4321_f000);
    for size in PageSize::ALL {
        let wide = LARGE.geometry(size, 52, VaRange::Upper);
        for high in 0..16 {
            let root = PhysicalAddress(high << 48 | 0x1234_5678_0000);
            let ttbr = base_register(&wide, root, 7).bits();
            assert_eq!(bits(ttbr, 0, 0), 0, "CnP");
            assert_eq!(bits(ttbr, 1, 1), 0);
            assert_eq!(bits(ttbr, 5, 2), high, "address bits 51:48");
            assert_eq!(ttbr & 0xffff_ffff_ffc0, 0x1234_5678_0000);
            assert_eq!(bits(ttbr, 63, 48), 7, "ASID");
        }
    }
}

#[test]
fn memory_attributes() {
    // Index, attribute byte: write-back read/write-allocate, Device-nGnRE, Non-cacheable,
    // Device-nGnRnE, tagged write-back.
    use granule::arch::MemoryType::{
        Device, DeviceStrict, Index, Normal, NormalNonCacheable, NormalTagged,
    };
    let rows = [
        (Normal, 0xff),
        (Device, 0x04),
        (NormalNonCacheable, 0x44),
        (DeviceStrict, 0x00),
        (NormalTagged, 0xf0),
    ];
    for (memory, byte) in rows {
        let at = u32::from(memory.index()) * 8;
        assert_eq!(bits(Mair::STANDARD.0, at + 7, at), byte, "{memory:?}");
    }
    // No two share an index, and a caller's own index keeps to three bits.
    let mut indices: Vec<u8> = rows.iter().map(|(memory, _)| memory.index()).collect();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), rows.len());
    assert_eq!(Index(0xff).index(), 7);
}

/// Every register that this library makes is read back as the shape that it was made of.
#[test]
fn shapes_are_read_back() {
    let mut read = 0;
    for size in PageSize::ALL {
        for cpu in [PLAIN, LARGE, WIDE_INPUT] {
            let features = cpu.features();
            for va_bits in features.least_va_bits(size)..=features.most_va_bits(size) {
                let upper = cpu.geometry(size, va_bits, VaRange::Upper);
                let lower = upper
                    .with_va_range(&features, VaRange::Lower, 39, size)
                    .unwrap();
                let tcr = Tcr::new(&features, Some(&lower), Some(&upper));
                assert_eq!(Geometry::from_tcr(tcr, VaRange::Upper), Ok(Some(upper)));
                assert_eq!(Geometry::from_tcr(tcr, VaRange::Lower), Ok(Some(lower)));
                // A register for one half does not describe the other.
                let only = Tcr::new(&features, None, Some(&upper));
                assert_eq!(Geometry::from_tcr(only, VaRange::Lower), Ok(None));
                assert_eq!(Geometry::from_tcr(only, VaRange::Upper), Ok(Some(upper)));
                let high = if upper.pa_bits() > 48 { 0xf << 48 } else { 0 };
                let root = PhysicalAddress(0x1234_5678_0000 | high);
                // SAFETY: no CPU gets this register.
                let ttbr = unsafe { Ttbr::from_root(&upper, root, 0xabcd) };
                assert_eq!(
                    upper.root_in(ttbr.bits() | 1),
                    root,
                    "CnP is not an address bit"
                );
                for regime in [Regime::El2, Regime::El3] {
                    let half = VaRange::Lower;
                    let one = Geometry::new(&features, size, va_bits, half, regime).unwrap();
                    let tcr = TcrSingle(tcr_single(&cpu, &one));
                    assert_eq!(Geometry::from_tcr_single(tcr, regime), Ok(one));
                    read += 1;
                }
            }
        }
    }
    assert!(read > 300, "{read}");
}

#[test]
fn reserved_fields_are_refused() {
    let good = Tcr(0b10 << 30 | 16 << 16 | 16);
    assert!(Geometry::from_tcr(good, VaRange::Upper).is_ok());
    for (bits, half, words) in [
        (good.0 | 0b11 << 14, VaRange::Lower, "TCR.TG0 is 0x3, with"),
        (
            good.0 & !(0b11 << 30),
            VaRange::Upper,
            "TCR.TG1 is 0x0, with",
        ),
        // 52 bits without DS, and fewer bits than any CPU has.
        (good.0 & !0x3f | 12, VaRange::Lower, "TCR.T0SZ is 0xc, with"),
        (good.0 | 63, VaRange::Lower, "TCR.T0SZ is 0x3f, with"),
        (good.0 & !0x3f_0000, VaRange::Upper, "TCR.T1SZ is 0x0, with"),
        // 64K pages have no 16 bits.
        (0b01 << 14 | 48, VaRange::Lower, "TCR.T0SZ is 0x30, with"),
    ] {
        let error = Geometry::from_tcr(Tcr(bits), half).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
    let single = TcrSingle(16);
    assert!(Geometry::from_tcr_single(single, Regime::El2).is_ok());
    assert_eq!(
        Geometry::from_tcr_single(single, Regime::El1And0),
        Err(GeometryError::TwoHalves(Regime::El1And0))
    );
    assert_eq!(
        Geometry::from_tcr_single(single, Regime::Stage2),
        Err(GeometryError::NotStage1)
    );
    assert!(Geometry::from_tcr_single(TcrSingle(16 | 0b11 << 14), Regime::El3).is_err());
}

#[test]
fn a_regime_without_asids_has_none_in_its_ttbr() {
    let root = PhysicalAddress(0x4000_0000);
    for (regime, expected) in [
        (Regime::El1And0, 7 << 48 | 0x4000_0000),
        (Regime::El2, 0x4000_0000),
        (Regime::El3, 0x4000_0000),
    ] {
        let cpu = CpuFeatures {
            mmfr0: 0x0010_0005,
            ..CpuFeatures::NONE
        };
        let geometry = Geometry::new(&cpu, PageSize::K4, 48, VaRange::Lower, regime).unwrap();
        // SAFETY: no CPU uses the register.
        let ttbr = unsafe { Ttbr::from_root(&geometry, root, 7) };
        assert_eq!(ttbr.bits(), expected, "{regime:?}");
    }
}
