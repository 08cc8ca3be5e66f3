//! Trees with memory of all kinds, and what early memory makes of them.

use super::*;
use crate::made_trees::{self, Properties, TWO_CELLS, node, numbers};
use dtoolkit::model::DeviceTreeNode;
use granule::arch::PageSize::{self, K4, K64};

type Pairs<'a> = &'a [(u64, u64)];

const GIB: (u64, u64) = (0x4000_0000, 0x4000_0000);

fn pairs(pairs: Pairs<'_>) -> Vec<u8> {
    let all = pairs.iter().flat_map(|(start, bytes)| [*start, *bytes]);
    numbers(&all.collect::<Vec<_>>())
}

/// A tree whose memory node has these properties beside its type, with further nodes and reservations.
fn machine(
    bank: Properties<'_>,
    nodes: impl IntoIterator<Item = DeviceTreeNode>,
    reservations: Pairs<'_>,
) -> Vec<u8> {
    let properties = [&[("device_type", &b"memory\0"[..])], bank].concat();
    let nodes = nodes.into_iter();
    let bank = node("memory@1000", &properties, []);
    made_trees::tree(node("", &TWO_CELLS, nodes.chain([bank])), reservations)
}

/// A tree with a bank of 1 GiB.
fn one_gib(nodes: Vec<DeviceTreeNode>, reservations: Pairs<'_>) -> Vec<u8> {
    machine(&[("reg", &pairs(&[GIB]))], nodes, reservations)
}

/// Early memory as lists, and the warnings.
struct Read {
    banks: Vec<(u64, u64)>,
    reserved: Vec<(u64, u64)>,
    no_map: Vec<(u64, u64)>,
    warnings: Vec<String>,
}

/// Reads a tree into early memory, which some tests go on to use.
fn early(tree: &[u8], pages: PageSize) -> Result<(Memory, Vec<String>), String> {
    let mut early = Memory::new(pages);
    let mut warnings = Vec::new();
    let warn = |warning: Warning<'_>| warnings.push(warning.to_string());
    memory(tree, None, &mut early, warn).map_err(|error| error.to_string())?;
    Ok((early, warnings))
}

fn read(tree: &[u8]) -> Result<Read, String> {
    let (early, warnings) = early(tree, K4)?;
    let list = |list: &[Region]| list.iter().map(|it| (it.start(), it.end())).collect();
    Ok(Read {
        banks: list(early.banks()),
        reserved: list(early.reserved()),
        no_map: list(early.no_map()),
        warnings,
    })
}

#[test]
fn firmware_reservations_inside_our_storage_are_not_given_back() {
    let memory = |pages| {
        let mut firmware = Memory::new(pages);
        firmware.add_bank(0x4000_0000, 0x1000_0000).unwrap();
        firmware
    };
    let pieces = |firmware: &Memory, start, end| -> Vec<_> {
        let pieces = unreserved(firmware, start, end);
        pieces.map(|piece| (piece.start(), piece.end())).collect()
    };
    let (start, end) = (0x4020_0000, 0x4030_0000);
    let mut firmware = memory(K4);
    assert_eq!(pieces(&firmware, start, end), [(start, end)]);
    // One byte reserves its page, at any place; no-map ranges count alike.
    firmware.reserve(0x4021_0fff, 1).unwrap();
    firmware.mark_no_map(0x4022_0800, 0x1000).unwrap();
    firmware.reserve(0x402f_f000, 0x10_0000).unwrap();
    // A reservation that ends at our storage costs nothing.
    firmware.reserve(start - 0x1000, 0x1000).unwrap();
    let left = [
        (start, 0x4021_0000),
        (0x4021_1000, 0x4022_0000),
        (0x4022_2000, 0x402f_f000),
    ];
    assert_eq!(pieces(&firmware, start, end), left);
    // With the only page reserved nothing is left.
    assert_eq!(pieces(&firmware, 0x4021_0000, 0x4021_1000), []);
    firmware.reserve(start, end - start).unwrap();
    assert_eq!(pieces(&firmware, start, end), []);

    let mut firmware = memory(K64);
    firmware.reserve(0x4003_4000, 8).unwrap();
    let left = [(0x4002_0000, 0x4003_0000), (0x4004_0000, 0x4006_0000)];
    assert_eq!(pieces(&firmware, 0x4002_0000, 0x4006_0000), left);
}

