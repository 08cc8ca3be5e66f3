use super::*;
use dtoolkit::fdt::Fdt;
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use dtoolkit::{Node, Property};
use granule_testing::cases::config;
use proptest::prelude::*;

const OLD: PhysRange = PhysRange::new(0x4800_0000, 0x1_0000);
const KEPT: [PhysRange; 2] = [
    PhysRange::new(0x4600_0000, 0x2000),
    PhysRange::new(0x5100_0000, 8),
];
/// The seed of the old tree.
const SEED: u64 = 0x0102_0304_0506_0708;
const FRESH: u64 = 0x5a5a_5a5a_5a5a_5a5a;
const NOTE: PhysRange = PhysRange::new(0x5000_0000, 0x1000);

fn node(name: &str, properties: &[(&str, &[u8])]) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(name);
    for (name, value) in properties {
        node.add_property(DeviceTreeProperty::new_unchecked(*name, *value));
    }
    node
}

/// A tree with some of everything.
fn tree() -> Vec<u8> {
    let mut tree = DeviceTree::new();
    let odd = DeviceTreeProperty::new_unchecked("odd", &b"12345"[..]);
    tree.root.add_property(odd);
    tree.root.add_child(node(
        "memory@40000000",
        &[
            ("device_type", b"memory\0"),
            ("linux,usable-memory", &[4; 16]),
        ],
    ));
    let mut chosen = node(
        "chosen",
        &[
            ("bootargs", b"old words\0"),
            ("stdout-path", b"/pl011@9000000\0"),
            ("linux,initrd-start", &[0x44, 0, 0, 0]),
            ("linux,initrd-end", &[0x44, 0, 0x12, 0x34]),
            ("kaslr-seed", &SEED.to_be_bytes()),
            ("rng-seed", &[9; 33]),
            ("linux,elfcorehdr", &[1; 16]),
            ("linux,usable-memory-range", &[2; 32]),
            ("linux,ima-kexec-buffer", &[3; 16]),
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
        initrd: Some(PhysRange::new(0x1_4500_0000, 0x777)),
        note: NOTE,
        kept: &KEPT,
        old: OLD,
        seeds: Seeds {
            kaslr: Some(FRESH),
            rng: Some([0x5a; SEED_BYTES]),
        },
    }
}

/// The tree with unused room behind it, as QEMU's trees have.
fn roomy(old: &[u8]) -> Vec<u8> {
    let mut roomy = old.to_vec();
    roomy.resize(1 << 20, 0);
    roomy[4..8].copy_from_slice(&(1_u32 << 20).to_be_bytes());
    roomy
}

fn rewritten(old: &[u8], changes: &Changes<'_>) -> Vec<u8> {
    let mut into = vec![0xa5; most_bytes(old, changes).unwrap()];
    let length = write(old, changes, &mut into).unwrap();
    // The estimate is close, however much room the old tree has.
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
    assert_eq!(chosen("kaslr-seed"), number(FRESH));
    assert_eq!(chosen("rng-seed").unwrap(), [0x5a; SEED_BYTES]);
    assert_eq!(chosen(note::PROPERTY), number(NOTE.start));
    // No name occurs twice, and properties that an earlier kernel left for this kernel alone are gone.
    let node = read.find_node("/chosen").unwrap();
    assert_eq!(node.properties().count(), 8);
    // Memory that another kernel keeps is that kernel's still.
    assert_eq!(chosen("linux,usable-memory-range").unwrap(), [2; 32]);
    let usable = value(&read, "/memory@40000000", "linux,usable-memory");
    assert_eq!(usable.unwrap(), [4; 16]);
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
    // Neither the old tree, the old initramfs nor the note that was read is reserved; kept memory is
    // reserved once.
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
    let seed = value(&read, "/chosen", "kaslr-seed");
    assert_eq!(seed, Some(FRESH.to_be_bytes().to_vec()));
    assert!(read.find_node("/cpus").is_some());
    // The tree does not grow from kernel to kernel.
    let again = rewritten(&new, &changes());
    assert_eq!(again.len(), new.len());
    let read = Fdt::new(&again).unwrap();
    assert!(value(&read, "/chosen", note::PROPERTY).is_some());
}

#[test]
fn it_is_as_long_wherever_things_are() {
    let long = rewritten(&tree(), &changes()).len();
    let elsewhere = Changes {
        initrd: Some(PhysRange::new(0, 1)),
        note: PhysRange::new(0x1000, 0x1_0000),
        ..changes()
    };
    assert_eq!(rewritten(&tree(), &elsewhere).len(), long);
    assert_eq!(rewritten(&roomy(&tree()), &changes()).len(), long);
    let mut small = vec![0; long - 1];
    let written = write(&tree(), &changes(), &mut small);
    assert_eq!(
        written,
        Err(NextTreeError::Tree(WriteError::Full { room: long - 1 }))
    );
}

/// The length is the same for any firmware reservations, including one at the placeholder of the
/// note's place and one at the note's place itself.
#[test]
fn it_is_as_long_before_anything_has_a_place() {
    let mut firmware = DeviceTree::from_fdt(&Fdt::new(&tree()).unwrap());
    for (start, bytes) in [(0, 0x1000), (0, 0x1_0000), (NOTE.start, NOTE.bytes)] {
        let reserved = MemoryReservation::new(start, bytes);
        firmware.memory_reservations.push(reserved);
    }
    let old = firmware.to_dtb();
    let long = rewritten(&old, &changes()).len();
    for note in [(0, 0), (0, 0x1000), (0, 0x1_0000), (0x4000_0000, 0x1000)] {
        let unplaced = Changes {
            initrd: Some(PhysRange::default()),
            note: PhysRange::new(note.0, note.1),
            ..changes()
        };
        assert_eq!(rewritten(&old, &unplaced).len(), long, "{note:x?}");
    }
    assert_eq!(same_length(long, long), Ok(()));
    let longer = same_length(long, long + 16).unwrap_err();
    let words = format!("has {} bytes, and {long} were measured", long + 16);
    assert!(longer.to_string().contains(&words), "{longer}");
}

/// A seed is used once: without a new one, the next kernel gets none.
#[test]
fn no_seed_goes_through_as_it_is() {
    let without = Changes {
        seeds: Seeds {
            kaslr: None,
            rng: None,
        },
        ..changes()
    };
    let new = rewritten(&tree(), &without);
    let read = Fdt::new(&new).unwrap();
    for name in ["rng-seed", "kaslr-seed"] {
        assert_eq!(value(&read, "/chosen", name), None, "{name}");
    }
}

#[test]
fn a_tree_that_is_cut_anywhere_is_refused() {
    let old = tree();
    let mut into = vec![0; old.len() * 2];
    for length in 0..old.len() {
        let cut = write(&old[..length], &changes(), &mut into);
        assert!(
            matches!(cut, Err(NextTreeError::Tree(WriteError::Malformed(_)))),
            "{length}"
        );
    }
}

#[test]
fn a_tree_has_one_root() {
    let old = DeviceTree::new().to_dtb();
    let at = u32::from_be_bytes(*old[8..].first_chunk().unwrap()) as usize;
    let with = |tokens: &[u32]| {
        let mut old = old.clone();
        let tokens = tokens.iter().copied().flat_map(u32::to_be_bytes);
        old.splice(at.., tokens);
        let size = old.len() as u32;
        old[36..40].copy_from_slice(&(size - at as u32).to_be_bytes());
        old[4..8].copy_from_slice(&size.to_be_bytes());
        // No strings.
        old[12..16].copy_from_slice(&size.to_be_bytes());
        write(&old, &changes(), &mut [0; 1024])
    };
    const BEGIN_NODE: u32 = 1;
    const END_NODE: u32 = 2;
    const NOP: u32 = 4;
    const END: u32 = 9;
    let root = [BEGIN_NODE, 0, END_NODE];
    assert!(with(&[&root[..], &[NOP, END]].concat()).is_ok());
    for none_or_two in [vec![END], vec![NOP, END], [root, root].concat()] {
        let written = with(&[&none_or_two[..], &[END]].concat());
        assert!(matches!(
            written,
            Err(NextTreeError::Tree(WriteError::Malformed(_)))
        ));
    }
}

proptest! {
    #![proptest_config(config(256, 16))]

    #[test]
    fn no_bytes_are_more_than_an_error(
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)
    ) {
        let mut old = tree();
        for (at, byte) in wrong {
            *at.get_mut(&mut old) = byte;
        }
        let mut into = vec![0; 4096];
        let _ = write(&old, &changes(), &mut into);
    }
}

