use super::*;
use dtoolkit::fdt::Fdt;
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use dtoolkit::{Node, Property};
use proptest::prelude::*;

const OLD: Extent = Extent::new(0x4800_0000, 0x1_0000);
const KEPT: [Extent; 2] = [
    Extent::new(0x4600_0000, 0x2000),
    Extent::new(0x5100_0000, 8),
];
const NOTE: Extent = Extent::new(0x5000_0000, 0x1000);

fn node(name: &str, properties: &[(&str, &[u8])]) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(name);
    for (name, value) in properties {
        node.add_property(DeviceTreeProperty::new_unchecked(*name, *value));
    }
    node
}

/// A tree with a little of everything.
fn tree() -> Vec<u8> {
    let mut tree = DeviceTree::new();
    let odd = DeviceTreeProperty::new_unchecked("odd", &b"12345"[..]);
    tree.root.add_property(odd);
    tree.root
        .add_child(node("memory@40000000", &[("device_type", b"memory\0")]));
    let mut chosen = node(
        "chosen",
        &[
            ("bootargs", b"old words\0"),
            ("stdout-path", b"/pl011@9000000\0"),
            ("linux,initrd-start", &[0x44, 0, 0, 0]),
            ("linux,initrd-end", &[0x44, 0, 0x12, 0x34]),
            ("kaslr-seed", &[7; 8]),
            ("rng-seed", &[9; 33]),
            (note::PROPERTY, &0x4700_0000_u64.to_be_bytes()),
        ],
    );
    chosen.add_child(node("module", &[("bootargs", b"its own\0")]));
    tree.root.add_child(chosen);
    tree.root
        .add_child(node("cpus", &[("bootargs", b"kept\0")]));
    tree.memory_reservations = [
        (0x4000_0000, 0x1000),
        (OLD.start, OLD.bytes),
        (0x4400_0000, 0x1234),
        (0x4700_0000, 0x4000),
        (0x4600_0000, 0x2000),
    ]
    .map(|(start, bytes)| MemoryReservation::new(start, bytes))
    .to_vec();
    tree.to_dtb()
}

fn changes() -> Changes<'static> {
    Changes {
        command_line: b"new words of the next one",
        initrd: Some(Extent::new(0x1_4500_0000, 0x777)),
        note: NOTE,
        kept: &KEPT,
        old: OLD,
    }
}

/// With room behind it, as QEMU's trees have.
fn roomy(old: &[u8]) -> Vec<u8> {
    let mut roomy = old.to_vec();
    roomy.resize(1 << 20, 0);
    roomy[4..8].copy_from_slice(&(1_u32 << 20).to_be_bytes());
    roomy
}

fn rewritten(old: &[u8], changes: &Changes<'_>) -> Vec<u8> {
    let mut into = vec![0xa5; most_bytes(old, changes).unwrap()];
    let mut random = |seed: &mut [u8]| seed.fill(0x5a);
    let length = write(old, changes, &mut random, &mut into).unwrap();
    // Not much is asked for in vain, however much room the old one has.
    assert!(into.len() - length < 700, "{} for {length}", into.len());
    into.truncate(length);
    into
}

fn value<'a>(tree: &Fdt<'a>, path: &str, name: &str) -> Option<Vec<u8>> {
    let node = tree.find_node(path)?;
    Some(node.property(name)?.value().to_vec())
}

