//! The reader of device trees against trees that a writer of its own made from a model: any names,
//! any order of blocks, any nesting. Hostile bytes are read without a panic and to an end.

use crate::peek_damage::look;
use crate::trees::{cells, leaf, node, tree};
use granule_boot::tree::{Cells, Node, Range, Reg, Tree, TreeError};
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::HashSet;

/// A node as it was meant.
#[derive(Clone, Debug, Default)]
struct Model {
    name: Vec<u8>,
    properties: Vec<(Vec<u8>, Vec<u8>)>,
    children: Vec<Model>,
}

/// A tree as it was meant.
#[derive(Clone, Debug)]
struct Written {
    root: Model,
    reserved: Vec<(u64, u64)>,
    /// The order of reservations, structure and strings: one of six.
    order: usize,
    version: u32,
    /// Zeros behind each block, in words of eight bytes.
    gap: usize,
    /// A NOP token before each other token.
    nops: bool,
}

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

impl Written {
    fn structure(&self, of: &Model, into: &mut Vec<u8>, strings: &mut Vec<u8>) {
        let token = |into: &mut Vec<u8>, token: u32| {
            if self.nops {
                into.extend(4_u32.to_be_bytes());
            }
            into.extend(token.to_be_bytes());
        };
        let align = |into: &mut Vec<u8>| into.resize(into.len().next_multiple_of(4), 0);
        token(into, 1);
        into.extend(&of.name);
        into.push(0);
        align(into);
        for (name, value) in &of.properties {
            token(into, 3);
            into.extend((value.len() as u32).to_be_bytes());
            into.extend((strings.len() as u32).to_be_bytes());
            into.extend(value);
            align(into);
            strings.extend(name);
            strings.push(0);
        }
        for child in &of.children {
            self.structure(child, into, strings);
        }
        token(into, 2);
    }

    /// For a node and those below it: the offset behind its name, the offset behind its end, and its
    /// path. Returns the offset behind the node, which begins at `at`.
    fn spans(
        &self,
        of: &Model,
        path: &str,
        at: usize,
        into: &mut Vec<(usize, usize, String)>,
    ) -> usize {
        let token = if self.nops { 8 } else { 4 };
        let begun = at + token + of.name.len() + 1;
        let mut at = begun.next_multiple_of(4);
        for (_, value) in &of.properties {
            at += token + 8 + value.len().next_multiple_of(4);
        }
        for child in &of.children {
            let path = format!("{path}/{}", child.name.escape_ascii());
            at = self.spans(child, &path, at, into);
        }
        into.push((begun, at + token, path.to_owned()));
        at + token
    }

    fn bytes(&self) -> Vec<u8> {
        let (mut structure, mut strings) = (Vec::new(), Vec::new());
        self.structure(&self.root, &mut structure, &mut strings);
        structure.extend(9_u32.to_be_bytes());
        let mut reservations = Vec::new();
        for (start, bytes) in self.reserved.iter().chain([&(0, 0)]) {
            reservations.extend(start.to_be_bytes());
            reservations.extend(bytes.to_be_bytes());
        }
        let blocks = [reservations, structure, strings];
        let mut bytes = vec![0; 40];
        let mut places = [0; 3];
        for block in ORDERS[self.order] {
            places[block] = bytes.len() as u32;
            bytes.extend(&blocks[block]);
            bytes.resize(bytes.len().next_multiple_of(8) + 8 * self.gap, 0);
        }
        let size = bytes.len() as u32;
        let of_structure = if self.version < 17 {
            0
        } else {
            blocks[1].len() as u32
        };
        let header = [
            0xd00d_feed,
            size,
            places[1],
            places[2],
            places[0],
            self.version,
            16,
            7,
            blocks[2].len() as u32,
            of_structure,
        ];
        bytes[..40].copy_from_slice(&cells(&header));
        bytes
    }
}

