//! Stage 2: ID fields, start levels and concatenation, descriptor bits, registers, and TLBI
//! encodings.

use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{
    CpuFeatures, Descriptor, Execute, Geometry, GeometryError, Level, OutputFormat, PageSize,
    PhysicalAddress, Regime, Shareability, Stage2Attributes, Stage2Geometry, Stage2Memory,
    Stage2Permissions, Support, VaRange, Vtcr, Vttbr,
};
use granule_testing::shape::{Cpu, LARGE, PLAIN};

use PageSize::{K4, K16, K64};

const fn bits(value: u64, high: u32, low: u32) -> u64 {
    (value >> low) & ((1 << (high - low + 1)) - 1)
}

/// `cpu` with FEAT_S2FWB (MMFR2 43:40), FEAT_XNX (MMFR1 31:28) and 16-bit VMIDs (MMFR1 7:4) or
/// without all of them.
fn features(cpu: Cpu, all: bool) -> CpuFeatures {
    let mut features = cpu.features();
    if all {
        features.mmfr1 |= 1 << 28 | 2 << 4;
        features.mmfr2 |= 1 << 40;
    }
    features
}

fn geometry(cpu: Cpu, size: PageSize, ipa_bits: u32) -> Stage2Geometry {
    Stage2Geometry::new(&features(cpu, false), size, ipa_bits).unwrap()
}

#[test]
fn id_fields() {
    use Support::{No, With52Bits, Yes};
    // ID_AA64MMFR0_EL1: the stage-1 field, the stage-2 field, and what the CPU has at stage 2.
    let rows = [
        (K4, 28, 0b0000, 40, 0, Yes),
        (K4, 28, 0b0001, 40, 0, With52Bits),
        (K4, 28, 0b1111, 40, 0, No),
        (K4, 28, 0b0000, 40, 1, No),
        (K4, 28, 0b1111, 40, 2, Yes),
        (K4, 28, 0b0001, 40, 2, Yes),
        (K4, 28, 0b0000, 40, 3, With52Bits),
        (K4, 28, 0b0000, 40, 15, With52Bits),
        (K16, 20, 0b0000, 32, 0, No),
        (K16, 20, 0b0001, 32, 0, Yes),
        (K16, 20, 0b0010, 32, 0, With52Bits),
        (K16, 20, 0b0010, 32, 1, No),
        (K16, 20, 0b0000, 32, 2, Yes),
        (K16, 20, 0b0000, 32, 3, With52Bits),
        (K64, 24, 0b0000, 36, 0, Yes),
        (K64, 24, 0b1111, 36, 0, No),
        (K64, 24, 0b0000, 36, 1, No),
        (K64, 24, 0b1111, 36, 2, Yes),
        (K64, 24, 0b1111, 36, 3, Yes),
    ];
    for (size, low, value, low2, value2, expected) in rows {
        let cpu = CpuFeatures {
            mmfr0: value << low | value2 << low2,
            ..CpuFeatures::NONE
        };
        assert_eq!(
            cpu.stage2_page_size(size),
            expected,
            "{size} {value} {value2}"
        );
    }
    let none = features(PLAIN, false);
    let all = features(PLAIN, true);
    assert_eq!((none.vmid_bits(), all.vmid_bits()), (8, 16));
    for (cpu, there) in [(none, false), (all, true)] {
        let guest = Stage2Geometry::new(&cpu, K4, 40).unwrap();
        assert_eq!(guest.shape().forced_write_back(), there);
        assert_eq!(guest.shape().execute_by_privilege(), there);
    }
}

