//! Descriptor bits, one by one, and addresses in each of the three formats.

use granule::arch::{
    Attributes, Descriptor, Geometry, Kind, Level, MemoryType, OutputSpace, PageSize, Permissions,
    PhysicalAddress, Regime, Shareability, VaRange,
};
use granule::table::Stage1;
use granule_testing::cases::config;
use granule_testing::shape::{LARGE, PLAIN, WIDE_INPUT};
use granule_testing::walk::Arch;
use proptest::prelude::*;

use PageSize::{K4, K16, K64};

#[test]
fn bit_positions() {
    for (what, mask, high, low) in [
        ("valid", Descriptor::VALID, 0, 0),
        ("table or page", Descriptor::TABLE_OR_PAGE, 1, 1),
        ("AttrIndx", Descriptor::ATTR_INDEX, 4, 2),
        ("NS", Descriptor::NS, 5, 5),
        ("AP[1]", Descriptor::AP_USER, 6, 6),
        ("AP[2]", Descriptor::AP_READ_ONLY, 7, 7),
        ("SH", Descriptor::SHAREABILITY, 9, 8),
        ("AF", Descriptor::ACCESS_FLAG, 10, 10),
        ("nG", Descriptor::NOT_GLOBAL, 11, 11),
        ("NSE", Descriptor::NSE, 11, 11),
        ("nT", Descriptor::NT, 16, 16),
        ("GP", Descriptor::GUARDED, 50, 50),
        ("DBM", Descriptor::DIRTY_MODIFIER, 51, 51),
        ("Contiguous", Descriptor::CONTIGUOUS, 52, 52),
        ("PXN", Descriptor::PXN, 53, 53),
        ("UXN", Descriptor::UXN, 54, 54),
        ("software", Descriptor::SOFTWARE, 58, 55),
        ("PXNTable", Descriptor::PXN_TABLE, 59, 59),
        ("UXNTable", Descriptor::UXN_TABLE, 60, 60),
        ("APTable", Descriptor::AP_TABLE, 62, 61),
    ] {
        let expected = (u64::MAX >> (63 - high)) & (u64::MAX << low);
        assert_eq!(mask, expected, "{what}");
    }
    assert_eq!(Descriptor::INVALID.0 & 1, 0);
}

/// Changes of the attributes, and the bits that must then be set and clear in EL1&0.
const EL1_AND_0: &[(&str, Attributes, u64, u64)] = {
    const BASE: Attributes = Attributes::normal(Permissions::READ);
    const fn with(permissions: Permissions) -> Attributes {
        Attributes::normal(permissions)
    }
    &[
        // Read-only, no user, never executed, accessed, global, inner shareable, index 0.
        (
            "the base",
            BASE,
            1 << 7 | 0b11 << 8 | 1 << 10 | 1 << 53 | 1 << 54,
            0b111 << 2 | 1 << 5 | 1 << 6 | 1 << 11 | 1 << 50 | 1 << 51 | 1 << 52,
        ),
        ("writable", with(Permissions::READ_WRITE), 0, 1 << 7),
        (
            "user",
            with(Permissions {
                user: true,
                ..Permissions::READ
            }),
            1 << 6,
            0,
        ),
        (
            "privileged execute",
            with(Permissions::READ_EXECUTE),
            1 << 7 | 1 << 54,
            1 << 53,
        ),
        (
            "user execute",
            with(Permissions {
                user_execute: true,
                ..Permissions::READ
            }),
            1 << 53,
            1 << 54,
        ),
        (
            "guarded",
            with(Permissions {
                guarded: true,
                ..Permissions::READ
            }),
            1 << 50,
            0,
        ),
        (
            "dirty modifier",
            with(Permissions {
                dirty_modifier: true,
                ..Permissions::READ
            }),
            1 << 51,
            0,
        ),
        (
            "software",
            with(Permissions {
                software: 0b1010,
                ..Permissions::READ
            }),
            0b1010 << 55,
            0b0101 << 55,
        ),
        (
            "software's upper bits are left out",
            with(Permissions {
                software: 0xf0,
                ..Permissions::READ
            }),
            0,
            0b1111 << 55 | 0b1111 << 59,
        ),
        (
            "not accessed",
            Attributes {
                accessed: false,
                ..BASE
            },
            0,
            1 << 10,
        ),
        (
            "not global",
            Attributes {
                global: false,
                ..BASE
            },
            1 << 11,
            0,
        ),
        (
            "not shareable",
            Attributes {
                shareability: Shareability::None,
                ..BASE
            },
            0,
            0b11 << 8,
        ),
        (
            "outer shareable",
            Attributes {
                shareability: Shareability::Outer,
                ..BASE
            },
            0b10 << 8,
            0b01 << 8,
        ),
        (
            "device",
            Attributes::device(),
            1 << 2 | 0b10 << 8 | 1 << 10 | 1 << 53 | 1 << 54,
            1 << 7 | 0b110 << 2,
        ),
        (
            "an index of one's own",
            Attributes {
                memory: MemoryType::Index(7),
                ..BASE
            },
            0b111 << 2,
            0,
        ),
    ]
};

