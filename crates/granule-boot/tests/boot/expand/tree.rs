//! The tree that firmware gives: what stays of it, and the word `acpi=`.

use super::machine::{bare, expanded, machine, node, notes, tables, usual, value};
use dtoolkit::Node as _;
use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeProperty};
use granule_boot::expand::ExpandError;
use granule_boot::tree::{Range, Tree};
use granule_boot::words::{self, Acpi};

/// With both descriptions the tree's counts, but for memory.
#[test]
fn a_tree_of_the_machine_is_kept_but_for_its_memory() {
    let machine = machine(&usual(), &tables());
    let mut old = bare(&machine);
    for (name, value) in [("#address-cells", 2_u32), ("#size-cells", 1)] {
        let value = value.to_be_bytes().to_vec();
        old.root
            .add_property(DeviceTreeProperty::new_unchecked(name, value));
    }
    let lies = [0_u32, 0, 0x10_0000].map(u32::to_be_bytes).concat();
    let ram = [("device_type", &b"memory\0"[..]), ("reg", &lies)];
    old.root.add_child(node("memory@0", &ram));
    let mut kept = node("reserved-memory", &[("ranges", &[])]);
    kept.add_child(node("one@70000000", &[("reg", &lies), ("no-map", &[])]));
    old.root.add_child(kept);
    old.root.add_child(node("cpus", &[("x", b"y")]));
    for acpi in [None, Some(Acpi::Off)] {
        let (bytes, made) = expanded(&machine, &old, acpi).unwrap();
        assert!(!made.is_acpi);
        assert_eq!(notes(&made), []);
        let tree = Fdt::new(&bytes).unwrap();
        let names: Vec<_> = tree
            .root()
            .children()
            .map(|it| it.name().to_owned())
            .collect();
        assert_eq!(
            names,
            ["chosen", "reserved-memory", "cpus", "memory@40000000"]
        );
        // One cell for a size: the first bank is one of less than 4 GiB.
        let reg = value(&tree.find_node("/memory@40000000").unwrap(), "reg").unwrap();
        assert_eq!(
            reg[..12],
            [0_u32, 0x4000_0000, 0x3080_0000]
                .map(u32::to_be_bytes)
                .concat()
        );
        let kept = tree.find_node("/reserved-memory").unwrap();
        let kept: Vec<_> = kept.children().map(|it| it.name().to_owned()).collect();
        assert_eq!(kept.len(), 3);
        // The step is the same over its own result.
        let again = DeviceTree::from_fdt(&tree);
        let (second, _) = expanded(&machine, &again, acpi).unwrap();
        assert_eq!(second.len(), bytes.len());
    }
    let (bytes, made) = expanded(&machine, &old, Some(Acpi::On)).unwrap();
    assert!(made.is_acpi);
    let tree = Fdt::new(&bytes).unwrap();
    assert!(tree.find_node("/cpus/cpu@1").is_some());
    assert!(tree.find_node("/reserved-memory/one@70000000").is_some());
}

/// The root's cells become two and two with ACPI. The properties that count in them are written anew.
#[test]
fn what_counts_in_the_cells_of_the_root_changes_with_them() {
    let machine = machine(&usual(), &tables());
    let cells = |cells: &[u32]| {
        cells
            .iter()
            .flat_map(|it| it.to_be_bytes())
            .collect::<Vec<_>>()
    };
    let old = |usable: &[u32], reserved: &[(&str, &[u8])]| {
        let mut old = bare(&machine);
        for name in ["#address-cells", "#size-cells"] {
            let one = DeviceTreeProperty::new_unchecked(name, cells(&[1]));
            old.root.add_property(one);
        }
        let chosen = old.root.child_mut("chosen").unwrap();
        for name in ["linux,usable-memory-range", "linux,elfcorehdr"] {
            chosen.add_property(DeviceTreeProperty::new_unchecked(name, cells(usable)));
        }
        let mut kept = node("reserved-memory", reserved);
        let reg = cells(&[0x4100_0000, 0x1000]);
        kept.add_child(node("one@41000000", &[("reg", &reg), ("no-map", &[])]));
        old.root.add_child(kept);
        old.root.add_child(node("cpus", &[]));
        old
    };
    let one = cells(&[1]);
    let stated = [
        ("#address-cells", &one[..]),
        ("#size-cells", &one),
        ("ranges", &[]),
    ];
    for reserved in [&stated[..], &stated[1..], &stated[2..]] {
        for acpi in [Acpi::On, Acpi::Force, Acpi::Off] {
            let old = old(
                &[0x4000_0000, 0x100_0000, 0x5000_0000, 0x2000_0000],
                reserved,
            );
            let (bytes, _) = expanded(&machine, &old, Some(acpi)).unwrap();
            let read = Tree::new(&bytes).unwrap();
            // By the reader that the kernel has.
            let is_left = |start, bytes| !read.is_another_kernels(Range { start, bytes });
            assert!(is_left(0x4000_0000, 0x100_0000), "{acpi:?}");
            assert!(is_left(0x5000_0000, 0x2000_0000), "{acpi:?}");
            assert!(
                !is_left(0x4100_0000, 1) && !is_left(0x7000_0000, 1),
                "{acpi:?}"
            );
            let no_map: Vec<_> = read.no_map().collect();
            let reserved = Range::new(0x4100_0000, 0x1000);
            assert_eq!(no_map.len(), 3);
            assert_eq!(no_map[0], reserved, "{acpi:?}");
            let tree = Fdt::new(&bytes).unwrap();
            let chosen = tree.find_node("/chosen").unwrap();
            let usable = value(&chosen, "linux,usable-memory-range").unwrap();
            assert_eq!(value(&chosen, "linux,elfcorehdr").unwrap(), usable);
        }
    }
    // A range that would be lost ends the boot.
    let half = old(&[0x4000_0000], &stated);
    let refused = expanded(&machine, &half, Some(Acpi::On)).err();
    assert_eq!(refused, Some(ExpandError::ChosenMemory));
}

#[test]
fn the_word_of_the_command_line_is_read() {
    use granule_boot::choice::Wish;
    assert_eq!(
        words::acpi(b"x acpi=off acpi=force"),
        Wish::Wanted(Acpi::Force)
    );
    assert_eq!(words::acpi(b"acpi=on"), Wish::Wanted(Acpi::On));
    assert_eq!(words::acpi(b"acpi=off -- acpi=on"), Wish::Wanted(Acpi::Off));
    assert_eq!(words::acpi(b"acpi"), Wish::Absent);
    assert!(matches!(words::acpi(b"acpi=noirq"), Wish::Garbled(_)));
}