fn name(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(b'a'..=b'z', 1..longest),
        // Any bytes but what ends a name or splits a path.
        1 => prop::collection::vec(any::<u8>().prop_filter("", |byte| !b"\0/@".contains(byte)), 1..9),
    ]
}

fn properties() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    prop::collection::vec((name(70), prop::collection::vec(any::<u8>(), 0..20)), 0..4)
}

fn model() -> impl Strategy<Value = Model> {
    let leaf = (name(70), properties()).prop_map(|(name, properties)| Model {
        name,
        properties,
        children: vec![],
    });
    leaf.prop_recursive(5, 24, 5, |inner| {
        (name(70), properties(), prop::collection::vec(inner, 0..5)).prop_map(
            |(name, properties, children)| Model {
                name,
                properties,
                children,
            },
        )
    })
}

fn written() -> impl Strategy<Value = Written> {
    let reserved = (1..u64::MAX, any::<u64>());
    (
        model(),
        prop::collection::vec(reserved, 0..4),
        0..ORDERS.len(),
        16..=17_u32,
        0..3_usize,
        any::<bool>(),
    )
        .prop_map(|(root, reserved, order, version, gap, nops)| Written {
            root: Model {
                name: vec![],
                ..root
            },
            reserved,
            order,
            version,
            gap,
            nops,
        })
}

/// Compares a node with its model, below it too, and looks it up by its path.
fn same(node: &Node<'_>, model: &Model, path: &str) {
    assert_eq!(node.name(), model.name);
    let properties: Vec<_> = node
        .properties()
        .map(|it| (it.name.bytes().to_vec(), it.value.to_vec()))
        .collect();
    assert_eq!(properties, model.properties);
    for (name, _) in &model.properties {
        let first = model.properties.iter().find(|it| it.0 == *name).unwrap();
        assert_eq!(node.property(name), Some(&first.1[..]));
    }
    assert_eq!(
        node.path().to_string(),
        if path.is_empty() { "/" } else { path }
    );
    let children: Vec<_> = node.children().collect();
    assert_eq!(children.len(), model.children.len());
    for (child, model) in children.iter().zip(&model.children) {
        let parent = child.parent().unwrap();
        assert_eq!(parent.path().to_string(), node.path().to_string());
        assert_eq!(parent.children().count(), children.len());
        let first = children.iter().find(|it| it.is_named(&model.name)).unwrap();
        let found = node.child(&model.name).unwrap();
        assert_eq!(found.path().to_string(), first.path().to_string());
        let path = format!("{path}/{}", model.name.escape_ascii());
        same(child, model, &path);
    }
}

fn count(model: &Model) -> usize {
    1 + model.children.iter().map(count).sum::<usize>()
}

/// The nodes with their paths in the model; a name that an elder sibling has is none to look up.
fn paths(model: &Model, path: &[u8], all: &mut Vec<Vec<u8>>) {
    let mut names = HashSet::new();
    for child in model.children.iter().filter(|it| names.insert(&it.name)) {
        let path = [path, b"/", &child.name].concat();
        paths(child, &path, all);
        all.push(path);
    }
}