#[test]
fn attributes_of_two_privileges() {
    let geometry = PLAIN.geometry(K4, 48, VaRange::Upper);
    for (what, attributes, set, clear) in EL1_AND_0 {
        let bits = attributes.encode(&geometry);
        assert_eq!(bits & set, *set, "{what}: {bits:#x}");
        assert_eq!(bits & clear, 0, "{what}: {bits:#x}");
        // No address bit, no contiguous bit, neither of the two low ones.
        assert_eq!(bits & 0x0010_ffff_ffff_f003, 0, "{what}");
    }
}

#[test]
fn attributes_of_one_privilege() {
    // AP[1] is RES1, bit 53 RES0, bit 54 XN, and bit 11 RES0.
    for regime in [Regime::El2, Regime::El3] {
        let geometry = PLAIN.single(K64, 48, regime);
        let all = Attributes {
            global: false,
            ..Attributes::normal(Permissions {
                writable: true,
                user: true,
                privileged_execute: true,
                user_execute: true,
                ..Permissions::READ
            })
        };
        let bits = all.encode(&geometry);
        assert_eq!(bits & (1 << 6), 1 << 6);
        assert_eq!(bits & (1 << 7 | 1 << 11 | 1 << 53 | 1 << 54), 0);
        let none = Attributes::normal(Permissions::READ).encode(&geometry);
        assert_eq!(
            none & (1 << 6 | 1 << 7 | 1 << 54),
            1 << 6 | 1 << 7 | 1 << 54
        );
        assert_eq!(none & (1 << 53 | 1 << 11), 0);
        let back = Attributes::decode(Descriptor(bits), &geometry);
        assert!(back.permissions.privileged_execute && back.global);
        assert!(!back.permissions.user && !back.permissions.user_execute);
    }
}

#[test]
fn output_spaces() {
    use OutputSpace::{NonSecure, Realm, Root, Unmarked};
    // NSE is of EL3 alone: what the other regimes keep of each space.
    for (space, el3, others, kept) in [
        (Unmarked, 0, 0, Unmarked),
        (NonSecure, 1 << 5, 1 << 5, NonSecure),
        (Root, 1 << 11, 0, Unmarked),
        (Realm, 1 << 5 | 1 << 11, 1 << 5, NonSecure),
    ] {
        let attributes = Attributes {
            output_space: space,
            ..Attributes::normal(Permissions::READ)
        };
        for (geometry, bits, back) in [
            (PLAIN.single(K4, 48, Regime::El3), el3, space),
            (PLAIN.single(K4, 48, Regime::El2), others, kept),
            (PLAIN.geometry(K4, 48, VaRange::Upper), others, kept),
        ] {
            let leaf = attributes.encode(&geometry);
            assert_eq!(leaf & (1 << 5 | 1 << 11), bits, "{space:?}");
            let decoded = Attributes::decode(Descriptor(leaf), &geometry);
            assert_eq!(decoded.output_space, back, "{space:?}");
            assert!(decoded.global, "{space:?}");
        }
    }
}

