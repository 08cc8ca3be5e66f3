use super::*;
use granule::arch::PageSize::{K4, K64};

fn pieces(firmware: &Memory, start: u64, end: u64) -> Vec<(u64, u64)> {
    unreserved(firmware, start, end)
        .map(|piece| (piece.start(), piece.end()))
        .collect()
}

#[test]
fn firmware_reservations_inside_our_storage_are_not_given_back() {
    let (start, end) = (0x4020_0000, 0x4030_0000);
    let mut firmware = Memory::new(K4);
    firmware.add_bank(0x4000_0000, 0x1000_0000).unwrap();
    assert_eq!(pieces(&firmware, start, end), [(start, end)]);
    // One byte reserves its page, at any place; no-map ranges count alike.
    firmware.reserve(0x4021_0fff, 1).unwrap();
    firmware.mark_no_map(0x4022_0800, 0x1000).unwrap();
    firmware.reserve(0x402f_f000, 0x10_0000).unwrap();
    // A reservation that ends at our storage costs nothing.
    firmware.reserve(start - 0x1000, 0x1000).unwrap();
    assert_eq!(
        pieces(&firmware, start, end),
        [
            (start, 0x4021_0000),
            (0x4021_1000, 0x4022_0000),
            (0x4022_2000, 0x402f_f000),
        ]
    );
    // With the only page reserved nothing is left.
    assert_eq!(pieces(&firmware, 0x4021_0000, 0x4021_1000), []);
    firmware.reserve(start, end - start).unwrap();
    assert_eq!(pieces(&firmware, start, end), []);
}

