//! Page sizes, levels, start levels, blocks and contiguous groups, row by row.

use granule::arch::{
    Dispatch, Geometry, GeometryError, Level, OutputFormat, Page, PageSize, Regime, VaRange,
    VirtualAddress,
};
use granule_testing::shape::{Cpu, LARGE, PLAIN, WIDE_INPUT};

use PageSize::{K4, K16, K64};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

const fn level(number: i32) -> Level {
    match number {
        -1 => Level::Minus1,
        0 => Level::L0,
        1 => Level::L1,
        2 => Level::L2,
        _ => Level::L3,
    }
}

#[test]
fn page_sizes() {
    // Size, bytes, entries of a table, name.
    let rows = [
        (K4, 4 * KIB, 512, "4k"),
        (K16, 16 * KIB, 2048, "16k"),
        (K64, 64 * KIB, 8192, "64k"),
    ];
    for (size, bytes, entries, name) in rows {
        assert_eq!(size.bytes(), bytes);
        assert_eq!(1 << size.shift(), bytes);
        assert_eq!(size.entries(), entries);
        assert_eq!(size.entries(), entries);
        assert_eq!(size.name(), name);
        assert_eq!(size.to_string(), name);
        assert_eq!(format!("{size:>4}"), format!("{name:>4}"));
        assert_eq!(PageSize::from_bytes(bytes), Some(size));
        // A table is one page.
        assert_eq!(size.entries() as u64 * 8, bytes);
    }
    for bytes in [0, 1, 8 * KIB, 32 * KIB, 128 * KIB, 4 * KIB + 1] {
        assert_eq!(PageSize::from_bytes(bytes), None);
    }
    assert_eq!((PageSize::MIN, PageSize::MAX), (K4, K64));
    assert_eq!(PageSize::ALL, [K4, K16, K64]);
}

#[test]
fn dispatch_leads_to_the_type_of_the_size() {
    struct Which;
    impl Dispatch for Which {
        type Output = (PageSize, usize);
        fn run<P: Page>(self) -> Self::Output {
            (P::SIZE, core::mem::size_of::<P>())
        }
    }
    for size in PageSize::ALL {
        assert_eq!(size.dispatch(Which), (size, 0));
    }
}

/// Level, and the highest and lowest input address bit that it resolves.
const LEVELS: [(PageSize, i32, u32, u32); 13] = [
    (K4, -1, 51, 48),
    (K4, 0, 47, 39),
    (K4, 1, 38, 30),
    (K4, 2, 29, 21),
    (K4, 3, 20, 12),
    (K16, 0, 51, 47),
    (K16, 1, 46, 36),
    (K16, 2, 35, 25),
    (K16, 3, 24, 14),
    (K64, 1, 51, 42),
    (K64, 2, 41, 29),
    (K64, 3, 28, 16),
    (K64, 3, 28, 16),
];

#[test]
fn levels() {
    for (size, number, high, low) in LEVELS {
        let at = level(number);
        assert_eq!(size.level_shift(at), low, "{size} level {number}");
        assert_eq!(size.entry_bytes(at), 1 << low);
        assert_eq!(at.number(), number);
        assert_eq!(at.to_string(), number.to_string());
        if number < 3 {
            assert_eq!(at.next().number(), number + 1);
            let (_, _, next_high, _) = *LEVELS
                .iter()
                .find(|row| row.0 == size && row.1 == number + 1)
                .unwrap();
            assert_eq!(next_high + 1, low, "levels of {size} leave a gap");
        }
        assert!(1 << (high - low) < size.entries());
    }
    let sizes = [
        (K4, 0, 512 * GIB),
        (K4, 1, GIB),
        (K4, 2, 2 * MIB),
        (K16, 0, 128 * TIB),
        (K16, 1, 64 * GIB),
        (K16, 2, 32 * MIB),
        (K64, 1, 4 * TIB),
        (K64, 2, 512 * MIB),
    ];
    for (size, number, bytes) in sizes {
        assert_eq!(size.entry_bytes(level(number)), bytes);
    }
}

/// Start level and entries of the root.
type Root = (i32, usize);

