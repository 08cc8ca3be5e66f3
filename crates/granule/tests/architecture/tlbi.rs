//! The TLBIs of a range, bit by bit and expanded back into what they invalidate.

use granule::arch::tlbi::{Invalidation, TlbCapabilities, TlbiOp, TlbiScope};
use granule::arch::{Geometry, Level, PageSize, VaRange, VirtualAddress};
use granule::table::{Maintenance, invalidate};
use granule_testing::cases::config;
use granule_testing::shape::{self, LARGE, PLAIN};
use granule_testing::tlbi::{Covered, decode};
use granule_testing::walk::Arch;
use proptest::prelude::*;

use PageSize::{K4, K16, K64};

const ADDRESS: u64 = (1 << 56) - 1;

/// Tables and the TLBIs of their CPUs.
type Can = (Geometry, TlbCapabilities);

fn capabilities(geometry: &Geometry, range: bool, level_hint: bool) -> Can {
    let can = TlbCapabilities {
        range,
        level_hint,
        ..TlbCapabilities::BASIC
    };
    (*geometry, can)
}

fn ops(what: &Invalidation, (geometry, can): &Can) -> Vec<TlbiOp> {
    let mut issued = Vec::new();
    invalidate(what, geometry, *can, |instruction| {
        if let Maintenance::Tlbi(_, op) = instruction {
            issued.push(op);
        }
    });
    issued
}

fn leaves(geometry: &Geometry, offset: u64, bytes: u64, level: Level) -> Invalidation {
    Invalidation {
        start: VirtualAddress(geometry.base().0 + offset),
        bytes,
        stride: geometry.page_size().entry_bytes(level),
        scope: TlbiScope::LastLevel,
        asid: None,
        level: Some(level),
    }
}

#[test]
fn nothing_takes_nothing() {
    let geometry = PLAIN.geometry(K4, 48, VaRange::Upper);
    for range in [false, true] {
        let what = leaves(&geometry, 0x1000, 0, Level::L3);
        assert_eq!(ops(&what, &capabilities(&geometry, range, true)), []);
    }
}

#[test]
fn the_longest_range_is_one_operation() {
    // 2 097 152 granules: 8, 32 and 128 GiB.
    for (size, bytes) in [(K4, 8_u64 << 30), (K16, 32 << 30), (K64, 128 << 30)] {
        let geometry = PLAIN.geometry(size, 48, VaRange::Upper);
        let can = capabilities(&geometry, true, false);
        let what = leaves(&geometry, 0, bytes, Level::L3);
        let found = ops(&what, &can);
        assert!(found.len() <= 2, "{size}: {} operations", found.len());
        let covered = decode(&Arch::of(&geometry), found[0]);
        assert_eq!(covered.first, geometry.base().0 & ADDRESS);
        // One granule more is too long for ranges: all at once.
        let more = leaves(&geometry, 0, bytes + size.bytes(), Level::L3);
        assert_eq!(ops(&more, &can), [TlbiOp::All]);
        // And a little less takes one operation for each scale.
        let less = leaves(&geometry, 0, bytes - 2 * size.bytes(), Level::L3);
        assert_eq!(ops(&less, &can).len(), 4);
    }
}

#[test]
fn too_many_single_operations_become_one() {
    let geometry = PLAIN.geometry(K4, 48, VaRange::Upper);
    let can = capabilities(&geometry, false, false);
    let most = leaves(&geometry, 0, 512 << 12, Level::L3);
    assert_eq!(ops(&most, &can).len(), 512);
    let more = leaves(&geometry, 0, 513 << 12, Level::L3);
    assert_eq!(ops(&more, &can), [TlbiOp::All]);
    let own = Invalidation {
        asid: Some(9),
        ..more
    };
    assert_eq!(ops(&own, &can), [TlbiOp::Asid { operand: 9 << 48 }]);
}