proptest! {
    #![proptest_config(config(256, 8))]

    #[test]
    fn a_written_tree_is_read_back(written in written()) {
        let bytes = written.bytes();
        let tree = Tree::new(&bytes).unwrap();
        prop_assert_eq!(tree.damage(), None);
        prop_assert_eq!(tree.boot_cpu(), 7);
        same(&tree.root().unwrap(), &written.root, "");
        prop_assert_eq!(tree.nodes().count(), count(&written.root));
        let mut all = Vec::new();
        paths(&written.root, b"", &mut all);
        for path in all {
            let found = tree.find(&path).unwrap();
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
            prop_assert_eq!(found.name(), name);
            prop_assert!(tree.find(&[&path[..], b"-"].concat()).is_none());
        }
        let reserved: Vec<_> = tree.reservations().unwrap().map(|it| (it.start, it.bytes)).collect();
        prop_assert_eq!(reserved, written.reserved);
    }

    /// Every byte of a sound tree may be wrong, and the tree may end anywhere.
    #[test]
    fn hostile_bytes_are_read_to_an_end(
        written in written(),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written.bytes();
        let at = cut.index(bytes.len() + 1);
        prop_assert!(at == bytes.len() || Tree::new(&bytes[..at]).is_err());
        let mut zeroed = bytes.clone();
        zeroed[at..].fill(0);
        look(&zeroed);
        for (place, byte) in wrong {
            *place.get_mut(&mut bytes) = byte;
        }
        look(&bytes);
    }

    /// A structure block that ends too early is reported in the innermost node that was begun and not
    /// ended, wherever it ends: in a name, a property, the padding or a token.
    #[test]
    fn a_cut_tree_is_reported_in_the_node_that_was_cut(
        written in written(), cut in any::<prop::sample::Index>(),
    ) {
        let written = Written { version: 17, ..written };
        let mut bytes = written.bytes();
        let mut spans = Vec::new();
        let end = written.spans(&written.root, "", 0, &mut spans);
        let cut = cut.index(end);
        bytes[36..40].copy_from_slice(&(cut as u32).to_be_bytes());
        let open = spans.iter().filter(|(begun, ended, _)| *begun <= cut && cut < *ended);
        let expected = open.max_by_key(|(begun, ..)| *begun).map_or("", |(.., path)| path);
        let tree = Tree::new(&bytes).unwrap();
        let truncated = matches!(tree.damage(), Some(TreeError::Truncated { .. }));
        prop_assert!(truncated);
        let expected = if expected.is_empty() { "/" } else { expected };
        prop_assert_eq!(tree.damaged_node().to_string(), expected);
    }

    #[test]
    fn entries_are_the_numbers_of_their_cells(
        address in 0..6_u32, size in 0..6_u32, words in prop::collection::vec(
            prop_oneof![Just(0_u32), any::<u32>()], 0..24,
        ), odd in 0..4_usize,
    ) {
        let mut value = cells(&words);
        value.extend(vec![1; odd]);
        let reg = Reg::new(&value, Cells { address, size });
        let read: Vec<_> = reg.collect();
        // The same by numbers of any length.
        let number = |words: &[u32]| {
            let big = words.iter().try_fold(0_u128, |sum, word| {
                sum.checked_mul(1 << 32).map(|sum| sum + u128::from(*word))
            });
            big.and_then(|big| u64::try_from(big).ok())
        };
        let mut expected = Vec::new();
        let entry = (address + size) as usize;
        if address == 0 || address > 4 || size > 4 {
            expected.extend((!value.is_empty()).then_some(None));
        } else {
            let mut entries = words.chunks_exact(entry);
            for entry in &mut entries {
                let (start, bytes) = entry.split_at(address as usize);
                let both = (number(start), number(bytes));
                expected.push(match both {
                    (Some(start), Some(bytes)) => Some(Range { start, bytes }),
                    _ => None,
                });
            }
            if !entries.remainder().is_empty() || odd > 0 {
                expected.push(None);
            }
        }
        prop_assert_eq!(&read, &expected);
        // The whole entries alone, unless there is none.
        let (whole, is_cut) = reg.whole();
        let entries = value.len() / (4 * entry).max(1);
        let is_odd = !value.len().is_multiple_of((4 * entry).max(1));
        let has_whole = (1..=4).contains(&address) && size <= 4 && entries > 0;
        prop_assert_eq!(is_cut, has_whole && is_odd);
        expected.truncate(if has_whole { entries } else { expected.len() });
        prop_assert_eq!(whole.collect::<Vec<_>>(), expected);
    }

    /// A chain of buses, each with a few windows, against sums of 128 bits.
    #[test]
    fn addresses_are_translated_window_by_window(
        buses in prop::collection::vec(
            prop::option::of(prop::collection::vec((0..64_u64, 0..64_u64, 0..24_u64), 0..4)), 0..5,
        ),
        address in 0..64_u64,
    ) {
        let two = [("#address-cells", &[0, 0, 0, 2][..]), ("#size-cells", &[0, 0, 0, 2])];
        let mut made = leaf("device", &[]);
        for windows in buses.iter().rev() {
            let ranges = windows.as_ref().map(|windows| {
                windows.iter().flat_map(|(child, parent, size)| [*child, *parent, *size])
                    .flat_map(u64::to_be_bytes).collect::<Vec<_>>()
            });
            let mut properties = two.to_vec();
            if let Some(ranges) = &ranges {
                properties.push(("ranges", ranges));
            }
            made = node("bus", &properties, vec![made]);
        }
        let bytes = tree(&two, vec![made]);
        let tree = Tree::new(&bytes).unwrap();
        let device = tree.nodes().find(|it| it.is_named(b"device")).unwrap();
        let mut expected = Some(address);
        for windows in buses.iter().rev() {
            expected = match (expected, windows) {
                (Some(at), Some(windows)) if windows.is_empty() => Some(at),
                (Some(at), Some(windows)) => windows.iter()
                    .find(|(child, _, size)| (*child..child + size).contains(&at))
                    .map(|(child, parent, _)| at - child + parent),
                _ => None,
            };
        }
        prop_assert_eq!(device.to_cpu(address), expected);
    }
}

