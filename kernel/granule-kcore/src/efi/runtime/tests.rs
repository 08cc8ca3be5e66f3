//! Plans against maps that are built from the specification, and against an oracle that looks at each page of
//! 4 KiB alone.

use super::{Plan, Refusal};
use granule::arch::{
    CpuFeatures, Geometry, IdRegisters, MemoryType, PageSize, Permissions, Regime, VaRange,
};
use granule_boot::efi::Map;
use granule_testing::cases::config;
use granule_testing::firmware::{RO, RUNTIME, WB, XP, descriptor};
use proptest::prelude::*;
use std::collections::BTreeMap;

const EFI_PAGE: u64 = 4 << 10;
const CODE: u32 = 5;
const DATA: u32 = 6;
const MMIO: u32 = 11;

/// A lower half of 48 bits and 44 bits of physical address.
fn geometry(size: PageSize) -> Geometry {
    let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(1 << 20 | 4));
    Geometry::new(&cpu, size, 48, VaRange::Lower, Regime::El1And0).unwrap()
}

/// Kind, first page, pages, attributes, virtual address.
type One = (u32, u64, u64, u64, u64);

fn list(all: &[One]) -> Vec<u8> {
    let one = |&(kind, page, pages, attributes, moved): &One| {
        let mut one = descriptor(kind, page.wrapping_mul(EFI_PAGE), pages, attributes, 48);
        one[16..24].copy_from_slice(&moved.to_le_bytes());
        one
    };
    all.iter().flat_map(one).collect()
}

/// First page, pages, what may be done, and whether it is a device's.
type Mapped = (u64, u64, &'static str, MemoryType);

fn words(permissions: Permissions) -> &'static str {
    match (permissions.writable, permissions.privileged_execute) {
        (false, false) => "r",
        (true, false) => "rw",
        (false, true) => "rx",
        (true, true) => "rwx",
    }
}

/// The mappings in pages of 4 KiB.
fn plan(size: PageSize, map: &[One], table: Option<&[One]>) -> Result<Vec<Mapped>, Refusal> {
    let (map, table) = (list(map), table.map(list));
    let table = table.as_ref().map(|table| Map::new(table, 48, 1).unwrap());
    let plan = Plan::new(Map::new(&map, 48, 1).unwrap(), table, &geometry(size))?;
    let pieces = plan.pieces().map(|piece| {
        for number in [piece.start.0, piece.output.0, piece.bytes] {
            assert_eq!(number % size.bytes(), 0);
        }
        assert!(!piece.attributes.permissions.user);
        assert_eq!(
            plan.address(piece.output.0).unwrap_or(piece.start.0),
            piece.start.0
        );
        (
            piece.output.0 / EFI_PAGE,
            piece.bytes / EFI_PAGE,
            words(piece.attributes.permissions),
            piece.attributes.memory,
        )
    });
    Ok(pieces.collect())
}

const NORMAL: MemoryType = MemoryType::Normal;
const DEVICE: MemoryType = MemoryType::DeviceStrict;
const WB_RT: u64 = WB | RUNTIME;

/// As EDK2 leaves it, in no order, among memory of other kinds. Everything is aligned to 64 KiB.
fn usual() -> (Vec<One>, Vec<One>) {
    let map = vec![
        (DATA, 0x40, 0x20, WB_RT, 0),
        (7, 0x100, 0x1000, WB, 0),
        (MMIO, 0x4000, 0x40, 1 | RUNTIME, 0),
        (CODE, 0x10, 0x30, WB_RT, 0),
        (4, 0x80, 0x10, WB, 0),
    ];
    let table = vec![
        (CODE, 0x30, 0x10, XP | RUNTIME, 0),
        (DATA, 0x40, 0x20, XP | RUNTIME, 0),
        (CODE, 0x10, 0x10, XP | RO | RUNTIME, 0),
        (CODE, 0x20, 0x10, RO | RUNTIME, 0),
    ];
    (map, table)
}

#[test]
fn what_the_table_says_is_mapped_at_every_page_size() {
    let (map, table) = usual();
    let expected = vec![
        (0x10, 0x10, "r", NORMAL),
        (0x20, 0x10, "rx", NORMAL),
        (0x30, 0x30, "rw", NORMAL),
        (0x4000, 0x40, "rw", DEVICE),
    ];
    for size in PageSize::ALL {
        assert_eq!(plan(size, &map, Some(&table)), Ok(expected.clone()));
    }
    let map = list(&map);
    let table = list(&table);
    let maps = [&map, &table].map(|all| Map::new(all, 48, 1).unwrap());
    let plan = Plan::new(maps[0], Some(maps[1]), &geometry(PageSize::K4)).unwrap();
    assert_eq!(plan.regions(), 3);
    assert_eq!(plan.address(0x1_0000), Some(0x1_0000));
    assert_eq!([0xffff, 0x6_0000].map(|at| plan.address(at)), [None, None]);
}