#[test]
fn memory_handed_over_is_reserved_only_where_the_range_differs() {
    let tree = one_gib(vec![], &[(0x4100_0000, 0x1000), (0x4200_0000, 0x1000)]);
    let reserved = |handed_over| {
        let mut early = Memory::new(K4);
        memory(&tree, handed_over, &mut early, |it| panic!("{it}")).unwrap();
        let starts: Vec<_> = early.reserved().iter().map(|it| it.start()).collect();
        let mut reported = Vec::new();
        let handed_over = Some(0x4200_0000..0x4200_1000).filter(|_| starts.len() == 1);
        each_reserved(&tree, handed_over, |start, _| reported.push(start)).unwrap();
        assert_eq!(reported, starts);
        starts
    };
    let both = [0x4100_0000, 0x4200_0000];
    assert_eq!(reserved(None), both);
    assert_eq!(reserved(Some(0x4200_0000..0x4200_1000)), both[..1]);
    assert_eq!(reserved(Some(0x4200_0000..0x4200_0800)), both);
    assert_eq!(reserved(Some(0x4200_0800..0x4200_1000)), both);
}

#[test]
fn memory_of_another_kernel_is_left_out() {
    let with = |reg: Pairs<'_>, own: Option<Pairs<'_>>, range: Option<Pairs<'_>>| {
        let (reg, own, range) = (pairs(reg), own.map(pairs), range.map(pairs));
        let own = own.iter().map(|own| (USABLE, &own[..]));
        let bank: Vec<_> = [("reg", &reg[..])].into_iter().chain(own).collect();
        let chosen = range.map(|range| node("chosen", &[(USABLE_RANGE, &range)], []));
        read(&machine(&bank, chosen, &[]))
    };
    let reg = &[(0x1000, 0x8000), (0x2_0000, 0x8000)];
    let both = with(reg, None, None).unwrap();
    assert_eq!(both.banks, [(0x1000, 0x9000), (0x2_0000, 0x2_8000)]);
    assert!(both.warnings.is_empty());
    // Ranges in any order; what is in no bank, empty or endless adds nothing but RAM.
    let usable: Pairs<'_> = &[
        (0x2_4000, u64::MAX),
        (0x4000, 0x1000),
        (0xa000, 0x1_0000),
        (0x5000, 0),
    ];
    let cut = with(reg, None, Some(usable)).unwrap();
    assert_eq!(cut.banks, [(0x4000, 0x5000), (0x2_4000, 0x2_8000)]);
    let line = "linux,usable-memory-range leaves 20480 bytes of RAM; other RAM is left out";
    assert_eq!(cut.warnings, [line]);
    let own = with(reg, Some(&[(0x3000, 0x1000)]), None).unwrap();
    assert_eq!(own.banks, [(0x3000, 0x4000)]);
    let line = "the device tree's /memory@1000 has linux,usable-memory; other memory in its reg is left out";
    assert_eq!(own.warnings, [line]);
    let both = with(reg, Some(&[(0x3000, 0x2000)]), Some(usable)).unwrap();
    assert_eq!(both.banks, [(0x4000, 0x5000)]);
    // RAM that two ranges or two banks name counts once.
    let twice: Pairs<'_> = &[(0x1000, 0x2000), (0x2000, 0x2000), (0x1000, 0x2000)];
    let again = with(&[reg[0], reg[0]], None, Some(twice)).unwrap();
    assert_eq!(again.banks, [(0x1000, 0x4000)]);
    assert!(again.warnings[0].contains("leaves 12288 bytes of RAM"));
    // Nothing is left: that is not a reason to use all of it.
    let outside: Pairs<'_> = &[(0x10_0000, 0x1000)];
    for (own, range) in [
        (None, Some(&[][..])),
        (None, Some(outside)),
        (Some(&[][..]), None),
    ] {
        let line = with(reg, own, range).err().unwrap();
        assert!(line.contains("names no memory"), "{line}");
    }
}