#[test]
fn memory_handed_over_is_reserved_only_where_the_range_differs() {
    use dtoolkit::memreserve::MemoryReservation;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
    let mut bank = DeviceTreeNode::new_unchecked("memory");
    for (name, value) in [
        ("device_type", b"memory\0".to_vec()),
        (
            "reg",
            [0x4000_0000_u64, 0x1000_0000]
                .map(u64::to_be_bytes)
                .concat(),
        ),
    ] {
        bank.add_property(DeviceTreeProperty::new_unchecked(name, value));
    }
    let mut tree = DeviceTree::new();
    tree.root
        .add_property(DeviceTreeProperty::new_unchecked("#address-cells", 2u32));
    tree.root
        .add_property(DeviceTreeProperty::new_unchecked("#size-cells", 2u32));
    tree.root.add_child(bank);
    tree.memory_reservations = vec![
        MemoryReservation::new(0x4100_0000, 0x1000),
        MemoryReservation::new(0x4200_0000, 0x1000),
    ];
    let tree = tree.to_dtb();
    let reserved = |handed_over| {
        let mut early = Memory::new(K4);
        memory(&tree, handed_over, &mut early, |warning| {
            panic!("{warning}")
        })
        .unwrap();
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

/// A tree with one memory node, and what early memory makes of it: banks, reserved ranges, warnings.
struct Read {
    banks: Vec<(u64, u64)>,
    reserved: Vec<(u64, u64)>,
    warnings: Vec<String>,
}

type Pairs<'a> = &'a [(u64, u64)];

fn read(
    reg: Pairs<'_>,
    usable: Option<Pairs<'_>>,
    usable_range: Option<Pairs<'_>>,
    reservations: Pairs<'_>,
) -> Result<Read, String> {
    use dtoolkit::memreserve::MemoryReservation;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
    let mut tree = DeviceTree::new();
    for name in ["#address-cells", "#size-cells"] {
        let cells = DeviceTreeProperty::new_unchecked(name, 2u32);
        tree.root.add_property(cells);
    }
    let pairs = |name, pairs: Pairs<'_>| {
        let numbers = pairs.iter().flat_map(|(start, bytes)| [*start, *bytes]);
        let value: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
        DeviceTreeProperty::new_unchecked(name, value)
    };
    let mut bank = DeviceTreeNode::new_unchecked("memory@1000");
    bank.add_property(DeviceTreeProperty::new_unchecked("device_type", "memory"));
    bank.add_property(pairs("reg", reg));
    let mut chosen = DeviceTreeNode::new_unchecked("chosen");
    if let Some(usable) = usable {
        bank.add_property(pairs(USABLE, usable));
    }
    if let Some(usable) = usable_range {
        chosen.add_property(pairs(USABLE_RANGE, usable));
    }
    tree.root.add_child(bank);
    tree.root.add_child(chosen);
    tree.memory_reservations = reservations
        .iter()
        .map(|(start, bytes)| MemoryReservation::new(*start, *bytes))
        .collect();
    let mut early = Memory::new(K4);
    let mut warnings = Vec::new();
    let warn = |warning: Warning<'_>| warnings.push(warning.to_string());
    memory(&tree.to_dtb(), None, &mut early, warn).map_err(|error| error.to_string())?;
    let list = |list: &[Region]| list.iter().map(|it| (it.start(), it.end())).collect();
    Ok(Read {
        banks: list(early.banks()),
        reserved: list(early.reserved()),
        warnings,
    })
}

#[test]
fn another_kernel_s_memory_is_left_out() {
    let reg = &[(0x1000, 0x8000), (0x2_0000, 0x8000)];
    let both = read(reg, None, None, &[]).unwrap();
    assert_eq!(both.banks, [(0x1000, 0x9000), (0x2_0000, 0x2_8000)]);
    assert!(both.warnings.is_empty());
    // Ranges in any order; what is in no bank, empty or endless adds nothing but RAM.
    let usable: Pairs<'_> = &[
        (0x2_4000, u64::MAX),
        (0x4000, 0x1000),
        (0xa000, 0x1_0000),
        (0x5000, 0),
    ];
    let cut = read(reg, None, Some(usable), &[]).unwrap();
    assert_eq!(cut.banks, [(0x4000, 0x5000), (0x2_4000, 0x2_8000)]);
    let line = "linux,usable-memory-range leaves 20480 bytes of RAM; other RAM is left out";
    assert_eq!(cut.warnings, [line]);
    let own = read(reg, Some(&[(0x3000, 0x1000)]), None, &[]).unwrap();
    assert_eq!(own.banks, [(0x3000, 0x4000)]);
    let line = "the device tree's /memory@1000 has linux,usable-memory; other memory in its reg is left out";
    assert_eq!(own.warnings, [line]);
    let both = read(reg, Some(&[(0x3000, 0x2000)]), Some(usable), &[]).unwrap();
    assert_eq!(both.banks, [(0x4000, 0x5000)]);
    // Nothing is left: that is not a reason to use all of it.
    // RAM that two ranges or two banks name counts once.
    let twice: Pairs<'_> = &[(0x1000, 0x2000), (0x2000, 0x2000), (0x1000, 0x2000)];
    let again = read(&[reg[0], reg[0]], None, Some(twice), &[]).unwrap();
    assert_eq!(again.banks, [(0x1000, 0x4000)]);
    assert!(again.warnings[0].contains("leaves 12288 bytes of RAM"));
    let none = [
        read(reg, None, Some(&[]), &[]),
        read(reg, None, Some(&[(0x10_0000, 0x1000)]), &[]),
        read(reg, Some(&[]), None, &[]),
    ];
    for none in none {
        let line = none.err().unwrap();
        assert!(line.contains("names no memory"), "{line}");
    }
}

