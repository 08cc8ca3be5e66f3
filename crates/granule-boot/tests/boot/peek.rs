//! Tests of the first look into the device tree, on sound trees.

use crate::trees::{TWO_CELLS, cells, leaf, node, peek, strings, tree, virt};
use dtoolkit::model::DeviceTreeNode;
use granule_boot::peek::{Conduit, ConsoleError, ConsoleSource, Consoles};
use granule_boot::tree::{Range, Tree, total_size};

#[test]
fn finds_all_in_a_tree_like_qemus() {
    let bytes = virt();
    assert_eq!(total_size(&bytes[..8]), Ok(bytes.len() as u32));
    let peek = peek(&bytes);
    assert_eq!(peek.bootargs, b"quiet arm64.pagesize=64k");
    assert_eq!(only(peek.consoles), Ok(0x900_0000));
    assert_eq!(strings(peek.compatible), ["linux,dummy-virt"]);
    assert!(peek.compatible.has(b"linux,dummy-virt") && !peek.compatible.has(b"linux"));
    let psci = peek.psci.unwrap();
    assert_eq!(psci.method, Some(Conduit::Hvc));
    assert_eq!(strings(psci.compatible), ["arm,psci-1.0", "arm,psci-0.2"]);
    assert_eq!(peek.damage, None);
}

#[test]
fn an_empty_tree_has_nothing_and_is_sound() {
    let bytes = tree(&[], vec![]);
    let peek = peek(&bytes);
    assert!(peek.bootargs.is_empty() && peek.psci.is_none());
    assert_eq!(peek.consoles, Consoles::NONE);
    assert_eq!(peek.compatible.count(), 0);
    assert_eq!(peek.damage, None);
}

/// The address of the console to be used, or the error of the first source.
fn only(consoles: Consoles) -> Result<u64, ConsoleError> {
    let error = consoles.passed_over().next();
    first(consoles).ok_or_else(|| error.unwrap().1)
}

fn first(consoles: Consoles) -> Option<u64> {
    consoles.first().map(|uart| uart.base)
}

/// A tree with a console at `path`, and `stdout-path` as given.
fn console(stdout: &[u8], aliases: &[(&str, &[u8])], children: Vec<DeviceTreeNode>) -> Vec<u8> {
    let chosen = leaf("chosen", &[("stdout-path", stdout)]);
    let aliases = leaf("aliases", aliases);
    tree(&TWO_CELLS, [vec![chosen, aliases], children].concat())
}

fn uart(name: &str, compatible: &[u8], reg: &[u32]) -> DeviceTreeNode {
    leaf(name, &[("compatible", compatible), ("reg", &cells(reg))])
}

#[test]
fn stdout_path_is_a_path_or_an_alias_with_or_without_options() {
    let aliases: &[(&str, &[u8])] = &[
        ("serial1", b"/uart@2000\0"),
        ("serial0", b"/uart@1000\0"),
        ("serial", b"/nowhere\0"),
        ("loop", b"loop\0"),
        ("fast", b"/uart@1000:115200\0"),
    ];
    let uarts = || {
        vec![
            node(
                "other",
                &[("ranges", b"")],
                vec![uart("uart@1000", b"x\0", &[7, 7, 7])],
            ),
            uart("uart@1000", b"arm,pl011\0", &[0, 0x1000, 0, 0x1000]),
            uart("uart@2000", b"ns16550a\0", &[1, 0x2000, 0, 0x1000]),
        ]
    };
    let at_once = Ok(0x1000);
    let second = Ok(0x1_0000_2000);
    for (stdout, expected) in [
        (&b"/uart@1000\0"[..], at_once),
        (b"/uart@1000:115200n8\0", at_once),
        (b"//uart@1000/\0", at_once),
        (b"/uart\0", at_once),
        (b"/uart@2000\0", second),
        (b"serial0\0", at_once),
        (b"serial0:115200n8\0", at_once),
        (b"serial1:9600\0", second),
        (b"fast\0", at_once),
        (b"serial0", at_once),
        (b"serial\0", Err(ConsoleError::NoSuchNode)),
        (b"serial2\0", Err(ConsoleError::NoSuchAlias)),
        (b"loop\0", Err(ConsoleError::NoSuchNode)),
        (b"\0", Err(ConsoleError::NoSuchAlias)),
        (b"", Err(ConsoleError::NoSuchAlias)),
        (b"/\0", Err(ConsoleError::NoAddress)),
        (b"/uart@3000\0", Err(ConsoleError::NoSuchNode)),
        (b"/uart@1000/uart@1000\0", Err(ConsoleError::NoSuchNode)),
        (b"/uar\0", Err(ConsoleError::NoSuchNode)),
    ] {
        let bytes = console(stdout, aliases, uarts());
        let found = peek(&bytes);
        assert_eq!(only(found.consoles), expected, "{}", stdout.escape_ascii());
        assert_eq!(found.damage, None);
    }
}