#[test]
fn ranges_at_the_end_of_the_address_space_have_no_effect_there() {
    let end = u64::MAX - 0xfff;
    let reg = pairs(&[(0x1000, 0x8000), (end, 0x1000), (0x1000, u64::MAX)]);
    let reservations = [(end, 0x1000), (0x8000, u64::MAX)];
    let read = read(&machine(&[("reg", &reg)], [], &reservations)).unwrap();
    assert_eq!(read.banks, [(0x1000, 0x9000)]);
    assert_eq!(read.reserved, [(0x8000, u64::MAX)]);
    let expected = [
        "/memory@1000 has 0x1000 bytes at 0xfffffffffffff000, which reach the end",
        "0xffffffffffffffff bytes at 0x1000",
        "reserves 0x1000 bytes at 0xfffffffffffff000",
        "reserved range 0xfffffffffffff000 to 0xffffffffffffffff lies outside",
        "reserves 0xffffffffffffffff bytes at 0x8000",
    ];
    assert_eq!(read.warnings.len(), expected.len());
    for (line, part) in read.warnings.iter().zip(expected) {
        assert!(line.contains(part), "{line}");
    }
}

/// Hundreds of reservations fit, and one line states what it costs.
#[test]
fn reservations_take_no_more_room_than_they_must() {
    // A block of registers every other megabyte, below RAM; then a range of RAM.
    let mut all: Vec<_> = (0..300).map(|n| (n << 21, 0x1000)).collect();
    all.push((0x4000_0000, 0x1000));
    let some = read(&one_gib(vec![], &all)).unwrap();
    assert_eq!(some.reserved, [(0x4000_0000, 0x4000_1000)]);
    assert_eq!(some.warnings.len(), 300);
    let line = "reserved range 0x200000 to 0x201000 lies outside RAM; ignored there";
    assert_eq!(some.warnings[1], line);
    // As many as there is room for, each beside the one before, are one.
    let places = |count: u64, apart: u64| -> Vec<_> {
        (0..count)
            .map(|n| (0x4000_0000 + n * apart, 0x1000))
            .collect()
    };
    let one = read(&one_gib(vec![], &places(300, 0x1000))).unwrap();
    assert_eq!(one.reserved, [(0x4000_0000, 0x4012_c000)]);
    // Apart from each other in RAM they do not fit: none is left out, and what lies between them is.
    for (count, apart, pages) in [(96, 1 << 18, K64), (300, 0x2000, K4), (700, 1 << 18, K64)] {
        let all = places(count, apart);
        let (mut read, warnings) = early(&one_gib(vec![], &all), pages).unwrap();
        assert_eq!(read.reserved().len(), 96);
        let holds = |at| read.reserved().iter().any(|own| own.contains(at));
        assert!(all.iter().all(|(start, _)| holds(*start)));
        let between = (count - 96) * (apart - 0x1000);
        let line = (between > 0).then(|| {
            format!(
                "the device tree reserves memory in more than 96 places; {between} bytes between the nearest are not used either"
            )
        });
        assert_eq!(warnings, Vec::from_iter(line));
        // The image, the tree, tables and stacks come after.
        for place in 0..30_u64 {
            read.reserve(0x7f00_0000 + (place << 17), 1).unwrap();
        }
    }
}