/// The node that the rest of the kernel reads as `/chosen` is the one that changes: the first of that
/// name, with or without a unit address.
#[test]
fn chosen_is_the_node_that_the_kernel_reads() {
    for names in [["chosen@0", "chosen"], ["chosen", "chosen@0"]] {
        let mut old = DeviceTree::new();
        for name in ["choose", names[0], names[1]] {
            let name = node(name, &[("bootargs", b"old\0")]);
            old.root.add_child(name);
        }
        let new = rewritten(&old.to_dtb(), &changes());
        let read = Tree::new(&new).unwrap();
        assert_eq!(read.peek().bootargs, changes().command_line, "{names:?}");
        let root = read.root().unwrap();
        let lines: Vec<_> = root.children().map(|it| it.text(b"bootargs")).collect();
        assert_eq!(lines[0], Some(&b"old"[..]));
        assert_eq!(lines[2..], [Some(&b"old"[..])]);
    }
}

/// Nodes from firmware's tables stay behind, with what lies in them, and the properties that name the
/// tables go along.
#[test]
fn nodes_of_firmware_s_tables_stay_behind() {
    let mut old = DeviceTree::new();
    let table = ("linux,uefi-system-table", &[0, 0, 0, 0, 0x7f, 0, 0, 0][..]);
    let mark = ("granule,from-acpi", &[][..]);
    let console = ("stdout-path", &b"/serial@9000000\0"[..]);
    old.root.add_child(node("chosen", &[table, console, mark]));
    let mut cpus = node("cpus", &[mark]);
    cpus.add_child(node("cpu@0", &[]));
    old.root.add_child(cpus);
    let efi = ("granule,from-efi", &[][..]);
    old.root.add_child(node("memory@40000000", &[efi]));
    let mut reserved = node("reserved-memory", &[]);
    reserved.add_child(node("efi-runtime@1000", &[efi]));
    reserved.add_child(node("dump@2000", &[]));
    old.root.add_child(reserved);
    let new = rewritten(&old.to_dtb(), &changes());
    let read = Fdt::new(&new).unwrap();
    assert_eq!(value(&read, "/chosen", table.0).unwrap(), table.1);
    assert_eq!(value(&read, "/chosen", "stdout-path"), None);
    assert_eq!(value(&read, "/chosen", mark.0), None);
    let names = |node: &dtoolkit::fdt::FdtNode<'_>| -> Vec<String> {
        node.children().map(|it| it.name().to_owned()).collect()
    };
    assert_eq!(names(&read.root()), ["chosen", "reserved-memory"]);
    let reserved = read.find_node("/reserved-memory").unwrap();
    assert_eq!(names(&reserved), ["dump@2000"]);
}