/// The console of a tree where it lies on a bus with these properties.
fn on_a_bus(properties: &[(&str, &[u8])], reg: &[u32]) -> Result<u64, ConsoleError> {
    let mut bus = node("soc", properties, vec![uart("uart@0", b"arm,pl011\0", reg)]);
    // Nodes beside and below the node must not be taken for it.
    bus.add_child(uart("uart@9", b"x\0", &[9, 9, 9, 9]));
    let decoy = node("socket", &[], vec![uart("uart@0", b"x\0", &[7, 7, 7, 7])]);
    let bytes = console(b"/soc/uart@0\0", &[], vec![decoy, bus]);
    only(peek(&bytes).consoles)
}

#[test]
fn addresses_pass_through_the_buses_above() {
    let cell = |name, value: u8| (name, vec![0, 0, 0, value]);
    let bus = |address: u8, size: u8, ranges: &[u32]| {
        let cells_of = [cell("#address-cells", address), cell("#size-cells", size)];
        [&cells_of[..], &[("ranges", cells(ranges))]].concat()
    };
    // As on a Raspberry Pi 4: child, parent and size in 1, 2 and 1 cells.
    let first = [0x7e00_0000, 0, 0xfe00_0000, 0x180_0000];
    let second = [0x4000_0000, 4, 0xff80_0000, 0x80_0000];
    let pi = bus(1, 1, &[first, second].concat());
    let short = bus(1, 1, &first[..3]);
    let overflow = bus(1, 1, &[0, u32::MAX, u32::MAX, u32::MAX]);
    let without = &bus(1, 1, &[])[..2];
    let odd = [("#address-cells", vec![]), ("ranges", vec![])];
    for (bus, reg, expected) in [
        // Identity, with the cells of the bus and not those of the root.
        (&bus(2, 2, &[])[..], &[1, 2, 0, 4][..], Some(0x1_0000_0002)),
        (&bus(1, 1, &[]), &[0x3f20_1000, 0x1000], Some(0x3f20_1000)),
        // A bus without `#address-cells` has two address cells.
        (&bus(1, 1, &[])[2..], &[1, 2, 0], Some(0x1_0000_0002)),
        (&pi, &[0x7e20_1000, 0x200], Some(0xfe20_1000)),
        (&pi, &[0x4000_0004, 0x200], Some(0x4_ff80_0004)),
        // Past the end, and before the begin.
        (&pi, &[0x7f80_0000, 0x200], None),
        (&pi, &[0x7dff_ffff, 0x200], None),
        // Without ranges an address is not the CPU's, and without reg there is none.
        (without, &[0, 0], None),
        (&bus(1, 1, &[]), &[], None),
        (&bus(3, 2, &[]), &[1, 0, 5, 0, 0], None),
        (&bus(3, 2, &[]), &[0, 1, 5, 0, 0], Some(0x1_0000_0005)),
        (&odd, &[0, 0, 0], None),
        (&short, &[0x7e20_1000, 0x200], None),
        (&overflow, &[1, 1], None),
    ] {
        let properties: Vec<_> = bus
            .iter()
            .map(|(name, value)| (*name, &value[..]))
            .collect();
        let found = on_a_bus(&properties, reg);
        assert_eq!(
            found,
            expected.ok_or(ConsoleError::NoAddress),
            "{bus:?}: {reg:x?}"
        );
    }
}