/// VA bits; then the roots for 4K, 16K and 64K; TxSZ.
const VA_SIZES: [(u32, [Root; 3], u64); 6] = [
    (36, [(1, 64), (2, 2048), (2, 128)], 28),
    (39, [(1, 512), (1, 8), (2, 1024)], 25),
    (42, [(0, 8), (1, 64), (2, 8192)], 22),
    (47, [(0, 256), (1, 2048), (1, 32)], 17),
    (48, [(0, 512), (0, 2), (1, 64)], 16),
    (52, [(-1, 16), (0, 32), (1, 1024)], 12),
];

#[test]
fn virtual_address_sizes() {
    for (va_bits, by_size, txsz) in VA_SIZES {
        for (size, (start, entries)) in PageSize::ALL.into_iter().zip(by_size) {
            let cpus: &[Cpu] = if va_bits == 52 {
                &[LARGE, WIDE_INPUT]
            } else {
                &[LARGE, WIDE_INPUT, PLAIN]
            };
            for cpu in cpus {
                for half in [VaRange::Lower, VaRange::Upper] {
                    let geometry = cpu.geometry(size, va_bits, half);
                    let what = format!("{size} pages, {va_bits} bits");
                    assert_eq!(geometry.start_level().number(), start, "{what}");
                    assert_eq!(geometry.root_entries(), entries, "{what}");
                    assert_eq!(64 - u64::from(geometry.va_bits()), txsz);
                    assert_eq!(geometry.page_size(), size);
                    assert_eq!(geometry.va_range(), half);
                }
            }
        }
    }
}

/// Blocks: page size, level, whether plain (48-bit) and whether with the 52-bit format.
const BLOCKS: [(PageSize, i32, bool, bool); 13] = [
    (K4, -1, false, false),
    (K4, 0, false, true),
    (K4, 1, true, true),
    (K4, 2, true, true),
    (K4, 3, true, true),
    (K16, 0, false, false),
    (K16, 1, false, true),
    (K16, 2, true, true),
    (K16, 3, true, true),
    (K64, 0, false, false),
    (K64, 1, false, true),
    (K64, 2, true, true),
    (K64, 3, true, true),
];

fn has_leaves(geometry: &Geometry, level: Level) -> bool {
    geometry.leaf_sizes().any(|size| size.level == level)
}

#[test]
fn blocks() {
    for (size, number, plain, wide) in BLOCKS {
        let what = format!("{size} level {number}");
        let at = level(number);
        let geometry = PLAIN.geometry(size, 48, VaRange::Upper);
        assert_eq!(has_leaves(&geometry, at), plain, "{what}");
        let geometry = LARGE.geometry(size, 52, VaRange::Upper);
        assert_eq!(has_leaves(&geometry, at), wide, "{what} 52-bit");
        // 52 bits of input, 48 of output: LPA2 (a control bit) has the large blocks, LPA (the
        // physical address size) has not.
        let geometry = WIDE_INPUT.geometry(size, 52, VaRange::Upper);
        let expected = if size == K64 { plain } else { wide };
        assert_eq!(has_leaves(&geometry, at), expected, "{what} wide input");
    }
}

/// Contiguous groups: page size, level, entries, bytes.
const GROUPS: [(PageSize, i32, usize, u64); 7] = [
    (K4, 3, 16, 64 * KIB),
    (K4, 2, 16, 32 * MIB),
    (K4, 1, 16, 16 * GIB),
    (K16, 3, 128, 2 * MIB),
    (K16, 2, 32, GIB),
    (K64, 3, 32, 2 * MIB),
    (K64, 2, 32, 16 * GIB),
];

#[test]
fn contiguous_groups() {
    for size in PageSize::ALL {
        for number in -1..=3 {
            let at = level(number);
            let row = GROUPS.iter().find(|row| row.0 == size && row.1 == number);
            let entries = size.contiguous_entries(at);
            match row {
                Some(&(_, _, expected, bytes)) => {
                    assert_eq!(entries, expected, "{size} level {number}");
                    assert_eq!(entries as u64 * size.entry_bytes(at), bytes);
                }
                None => assert_eq!(entries, 1, "{size} level {number}: reserved"),
            }
        }
    }
}