/// Without the table only a descriptor's own attributes keep code from being written.
#[test]
fn code_that_nothing_protects_is_refused() {
    let (mut map, _) = usual();
    let refused = |size: PageSize, has_table| Refusal::WriteExecute {
        page: 0x1_0000,
        bytes: size.bytes(),
        has_table,
    };
    for size in PageSize::ALL {
        assert_eq!(plan(size, &map, None), Err(refused(size, false)));
        // A table that does not mention it is no better.
        let other = [(DATA, 0x40, 0x20, XP | RUNTIME, 0)];
        assert_eq!(plan(size, &map, Some(&other)), Err(refused(size, true)));
    }
    // What memory can do does not say what it is: this code could be constants too.
    for attributes in [XP, RO | XP] {
        map[3].3 = WB_RT | attributes;
        assert_eq!(
            plan(PageSize::K4, &map, None),
            Err(refused(PageSize::K4, false))
        );
    }
    map[3].3 = WB_RT | RO;
    map[0].3 |= XP | RO;
    map[2].3 |= XP | RO;
    let expected = vec![
        (0x10, 0x30, "rx", NORMAL),
        (0x40, 0x20, "rw", NORMAL),
        (0x4000, 0x40, "rw", DEVICE),
    ];
    assert_eq!(plan(PageSize::K64, &map, None), Ok(expected));
}

/// Code and data in one page of 64 KiB, each in its own of 4 KiB and 16 KiB.
#[test]
fn a_page_that_code_and_data_share_is_refused() {
    let map = [(CODE, 0x10, 0x24, WB_RT, 0), (DATA, 0x34, 0xc, WB_RT, 0)];
    let table = [
        (CODE, 0x10, 0x20, RO | RUNTIME, 0),
        (CODE, 0x30, 4, RO | XP | RUNTIME, 0),
    ];
    let apart = vec![
        (0x10, 0x20, "rx", NORMAL),
        (0x30, 4, "r", NORMAL),
        (0x34, 0xc, "rw", NORMAL),
    ];
    for size in [PageSize::K4, PageSize::K16] {
        assert_eq!(plan(size, &map, Some(&table)), Ok(apart.clone()));
    }
    // Constants and data may share a page, which is written then.
    let joined = vec![(0x10, 0x20, "rx", NORMAL), (0x30, 0x10, "rw", NORMAL)];
    assert_eq!(plan(PageSize::K64, &map, Some(&table)), Ok(joined));
    let code = [(CODE, 0x10, 0x24, RO | RUNTIME, 0)];
    let refused = Refusal::WriteExecute {
        page: 0x3_0000,
        bytes: 0x1_0000,
        has_table: true,
    };
    assert_eq!(plan(PageSize::K64, &map, Some(&code)), Err(refused));
    let line = "the 64k page at 0x30000 would have to be writable and executable";
    assert_eq!(refused.to_string(), line);
}

/// Three parts and more in one page.
#[test]
fn a_page_gets_the_permissions_of_all_its_parts() {
    let map = [
        (DATA, 1, 1, WB_RT, 0),
        (CODE, 2, 1, WB_RT, 0),
        (DATA, 3, 20, WB_RT, 0),
    ];
    let table = [
        (DATA, 1, 1, RO | XP | RUNTIME, 0),
        (CODE, 2, 1, RO | RUNTIME, 0),
        (DATA, 3, 20, RO | XP | RUNTIME, 0),
    ];
    let expected = vec![(0, 0x10, "rx", NORMAL), (0x10, 0x10, "r", NORMAL)];
    assert_eq!(plan(PageSize::K64, &map, Some(&table)), Ok(expected));
}