#[test]
fn an_alias_below_another_node_is_none() {
    let decoy = node("soc", &[], vec![leaf("aliases", &[("x", b"/uart@1000\0")])]);
    let chosen = leaf("chosen", &[("stdout-path", b"x\0")]);
    let bytes = tree(
        &TWO_CELLS,
        vec![
            decoy,
            chosen,
            uart("uart@1000", b"arm,pl011\0", &[0, 0x1000, 0, 0x1000]),
        ],
    );
    assert_eq!(only(peek(&bytes).consoles), Err(ConsoleError::NoSuchAlias));
}

#[test]
fn a_console_may_lie_below_many_buses() {
    let mut deep = uart("uart", b"arm,pl011\0", &[0, 5, 0, 5]);
    let mut path = String::from("/uart\0");
    for _ in 0..40 {
        deep = node(
            "bus",
            &[TWO_CELLS[0], TWO_CELLS[1], ("ranges", b"")],
            vec![deep],
        );
        path.insert_str(0, "/bus");
    }
    let bytes = console(path.as_bytes(), &[], vec![deep]);
    assert_eq!(only(peek(&bytes).consoles), PL011_AT_5);
    assert_eq!(peek(&bytes).damage, None);
}

const PL011_AT_5: Result<u64, ConsoleError> = Ok(5);

/// The consoles of a tree with these properties of `/chosen`, and three UARTs.
fn named(chosen: &[(&str, &[u8])], aliases: &[(&str, &[u8])]) -> Consoles {
    let bytes = tree(
        &TWO_CELLS,
        vec![
            leaf("chosen", chosen),
            leaf("aliases", aliases),
            uart("uart@7", b"ns16550a\0", &[0, 7, 0, 1]),
            uart("uart@6", b"arm,pl011\0", &[0, 6, 0, 1]),
            uart("uart@5", b"arm,pl011\0", &[0, 5, 0, 1]),
        ],
    );
    peek(&bytes).consoles
}

#[test]
fn earlycon_names_a_console_before_anything_else() {
    let stdout = ("stdout-path", &b"/uart@6\0"[..]);
    for words in [
        &b"earlycon=pl011,0x5\0"[..],
        b"quiet earlycon=pl011,0x5,115200n8\0",
        b"earlycon=pl011,mmio32,0x5\0",
        b"earlycon=pl011,0x9 earlycon=pl011,0x0000000000000005,\0",
    ] {
        let bootargs = ("bootargs", words);
        assert_eq!(only(named(&[bootargs, stdout], &[])), PL011_AT_5);
        assert_eq!(only(named(&[bootargs], &[])), PL011_AT_5);
    }
    for words in [
        &b"earlycon\0"[..],
        b"earlycon=\0",
        b"earlycon=pl011\0",
        b"earlycon=pl011,5\0",
        b"earlycon=pl011,0x\0",
        b"earlycon=pl011,0x12345678901234567\0",
        b"earlycon=pl011,0x5g\0",
        b"earlycon=uart8250,io,0x5\0",
        b"-- earlycon=pl011,0x5\0",
    ] {
        let bootargs = ("bootargs", words);
        let line = words.escape_ascii();
        let of_tree = named(&[bootargs, stdout], &[]);
        assert_eq!(first(of_tree), Some(6), "{line}");
        let error = (ConsoleSource::Earlycon, ConsoleError::NotUnderstood);
        let none = named(&[bootargs], &[]);
        let is_word = words.starts_with(b"earlycon=");
        let reported: Vec<_> = none.passed_over().collect();
        assert_eq!(reported, vec![error; usize::from(is_word)], "{line}");
        assert_eq!(of_tree.passed_over().count(), reported.len(), "{line}");
    }
}