#[test]
fn shareability_is_not_in_the_descriptor_with_ds() {
    // Bits 9:8 are address bits 51:50 there, and TCR.SH sets it for every leaf.
    for size in [K4, K16] {
        let geometry = LARGE.geometry(size, 52, VaRange::Upper);
        for shareability in [Shareability::None, Shareability::Outer, Shareability::Inner] {
            let attributes = Attributes {
                shareability,
                ..Attributes::normal(Permissions::READ)
            };
            assert_eq!(attributes.encode(&geometry) & 0b11 << 8, 0);
        }
        let high = Descriptor(0b11 << 8 | 0b11);
        let decoded = Attributes::decode(high, &geometry);
        assert_eq!(decoded.shareability, Shareability::Inner);
    }
    // 64K pages keep it in both formats.
    let geometry = LARGE.geometry(K64, 52, VaRange::Upper);
    let bits = Attributes::normal(Permissions::READ).encode(&geometry);
    assert_eq!(bits & 0b11 << 8, 0b11 << 8);
}

#[test]
fn writable_and_executable() {
    for bits in 0..8_u8 {
        let permissions = Permissions {
            writable: bits & 1 != 0,
            privileged_execute: bits & 2 != 0,
            user_execute: bits & 4 != 0,
            ..Permissions::READ
        };
        let both = bits & 1 != 0 && bits & 6 != 0;
        assert_eq!(permissions.writable_and_executable(), both);
    }
}

#[test]
fn addresses() {
    // Page size, address, and the descriptor's address bits: 48-bit format; then 52-bit.
    let plain = |size| PLAIN.geometry(size, 48, VaRange::Upper);
    let wide = |size| LARGE.geometry(size, 52, VaRange::Upper);
    let rows: &[(Geometry, u64, u64)] = &[
        (plain(K4), 0x0000_1234_5678_9000, 0x0000_1234_5678_9000),
        (plain(K16), 0x0000_ffff_ffff_c000, 0x0000_ffff_ffff_c000),
        (plain(K64), 0x0000_ffff_ffff_0000, 0x0000_ffff_ffff_0000),
        // LPA2: 49:12 in place, 51:50 in bits 9:8.
        (wide(K4), 0x0001_0000_0000_0000, 0x0001_0000_0000_0000),
        (wide(K4), 0x0002_0000_0000_0000, 0x0002_0000_0000_0000),
        (wide(K4), 0x0004_0000_0000_0000, 0x0000_0000_0000_0100),
        (wide(K4), 0x0008_0000_0000_0000, 0x0000_0000_0000_0200),
        (wide(K4), 0x000f_ffff_ffff_f000, 0x0003_ffff_ffff_f300),
        (wide(K16), 0x000d_1234_5678_c000, 0x0001_1234_5678_c300),
        // LPA: 47:16 in place, 51:48 in bits 15:12.
        (wide(K64), 0x0001_0000_0000_0000, 0x0000_0000_0000_1000),
        (wide(K64), 0x0008_0000_0000_0000, 0x0000_0000_0000_8000),
        (wide(K64), 0x000a_1234_5678_0000, 0x0000_1234_5678_a000),
        // 52-bit input, 48-bit output.
        (
            WIDE_INPUT.geometry(K64, 52, VaRange::Upper),
            0xffff_ffff_0000,
            0xffff_ffff_0000,
        ),
    ];
    for (geometry, address, bits) in rows {
        let address = PhysicalAddress(*address);
        let table = Descriptor(bits | 0b11);
        assert_eq!(geometry.address_of(table, Level::L2), address);
        assert_eq!(table.kind(geometry, Level::L2), Kind::Table);
        let page = Descriptor::leaf(geometry, Level::L3, address, 0);
        assert_eq!(page.0, bits | 0b11, "{address}");
        assert_eq!(geometry.address_of(page, Level::L3), address);
        assert_eq!(page.kind(geometry, Level::L3), Kind::Leaf);
    }
}