#[test]
fn an_earlier_kernels_addresses_are_kept() {
    let moved = |places: [u64; 2]| {
        let map = [
            (DATA, 0x20, 0x10, WB_RT, places[1]),
            (CODE, 0x10, 0x10, WB_RT | RO, places[0]),
        ];
        let map = list(&map);
        let map = Map::new(&map, 48, 1).unwrap();
        let plan = |size| {
            let plan = Plan::new(map, None, &geometry(size))?;
            let pieces = plan.pieces().map(|piece| (piece.start.0, piece.output.0));
            assert_eq!(plan.address(0x2_0010), Some(places[1] + 0x10));
            Ok(pieces.collect::<Vec<_>>())
        };
        [PageSize::K4, PageSize::K64].map(plan)
    };
    let there = Ok(vec![(0x2000_0000, 0x1_0000), (0x2001_0000, 0x2_0000)]);
    assert_eq!(moved([0x2000_0000, 0x2001_0000]), [there.clone(), there]);
    let there = Ok(vec![(0x2000_1000, 0x1_0000), (0x2004_1000, 0x2_0000)]);
    let refused = Err(Refusal::Distance { start: 0x1_0000 });
    assert_eq!(moved([0x2000_1000, 0x2004_1000]), [there, refused]);
    let some = Err(Refusal::SomeMoved);
    assert_eq!(moved([0x2000_0000, 0]), [some.clone(), some]);
    let mark = Err(Refusal::NotMoved);
    for places in [[u64::MAX; 2], [u64::MAX, 0], [0x2000_0000, u64::MAX]] {
        assert_eq!(moved(places), [mark.clone(), mark.clone()]);
    }
    for place in [1 << 48, (1 << 48) - EFI_PAGE, !0 << 47, !0xffff] {
        let refused = Err(Refusal::Beyond { start: 0x1_0000 });
        assert_eq!(moved([place, 0x2004_0000])[0], refused, "{place:#x}");
    }
    // At the address where it lies: what Linux does at times.
    let there = Ok(vec![(0x1_0000, 0x1_0000), (0x2_0000, 0x2_0000)]);
    assert_eq!(moved([0x1_0000, 0x2_0000]), [there.clone(), there]);
}

#[test]
fn a_map_that_lies_is_refused_in_one_line() {
    let code = (CODE, 0x10, 0x10, WB_RT | RO, 0);
    let data = (DATA, 0x20, 0x10, WB_RT, 0);
    let whole = |end: One| vec![code, end];
    let lies: Vec<(Vec<One>, Vec<One>, Refusal)> = vec![
        (vec![(7, 1, 1, WB, 0)], vec![], Refusal::None),
        (whole((DATA, 0x1f, 2, WB_RT, 0)), vec![], Refusal::Overlap),
        (whole(code), vec![], Refusal::Overlap),
        (whole((DATA, 0, 99, WB_RT, 0)), vec![], Refusal::Overlap),
        (
            whole((DATA, 0x20, u64::MAX, WB_RT, 0)),
            vec![],
            Refusal::Range { start: 0x2_0000 },
        ),
        (
            whole((DATA, (1 << 44) / EFI_PAGE - 1, 2, WB_RT, 0)),
            vec![],
            Refusal::Beyond {
                start: (1 << 44) - EFI_PAGE,
            },
        ),
        (
            whole((CODE, 0x20, 1, RO | RUNTIME | 1, 0)),
            vec![],
            Refusal::Uncached { start: 0x2_0000 },
        ),
        (
            whole(data),
            vec![(CODE, 0x1f, 2, RO | RUNTIME, 0)],
            Refusal::Outside { start: 0x1_f000 },
        ),
        (
            whole(data),
            vec![(CODE, 0x10, 2, RO, 0), (CODE, 0x11, 1, RO, 0)],
            Refusal::Overlap,
        ),
        (
            whole(data),
            vec![(DATA, 0x20, 1, 0, 0)],
            Refusal::WriteExecute {
                page: 0x2_0000,
                bytes: EFI_PAGE,
                has_table: true,
            },
        ),
    ];
    for (map, table, expected) in lies {
        let table = (!table.is_empty()).then_some(&table[..]);
        assert_eq!(plan(PageSize::K4, &map, table), Err(expected));
        assert_eq!(expected.to_string().lines().count(), 1);
    }
    let many: Vec<One> = (0..1025).map(|at| (DATA, 2 * at, 1, WB_RT, 0)).collect();
    assert_eq!(plan(PageSize::K4, &many, None), Err(Refusal::TooMany));
    assert_eq!(
        plan(PageSize::K4, &many[..1024], None).map(|all| all.len()),
        Ok(1024)
    );
}

/// Registers beside memory, in a page of 64 KiB that would be cacheable.
#[test]
fn a_page_with_registers_is_no_memory() {
    let with = |other: One| plan(PageSize::K64, &[(DATA, 0x10, 1, WB_RT, 0), other], None);
    let refused = Err(Refusal::Shared {
        page: 0x1_0000,
        bytes: 0x1_0000,
    });
    assert_eq!(with((MMIO, 0x18, 1, 1 | RUNTIME, 0)), refused);
    assert_eq!(with((MMIO, 0x18, 1, 1, 0)), refused);
    let apart = Ok(vec![(0x10, 0x10, "rw", NORMAL)]);
    assert_eq!(with((MMIO, 0x20, 1, 1, 0)), apart);
    // Memory that is cached otherwise.
    assert_eq!(with((DATA, 0x18, 1, 2 | RUNTIME, 0)), refused);
}