/// As many banks as there is room for: the largest.
#[test]
fn of_too_many_banks_the_smallest_are_left_out() {
    for count in [128_u64, 129, 600, 5000] {
        // Sizes of 1 to `count` pages, in an order of no meaning.
        let size = |n: u64| (n * 7 % count + 1) << 12;
        let all: Vec<_> = (0..count).map(|n| (n << 26, size(n))).collect();
        let found = read(&machine(&[("reg", &pairs(&all))], [], &[])).unwrap();
        let largest = |(start, bytes): &(u64, u64)| {
            (bytes >> 12 > count - 128).then_some((*start, start + bytes))
        };
        assert_eq!(
            found.banks,
            all.iter().filter_map(largest).collect::<Vec<_>>()
        );
        let left_out: u64 = (1..=count - 128).map(|pages| pages << 12).sum();
        let line = format!(
            "the device tree has RAM in more than 128 places; {left_out} bytes in the smallest are left out"
        );
        assert_eq!(
            found.warnings,
            Vec::from_iter((count > 128).then_some(line))
        );
    }
}

/// No-map ranges are widened and never dropped, and what is reserved between them stays usable.
#[test]
fn too_many_no_map_ranges_are_joined_beside_what_is_reserved() {
    for pages in PageSize::ALL {
        for count in [128_u64, 129, 600, 5000] {
            let start = |n: u64| GIB.0 + (n << 17);
            let all: Vec<_> = (0..count).map(|n| (start(n), 0x1000)).collect();
            let holes = node("a@0", &[("reg", &pairs(&all)), ("no-map", &[])], []);
            let kept = (start(60) + 0x4000, 0x1000);
            let reserved = node("reserved-memory", &[], [holes]);
            let (found, warnings) = early(&one_gib(vec![reserved], &[kept]), pages).unwrap();
            let no_map = found.no_map();
            assert_eq!(no_map.len(), 128);
            let covers = |at: &u64| no_map.iter().any(|range| range.contains(*at));
            assert!(
                all.iter()
                    .all(|(start, _)| covers(start) && covers(&(start + 0xfff)))
            );
            assert!(!covers(&kept.0), "{count}");
            let bytes = no_map.iter().map(|range| range.len()).sum::<u64>() - (count << 12);
            let line = format!(
                "the device tree has no-map ranges in more than 128 places; {bytes} bytes between the nearest are \
                 not mapped either"
            );
            assert_eq!(warnings, Vec::from_iter((count > 128).then_some(line)));
        }
    }
}

#[test]
fn words_for_an_initramfs_that_contradict_each_other_are_reported() {
    const START: &str = "linux,initrd-start";
    const END: &str = "linux,initrd-end";
    let alone = "has only one of linux,initrd-start and linux,initrd-end";
    let number =
        "has a linux,initrd-start or linux,initrd-end that is not one number of 32 or 64 bits";
    let empty = "has a linux,initrd-end that is not above linux,initrd-start";
    let at = |address: u32| address.to_be_bytes();
    let (low, high) = (at(0x4800_0000), at(0x4800_1000));
    for (words, why) in [
        (&[][..], None),
        (&[(START, &low[..]), (END, &high)][..], None),
        (&[(START, &low)], Some(alone)),
        (&[(END, &low)], Some(alone)),
        (&[(START, &high), (END, &low)], Some(empty)),
        (&[(START, &low), (END, &low)], Some(empty)),
        (&[(START, &low[..3]), (END, &high)], Some(number)),
        (&[(START, &low), (END, &[])], Some(number)),
    ] {
        let found = read(&one_gib(vec![node("chosen", words, [])], &[])).unwrap();
        let line = why.map(|why| format!("the device tree's /chosen {why}; no initramfs"));
        assert_eq!(found.warnings, Vec::from_iter(line), "{words:?}");
        let there = why.is_none() && !words.is_empty();
        assert_eq!(found.reserved.len(), usize::from(there), "{words:?}");
    }
}

