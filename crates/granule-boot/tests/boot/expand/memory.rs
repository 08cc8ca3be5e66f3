//! RAM by the EFI memory map.

use super::machine::{Descriptor, PAGE, bare, expanded, machine, memory, notes};
use dtoolkit::fdt::Fdt;
use granule_boot::expand::{ExpandError, Note};
use granule_boot::tree::Range;
use granule_boot::words::Acpi;
use granule_testing::cases::config;
use granule_testing::firmware::{RUNTIME, SP, WB};
use proptest::prelude::*;

/// Seven hundred descriptors in any order are merged; those of too many separate ranges that find
/// no room are reported.
#[test]
fn a_map_has_hundreds_of_descriptors() {
    let banks = |all: Vec<Descriptor>| {
        let machine = machine(&all, &[]);
        let (bytes, made) = expanded(&machine, &bare(&machine), Some(Acpi::Off)).unwrap();
        (memory(&Fdt::new(&bytes).unwrap()), made.notes)
    };
    let at = |page: u64| 0x80_0000_0000 + page * PAGE;
    let close: Vec<_> = (0..700)
        .rev()
        .map(|page| (1 + (page % 4) as u32, at(page), 1, WB))
        .collect();
    let (merged, reported) = banks(close);
    assert_eq!(merged, [(at(0), 700 * PAGE, None)]);
    assert_eq!(reported.iter().count(), 0);
    let apart: Vec<_> = (0..700).map(|page| (7, at(2 * page), 1, WB)).collect();
    let (separate, reported) = banks(apart);
    assert_eq!(separate.len(), 128);
    assert_eq!(reported.iter().count() as u32 + reported.more(), 700 - 128);
    assert!(matches!(
        reported.iter().next(),
        Some(Note::MapFull(Range { .. }))
    ));
    // Hundreds of them, and the largest last: it is what stays.
    let mut small: Vec<_> = (0..400).map(|page| (7, at(2 * page), 1, WB)).collect();
    small.push((7, at(10_000), 9000, WB));
    let (kept, _) = banks(small);
    assert_eq!(
        (kept.len(), kept[127].clone()),
        (128, (at(10_000), 9000 * PAGE, None))
    );
    // A hole that makes one too many costs the smaller part.
    let mut full: Vec<_> = (0..128).map(|page| (7, at(8 * page), 5, WB)).collect();
    full.push((5, at(8) + 3 * PAGE, 1, WB));
    let (holed, reported) = banks(full);
    assert_eq!(
        (holed[1].clone(), holed.len()),
        ((at(8), 3 * PAGE, None), 128)
    );
    let lost = Range::new(at(8) + 4 * PAGE, PAGE);
    assert!(reported.iter().any(|note| note == Note::MapFull(lost)));
    // More separate ranges than are collected: what is above the hole goes.
    let mut full: Vec<_> = (0..512).map(|page| (7, at(8 * page), 5, WB)).collect();
    full.push((5, at(8) + 4 * PAGE, 1, WB));
    full.push((5, at(8) + PAGE, 1, WB));
    let (holed, _) = banks(full);
    assert_eq!(holed.len(), 128);
}

/// Kept memory with an absurd size or place takes what it covers, to the next descriptor, and not all RAM above.
#[test]
fn absurd_kept_memory_costs_little_and_is_reported() {
    let ram = |start: u64, pages: u64| (7, start, pages, WB);
    let made = |kept: Descriptor| {
        let all = [
            ram(0x4000_0000, 16),
            kept,
            ram(0x4001_4000, 16),
            ram(0x8000_0000, 16),
        ];
        let machine = machine(&all, &[]);
        let (bytes, made) = expanded(&machine, &bare(&machine), Some(Acpi::Off)).unwrap();
        let ram = memory(&Fdt::new(&bytes).unwrap());
        let ram: Vec<_> = ram.iter().map(|it| (it.0, it.1 / PAGE)).collect();
        (ram, notes(&made))
    };
    let ends = |first, third| {
        vec![
            (0x4000_0000, first),
            (0x4001_4000, 16),
            (0x8000_0000, third),
        ]
    };
    let whole = ends(16, 16);
    let note = |start, pages| Note::MapKept { start, pages };
    for (start, pages) in [
        (0x4001_0800, 2),
        (0x4001_0000, u64::MAX),
        (0x4001_0000, 1 << 52),
        (0x4001_0000, u64::MAX / PAGE),
    ] {
        let expected = (whole.clone(), vec![note(start, pages)]);
        assert_eq!(made((0, start, pages, 0)), expected);
    }
    // The memory that it does cover is not RAM.
    let (ram, reported) = made((5, 0x4000_f800, 1, WB | RUNTIME));
    assert_eq!((ram, reported[0]), (ends(15, 16), note(0x4000_f800, 1)));
    assert_eq!(made((0, 0x4000_8000, u64::MAX, 0)).0, ends(8, 16));
    assert_eq!(made((0, 0x8000_4000, u64::MAX, 0)).0, ends(16, 4));
}

