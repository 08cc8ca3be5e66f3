use super::*;
use crate::made_trees::{self, node};
use dtoolkit::fdt::Fdt;
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

const RESERVED: [(u64, u64); 5] = [
    (0x4000_0000, 0x1000),
    (OLD.start, OLD.bytes),
    (0x4400_0000, 0x1234),
    (0x4700_0000, 0x4000),
    (0x4600_0000, 0x2000),
];

/// A tree with some of everything.
fn tree() -> Vec<u8> {
    tree_with(&RESERVED)
}

fn tree_with(reservations: &[(u64, u64)]) -> Vec<u8> {
    let memory = [
        ("device_type", &b"memory\0"[..]),
        ("linux,usable-memory", &[4; 16]),
    ];
    let chosen = [
        ("bootargs", &b"old words\0"[..]),
        ("stdout-path", b"/pl011@9000000\0"),
        ("linux,initrd-start", &[0x44, 0, 0, 0]),
        ("linux,initrd-end", &[0x44, 0, 0x12, 0x34]),
        ("kaslr-seed", &SEED.to_be_bytes()),
        ("rng-seed", &[9; 33]),
        ("linux,elfcorehdr", &[1; 16]),
        ("linux,usable-memory-range", &[2; 32]),
        ("linux,ima-kexec-buffer", &[3; 16]),
        (note::PROPERTY, &0x4700_0000_u64.to_be_bytes()),
    ];
    let children = [
        node("memory@40000000", &memory, []),
        node(
            "chosen",
            &chosen,
            [node("module", &[("bootargs", b"its own\0")], [])],
        ),
        node("cpus", &[("bootargs", b"kept\0")], []),
    ];
    made_trees::tree(node("", &[("odd", b"12345")], children), reservations)
}