/// Page size, IPA bits, start level, root tables, entries of them together.
const STARTS: &[(PageSize, u32, i32, usize, usize)] = &[
    (K4, 25, 3, 16, 8192),
    (K4, 26, 2, 1, 32),
    (K4, 30, 2, 1, 512),
    (K4, 31, 2, 2, 1024),
    (K4, 34, 2, 16, 8192),
    (K4, 35, 1, 1, 32),
    (K4, 39, 1, 1, 512),
    (K4, 40, 1, 2, 1024),
    (K4, 42, 1, 8, 4096),
    (K4, 43, 1, 16, 8192),
    (K4, 44, 0, 1, 32),
    (K4, 48, 0, 1, 512),
    (K4, 52, 0, 16, 8192),
    (K16, 25, 3, 1, 2048),
    (K16, 29, 3, 16, 32768),
    (K16, 30, 2, 1, 32),
    (K16, 36, 2, 1, 2048),
    (K16, 40, 2, 16, 32768),
    (K16, 41, 1, 1, 32),
    (K16, 47, 1, 1, 2048),
    (K16, 48, 1, 2, 4096),
    (K16, 51, 1, 16, 32768),
    (K16, 52, 0, 1, 32),
    (K64, 25, 3, 1, 512),
    (K64, 29, 3, 1, 8192),
    (K64, 32, 3, 8, 65536),
    (K64, 33, 3, 16, 131_072),
    (K64, 34, 2, 1, 32),
    (K64, 40, 2, 1, 2048),
    (K64, 42, 2, 1, 8192),
    (K64, 46, 2, 16, 131_072),
    (K64, 47, 1, 1, 32),
    (K64, 48, 1, 1, 64),
    (K64, 52, 1, 1, 1024),
];

#[test]
fn start_levels_and_concatenated_tables() {
    for &(size, ipa_bits, level, tables, entries) in STARTS {
        let found = geometry(LARGE, size, ipa_bits);
        let shape = found.shape();
        assert_eq!(found.shape().va_bits(), ipa_bits);
        assert_eq!(shape.start_level().number(), level, "{size} {ipa_bits}");
        assert_eq!(found.shape().root_tables(), tables, "{size} {ipa_bits}");
        assert_eq!(shape.root_entries(), entries, "{size} {ipa_bits}");
        assert_eq!(shape.regime(), Regime::Stage2);
        assert_eq!((shape.base().0, shape.span()), (0, 1 << ipa_bits));
    }
    // Without FEAT_TTST a walk with 4K pages starts at level 2 at the latest.
    let shape = *geometry(PLAIN, K4, 25).shape();
    assert_eq!((shape.start_level(), shape.root_entries()), (Level::L2, 16));
}

#[test]
fn input_sizes() {
    // CPU (PARange), page size, the fewest and most IPA bits.
    let of = |parange| Cpu { parange, ..LARGE };
    for (cpu, size, least, most) in [
        (PLAIN, K4, 25, 48),
        (PLAIN, K16, 25, 48),
        (PLAIN, K64, 25, 48),
        (LARGE, K4, 16, 52),
        (LARGE, K16, 16, 52),
        (LARGE, K64, 17, 52),
        // Never more than the CPU has of physical address, whatever stage 1 can do.
        (of(2), K4, 16, 40),
        (of(4), K16, 16, 44),
        (of(5), K64, 17, 48),
    ] {
        let features = features(cpu, false);
        for ipa_bits in [least - 1, most + 1] {
            assert_eq!(
                Stage2Geometry::new(&features, size, ipa_bits),
                Err(GeometryError::IpaBits {
                    page_size: size,
                    ipa_bits,
                    least,
                    most,
                })
            );
        }
        for ipa_bits in [least, most] {
            let found = Stage2Geometry::new(&features, size, ipa_bits).unwrap();
            assert_eq!(found.shape().va_bits(), ipa_bits);
        }
    }
    let mut cpu = LARGE.features();
    cpu.mmfr0 |= 1 << 40;
    assert_eq!(
        Stage2Geometry::new(&cpu, K4, 40),
        Err(GeometryError::Stage2PageSize(K4))
    );
    // 52 bits at stage 1 alone do not give them to stage 2.
    cpu.mmfr0 |= 2 << 40;
    cpu.mmfr0 &= !(1 << 40);
    assert!(Stage2Geometry::new(&cpu, K4, 49).is_err());
    let cpu = Stage2Geometry::new(&cpu, K4, 48).unwrap();
    assert_eq!(cpu.shape().format(), OutputFormat::Bits48);
    assert_eq!(cpu.shape().pa_bits(), 48);
    // A geometry of stage 1 cannot name stage 2.
    assert_eq!(
        Geometry::new(&LARGE.features(), K4, 40, VaRange::Lower, Regime::Stage2),
        Err(GeometryError::NotStage1)
    );
}