#[test]
fn bases_count_in_64k_with_ds() {
    // FEAT_LPA2 with DS set: the base of a range is address >> 16, also for 4K and 16K pages. Pages
    // before the first such address go one by one.
    let geometry = LARGE.geometry(K4, 52, VaRange::Lower);
    let can = capabilities(&geometry, true, false);
    let what = leaves(&geometry, 0x1_e000, 0x1_2000, Level::L3);
    let single = |page: u64| TlbiOp::Address {
        operand: page,
        scope: TlbiScope::LastLevel,
        all_asids: true,
    };
    // 16 pages from 0x20000: (NUM + 1) * 2 = 16.
    let range = TlbiOp::Range {
        operand: 0b01 << 46 | 7 << 39 | 2,
        scope: TlbiScope::LastLevel,
        all_asids: true,
    };
    assert_eq!(ops(&what, &can), [single(0x1e), single(0x1f), range]);
    // Without DS the base is address >> 12, and all 18 pages are one range.
    let geometry = PLAIN.geometry(K4, 48, VaRange::Lower);
    let can = capabilities(&geometry, true, false);
    let range = TlbiOp::Range {
        operand: 0b01 << 46 | 8 << 39 | 0x1e,
        scope: TlbiScope::LastLevel,
        all_asids: true,
    };
    assert_eq!(ops(&what, &can), [range]);
    // Two pages are a range already; one is not.
    let two = leaves(&geometry, 0x1_e000, 0x2000, Level::L3);
    let range = TlbiOp::Range {
        operand: 0b01 << 46 | 0x1e,
        scope: TlbiScope::LastLevel,
        all_asids: true,
    };
    assert_eq!(ops(&two, &can), [range]);
    let one = leaves(&geometry, 0x1_e000, 0x1000, Level::L3);
    assert_eq!(ops(&one, &can), [single(0x1e)]);
}

#[test]
fn level_hints_only_where_they_are_legal() {
    let hints = |geometry: &Geometry, what: &Invalidation, range| {
        ops(what, &capabilities(geometry, range, true))
            .into_iter()
            .map(|op| decode(&Arch::of(geometry), op).level)
            .collect::<Vec<_>>()
    };
    let plain = PLAIN.geometry(K4, 48, VaRange::Upper);
    let wide = LARGE.geometry(K4, 52, VaRange::Upper);
    // A block of 2 MiB.
    let what = leaves(&plain, 4 << 20, 2 << 20, Level::L2);
    assert_eq!(hints(&plain, &what, false), [Some(2)]);
    // Tables go too: none.
    let all = Invalidation {
        scope: TlbiScope::AllLevels,
        ..what
    };
    assert_eq!(hints(&plain, &all, false), [None]);
    // Not known: none.
    let unknown = Invalidation {
        level: None,
        ..what
    };
    assert_eq!(hints(&plain, &unknown, false), [None]);
    // Without FEAT_TTL: none.
    let blind = ops(&what, &capabilities(&plain, false, false));
    assert_eq!(decode(&Arch::of(&plain), blind[0]).level, None);
    // 4K level 0 and 16K level 1 only with LPA2; TTL 0b0100 and 0b1001 are reserved without.
    let level0 = |geometry: &Geometry| leaves(geometry, 1 << 39, 1 << 39, Level::L0);
    assert_eq!(hints(&plain, &level0(&plain), false), [None]);
    assert_eq!(hints(&wide, &level0(&wide), false), [Some(0)]);
    let plain16 = PLAIN.geometry(K16, 48, VaRange::Upper);
    let wide16 = LARGE.geometry(K16, 52, VaRange::Upper);
    let level1 = |geometry: &Geometry| leaves(geometry, 1 << 36, 1 << 36, Level::L1);
    assert_eq!(hints(&plain16, &level1(&plain16), false), [None]);
    assert_eq!(hints(&wide16, &level1(&wide16), false), [Some(1)]);
    // In a range too, where the base is aligned to the level: four blocks of 2 MiB.
    let blocks = leaves(&plain, 4 << 20, 8 << 20, Level::L2);
    assert_eq!(hints(&plain, &blocks, true), [Some(2)]);
    // Its TTL cannot encode level 0: 16 blocks of 512 GiB are all at once, and so are fewer than
    // the longest range; three of 1 GiB are a range of level 1.
    let gib = leaves(&plain, 1 << 30, 3 << 30, Level::L1);
    let found = hints(&plain, &gib, true);
    assert!(found.iter().all(|hint| *hint == Some(1)), "{found:?}");
}