/// Descriptors over the first pages of RAM, some of them absurd.
fn descriptors() -> impl Strategy<Value = Vec<Descriptor>> {
    let kind = prop_oneof![0_u32..16, Just(7), Just(7), Just(u32::MAX)];
    let start = (0_u64..64).prop_map(|page| 0x4000_0000 + page * PAGE);
    let start = prop_oneof![9 => start, 1 => prop_oneof![any::<u64>(), Just(u64::MAX - 4095)]];
    let pages = prop_oneof![9 => 0_u64..20, 1 => any::<u64>()];
    let attributes = prop_oneof![6 => Just(WB), 1 => Just(0), 1 => Just(WB | SP), 1 => Just(WB | RUNTIME), 1 => any::<u64>()];
    prop::collection::vec((kind, start, pages, attributes), 1..30)
}

proptest! {
    #![proptest_config(config(400, 0))]

    /// Each page is RAM exactly if a descriptor marks it usable and none reserves it.
    #[test]
    fn ram_is_what_is_usable_and_not_kept(all in descriptors()) {
        let machine = machine(&all, &[]);
        let made = expanded(&machine, &bare(&machine), Some(Acpi::Off));
        // Kinds by the specification: loader, boot services, conventional, ACPI reclaim.
        let is_ram = |&(kind, _, _, attributes): &Descriptor| {
            let kind = [1, 2, 3, 4, 7].contains(&kind) && attributes & SP == 0 || kind == 9;
            kind && attributes & WB != 0 && attributes & RUNTIME == 0
        };
        let ends = |start: u64, pages: u64| (u128::from(start), u128::from(start) + u128::from(pages) * 4096);
        let sane = |&(_, start, pages, _): &Descriptor| {
            start % 4096 == 0 && ends(start, pages).1 <= u128::from(u64::MAX)
        };
        let holds = |one: &Descriptor, page: u64| {
            let (start, end) = ends(one.1, one.2);
            start < u128::from(page) + 4096 && u128::from(page) < end
        };
        // One without an end reaches to the next one.
        let next = |one: &Descriptor| {
            let above = all.iter().filter(|other| sane(other) && other.1 > one.1);
            let next = above.map(|other| other.1).min().unwrap_or(u64::MAX);
            if ends(one.1, one.2).1 <= u128::from(u64::MAX) - 4095 { u64::MAX } else { next }
        };
        let oracle = |page: u64| {
            all.iter().any(|one| is_ram(one) && sane(one) && holds(one, page))
                && !all.iter().any(|one| !is_ram(one) && holds(one, page) && page < next(one))
        };
        let pages = (0..90).map(|page| 0x4000_0000 + page * PAGE);
        let expected: Vec<_> = pages.clone().filter(|page| oracle(*page)).collect();
        let (found, ram) = match &made {
            Ok((bytes, _)) => {
                let ram = memory(&Fdt::new(bytes).unwrap());
                let is_in = |page: &u64| ram.iter().any(|(start, bytes, _)| page.wrapping_sub(*start) < *bytes);
                (pages.filter(is_in).collect(), ram)
            }
            Err(ExpandError::NoMemory) => (vec![], vec![]),
            Err(error) => panic!("{error}"),
        };
        prop_assert_eq!(found, expected);
        // Ascending, apart, and nothing that begins or ends inside a page.
        for two in ram.windows(2) {
            prop_assert!(two[0].0 + two[0].1 < two[1].0);
        }
    }
}