#[test]
fn other_start_levels() {
    let of = |parange| Cpu { parange, ..LARGE };
    // CPU, page size, IPA bits, level, root tables there; 0 where it is refused.
    for (cpu, size, ipa_bits, level, tables) in [
        (LARGE, K4, 40, Level::L0, 1),
        (LARGE, K4, 40, Level::L1, 2),
        (LARGE, K4, 40, Level::L2, 0),
        // Level 0 with 4K pages needs 44 bits of physical address.
        (of(3), K4, 40, Level::L0, 0),
        (of(4), K4, 40, Level::L0, 1),
        // Level -1 needs 52 bits and TCR.DS.
        (LARGE, K4, 52, Level::Minus1, 1),
        (LARGE, K4, 48, Level::Minus1, 0),
        (PLAIN, K4, 48, Level::Minus1, 0),
        (LARGE, K4, 39, Level::L0, 0),
        (LARGE, K4, 34, Level::L1, 1),
        (LARGE, K4, 34, Level::L2, 16),
        (LARGE, K4, 25, Level::L3, 16),
        (PLAIN, K4, 25, Level::L3, 0),
        // Without TCR.DS there is no level 0 with 16K pages: 48 bits need two tables.
        (PLAIN, K16, 48, Level::L0, 0),
        (PLAIN, K16, 48, Level::L1, 2),
        (LARGE, K16, 48, Level::L0, 1),
        (of(2), K16, 40, Level::L1, 0),
        (of(3), K16, 40, Level::L1, 1),
        (LARGE, K64, 46, Level::L1, 1),
        (of(3), K64, 42, Level::L1, 0),
        (LARGE, K64, 46, Level::L0, 0),
    ] {
        let features = features(cpu, false);
        let found = geometry(cpu, size, ipa_bits).with_start_level(&features, level);
        match found {
            Ok(found) => {
                assert_eq!(found.shape().start_level(), level);
                assert_eq!(
                    found.shape().root_tables(),
                    tables,
                    "{size} {ipa_bits} {level}"
                );
            }
            Err(error) => {
                let expected = GeometryError::StartLevel {
                    page_size: size,
                    ipa_bits,
                    level,
                };
                assert_eq!(error, expected);
                assert_eq!(tables, 0, "{size} {ipa_bits} {level}");
            }
        }
    }
}

/// Without FEAT_XNX and FEAT_S2FWB, then with both.
fn with_and_without_features() -> [Stage2Geometry; 2] {
    [false, true].map(|all| Stage2Geometry::new(&features(PLAIN, all), K4, 40).unwrap())
}

#[test]
fn permission_bits() {
    // MemAttr, SH and AF.
    const OTHERS: u64 = 0b1111 << 2 | 0b11 << 8 | 1 << 10;
    let [plain, xnx] = with_and_without_features();
    // S2AP is bits 7:6, XN bits 54:53, DBM bit 51, software bits 58:55.
    let none = Stage2Permissions {
        readable: false,
        ..Stage2Permissions::READ
    };
    let execute = |execute| Stage2Permissions { execute, ..none };
    for (what, permissions, with_xnx, without_xnx) in [
        ("nothing", none, 0b10 << 53, 0b10 << 53),
        (
            "read",
            Stage2Permissions {
                readable: true,
                ..none
            },
            1 << 6 | 0b10 << 53,
            1 << 6 | 0b10 << 53,
        ),
        (
            "write",
            Stage2Permissions {
                writable: true,
                ..none
            },
            1 << 7 | 0b10 << 53,
            1 << 7 | 0b10 << 53,
        ),
        ("any", execute(Execute::Any), 0, 0),
        ("EL0", execute(Execute::User), 0b01 << 53, 0b10 << 53),
        ("EL1", execute(Execute::Privileged), 0b11 << 53, 0b10 << 53),
        (
            "DBM",
            Stage2Permissions {
                dirty_modifier: true,
                ..none
            },
            1 << 51 | 0b10 << 53,
            1 << 51 | 0b10 << 53,
        ),
        (
            "software",
            Stage2Permissions {
                software: 0xfa,
                ..none
            },
            0b1010 << 55 | 0b10 << 53,
            0b1010 << 55 | 0b10 << 53,
        ),
        ("RAM", Stage2Permissions::ALL, 0b11 << 6, 0b11 << 6),
    ] {
        let leaf = Stage2Attributes::normal(permissions);
        assert_eq!(leaf.encode(&xnx) & !OTHERS, with_xnx, "{what}");
        assert_eq!(leaf.encode(&plain) & !OTHERS, without_xnx, "{what}");
        let decoded = Stage2Attributes::decode(Descriptor(with_xnx), &xnx).permissions;
        assert_eq!(
            decoded,
            Stage2Permissions {
                software: permissions.software & 0xf,
                ..permissions
            },
            "{what}"
        );
    }
    // Without FEAT_XNX bit 53 is not a permission.
    for (xn, execute) in [(0b01, Execute::Any), (0b11, Execute::Never)] {
        let decoded = Stage2Attributes::decode(Descriptor(xn << 53), &plain);
        assert_eq!(decoded.permissions.execute, execute);
    }
}