#[test]
fn leaf_sizes() {
    // Largest first; true for a contiguous group.
    let rows: [(Geometry, &[(u64, bool)]); 7] = [
        (
            PLAIN.geometry(K4, 48, VaRange::Upper),
            &[
                (16 * GIB, true),
                (GIB, false),
                (32 * MIB, true),
                (2 * MIB, false),
                (64 * KIB, true),
                (4 * KIB, false),
            ],
        ),
        (
            LARGE.geometry(K4, 52, VaRange::Upper),
            &[
                (512 * GIB, false),
                (16 * GIB, true),
                (GIB, false),
                (32 * MIB, true),
                (2 * MIB, false),
                (64 * KIB, true),
                (4 * KIB, false),
            ],
        ),
        (
            PLAIN.geometry(K16, 36, VaRange::Upper),
            &[
                (GIB, true),
                (32 * MIB, false),
                (2 * MIB, true),
                (16 * KIB, false),
            ],
        ),
        (
            LARGE.geometry(K16, 47, VaRange::Upper),
            &[
                (64 * GIB, false),
                (GIB, true),
                (32 * MIB, false),
                (2 * MIB, true),
                (16 * KIB, false),
            ],
        ),
        (
            LARGE.geometry(K64, 48, VaRange::Upper),
            &[
                (4 * TIB, false),
                (16 * GIB, true),
                (512 * MIB, false),
                (2 * MIB, true),
                (64 * KIB, false),
            ],
        ),
        // Where the region is smaller than the group, an implementation may fault on the hint
        // (RWMNPV): 30 bits are two entries of level 2.
        (
            PLAIN.geometry(K64, 30, VaRange::Upper),
            &[(512 * MIB, false), (2 * MIB, true), (64 * KIB, false)],
        ),
        (
            PLAIN.geometry(K4, 31, VaRange::Upper),
            &[
                (GIB, false),
                (32 * MIB, true),
                (2 * MIB, false),
                (64 * KIB, true),
                (4 * KIB, false),
            ],
        ),
    ];
    for (geometry, expected) in rows {
        let found: Vec<(u64, bool)> = geometry
            .leaf_sizes()
            .map(|size| {
                let group = if size.contiguous {
                    geometry.page_size().contiguous_entries(size.level) as u64
                } else {
                    1
                };
                let entry = geometry.page_size().entry_bytes(size.level);
                assert_eq!(entry * group, size.bytes);
                (size.bytes, size.contiguous)
            })
            .collect();
        assert_eq!(found, expected, "{geometry:?}");
    }
}

#[test]
fn address_size_limits() {
    // TxSZ is at least 16, or 12 with 52-bit input; at most 39, or with FEAT_TTST 48 (47 for
    // 64K pages).
    let narrow = Cpu {
        varange: 0,
        ..LARGE
    };
    let rows = [
        (PLAIN, K4, 25, 48),
        (PLAIN, K16, 25, 48),
        (PLAIN, K64, 25, 48),
        (LARGE, K4, 16, 52),
        (LARGE, K16, 16, 52),
        (LARGE, K64, 17, 52),
        (narrow, K4, 16, 52),
        (narrow, K64, 17, 48),
        (Cpu { st: 0, ..LARGE }, K16, 25, 52),
    ];
    for (cpu, page_size, least, most) in rows {
        let features = cpu.features();
        assert_eq!(features.least_va_bits(page_size), least);
        assert_eq!(features.most_va_bits(page_size), most);
        for va_bits in 0..=64 {
            let answer = Geometry::new(
                &features,
                page_size,
                va_bits,
                VaRange::Upper,
                Regime::El1And0,
            );
            if (least..=most).contains(&va_bits) {
                assert_eq!(answer.unwrap().va_bits(), va_bits);
            } else {
                let error = GeometryError::AddressBits {
                    page_size,
                    va_bits,
                    least,
                    most,
                };
                assert_eq!(answer, Err(error));
                let text = error.to_string();
                assert!(text.contains(page_size.name()) && text.contains(&va_bits.to_string()));
                assert!(text.contains(&least.to_string()) && text.contains(&most.to_string()));
            }
        }
    }
}

#[test]
fn page_size_that_the_cpu_lacks() {
    let cpu = Cpu {
        tgran16: 0,
        ..PLAIN
    };
    let answer = Geometry::new(&cpu.features(), K16, 47, VaRange::Upper, Regime::El1And0);
    assert_eq!(answer, Err(GeometryError::PageSize(K16)));
    assert!(answer.unwrap_err().to_string().contains("16k"));
}