#[test]
fn the_older_name_of_stdout_path_is_taken_after_the_newer() {
    let older = ("linux,stdout-path", &b"/uart@5\0"[..]);
    assert_eq!(only(named(&[older], &[])), PL011_AT_5);
    let both = named(&[older, ("stdout-path", b"/uart@6\0")], &[]);
    assert_eq!(first(both), Some(6));
}

#[test]
fn a_device_by_linuxs_name_is_an_alias_or_counted_and_comes_last() {
    let base = |words: &[u8], aliases: &[(&str, &[u8])], more: &[(&str, &[u8])]| {
        let chosen = [&[("bootargs", words)], more].concat();
        only(named(&chosen, aliases))
    };
    assert_eq!(base(b"console=ttyAMA0", &[], &[]), Ok(6));
    assert_eq!(base(b"console=ttyAMA1,115200n8", &[], &[]), Ok(5));
    let alias: &[(&str, &[u8])] = &[("serial0", b"/uart@5\0")];
    assert_eq!(base(b"console=ttyAMA0 console=tty0", alias, &[]), Ok(5));
    // A stdout-path that leads to a console comes first, one that leads nowhere does not.
    let good: &[(&str, &[u8])] = &[("stdout-path", b"/uart@5\0")];
    assert_eq!(base(b"console=ttyAMA0", &[], good), Ok(5));
    let lost: &[(&str, &[u8])] = &[("stdout-path", b"/lost\0")];
    assert_eq!(base(b"console=ttyAMA0", &[], lost), Ok(6));
    assert_eq!(base(b"", &[], lost), Err(ConsoleError::NoSuchNode));
    // An alias of another kind of device is another's.
    let other: &[(&str, &[u8])] = &[("serial0", b"/uart@7\0"), ("serial1", b"/uart@6\0")];
    assert_eq!(base(b"console=ttyAMA0", other, &[]), Ok(6));
    assert_eq!(base(b"console=ttyAMA1", other, &[]), Ok(6));
    assert_eq!(base(b"console=ttyS0", other, &[]), Ok(7));
    assert_eq!(base(b"console=ttyS0,115200n8", &[], &[]), Ok(7));
    assert_eq!(base(b"console=ttyS0 console=ttyAMA0", &[], &[]), Ok(6));
    let none = Err(ConsoleError::NoSuchNode);
    assert_eq!(base(b"console=ttyAMA2", &[], &[]), none);
    // The last one counts, and it is reported if it cannot be read.
    for words in [
        &b"console=ttyAMA"[..],
        b"console=ttyAMA0 console=ttyAMAx",
        b"console=ttyAMA0 console=ttyAMA12",
        b"console=ttyAMA0 console=ttyAMA0x,115200",
        b"console=ttyS",
        b"console=ttyAMA0 console=ttyPS12",
        b"console=ttymxc,115200",
    ] {
        assert_eq!(base(words, &[], &[]), Err(ConsoleError::NotUnderstood));
    }
    for absent in [&b"console=ttyPS0"[..], b"console=ttymxc0", b"console=ttyS1"] {
        assert_eq!(base(absent, &[], &[]), none);
    }
    for others in [&b"console=tty0"[..], b"console=ttySAC0", b"console=ttyMSM0"] {
        assert_eq!(named(&[("bootargs", others)], &[]), Consoles::NONE);
    }
}