fn changes() -> Changes<'static> {
    Changes {
        command_line: b"new words of the next one",
        initrd: Some(PhysRange::new(0x1_4500_0000, 0x777)),
        note: Some(NOTE),
        crash: None,
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
fn a_crash_kernel_has_memory_and_the_header_of_a_core() {
    let crash = Crash {
        usable: PhysRange::new(0x5000_0000, 0x1000_0000),
        header: PhysRange::new(0x5f00_0000, 0x1_0000),
    };
    let changes = Changes {
        note: None,
        crash: Some(crash),
        ..changes()
    };
    let new = rewritten(&tree(), &changes);
    let read = Fdt::new(&new).unwrap();
    let chosen = |name| value(&read, "/chosen", name);
    let cells = |range: PhysRange| {
        let bytes = (range.bytes as u32).to_be_bytes();
        Some([&range.start.to_be_bytes()[..], &bytes].concat())
    };
    assert_eq!(chosen("linux,usable-memory-range"), cells(crash.usable));
    assert_eq!(chosen("linux,elfcorehdr"), cells(crash.header));
    assert_eq!(chosen(note::PROPERTY), None);
    assert_eq!(read.find_node("/chosen").unwrap().properties().count(), 8);
    let mut reserved = read.memory_reservations();
    assert!(reserved.any(|it| (it.address(), it.size()) == (0x5f00_0000, 0x1_0000)));
    // A root without cells has one for a length.
    let usable = PhysRange::new(0x5000_0000, 1 << 32);
    let changes = Changes {
        crash: Some(Crash { usable, ..crash }),
        ..changes
    };
    let refused = write(&tree(), &changes, &mut [0; 4096]);
    assert_eq!(refused, Err(NextTreeError::Cells(usable)));
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
    // The old tree, initramfs and note are not reserved; kept memory is reserved once.
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
    let initrd = None;
    let new = rewritten(
        &tree(),
        &Changes {
            initrd,
            ..changes()
        },
    );
    let read = Fdt::new(&new).unwrap();
    assert_eq!(value(&read, "/chosen", "linux,initrd-start"), None);
    assert_eq!(value(&read, "/chosen", "linux,initrd-end"), None);
    let bare = made_trees::tree(node("", &[], [node("cpus", &[], [])]), &[]);
    let new = rewritten(&bare, &changes());
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

/// The length is the same wherever things are, and before anything has a place. It is for any firmware
/// reservations, including one at the placeholder of the note's place and one at that place itself.
#[test]
fn it_is_as_long_wherever_things_are() {
    let more = [(0, 0x1000), (0, 0x1_0000), (NOTE.start, NOTE.bytes)];
    for old in [tree(), tree_with(&[&RESERVED[..], &more].concat())] {
        let long = rewritten(&old, &changes()).len();
        assert_eq!(rewritten(&roomy(&old), &changes()).len(), long);
        let notes = [(0, 0), (0, 0x1000), (0, 0x1_0000), (0x4000_0000, 0x1000)];
        for note in notes {
            let elsewhere = Changes {
                initrd: Some(PhysRange::default()),
                note: Some(PhysRange::new(note.0, note.1)),
                ..changes()
            };
            assert_eq!(rewritten(&old, &elsewhere).len(), long, "{note:x?}");
        }
        let written = write(&old, &changes(), &mut vec![0; long - 1]);
        let full = WriteError::Full { room: long - 1 };
        assert_eq!(written, Err(NextTreeError::Tree(full)));
    }
    assert_eq!(same_length(5, 5), Ok(()));
    let longer = same_length(5, 21).unwrap_err().to_string();
    assert!(
        longer.contains("has 21 bytes, and 5 were measured"),
        "{longer}"
    );
}

/// A seed is used once: without a new one, the next kernel gets none.
#[test]
fn no_seed_goes_through_as_it_is() {
    let (kaslr, rng) = (None, None);
    let seeds = Seeds { kaslr, rng };
    let new = rewritten(&tree(), &Changes { seeds, ..changes() });
    let read = Fdt::new(&new).unwrap();
    for name in ["rng-seed", "kaslr-seed"] {
        assert_eq!(value(&read, "/chosen", name), None, "{name}");
    }
}

fn is_malformed(written: Done<usize>) -> bool {
    matches!(written, Err(NextTreeError::Tree(WriteError::Malformed(_))))
}

#[test]
fn a_tree_that_is_cut_anywhere_is_refused() {
    let old = tree();
    let mut into = vec![0; old.len() * 2];
    for length in 0..old.len() {
        let cut = write(&old[..length], &changes(), &mut into);
        assert!(is_malformed(cut), "{length}");
    }
}

#[test]
fn a_tree_has_one_root() {
    let old = made_trees::tree(node("", &[], []), &[]);
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
        assert!(is_malformed(written));
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
        let old = ["choose", names[0], names[1]];
        let old = old.map(|name| node(name, &[("bootargs", b"old\0")], []));
        let old = made_trees::tree(node("", &[], old), &[]);
        let new = rewritten(&old, &changes());
        let read = Tree::new(&new).unwrap();
        assert_eq!(read.peek().bootargs, changes().command_line, "{names:?}");
        let root = read.root().unwrap();
        let lines: Vec<_> = root.children().map(|it| it.text(b"bootargs")).collect();
        assert_eq!(lines[0], Some(&b"old"[..]));
        assert_eq!(lines[2..], [Some(&b"old"[..])]);
    }
}

/// Nodes from firmware's tables stay behind; the properties that name the tables go along.
#[test]
fn nodes_from_firmware_tables_stay_behind() {
    let table = ("linux,uefi-system-table", &[0, 0, 0, 0, 0x7f, 0, 0, 0][..]);
    let (mark, efi) = (
        ("granule,from-acpi", &[][..]),
        ("granule,from-efi", &[][..]),
    );
    let console = ("stdout-path", &b"/serial@9000000\0"[..]);
    let reserved = [
        node("efi-runtime@1000", &[efi], []),
        node("dump@2000", &[], []),
    ];
    let children = [
        node("chosen", &[table, console, mark], []),
        node("cpus", &[mark], [node("cpu@0", &[], [])]),
        node("memory@40000000", &[efi], []),
        node("reserved-memory", &[], reserved),
    ];
    let old = made_trees::tree(node("", &[], children), &[]);
    let new = rewritten(&old, &changes());
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