#[test]
fn memory_types() {
    let guests = with_and_without_features();
    let encode = |memory, guest: &Stage2Geometry| {
        let leaf = Stage2Attributes {
            memory,
            ..Stage2Attributes::normal(Stage2Permissions::ALL)
        };
        leaf.encode(guest) >> 2 & 0b1111
    };
    // MemAttr without and with FEAT_S2FWB.
    for (memory, plain, forced) in [
        (Stage2Memory::Normal, 0b1111, 0b0110),
        (Stage2Memory::AsStage1, 0b1111, 0b0111),
        (Stage2Memory::NormalNonCacheable, 0b0101, 0b0101),
        (Stage2Memory::Device, 0b0001, 0b0001),
        (Stage2Memory::DeviceStrict, 0b0000, 0b0000),
        // Device-GRE, and Normal write-through, which FEAT_S2FWB has no encoding for.
        (Stage2Memory::Raw(0b0011), 0b0011, 0b0011),
        (Stage2Memory::Raw(0b1010), 0b1010, 0b0010),
    ] {
        assert_eq!(encode(memory, &guests[0]), plain, "{memory:?}");
        assert_eq!(encode(memory, &guests[1]), forced, "{memory:?}");
    }
    for bits in 0..16 {
        for (guest, kept) in guests.iter().zip([0b1111, 0b0111]) {
            let leaf = Stage2Attributes::decode(Descriptor(bits << 2), guest);
            assert_eq!(encode(leaf.memory, guest), bits & kept, "{bits:#b}");
        }
    }
}

#[test]
fn leaf_attributes() {
    let plain = geometry(PLAIN, K4, 40);
    let ram = Stage2Attributes::normal(Stage2Permissions::ALL);
    // MemAttr 1111 in bits 5:2, S2AP 11, SH 11 (inner), AF; XN, DBM and nG's place clear.
    let expected = 0b1111 << 2 | 0b11 << 6 | 0b11 << 8 | 1 << 10;
    assert_eq!(ram.encode(&plain), expected);
    assert_eq!(Stage2Attributes::decode(Descriptor(expected), &plain), ram);
    let device = Stage2Attributes::device();
    let expected = 0b0001 << 2 | 0b11 << 6 | 0b10 << 8 | 1 << 10 | 0b10 << 53;
    assert_eq!(device.encode(&plain), expected);
    assert_eq!(
        Stage2Attributes::decode(Descriptor(expected), &plain),
        device
    );
    let other = Stage2Attributes {
        accessed: false,
        shareability: Shareability::None,
        ..ram
    };
    assert_eq!(other.encode(&plain), 0b1111 << 2 | 0b11 << 6);

    let forced = Stage2Geometry::new(&features(PLAIN, true), K4, 40).unwrap();
    assert!(forced.shape().forced_write_back() && forced.shape().execute_by_privilege());
    let expected = 0b0110 << 2 | 0b11 << 6 | 0b11 << 8 | 1 << 10;
    assert_eq!(ram.encode(&forced), expected);
    assert_eq!(Stage2Attributes::decode(Descriptor(expected), &forced), ram);

    // With VTCR_EL2.DS bits 9:8 are address bits, which decode as no shareability.
    let wide = geometry(LARGE, K16, 48);
    assert_eq!(ram.encode(&wide), 0b1111 << 2 | 0b11 << 6 | 1 << 10);
    let output = PhysicalAddress(0b11 << 50 | 0x4000);
    let leaf = Descriptor::leaf(wide.shape(), Level::L3, output, ram.encode(&wide));
    assert_eq!(bits(leaf.0, 9, 8), 0b11);
    assert_eq!(Stage2Attributes::decode(leaf, &wide), ram);
    assert_eq!(wide.shape().address_of(leaf, Level::L3), output);
}