#[test]
fn ranges_at_the_end_of_the_address_space_have_no_effect_there() {
    let end = u64::MAX - 0xfff;
    let reg = &[(0x1000, 0x8000), (end, 0x1000), (0x1000, u64::MAX)];
    let read = read(reg, None, None, &[(end, 0x1000), (0x8000, u64::MAX)]).unwrap();
    assert_eq!(read.banks, [(0x1000, 0x9000)]);
    assert_eq!(read.reserved, [(0x8000, u64::MAX)]);
    let [bank, wraps, last, outside, most] = &read.warnings[..] else {
        panic!("{:?}", read.warnings);
    };
    assert!(
        bank.contains("/memory@1000 has 0x1000 bytes at 0xfffffffffffff000, which reach the end")
    );
    assert!(wraps.contains("0xffffffffffffffff bytes at 0x1000"));
    assert!(last.contains("reserves 0x1000 bytes at 0xfffffffffffff000"));
    assert!(
        outside.contains("reserved range 0xfffffffffffff000 to 0xffffffffffffffff lies outside")
    );
    assert!(most.contains("reserves 0xffffffffffffffff bytes at 0x8000"));
}

#[test]
fn edges_are_whole_pages_of_any_size() {
    let mut firmware = Memory::new(K64);
    firmware.add_bank(0x4000_0000, 0x1000_0000).unwrap();
    firmware.reserve(0x4003_4000, 8).unwrap();
    assert_eq!(
        pieces(&firmware, 0x4002_0000, 0x4006_0000),
        [(0x4002_0000, 0x4003_0000), (0x4004_0000, 0x4006_0000)]
    );
}

fn number(bytes: &[u64]) -> Vec<u8> {
    bytes.iter().flat_map(|it| it.to_be_bytes()).collect()
}

/// A tree with a bank of 1 GiB at that address, two cells each, and these nodes under the root.
fn one_gib(bank: &[(&str, Vec<u8>)], nodes: Vec<dtoolkit::model::DeviceTreeNode>) -> Vec<u8> {
    let mut tree = dtoolkit::model::DeviceTree::new();
    let two = [0, 0, 0, 2_u8].to_vec();
    tree.root = made("", &[("#address-cells", two.clone()), ("#size-cells", two)]);
    let mut properties = vec![
        ("device_type", b"memory\0".to_vec()),
        ("reg", number(&[0x4000_0000, 0x4000_0000])),
    ];
    properties.extend_from_slice(bank);
    tree.root.add_child(made("memory@40000000", &properties));
    for node in nodes {
        tree.root.add_child(node);
    }
    tree.to_dtb()
}

fn made(name: &str, properties: &[(&str, Vec<u8>)]) -> dtoolkit::model::DeviceTreeNode {
    let mut node = dtoolkit::model::DeviceTreeNode::new_unchecked(name);
    for (name, value) in properties {
        node.add_property(dtoolkit::model::DeviceTreeProperty::new_unchecked(
            *name,
            value.clone(),
        ));
    }
    node
}

/// The ranges that a tree reserves and those that it forbids to map, and the warnings.
fn kept(tree: &[u8]) -> Result<[Vec<String>; 3], String> {
    let mut early = Memory::new(K4);
    let mut warnings = Vec::new();
    let warn = |warning: Warning<'_>| warnings.push(warning.to_string());
    memory(tree, None, &mut early, warn).map_err(|error| error.to_string())?;
    let list = |list: &[Region]| list.iter().map(ToString::to_string).collect();
    Ok([list(early.reserved()), list(early.no_map()), warnings])
}