#[test]
fn output_formats() {
    // CPU, page size, VA bits: format and usable physical address bits.
    let parange = |parange| Cpu { parange, ..LARGE };
    let rows = [
        (PLAIN, K4, 48, OutputFormat::Bits48, 48),
        (PLAIN, K16, 48, OutputFormat::Bits48, 48),
        (PLAIN, K64, 48, OutputFormat::Bits48, 48),
        (
            Cpu {
                parange: 2,
                ..PLAIN
            },
            K4,
            39,
            OutputFormat::Bits48,
            40,
        ),
        (LARGE, K4, 48, OutputFormat::Lpa2, 52),
        (LARGE, K16, 36, OutputFormat::Lpa2, 52),
        (LARGE, K64, 42, OutputFormat::Lpa, 52),
        (WIDE_INPUT, K4, 52, OutputFormat::Lpa2, 48),
        (WIDE_INPUT, K4, 48, OutputFormat::Bits48, 48),
        (WIDE_INPUT, K64, 52, OutputFormat::Bits48, 48),
        // 52-bit physical addresses do nothing for 4K pages without LPA2.
        (
            Cpu {
                parange: 6,
                ..PLAIN
            },
            K4,
            48,
            OutputFormat::Bits48,
            48,
        ),
        (
            Cpu {
                parange: 6,
                ..PLAIN
            },
            K64,
            48,
            OutputFormat::Lpa,
            52,
        ),
        // 56 bits need descriptors of 128 bits: VMSAv8-64 uses 52 of them.
        (parange(7), K4, 48, OutputFormat::Lpa2, 52),
        (parange(7), K64, 48, OutputFormat::Lpa, 52),
    ];
    for (cpu, size, va_bits, format, pa_bits) in rows {
        let geometry = cpu.geometry(size, va_bits, VaRange::Upper);
        assert_eq!(geometry.format(), format, "{cpu:x?} {size} {va_bits}");
        assert_eq!(geometry.pa_bits(), pa_bits, "{cpu:x?} {size} {va_bits}");
    }
}

#[test]
fn halves() {
    for (va_bits, lowest) in [
        (36, 0xffff_fff0_0000_0000),
        (39, 0xffff_ff80_0000_0000),
        (42, 0xffff_fc00_0000_0000),
        (47, 0xffff_8000_0000_0000),
        (48, 0xffff_0000_0000_0000_u64),
        (52, 0xfff0_0000_0000_0000),
    ] {
        for size in PageSize::ALL {
            let upper = LARGE.geometry(size, va_bits, VaRange::Upper);
            assert_eq!(upper.base(), VirtualAddress(lowest));
            assert_eq!(upper.offset(VirtualAddress(lowest)), Some(0));
            let last = VirtualAddress(u64::MAX);
            assert_eq!(upper.offset(last), Some((1 << va_bits) - 1));
            assert_eq!(upper.offset(VirtualAddress(lowest - 1)), None);
            assert_eq!(upper.offset(VirtualAddress(0)), None);
            assert_eq!(upper.span(), 1 << va_bits);
            let lower = LARGE.geometry(size, va_bits, VaRange::Lower);
            assert_eq!(lower.base(), VirtualAddress(0));
            let last = VirtualAddress((1 << va_bits) - 1);
            assert_eq!(lower.offset(last), Some((1 << va_bits) - 1));
            assert_eq!(lower.offset(VirtualAddress(1 << va_bits)), None);
            assert_eq!(lower.offset(VirtualAddress(lowest)), None);
        }
    }
}

#[test]
fn both_halves_share_one_format() {
    // TCR.DS is one bit: a 39-bit lower half beside a 52-bit upper one is in its format, though
    // alone it would not be.
    for size in [K4, K16] {
        let cpu = WIDE_INPUT.features();
        let upper = WIDE_INPUT.geometry(size, 52, VaRange::Upper);
        let lower = upper.with_va_range(&cpu, VaRange::Lower, 39, size).unwrap();
        assert_eq!(lower.format(), OutputFormat::Lpa2);
        assert_eq!((lower.va_range(), lower.va_bits()), (VaRange::Lower, 39));
        // The other way round the first half has no DS, so 52 bits cannot be had beside it.
        let first = WIDE_INPUT.geometry(size, 48, VaRange::Lower);
        assert_eq!(first.format(), OutputFormat::Bits48);
        let answer = first.with_va_range(&cpu, VaRange::Upper, 52, size);
        let error = GeometryError::AddressBits {
            page_size: size,
            va_bits: 52,
            least: 16,
            most: 48,
        };
        assert_eq!(answer, Err(error));
    }
    // 64K pages have 52 bits of input without any format.
    let cpu = WIDE_INPUT.features();
    let first = WIDE_INPUT.geometry(K64, 48, VaRange::Lower);
    let other = first.with_va_range(&cpu, VaRange::Upper, 52, K64).unwrap();
    assert_eq!(other.format(), OutputFormat::Bits48);
    assert_eq!(other.va_bits(), 52);
}