#[test]
fn control_register() {
    for (size, tg0, levels) in [
        // SL0 of levels 0 to 3.
        (K4, 0b00, [0b10, 0b01, 0b00, 0b11]),
        (K16, 0b10, [0b11, 0b10, 0b01, 0b00]),
        (K64, 0b01, [0b11, 0b10, 0b01, 0b00]),
    ] {
        for &(_, ipa_bits, level, ..) in STARTS.iter().filter(|row| row.0 == size) {
            for (cpu, vmid16) in [(PLAIN, false), (LARGE, true)] {
                if cpu.st == 0 && (ipa_bits == 25 || ipa_bits > 48) {
                    continue;
                }
                let features = features(cpu, vmid16);
                let geometry = Stage2Geometry::new(&features, size, ipa_bits).unwrap();
                let vtcr = Vtcr::new(&features, &geometry).0;
                let ds = size != K64 && cpu.parange == 6;
                for (what, high, low, value) in [
                    ("T0SZ", 5, 0, 64 - u64::from(ipa_bits)),
                    ("SL0", 7, 6, levels[level as usize]),
                    ("IRGN0 write-back", 9, 8, 0b01),
                    ("ORGN0 write-back", 11, 10, 0b01),
                    ("SH0 inner", 13, 12, 0b11),
                    ("TG0", 15, 14, tg0),
                    ("PS", 18, 16, if cpu.parange == 6 { 0b110 } else { 0b101 }),
                    ("VS", 19, 19, u64::from(vmid16)),
                    ("RES0, HA, HD", 22, 20, 0),
                    ("RES0, HWU, NSW, NSA", 30, 23, 0),
                    ("RES1", 31, 31, 1),
                    ("DS", 32, 32, u64::from(ds)),
                    ("SL2 and the rest", 63, 33, 0),
                ] {
                    assert_eq!(bits(vtcr, high, low), value, "{what}, {size} {ipa_bits}");
                }
            }
        }
    }
    assert_eq!(Vtcr::HA, 1 << 21);
    assert_eq!(Vtcr::HD, 1 << 22);
    let features = features(LARGE, false);
    let minus1 = geometry(LARGE, K4, 52).with_start_level(&features, Level::Minus1);
    let vtcr = Vtcr::new(&features, &minus1.unwrap()).0;
    assert_eq!((bits(vtcr, 33, 33), bits(vtcr, 7, 6)), (1, 0));
}

#[test]
fn base_register_and_hcr() {
    // VMID in 63:48, BADDR in 47:1; address bits 51:48 in 5:2 where addresses have 52 bits.
    let plain = geometry(PLAIN, K4, 40);
    // SAFETY: no CPU gets the value.
    let vttbr = unsafe { Vttbr::from_root(&plain, PhysicalAddress(0x4000_2000), 0xbeef) };
    assert_eq!(vttbr.bits(), 0xbeef_0000_4000_2000);
    assert_eq!(plain.hcr(), 1 << 0);
    for size in [K4, K16, K64] {
        let wide = Stage2Geometry::new(&features(LARGE, true), size, 52).unwrap();
        let root = PhysicalAddress(0b1010 << 48 | 0x1_0000);
        // SAFETY: no CPU gets the value.
        let vttbr = unsafe { Vttbr::from_root(&wide, root, 1) };
        assert_eq!(vttbr.bits(), 1 << 48 | 0x1_0000 | 0b1010 << 2, "{size}");
        assert_eq!(wide.hcr(), 1 << 0 | 1 << 46);
    }
}