#[test]
fn reservations_outside_ram_take_no_room() {
    // A block of registers every other megabyte, below RAM; then a range of RAM.
    let mut all: Vec<_> = (0..300).map(|n| (n << 21, 0x1000)).collect();
    all.push((0x4000_0000, 0x1000));
    let reg: Pairs<'_> = &[(0x4000_0000, 0x4000_0000)];
    let some = read(reg, None, None, &all).unwrap();
    assert_eq!(some.reserved, [(0x4000_0000, 0x4000_1000)]);
    assert_eq!(some.warnings.len(), 300);
    let line = "reserved range 0x200000 to 0x201000 lies outside RAM; ignored there";
    assert_eq!(some.warnings[1], line);
    // As many as there is room for, each beside the one before, are one.
    let beside: Vec<_> = (0..300)
        .map(|n| (0x4000_0000 + n * 0x1000, 0x1000))
        .collect();
    let one = read(reg, None, None, &beside).unwrap();
    assert_eq!(one.reserved, [(0x4000_0000, 0x4012_c000)]);
    // Apart from each other in RAM they do not fit: none is left out, and what lies between them is.
    let apart: Vec<_> = (0..300)
        .map(|n| (0x4000_0000 + n * 0x2000, 0x1000))
        .collect();
    let some = read(reg, None, None, &apart).unwrap();
    assert_eq!(some.reserved.len(), 96);
    let holds = |at: u64| some.reserved.iter().any(|one| one.0 <= at && at < one.1);
    assert!(apart.iter().all(|(start, _)| holds(*start)));
    let line = "the device tree reserves memory in more than 96 places; 835584 bytes between the nearest are not used either";
    assert_eq!(some.warnings, [line]);
}

#[test]
fn part_of_an_entry_at_the_end_is_reported_and_ignored() {
    let cut = |name: &str, mut value: Vec<u8>| {
        value.extend([0; 12]);
        [(name.to_owned(), value)]
    };
    for name in ["reg", USABLE] {
        let [(name, value)] = cut(name, number(&[0x4000_0000, 0x2000_0000]));
        let tree = one_gib(&[(&name, value)], vec![]);
        let mut early = Memory::new(K4);
        let mut last = String::new();
        memory(&tree, None, &mut early, |it| last = it.to_string()).unwrap();
        assert_eq!(early.totals().ram, 0x2000_0000);
        let line = format!(
            "the device tree's /memory@40000000 has a {name} that ends with part of an entry; only its whole entries count"
        );
        assert_eq!(last, line);
    }
    let [(_, value)] = cut(USABLE_RANGE, number(&[0x4000_0000, 0x1000_0000]));
    let chosen = made("chosen", &[(USABLE_RANGE, value)]);
    let [.., warnings] = kept(&one_gib(&[], vec![chosen])).unwrap();
    assert!(warnings[0].contains("/chosen has a linux,usable-memory-range that ends"));
    assert!(warnings[1].contains("leaves 268435456 bytes"));
    let [(_, value)] = cut("reg", number(&[0x4000_0000, 0x1000]));
    let mut reserved = made("reserved-memory", &[]);
    reserved.add_child(made("a@0", &[("reg", value)]));
    let [ranges, _, warnings] = kept(&one_gib(&[], vec![reserved])).unwrap();
    assert_eq!(ranges, ["0x40000000..0x40001000"]);
    assert!(warnings[0].contains("/reserved-memory/a@0 has a reg that ends"));
    // A part alone has no meaning: the tree is wrong.
    let tree = one_gib(&[("reg", vec![0; 12])], vec![]);
    assert!(
        kept(&tree)
            .err()
            .unwrap()
            .contains("/memory@40000000 has a reg that is not whole")
    );
}

#[test]
fn reserved_memory_has_the_cells_of_the_root_unless_it_states_its_own() {
    let one = |cells: u8| vec![0, 0, 0, cells];
    for (cells, reg) in [
        (vec![], number(&[0x4100_0000, 0x1000])),
        (
            vec![("#size-cells", one(1))],
            [&number(&[0x4100_0000])[..], &[0, 0, 0x10, 0]].concat(),
        ),
        (
            vec![("#address-cells", one(1)), ("#size-cells", one(1))],
            vec![0x41, 0, 0, 0, 0, 0, 0x10, 0],
        ),
    ] {
        let mut reserved = made("reserved-memory", &cells);
        reserved.add_child(made("a@0", &[("reg", reg.clone())]));
        let no_map = [("reg", reg), ("no-map", vec![])];
        reserved.add_child(made("b@0", &no_map));
        let tree = one_gib(&[], vec![reserved]);
        let [reserved, no_map, warnings] = kept(&tree).unwrap();
        assert_eq!(reserved, ["0x41000000..0x41001000"]);
        assert_eq!(no_map, reserved);
        assert!(warnings.is_empty(), "{warnings:?}");
        // The look before the MMU is on gives the same.
        let early = Tree::new(&tree).unwrap().no_map().next().unwrap();
        assert_eq!((early.start, early.bytes), (0x4100_0000, 0x1000));
    }
}