#[test]
fn damage_is_reported_with_the_path_of_its_node() {
    let long = "a".repeat(60);
    let inner = Model {
        name: format!("{long}@1").into(),
        properties: vec![(b"p".to_vec(), vec![1; 8])],
        children: vec![],
    };
    let soc = Model {
        name: b"soc\n".to_vec(),
        properties: vec![],
        children: vec![Model::default(), inner],
    };
    let written = Written {
        root: Model {
            children: vec![
                Model {
                    name: b"cpus".to_vec(),
                    ..Model::default()
                },
                soc,
            ],
            ..Model::default()
        },
        reserved: vec![],
        order: 5,
        version: 17,
        gap: 0,
        nops: false,
    };
    let mut bytes = written.bytes();
    let at = bytes
        .windows(12)
        .position(|it| it == [0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0])
        .unwrap();
    bytes[at + 3] = 5;
    let tree = Tree::new(&bytes).unwrap();
    assert_eq!(tree.damage(), Some(TreeError::BadToken { at: at as u32 }));
    assert_eq!(tree.damaged_node().to_string(), format!("/soc\\n/{long}@1"));
    // A damaged root.
    let at = u32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
    bytes[at + 8] = 5;
    let tree = Tree::new(&bytes).unwrap();
    assert_eq!(tree.damaged_node().to_string(), "/");
}

#[test]
fn reservations_that_do_not_end_are_an_error() {
    let mut bytes = tree(&[], vec![]);
    let at = bytes.len() as u32;
    bytes[16..20].copy_from_slice(&at.to_be_bytes());
    bytes.extend([1; 31]);
    let read = |bytes: &[u8]| {
        Tree::new(bytes)
            .unwrap()
            .reservations()
            .map(Iterator::count)
    };
    let with_size = |mut bytes: Vec<u8>| {
        let size = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&size.to_be_bytes());
        bytes
    };
    let bad = Err(TreeError::BadReservations { at });
    assert_eq!(read(&with_size(bytes.clone())), bad);
    bytes.push(1);
    assert_eq!(read(&with_size(bytes.clone())), bad);
    bytes.extend([0; 16]);
    assert_eq!(read(&with_size(bytes.clone())), Ok(2));
    bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let at = u32::MAX;
    assert_eq!(
        read(&with_size(bytes)),
        Err(TreeError::BadReservations { at })
    );
}