/// Checks `earlycon=` with this address in a tree with RAM, forbidden memory and a UART.
fn checked(address: u64) -> Result<u64, ConsoleError> {
    let words = format!("earlycon=pl011,{address:#x}\0");
    let bank = |name, status: &[u8], reg: &[u32]| {
        let reg = cells(reg);
        let device_type = ("device_type", &b"memory\0"[..]);
        leaf(name, &[device_type, ("status", status), ("reg", &reg)])
    };
    let no_map = cells(&[0, 0x3000_1000, 0, 0x800]);
    let secret = leaf("secret", &[("no-map", b""), ("reg", &no_map)]);
    let ranges = [TWO_CELLS[0], TWO_CELLS[1], ("ranges", &b""[..])];
    let bytes = tree(
        &TWO_CELLS,
        vec![
            leaf("chosen", &[("bootargs", words.as_bytes())]),
            bank(
                "memory@40",
                b"ok\0",
                &[0, 0x4000_0000, 0, 0x1000, 1, 0, 0, 0x800],
            ),
            bank("memory@50", b"disabled\0", &[0, 0x5000_0000, 0, 0x1000]),
            node("reserved-memory", &ranges, vec![secret]),
        ],
    );
    let taken = Range::new(0x2000_2000, 0x1001);
    let tree = Tree::new(&bytes).unwrap();
    let mut consoles = tree.peek().consoles;
    consoles.check(&tree, 1 << 36, &[(taken, ConsoleError::InTrace)]);
    only(consoles)
}

#[test]
fn registers_that_may_not_be_accessed_are_an_error() {
    for (address, error) in [
        (0, ConsoleError::Misaligned),
        (0x900_0001, ConsoleError::Misaligned),
        (0x900_0802, ConsoleError::Misaligned),
        (0x900_0fd0, ConsoleError::Misaligned),
        (0x900_0ff0, ConsoleError::Misaligned),
        (1 << 36, ConsoleError::OutOfReach),
        (u64::MAX - 4095, ConsoleError::OutOfReach),
        (0x2000_2000, ConsoleError::InTrace),
        (0x2000_3000, ConsoleError::InTrace),
        (0x3000_1000, ConsoleError::InNoMap),
        (0x4000_0000, ConsoleError::InRam),
        (0x1_0000_0000, ConsoleError::InRam),
    ] {
        assert_eq!(checked(address), Err(error), "{address:#x}");
    }
    for address in [
        0x1000,
        0x900_0000,
        0x900_0800,
        0x900_0fcc,
        0x2000_1000,
        0x2000_4000,
        0x3000_0000,
        0x3000_2000,
        0x3fff_f000,
        0x4000_1000,
        0x5000_0000,
        (1 << 36) - 4096,
    ] {
        assert_eq!(checked(address), Ok(address), "{address:#x}");
    }
}

#[test]
fn a_console_that_cannot_be_used_does_not_stand_before_one_that_can() {
    let stdout = ("stdout-path", &b"/uart@1000\0"[..]);
    let bootargs = (
        "bootargs",
        &b"earlycon=pl011,0x9000001 console=ttyAMA0\0"[..],
    );
    let bytes = tree(
        &TWO_CELLS,
        vec![
            leaf("chosen", &[bootargs, stdout]),
            uart("uart@1000", b"vendor,uart\0", &[0, 0x1000, 0, 0x1000]),
            uart("uart@2000", b"arm,pl011\0", &[0, 0x2000, 0, 0x1000]),
        ],
    );
    let tree = Tree::new(&bytes).unwrap();
    let mut consoles = tree.peek().consoles;
    consoles.check(&tree, 1 << 48, &[]);
    assert_eq!(first(consoles), Some(0x2000));
    let passed: Vec<_> = consoles.passed_over().collect();
    let expected = [
        (ConsoleSource::Earlycon, ConsoleError::Misaligned),
        (ConsoleSource::StdoutPath, ConsoleError::NotKnown),
    ];
    assert_eq!(passed, expected);
}

#[test]
fn only_top_level_nodes_count() {
    let inner = |name: &str| {
        leaf(
            name,
            &[
                ("bootargs", b"inner\0"),
                ("stdout-path", b"/x\0"),
                ("method", b"smc\0"),
            ],
        )
    };
    let outer = node(
        "soc",
        &[("compatible", b"inner\0")],
        vec![inner("chosen"), inner("psci")],
    );
    let bytes = tree(&[("bootargs", b"root\0")], vec![outer]);
    let peek = peek(&bytes);
    assert!(peek.bootargs.is_empty() && peek.psci.is_none() && peek.compatible.count() == 0);
    assert_eq!(peek.consoles, Consoles::NONE);
}