#[test]
fn chosen_is_new_and_all_else_as_it_was() {
    let new = rewritten(&tree(), &changes());
    let read = Fdt::new(&new).unwrap();
    let chosen = |name| value(&read, "/chosen", name);
    let line = b"new words of the next one\0";
    assert_eq!(chosen("bootargs").unwrap(), line);
    assert_eq!(chosen("stdout-path").unwrap(), b"/pl011@9000000\0");
    let number = |value: u64| Some(value.to_be_bytes().to_vec());
    assert_eq!(chosen("linux,initrd-start"), number(0x1_4500_0000));
    assert_eq!(chosen("linux,initrd-end"), number(0x1_4500_0777));
    assert_eq!(chosen("kaslr-seed").unwrap(), [0x5a; 8]);
    assert_eq!(chosen("rng-seed").unwrap(), [0x5a; 33]);
    assert_eq!(chosen(note::PROPERTY), number(NOTE.start));
    // No name twice.
    let node = read.find_node("/chosen").unwrap();
    assert_eq!(node.properties().count(), 7);
    assert_eq!(
        value(&read, "/chosen/module", "bootargs").unwrap(),
        b"its own\0"
    );
    assert_eq!(value(&read, "/cpus", "bootargs").unwrap(), b"kept\0");
    assert_eq!(value(&read, "/", "odd").unwrap(), b"12345");
    let memory = value(&read, "/memory@40000000", "device_type").unwrap();
    assert_eq!(memory, b"memory\0");
    let reserved: Vec<_> = read
        .memory_reservations()
        .map(|it| (it.address(), it.size()))
        .collect();
    // Neither the old tree, nor the old initramfs, nor the note that was read; what is kept once.
    assert_eq!(
        reserved,
        [
            (0x4000_0000, 0x1000),
            (0x4600_0000, 0x2000),
            (0x5100_0000, 8),
            (NOTE.start, NOTE.bytes)
        ]
    );
    assert_eq!(note::address(&new), Some(NOTE.start));
}

#[test]
fn without_an_initramfs_there_is_none_and_without_chosen_there_is_one() {
    let none = Changes {
        initrd: None,
        ..changes()
    };
    let new = rewritten(&tree(), &none);
    let read = Fdt::new(&new).unwrap();
    assert_eq!(value(&read, "/chosen", "linux,initrd-start"), None);
    assert_eq!(value(&read, "/chosen", "linux,initrd-end"), None);
    let mut bare = DeviceTree::new();
    bare.root.add_child(node("cpus", &[]));
    let new = rewritten(&bare.to_dtb(), &changes());
    let read = Fdt::new(&new).unwrap();
    assert!(value(&read, "/chosen", "bootargs").is_some());
    assert!(value(&read, "/chosen", "kaslr-seed").is_none());
    assert!(read.find_node("/cpus").is_some());
    // From kernel to kernel it does not grow.
    let again = rewritten(&new, &changes());
    assert_eq!(again.len(), new.len());
    let read = Fdt::new(&again).unwrap();
    assert!(value(&read, "/chosen", note::PROPERTY).is_some());
}

#[test]
fn it_is_as_long_wherever_things_are() {
    let long = rewritten(&tree(), &changes()).len();
    let elsewhere = Changes {
        initrd: Some(Extent::new(0, 1)),
        note: Extent::new(0x1000, 0x1_0000),
        ..changes()
    };
    assert_eq!(rewritten(&tree(), &elsewhere).len(), long);
    assert_eq!(rewritten(&roomy(&tree()), &changes()).len(), long);
    let mut small = vec![0; long - 1];
    let written = write(&tree(), &changes(), &mut |_| {}, &mut small);
    assert_eq!(written, Err(TreeError::Full { room: long - 1 }));
}

#[test]
fn what_is_cut_short_is_refused_wherever_that_is() {
    let old = tree();
    let mut into = vec![0; old.len() * 2];
    for length in 0..old.len() {
        let cut = write(&old[..length], &changes(), &mut |_| {}, &mut into);
        assert!(matches!(cut, Err(TreeError::Malformed { .. })), "{length}");
    }
}

proptest! {
    #[test]
    fn no_bytes_are_more_than_an_error(
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)
    ) {
        let mut old = tree();
        for (at, byte) in wrong {
            *at.get_mut(&mut old) = byte;
        }
        let mut into = vec![0; 4096];
        let _ = write(&old, &changes(), &mut |_| {}, &mut into);
    }
}