/// Eight bytes that a CPU watches: the kernel writes there, so they must not be its own.
#[test]
fn memory_of_the_kernel_is_distinguished_from_firmware_s() {
    use dtoolkit::memreserve::MemoryReservation;
    use dtoolkit::model::DeviceTree;
    let mut built = DeviceTree::new();
    built.memory_reservations = vec![
        MemoryReservation::new(0x4000_0000, 0x1000),
        // Firmware that reserves what is not its own.
        MemoryReservation::new(0x4020_0000, 0x1000),
    ];
    let bytes = built.to_dtb();
    let mut memory = Memory::new(K4);
    memory.add_bank(0x4000_0000, 0x1000_0000).unwrap();
    for (start, bytes) in [
        (0x4000_0000, 0x1000),
        (0x4020_0000, 0x20_0000),
        (0x4100_0000, 0x1000),
    ] {
        memory.reserve(start, bytes).unwrap();
    }
    let image = tree::Range {
        start: 0x4020_0000,
        bytes: 0x20_0000,
    };
    let taken = |start| is_taken(&bytes, &memory, &[image], tree::Range { start, bytes: 8 });
    // Firmware's, and memory that is free or no RAM at all.
    assert!(!taken(0x4000_0ff8) && !taken(0x4000_1000) && !taken(0x900_0000));
    // The image, and tables that the kernel has reserved since.
    assert!(taken(0x4020_0000) && taken(0x403f_fff8) && taken(0x4100_0ff8));
    assert!(!taken(0x4040_0000));
}

/// A tree that reserves memory in hundreds of places boots, and one line states what it costs.
#[test]
fn hundreds_of_reservations_fit() {
    use dtoolkit::memreserve::MemoryReservation;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
    let warnings_of = |count: u64| {
        let mut tree = DeviceTree::new();
        let mut bank = DeviceTreeNode::new_unchecked("memory");
        let reg = [0x4000_0000_u64, 0x4000_0000]
            .map(u64::to_be_bytes)
            .concat();
        bank.add_property(DeviceTreeProperty::new_unchecked(
            "device_type",
            b"memory\0".to_vec(),
        ));
        bank.add_property(DeviceTreeProperty::new_unchecked("reg", reg));
        for name in ["#address-cells", "#size-cells"] {
            tree.root
                .add_property(DeviceTreeProperty::new_unchecked(name, 2u32));
        }
        tree.root.add_child(bank);
        let places = (0..count).map(|place| 0x4000_0000 + (place << 18));
        tree.memory_reservations = places
            .clone()
            .map(|start| MemoryReservation::new(start, 0x1000))
            .collect();
        let mut read = Memory::new(K64);
        let mut warnings = Vec::new();
        memory(&tree.to_dtb(), None, &mut read, |it| {
            warnings.push(it.to_string())
        })
        .unwrap();
        for start in places {
            assert!(read.reserved().iter().any(|own| own.contains(start)));
        }
        // The image, the tree, tables and stacks come after.
        for place in 0..30_u64 {
            read.reserve(0x7f00_0000 + (place << 17), 1).unwrap();
        }
        warnings
    };
    assert_eq!(warnings_of(96), [""; 0]);
    let many = warnings_of(700);
    assert_eq!(many.len(), 1);
    assert!(
        many[0].starts_with("the device tree reserves memory in more than 96 places; "),
        "{many:?}"
    );
}