#[test]
fn psci_with_an_unknown_method_has_none() {
    for (method, expected) in [
        (&b"smc\0"[..], Some(Conduit::Smc)),
        (b"smc", Some(Conduit::Smc)),
        (b"hv\0", None),
        (b"hvcc\0", None),
        (b"", None),
    ] {
        let bytes = tree(&[], vec![leaf("psci", &[("method", method)])]);
        assert_eq!(peek(&bytes).psci.unwrap().method, expected);
    }
}

fn no_map(root: &[DeviceTreeNode]) -> Vec<(u64, u64)> {
    let bytes = tree(&TWO_CELLS, root.to_vec());
    let tree = Tree::new(&bytes).unwrap();
    tree.no_map()
        .map(|range| (range.start, range.bytes))
        .collect()
}

#[test]
fn no_map_ranges_are_found_and_only_those() {
    let wide = cells(&[1, 0x2000, 0, 0x1000, 2, 0, 1, 0x10]);
    let plain = cells(&[0, 0x8000, 0, 0x1000]);
    let mut deep = leaf("deep@1", &[("reg", &plain)]);
    // A node below a child is not the child.
    deep.add_child(leaf("no@8000", &[("no-map", b""), ("reg", &plain)]));
    let children = vec![
        leaf("two@2000", &[("no-map", b""), ("reg", &wide)]),
        leaf("kept@8000", &[("reg", &plain)]),
        deep,
        leaf("after@8000", &[("reg", &plain), ("no-map", b"")]),
        leaf("cut@0", &[("reg", &plain[..15]), ("no-map", b"")]),
        leaf("none", &[("no-map", b"")]),
        leaf(
            "off@8000",
            &[("no-map", b""), ("reg", &plain), ("status", b"disabled\0")],
        ),
        leaf(
            "on@0",
            &[
                ("status", b"okay\0"),
                ("no-map", b""),
                ("reg", &cells(&[0; 4])),
            ],
        ),
    ];
    let decoy = node(
        "reserved",
        &TWO_CELLS,
        vec![leaf("x@8000", &[("no-map", b""), ("reg", &plain)])],
    );
    let below = node(
        "soc",
        &[],
        vec![node("reserved-memory", &TWO_CELLS, children.clone())],
    );
    let real = node("reserved-memory", &TWO_CELLS, children);
    assert_eq!(
        no_map(&[decoy, real, below]),
        [
            (0x1_0000_2000, 0x1000),
            (2 << 32, 0x1_0000_0010),
            (0x8000, 0x1000),
            (0, 0)
        ]
    );
    assert_eq!(no_map(&[]), []);
}

#[test]
fn no_map_ranges_have_the_cells_of_their_node() {
    let with = |address: u8, size: u8, reg: &[u32]| {
        let child = leaf("a@1", &[("no-map", b""), ("reg", &cells(reg))]);
        no_map(&[node(
            "reserved-memory",
            &[
                ("#address-cells", &[0, 0, 0, address]),
                ("#size-cells", &[0, 0, 0, size]),
            ],
            vec![child],
        )])
    };
    assert_eq!(with(1, 1, &[1, 2, 3, 4]), [(1, 2), (3, 4)]);
    assert_eq!(with(2, 1, &[1, 2, 3]), [((1 << 32) + 2, 3)]);
    assert_eq!(with(2, 2, &[0, 2, 1, 4, 5]), [(2, (1 << 32) + 4)]);
    assert_eq!(
        with(3, 2, &[0, 1, 2, 3, 4]),
        [((1 << 32) + 2, (3 << 32) + 4)]
    );
    for (address, size) in [(0, 1), (3, 2), (2, 3), (5, 1), (255, 255)] {
        assert_eq!(with(address, size, &[1; 8]), []);
    }
}