/// A part of a region: its pages, and its attributes in the memory attributes table, if it is there.
type Cut = (u64, Option<u64>);

/// Regions with gaps before them, cut into parts, each with what its memory can do.
fn regions() -> impl Strategy<Value = Vec<(u64, u32, u64, Vec<Cut>)>> {
    let can = prop_oneof![2 => Just(0), 1 => Just(RO), 1 => Just(XP), 1 => Just(RO | XP)];
    let attributes = prop_oneof![
        3 => Just(RO), 3 => Just(XP), 2 => Just(RO | XP), 1 => Just(0)
    ];
    let cut = (1_u64..24, prop::option::weighted(0.9, attributes));
    let kind = prop_oneof![4 => Just(CODE), 4 => Just(DATA), 1 => Just(MMIO)];
    let gap = prop_oneof![2 => Just(0_u64), 1 => 0_u64..40];
    let cuts = prop::collection::vec(cut, 1..5);
    prop::collection::vec((gap, kind, can, cuts), 1..8)
}

proptest! {
    #![proptest_config(config(400, 0))]

    #[test]
    fn each_page_may_what_its_parts_may(
        all in regions(), order in any::<u64>(), has_table in any::<bool>(), which in 0_usize..3,
    ) {
        let size = PageSize::ALL[which];
        let in_page = size.bytes() / EFI_PAGE;
        // Page by page, from what was drawn.
        let mut pages: BTreeMap<u64, (bool, bool, bool, bool)> = BTreeMap::new();
        let (mut map, mut table) = (Vec::new(), Vec::new());
        let mut at = 3;
        for (gap, kind, can, cuts) in &all {
            at += gap;
            let start = at;
            for &(length, attributes) in cuts {
                // A device's part says what the device is.
                let attributes = attributes.filter(|_| has_table && *kind != MMIO);
                let (writes, executes) = match attributes {
                    Some(attributes) => (attributes & RO == 0, attributes & XP == 0),
                    None => (*kind != CODE || *can != RO, *kind == CODE),
                };
                if let Some(attributes) = attributes {
                    table.push((*kind, at, length, attributes | RUNTIME, 0));
                }
                for page in at..at + length {
                    let page = pages.entry(page / in_page).or_default();
                    page.0 |= writes;
                    page.1 |= executes;
                    page.2 |= *kind != MMIO;
                    page.3 |= *kind == MMIO;
                }
                at += length;
            }
            map.push((*kind, start, at - start, WB_RT | can, 0));
        }
        let length = map.len() as u64;
        map.rotate_left((order % length) as usize);
        table.reverse();
        let table = (has_table && !table.is_empty()).then_some(&table[..]);
        let is_bad = pages.values().any(|&(writes, executes, memory, device)| {
            writes && executes || memory && device
        });
        match plan(size, &map, table) {
            Err(refusal) => {
                prop_assert!(is_bad, "{refusal}");
                let is_of_a_page = matches!(refusal, Refusal::WriteExecute { .. } | Refusal::Shared { .. });
                prop_assert!(is_of_a_page);
            }
            Ok(pieces) => {
                prop_assert!(!is_bad);
                let mut found = BTreeMap::new();
                for (first, length, words, memory) in pieces {
                    for page in first / in_page..(first + length) / in_page {
                        let rights = (words.contains('w'), words.contains('x'));
                        let one = (rights.0, rights.1, memory == NORMAL, memory == DEVICE);
                        prop_assert_eq!(found.insert(page, one), None);
                    }
                }
                prop_assert_eq!(found, pages);
            }
        }
    }

    /// Whatever the lists say, a plan ends, and nothing in it is written and executed.
    #[test]
    fn no_list_is_believed(
        map in prop::collection::vec((0_u32..16, 0_u64..64, prop_oneof![0_u64..9, any::<u64>()], any::<u64>(), prop_oneof![Just(0), any::<u64>()]), 0..20),
        table in prop::collection::vec((5_u32..7, 0_u64..64, 0_u64..9, any::<u64>(), Just(0)), 1..20),
        which in 0_usize..3,
    ) {
        let map = [map, vec![(CODE, 3, 4, WB_RT | RO, 0)]].concat();
        for table in [None, Some(&table[..])] {
            match plan(PageSize::ALL[which], &map, table) {
                Err(refusal) => prop_assert_eq!(refusal.to_string().lines().count(), 1),
                Ok(pieces) => prop_assert!(pieces.iter().all(|(_, _, words, _)| *words != "rwx")),
            }
        }
    }
}