#[test]
fn part_of_an_entry_at_the_end_is_reported_and_ignored() {
    let cut = |start, bytes| [pairs(&[(start, bytes)]), vec![0; 12]].concat();
    let half = cut(GIB.0, GIB.1 / 2);
    for bank in [
        &[("reg", &half[..])][..],
        &[("reg", &pairs(&[GIB])), (USABLE, &half)],
    ] {
        let (name, _) = bank[bank.len() - 1];
        let cut = read(&machine(bank, [], &[])).unwrap();
        assert_eq!(cut.banks, [(GIB.0, GIB.0 + GIB.1 / 2)]);
        let line = format!(
            "the device tree's /memory@1000 has a {name} that ends with part of an entry; only its whole entries count"
        );
        assert_eq!(cut.warnings.last(), Some(&line));
    }
    let value = cut(0x4000_0000, 0x1000_0000);
    let chosen = node("chosen", &[(USABLE_RANGE, &value)], []);
    let warnings = read(&one_gib(vec![chosen], &[])).unwrap().warnings;
    assert!(warnings[0].contains("/chosen has a linux,usable-memory-range that ends"));
    assert!(warnings[1].contains("leaves 268435456 bytes"));
    let one = node("a@0", &[("reg", &cut(0x4000_0000, 0x1000))], []);
    let reserved = node("reserved-memory", &[], [one]);
    let read_back = read(&one_gib(vec![reserved], &[])).unwrap();
    assert_eq!(read_back.reserved, [(0x4000_0000, 0x4000_1000)]);
    assert!(read_back.warnings[0].contains("/reserved-memory/a@0 has a reg that ends"));
    // A part alone has no meaning: the tree is wrong.
    let line = read(&machine(&[("reg", &[0; 12])], [], &[])).err().unwrap();
    assert!(
        line.contains("/memory@1000 has a reg that is not whole"),
        "{line}"
    );
}

#[test]
fn reserved_memory_has_the_cells_of_the_root_unless_it_states_its_own() {
    const ONE: &[u8] = &[0, 0, 0, 1];
    let (address, size) = (("#address-cells", ONE), ("#size-cells", ONE));
    for (cells, reg) in [
        (&[][..], &numbers(&[0x4100_0000, 0x1000])[..]),
        (&[size], &[0, 0, 0, 0, 0x41, 0, 0, 0, 0, 0, 0x10, 0]),
        (&[address, size], &[0x41, 0, 0, 0, 0, 0, 0x10, 0]),
    ] {
        let children = [
            node("a@0", &[("reg", reg)], []),
            node("b@0", &[("reg", reg), ("no-map", &[])], []),
        ];
        let tree = one_gib(vec![node("reserved-memory", cells, children)], &[]);
        let found = read(&tree).unwrap();
        assert_eq!(found.reserved, [(0x4100_0000, 0x4100_1000)]);
        assert_eq!(found.no_map, found.reserved);
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        // The look before the MMU is on gives the same.
        let early = Tree::new(&tree).unwrap().no_map().next().unwrap();
        assert_eq!((early.start, early.bytes), (0x4100_0000, 0x1000));
    }
}

/// Eight bytes that a CPU watches: the kernel writes there, so they must not be its own.
#[test]
fn memory_of_the_kernel_is_distinguished_from_that_of_firmware() {
    // The second reservation is of firmware that reserves what is not its own.
    let bytes = one_gib(vec![], &[(0x4000_0000, 0x1000), (0x4020_0000, 0x1000)]);
    let mut memory = Memory::new(K4);
    memory.add_bank(0x4000_0000, 0x1000_0000).unwrap();
    let image = (0x4020_0000, 0x20_0000);
    for (start, bytes) in [(0x4000_0000, 0x1000), image, (0x4100_0000, 0x1000)] {
        memory.reserve(start, bytes).unwrap();
    }
    let range = |(start, bytes)| tree::Range { start, bytes };
    let taken = |start| is_taken(&bytes, &memory, &[range(image)], range((start, 8)));
    // Firmware's, and memory that is free or no RAM at all.
    assert!(!taken(0x4000_0ff8) && !taken(0x4000_1000) && !taken(0x900_0000));
    // The image, and tables that the kernel has reserved since.
    assert!(taken(0x4020_0000) && taken(0x403f_fff8) && taken(0x4100_0ff8));
    assert!(!taken(0x4040_0000));
}