#[test]
fn no_map_ends_where_a_tree_is_cut_off() {
    let reg = cells(&[0, 0x8000, 0, 0x1000]);
    let child = leaf("a@1", &[("no-map", b""), ("reg", &reg)]);
    let bytes = tree(
        &TWO_CELLS,
        vec![node("reserved-memory", &TWO_CELLS, vec![child])],
    );
    let mut found = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x5a;
        if let Ok(tree) = Tree::new(&damaged) {
            found += tree.no_map().take(100).count();
        }
    }
    assert!(found > 0);
}

#[test]
fn ranges_meet_where_they_share_a_byte() {
    let range = Range::new;
    for (a, b, meets) in [
        (range(0x1000, 0x1000), range(0x2000, 1), false),
        (range(0x1000, 0x1001), range(0x2000, 1), true),
        (range(0x1000, 0x1000), range(0, u64::MAX), true),
        (range(0x1000, 0x1000), range(0x1800, 0), false),
        (range(u64::MAX, 1), range(0, 1), false),
        (range(u64::MAX - 7, 8), range(u64::MAX, 1), true),
    ] {
        assert_eq!(a.meets(b), meets, "{a:x?} {b:x?}");
        assert_eq!(b.meets(a), meets, "{b:x?} {a:x?}");
    }
    let two = range(0x1_2345, 0x1_0000).outward(0x1_0000);
    assert_eq!(two, range(0x1_0000, 0x2_0000));
    let whole = range(0x1_0000, 0x1_0000);
    assert_eq!(whole.outward(0x1000), whole);
}

#[test]
fn memory_that_another_kernel_keeps_is_known() {
    let memory = |reg: &[u32], usable: Option<&[u32]>| {
        let mut properties = vec![("device_type", b"memory\0".to_vec()), ("reg", cells(reg))];
        properties.extend(usable.map(|usable| ("linux,usable-memory", cells(usable))));
        let properties: Vec<_> = properties.iter().map(|(n, v)| (*n, &v[..])).collect();
        leaf(&format!("memory@{:x}", reg[1]), &properties)
    };
    let first = [0, 0x4000, 0, 0x4000];
    let second = [0, 0x8000, 0, 0x4000];
    let chosen = |usable: &[u32]| {
        let usable = cells(usable);
        leaf("chosen", &[("linux,usable-memory-range", &usable)])
    };
    let none = tree(&TWO_CELLS, vec![memory(&first, None)]);
    // Two ranges that touch, in the wrong order, and a part of an entry.
    let two = [0, 0x6000, 0, 0x1000, 0, 0x5000, 0, 0x1000, 0, 0];
    let range = tree(&TWO_CELLS, vec![memory(&first, None), chosen(&two)]);
    let own = [0, 0x9000, 0, 0x1000];
    let own = tree(
        &TWO_CELLS,
        vec![memory(&first, None), memory(&second, Some(&own))],
    );
    let nothing = tree(&TWO_CELLS, vec![memory(&first, None), chosen(&[])]);
    for (bytes, start, length, expected) in [
        (&none, 0x4000, 0x4000, false),
        (&none, 0x10_0000, 0x1000, false),
        (&range, 0x5000, 0x2000, false),
        (&range, 0x5800, 0x1000, false),
        (&range, 0x4fff, 0x10, true),
        (&range, 0x6fff, 2, true),
        (&range, 0x10_0000, 0x1000, true),
        (&range, 0x5000, u64::MAX, true),
        (&own, 0x4000, 0x4000, false),
        (&own, 0x9000, 0x1000, false),
        (&own, 0x7000, 0x1001, true),
        (&own, 0x9000, 0x1001, true),
        (&own, 0xb000, 0x8000, true),
        (&own, 0xc000, 0x8000, false),
        (&nothing, 0x4000, 1, true),
    ] {
        let tree = Tree::new(bytes).unwrap();
        let range = Range {
            start,
            bytes: length,
        };
        assert_eq!(tree.is_another_kernels(range), expected, "{range:x?}");
    }
}
