//! Broken trees for the rule `reserved-bits`: in leaves and in tables, by regime and by format.

use crate::lint::{BLOCK, MEMORY, PAGE, clean, findings, is_clean, is_found};
use crate::walk::RW;
use crate::world::{BASE, TABLES, World, kernel};
use granule::arch::{Level, PageSize, Regime, VaRange};
use granule::table::Leaves;
use granule_inspect::lint::{Rule, Severity};
use granule_testing::shape::{LARGE, PLAIN};

const RESERVED: (Rule, Severity) = (Rule::ReservedBits, Severity::Warning);

#[test]
fn reserved_bits_and_encodings() {
    type Case = (u64, Level, fn(u64) -> u64, &'static str);
    let block = 1 << 30;
    let cases: [Case; 6] = [
        (
            0x1_0000,
            Level::L3,
            |word| word | 1 << 49,
            "reserved bits 0x2000000000000 are set",
        ),
        (
            block,
            Level::L2,
            |word| word | 1 << 13,
            "reserved bits 0x2000 are set",
        ),
        (
            0,
            Level::L1,
            |word| word | 1 << 50,
            "reserved bits 0x4000000000000 are set",
        ),
        (
            block,
            Level::L2,
            |word| word & !(1 << 9),
            "the shareability is the reserved 0b01",
        ),
        // Index 7 of the standard MAIR is Device-nGnRnE; the byte is changed below.
        (
            block,
            Level::L2,
            |word| word | 7 << 2,
            "the memory type is the reserved 0x02",
        ),
        (
            BLOCK - PAGE,
            Level::L3,
            |_| 0x8000_0701,
            "bits 1:0 are 0b01, and this level has no blocks",
        ),
    ];
    for (offset, level, change, expected) in cases {
        let mut world = clean();
        world.tree.memory_types = world
            .tree
            .memory_types
            .map(|mair| granule::arch::registers::Mair(mair.0 | 2 << 56));
        world.change(offset, level, change);
        let found = findings(&world.pages, std::slice::from_ref(&world.tree));
        let reserved: Vec<_> = found
            .iter()
            .filter(|it| it.rule == Rule::ReservedBits)
            .collect();
        assert_eq!(reserved.len(), 1, "{found:#?}");
        assert_eq!(reserved[0].severity, Severity::Warning);
        let bytes = PageSize::K4.entry_bytes(level);
        let start = BASE + offset / bytes * bytes;
        assert_eq!((reserved[0].address, reserved[0].bytes), (start, bytes));
        assert!(reserved[0].text.contains(expected), "{}", reserved[0].text);
        // A member of a group that differs is a fault of the group too.
        let rest = found.iter().filter(|it| it.rule != Rule::ReservedBits);
        for other in rest {
            assert_eq!(other.rule, Rule::Contiguous);
            assert_eq!(level, Level::L3);
        }
    }
    // PXN and nG mean nothing where there is one privilege; at EL3 bit 11 is NSE.
    for (regime, bits) in [
        (Regime::El2, "0x20000000000800"),
        (Regime::El3, "0x20000000000000"),
    ] {
        let geometry = PLAIN.single(PageSize::K4, 39, regime);
        let mut world = World::at(
            geometry,
            0x9000_0000,
            &[(0, MEMORY, PAGE, RW, Leaves::PAGES)],
        );
        is_clean(&world);
        world.change(0, Level::L3, |word| word | 1 << 53 | 1 << 11);
        let text = format!("reserved bits {bits} are set");
        is_found(&world, RESERVED, (0, PAGE), &text);
    }
}

/// PXNTable and APTable[0] mean nothing where there is one privilege. The other restrictions do.
#[test]
fn restrictions_of_tables_that_one_privilege_does_not_have() {
    let page = |geometry| World::at(geometry, TABLES, &[(0, MEMORY, PAGE, RW, Leaves::PAGES)]);
    for (regime, reserved) in [
        (Regime::El2, true),
        (Regime::El3, true),
        (Regime::El1And0, false),
    ] {
        let world = || match reserved {
            true => page(PLAIN.single(PageSize::K4, 39, regime)),
            false => page(PLAIN.geometry(PageSize::K4, 39, VaRange::Lower)),
        };
        for bit in [59, 61] {
            let mut world = world();
            world.change(0, Level::L2, |word| word | 1 << bit);
            if !reserved {
                is_clean(&world);
                continue;
            }
            let text = format!("reserved bits {:#x} are set", 1_u64 << bit);
            is_found(&world, RESERVED, (0, BLOCK), &text);
        }
        let mut world = world();
        world.change(0, Level::L2, |word| word | 1 << 60 | 1 << 62 | 1 << 63);
        // XNTable, APTable[1], NSTable.
        is_clean(&world);
    }
}

#[test]
fn neighbours_with_the_same_reserved_bits_are_one_finding() {
    let mut world = World::plain(&[(0, MEMORY, 0x8000, RW, Leaves::PAGES)]);
    for page in 2..5 {
        world.change(page * PAGE, Level::L3, |word| word | 1 << 49);
    }
    is_found(&world, RESERVED, (2 * PAGE, 3 * PAGE), "entries 2 to 4");
}

#[test]
fn wide_formats_have_other_reserved_bits() {
    // With TCR.DS bits 9:8 and 49:48 are address bits.
    let geometry = LARGE.geometry(PageSize::K4, 52, VaRange::Lower);
    let world = World::at(
        geometry,
        0x9000_0000,
        &[(0, 0xf_0000_0000_0000, PAGE, RW, Leaves::PAGES)],
    );
    is_clean(&world);
    assert_eq!(kernel().pa_bits(), 48);
}