#[test]
fn decoding_ignores_what_is_no_address() {
    // Blocks: bits below the block are not address, nT (bit 16) among them; all else may be set.
    let rows = [
        (PLAIN.geometry(K4, 48, VaRange::Upper), Level::L1, 30),
        (PLAIN.geometry(K4, 48, VaRange::Upper), Level::L2, 21),
        (PLAIN.geometry(K16, 48, VaRange::Upper), Level::L2, 25),
        (PLAIN.geometry(K64, 48, VaRange::Upper), Level::L2, 29),
    ];
    for (geometry, level, low) in rows {
        let word = !0b10;
        let block = Descriptor(word);
        assert_eq!(block.kind(&geometry, level), Kind::Leaf);
        let address = geometry.address_of(block, level).0;
        assert_eq!(address, 0xffff_ffff_ffff >> low << low, "{level}");
    }
}

#[test]
fn kinds() {
    // The two low bits at each level: 00 and 10 invalid, 01 a block where one is decoded, 11 a
    // table, at level 3 a page; 01 at level 3 is invalid.
    for size in PageSize::ALL {
        for geometry in [
            PLAIN.geometry(size, 48, VaRange::Upper),
            LARGE.geometry(size, 52, VaRange::Upper),
        ] {
            let arch = Arch::of(&geometry);
            for level in Level::ALL {
                let rest = 0x0000_1234_0000_0000;
                let kind = |low: u64| Descriptor(rest | low).kind(&geometry, level);
                assert_eq!(kind(0b00), Kind::Invalid);
                assert_eq!(kind(0b10), Kind::Invalid);
                let block = level != Level::L3 && arch.leaf_allowed(level.number());
                let expected = if block { Kind::Leaf } else { Kind::Invalid };
                assert_eq!(kind(0b01), expected, "{size} level {level}");
                let full = if level == Level::L3 {
                    Kind::Leaf
                } else {
                    Kind::Table
                };
                assert_eq!(kind(0b11), full);
            }
        }
    }
    assert!(Descriptor(1).is_valid() && !Descriptor(2).is_valid());
    assert!(Descriptor(1 << 52).is_contiguous() && !Descriptor(!(1 << 52)).is_contiguous());
    assert_eq!(
        format!("{:?}", Descriptor(0x703)),
        "Descriptor(0x0000000000000703)"
    );
}

proptest! {
    #![proptest_config(config(2000, 20))]

    /// Encoding agrees with an encoder written from the table alone, and decoding gives back
    /// what has a place in the descriptor.
    #[test]
    fn round_trip(
        word in any::<u64>(),
        shape in 0..granule_testing::shape::all().len(),
        level in 1..=3_i32,
    ) {
        let geometry = granule_testing::shape::all()[shape];
        let arch = Arch::of(&geometry);
        prop_assume!(level >= arch.start_level() && arch.leaf_allowed(level));
        let at = Level::ALL[(level + 1) as usize];
        let address = word & ((1 << arch.pa_bits) - 1) & !(arch.entry_bytes(level) - 1);
        let attributes = Attributes::decode(Descriptor(word), &geometry);
        let encoded = attributes.encode(&geometry);
        let leaf = Descriptor::leaf(&geometry, at, PhysicalAddress(address), encoded);
        prop_assert_eq!(leaf.0, arch.leaf_word::<Stage1>(address, level, false, &attributes));
        prop_assert_eq!(geometry.address_of(leaf, at).0, address);
        let again = Attributes::decode(leaf, &geometry);
        let expected = if arch.user { attributes } else { Attributes { global: true, ..attributes } };
        prop_assert_eq!(again, expected);
        prop_assert_eq!(leaf.kind(&geometry, at), Kind::Leaf);
    }
}