/// TG0 and TG1 differ; DS and IPS are one field each.
#[test]
fn the_other_half_may_have_another_page_size_in_the_formats_of_this_half() {
    use OutputFormat::{Bits48, Lpa, Lpa2};
    // This half's page size and VA bits, the other's page size, its format and PA bits.
    let rows = [
        (PLAIN, K4, 48, K16, Bits48, 48),
        (PLAIN, K4, 48, K64, Bits48, 48),
        (PLAIN, K64, 42, K4, Bits48, 48),
        (PLAIN, K16, 47, K4, Bits48, 48),
        (PLAIN, K16, 36, K64, Bits48, 48),
        // DS and 52 bits: 64K pages have the format of IPS.
        (LARGE, K4, 48, K16, Lpa2, 52),
        (LARGE, K4, 52, K64, Lpa, 52),
        (LARGE, K16, 47, K64, Lpa, 52),
        // 64K pages have 52 bits without DS, and small ones then 48.
        (LARGE, K64, 52, K4, Bits48, 48),
        (LARGE, K64, 48, K16, Bits48, 48),
        // DS for the sake of the input addresses, and 48 bits of output.
        (WIDE_INPUT, K4, 52, K16, Lpa2, 48),
        (WIDE_INPUT, K16, 52, K64, Bits48, 48),
        (WIDE_INPUT, K4, 48, K16, Bits48, 48),
        (WIDE_INPUT, K64, 52, K4, Bits48, 48),
    ];
    for (cpu, size, va_bits, other_size, format, pa_bits) in rows {
        let upper = cpu.geometry(size, va_bits, VaRange::Upper);
        let bits = va_bits.min(48);
        let lower = upper
            .with_va_range(&cpu.features(), VaRange::Lower, bits, other_size)
            .unwrap();
        let what = format!("{size} {va_bits} {other_size}");
        assert_eq!(lower.page_size(), other_size, "{what}");
        assert_eq!((lower.va_range(), lower.va_bits()), (VaRange::Lower, bits));
        assert_eq!(
            (lower.format(), lower.pa_bits()),
            (format, pa_bits),
            "{what}"
        );
    }
}

#[test]
fn the_other_half_cannot_have_what_the_shared_fields_do_not_give() {
    // FEAT_LPA2 for 4K pages alone.
    let cpu = Cpu {
        tgran16: 1,
        ..LARGE
    };
    let upper = cpu.geometry(K4, 48, VaRange::Upper);
    let other = |bits, size| upper.with_va_range(&cpu.features(), VaRange::Lower, bits, size);
    let error = other(48, K16).unwrap_err();
    assert_eq!(error, GeometryError::OtherFormat(K16));
    assert!(error.to_string().contains("16k"), "{error}");
    assert!(other(48, K64).is_ok());
    // Without DS there are no 52 bits of input with small pages.
    let plain = WIDE_INPUT.geometry(K64, 52, VaRange::Upper);
    let features = WIDE_INPUT.features();
    let answer = plain.with_va_range(&features, VaRange::Lower, 52, K4);
    assert!(matches!(answer, Err(GeometryError::AddressBits { .. })));
    let none = Cpu {
        tgran4: 15,
        ..PLAIN
    };
    let upper = none.geometry(K64, 48, VaRange::Upper);
    assert_eq!(
        upper.with_va_range(&none.features(), VaRange::Lower, 48, K4),
        Err(GeometryError::PageSize(K4))
    );
}

#[test]
fn a_regime_with_one_privilege_has_one_half() {
    for regime in [Regime::El2, Regime::El3] {
        assert!(!regime.has_user());
        let answer = Geometry::new(&PLAIN.features(), K4, 48, VaRange::Upper, regime);
        let error = answer.unwrap_err();
        assert_eq!(error, GeometryError::NoUpperHalf(regime));
        assert!(error.to_string().contains("TTBR0"), "{error}");
        assert_eq!(PLAIN.single(K4, 48, regime).regime(), regime);
    }
}