#[test]
fn tlbi_encodings() {
    // op1, CRn, CRm and op2 from the tables of SYS instructions; op0 is 1.
    let encoding = |op1: u16, crm: u16, op2: u16| 1 << 14 | op1 << 11 | 8 << 7 | crm << 3 | op2;
    let single = |scope| TlbiOp::Address {
        operand: 5,
        scope,
        all_asids: true,
    };
    let range = |scope| TlbiOp::Range {
        operand: 6,
        scope,
        all_asids: true,
    };
    use Regime::{El1And0, El2, El3, Stage2};
    use TlbiOp::{All, AllVmids};
    use TlbiScope::{AllLevels, LastLevel};
    for (what, op, regime, expected, operand) in [
        ("IPAS2E1IS", single(AllLevels), Stage2, encoding(4, 0, 1), 5),
        (
            "IPAS2LE1IS",
            single(LastLevel),
            Stage2,
            encoding(4, 0, 5),
            5,
        ),
        ("RIPAS2E1IS", range(AllLevels), Stage2, encoding(4, 0, 2), 6),
        (
            "RIPAS2LE1IS",
            range(LastLevel),
            Stage2,
            encoding(4, 0, 6),
            6,
        ),
        ("VMALLS12E1IS", All, Stage2, encoding(4, 3, 6), 0),
        ("VMALLE1IS", All, El1And0, encoding(0, 3, 0), 0),
        ("ALLE1IS", AllVmids, Stage2, encoding(4, 3, 4), 0),
        ("ALLE1IS", AllVmids, El1And0, encoding(4, 3, 4), 0),
        ("ALLE2IS", AllVmids, El2, encoding(4, 3, 0), 0),
        ("ALLE3IS", AllVmids, El3, encoding(6, 3, 0), 0),
    ] {
        assert_eq!(op.instruction(regime), (expected, operand), "{what}");
    }
}

/// Every VTCR_EL2 that this library makes is read back as the shape that it was made of, from every
/// start level that the shape may have.
#[test]
fn shapes_are_read_back() {
    let mut read = 0;
    for (cpu, all) in [(PLAIN, false), (LARGE, false), (LARGE, true)] {
        let features = features(cpu, all);
        for size in PageSize::ALL {
            for ipa_bits in 25..=52 {
                let Ok(shape) = Stage2Geometry::new(&features, size, ipa_bits) else {
                    continue;
                };
                for level in Level::ALL {
                    let Ok(shape) = shape.with_start_level(&features, level) else {
                        continue;
                    };
                    let vtcr = Vtcr::new(&features, &shape);
                    let again = Stage2Geometry::from_vtcr(vtcr, shape.hcr(), &features);
                    assert_eq!(again, Ok(shape), "{size} {ipa_bits} {level}");
                    let high = if shape.shape().pa_bits() > 48 {
                        0xf << 48
                    } else {
                        0
                    };
                    let root = PhysicalAddress(0x1234_5670_0000 | high);
                    // SAFETY: no CPU gets this register.
                    let vttbr = unsafe { Vttbr::from_root(&shape, root, 0xabcd) };
                    assert_eq!(shape.shape().root_in(vttbr.bits()), root);
                    read += 1;
                }
            }
        }
    }
    assert!(read > 150, "{read}");
}

#[test]
fn a_vtcr_that_describes_no_walk_is_refused() {
    let features = features(PLAIN, false);
    let from = |bits| Stage2Geometry::from_vtcr(Vtcr(bits), 0, &features);
    // 4K pages, 40 bits, from level 1: two tables.
    assert_eq!(from(24 | 1 << 6).unwrap().shape().root_tables(), 2);
    for (bits, words) in [
        (24 | 1 << 6 | 0b11 << 14, "VTCR_EL2.TG0 is 0x3, with"),
        (24 | 0b11 << 6 | 0b01 << 14, "VTCR_EL2.SL0 is 0x3, with"),
        (24 | 1 << 6 | Vtcr::SL2, "VTCR_EL2.SL2 is 0x1, with"),
        (12 | 2 << 6, "VTCR_EL2.T0SZ is 0xc, with"),
        // 512 tables at level 2, and none of level 0's bits.
        (
            24,
            "a walk of 40 bits with 4k pages cannot start at level 2",
        ),
        (
            30 | 2 << 6,
            "a walk of 34 bits with 4k pages cannot start at level 0",
        ),
    ] {
        let error = from(bits).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}