/// Invalidations of all kinds on all shapes.
fn cases() -> impl Strategy<Value = (Geometry, bool, bool, Invalidation)> {
    let shapes = shape::all();
    (
        proptest::sample::select(shapes),
        any::<[bool; 4]>(),
        any::<u64>(),
        prop_oneof![1..70_u64, 1..5000_u64, 1..3_000_000_u64],
        0..5_usize,
        any::<u16>(),
    )
        .prop_map(|(geometry, flags, place, pages, level, asid)| {
            let page = geometry.page_size().bytes();
            let all = geometry.span() / page;
            let pages = pages.min(all);
            // Often at the very top or bottom, where an operation must not reach beyond.
            let first = match place % 4 {
                0 => 0,
                1 => all - pages,
                _ => place % (all - pages + 1),
            };
            let level = Level::ALL[level].max(geometry.start_level());
            let stride = geometry.page_size().entry_bytes(level);
            // With a hint the caller states that all leaves are of that level, so the range is of
            // whole ones.
            let whole = flags[3] && stride <= geometry.span();
            let round = |offset: u64| {
                if whole {
                    offset.next_multiple_of(stride).min(geometry.span())
                } else {
                    offset
                }
            };
            let from = round(first * page);
            let to = round((first + pages) * page);
            let what = Invalidation {
                start: VirtualAddress(geometry.base().0.wrapping_add(from)),
                bytes: to - from,
                stride,
                scope: if flags[2] {
                    TlbiScope::AllLevels
                } else {
                    TlbiScope::LastLevel
                },
                asid: (asid % 3 == 0).then_some(asid),
                level: whole.then_some(level),
            };
            (geometry, flags[0], flags[1], what)
        })
}

proptest! {
    #![proptest_config(config(4000, 20))]

    /// Expanded, a plan reaches every entry that may be cached in the range, and no operation
    /// reaches outside it (but for those that name no address).
    #[test]
    fn plans_cover_their_range((geometry, range, level_hint, what) in cases()) {
        let arch = Arch::of(&geometry);
        let can = capabilities(&geometry, range, level_hint);
        let found = ops(&what, &can);
        let offset = what.start.0.wrapping_sub(geometry.base().0);
        let end = offset + what.bytes;
        if what.bytes == 0 {
            prop_assert!(found.is_empty());
            return Ok(());
        }
        prop_assert!(found.len() <= 512 + 2, "{} operations", found.len());
        if range {
            // Singles up to 64 KiB alignment, one operation a scale, one odd granule.
            prop_assert!(found.len() <= 15 + 4 + 1, "{} operations", found.len());
        }
        // Offsets from the base of the half, so that nothing wraps.
        let base = geometry.base().0 & ADDRESS;
        let mut covered: Vec<Covered> = Vec::new();
        for op in found {
            let one = decode(&arch, op);
            if matches!(op, TlbiOp::All | TlbiOp::Asid { .. }) {
                prop_assert_eq!(matches!(op, TlbiOp::Asid { .. }), what.asid.is_some());
                prop_assert_eq!(one.asid, what.asid);
                return Ok(());
            }
            prop_assert_eq!(one.asid, what.asid);
            prop_assert_eq!(one.tables, what.scope == TlbiScope::AllLevels);
            if one.level.is_some() {
                prop_assert!(level_hint && what.scope == TlbiScope::LastLevel);
                prop_assert_eq!(one.level, what.level.map(Level::number));
                prop_assert!(arch.leaf_allowed(one.level.unwrap()));
            }
            let first = one.first - base;
            let last = one.last - base;
            if matches!(op, TlbiOp::Range { .. }) {
                prop_assert!(range);
                prop_assert!(first >= offset && last < end, "{first:#x}..={last:#x}");
            } else {
                // In an entry of the range; entries may begin before it.
                let down = offset / what.stride * what.stride;
                let up = end.next_multiple_of(what.stride);
                prop_assert!(first >= down && first < up, "{first:#x}");
            }
            covered.push(Covered { first, last, ..one });
        }
        // Each entry of the stride's size that overlaps the range: an operation inside it.
        covered.sort_by_key(|one| one.first);
        let mut next = offset / what.stride * what.stride;
        for one in &covered {
            if next >= end {
                break;
            }
            prop_assert!(one.first < next + what.stride, "nothing reaches {next:#x}");
            if one.last >= next {
                next = (one.last / what.stride + 1) * what.stride;
            }
        }
        prop_assert!(next >= end, "nothing reaches {next:#x} of {end:#x}");
    }
}
