//! No tree whatever makes the first look panic or go on for ever, and damage is reported.

use crate::trees::{cells, peek, tree, virt};
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use granule_boot::peek::Consoles;
use granule_boot::tree::{Range, Tree, TreeError, total_size};
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::HashSet;

fn with_word(mut bytes: Vec<u8>, at: usize, word: u32) -> Vec<u8> {
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    bytes
}

#[test]
fn headers_that_do_not_hold_are_refused() {
    let good = virt();
    let size = good.len() as u32;
    for (at, word, expected) in [
        (0, 0xedfe_0dd0, TreeError::BadMagic),
        (4, 39, TreeError::BadSize),
        (4, (2 << 20) + 1, TreeError::BadSize),
        (4, size + 1, TreeError::TooShort),
        (20, 15, TreeError::BadVersion),
        (24, 18, TreeError::BadVersion),
        (8, 0, TreeError::BadLayout),
        (8, 42, TreeError::BadLayout),
        (8, size + 4, TreeError::BadLayout),
        (8, u32::MAX - 3, TreeError::BadLayout),
        (36, size, TreeError::BadLayout),
        (36, u32::MAX, TreeError::BadLayout),
        (12, 36, TreeError::BadLayout),
        (12, u32::MAX, TreeError::BadLayout),
        (32, size, TreeError::BadLayout),
    ] {
        let bytes = with_word(good.clone(), at, word);
        assert_eq!(Tree::new(&bytes).err(), Some(expected), "{word:#x} at {at}");
    }
    for len in 0..good.len() {
        assert_eq!(
            Tree::new(&good[..len]).err(),
            Some(TreeError::TooShort),
            "{len} bytes"
        );
    }
}

/// The structure block of `bytes` replaced by these words.
fn structure(words: &[u32]) -> Vec<u8> {
    let mut bytes = tree(&[], vec![]);
    let at = bytes.len() as u32;
    bytes.extend(cells(words));
    let size = bytes.len() as u32;
    let bytes = with_word(bytes, 4, size);
    let bytes = with_word(bytes, 8, at);
    let bytes = with_word(bytes, 36, size - at);
    // The strings: the structure block will do, as none of its words is zero at its start.
    let bytes = with_word(bytes, 12, 40);
    with_word(bytes, 32, size - 40)
}

#[test]
fn structures_that_do_not_hold_are_damage() {
    let base = {
        let bytes = structure(&[]);
        bytes.len() as u32
    };
    type At = fn(u32) -> TreeError;
    let [truncated, name, nesting, token]: [At; 4] = [
        |at| TreeError::Truncated { at },
        |at| TreeError::BadName { at },
        |at| TreeError::BadNesting { at },
        |at| TreeError::BadToken { at },
    ];
    for (words, expected) in [
        (&[1, 0, 2, 9][..], None::<(At, u32)>),
        (&[4, 1, 0, 4, 4, 2, 4, 9], None),
        (&[], Some((truncated, 0))),
        (&[1, 0, 2], Some((truncated, 12))),
        (&[1, 0x6161_6161], Some((truncated, 0))),
        (&[1, 0, 3, 4], Some((truncated, 16))),
        (&[1, 0, 3, 5, 0, 0, 2, 9], Some((name, 8))),
        (&[1, 0, 3, u32::MAX, 0, 2, 9], Some((truncated, 8))),
        (&[1, 0, 3, 0, u32::MAX, 2, 9], Some((name, 8))),
        (&[9], Some((nesting, 0))),
        (&[2], Some((nesting, 0))),
        (&[1, 0, 9], Some((nesting, 8))),
        (&[1, 0, 2, 1, 0, 2, 9], Some((nesting, 12))),
        (&[1, 0, 2, 3, 0, 0, 9], Some((nesting, 12))),
        (&[1, 0, 5, 2, 9], Some((token, 8))),
        (&[0], Some((token, 0))),
    ] {
        let bytes = structure(words);
        let expected = expected.map(|(error, at)| error(base + at));
        assert_eq!(peek(&bytes).damage, expected, "{words:?}");
    }
    let deep: Vec<u32> = [1, 0].repeat(65);
    let at = base + 64 * 8;
    assert_eq!(
        peek(&structure(&deep)).damage,
        Some(TreeError::TooDeep { at })
    );
    let deepest = [[1, 0].repeat(64), vec![2; 64], vec![9]].concat();
    assert_eq!(peek(&structure(&deepest)).damage, None);
}

#[test]
fn a_tree_cut_off_still_tells_what_stood_before_and_that_it_is_cut() {
    let good = virt();
    let whole = peek(&good);
    let structure_at = u32::from_be_bytes(good[8..12].try_into().unwrap()) as usize;
    let last_string = good.len() - 1 - good.iter().rev().skip(1).position(|b| *b == 0).unwrap();
    let mut consoles = 0;
    // The remains of a loader that stopped early: the rest of the memory is zero. The last byte of a
    // tree is the NUL of its last string.
    for len in structure_at..good.len() - 1 {
        let mut bytes = good.clone();
        bytes[len..].fill(0);
        let peek = peek(&bytes);
        // All but a cut in the last of the property names, which is a name as well.
        if bytes != good && len <= last_string {
            assert!(peek.damage.is_some(), "cut at {len} and not noticed");
        }
        assert!(peek.bootargs.is_empty() || whole.bootargs.starts_with(peek.bootargs));
        if let Some(console) = peek.consoles.first() {
            consoles += 1;
            assert_eq!(Some(console), whole.consoles.first());
        }
    }
    assert!(consoles > 0, "some cut trees still name their console");
}

/// Uses all of the reader on a tree of so many bytes at most.
fn walk(tree: &Tree<'_>, bytes: usize) {
    let path = tree.damaged_node().to_string();
    assert!(path.starts_with('/') && path.is_ascii() && !path.contains('\n'));
    let nodes = tree.nodes().count();
    assert_eq!(tree.root().is_none(), tree.damage().is_some() && nodes == 0);
    assert!(nodes <= bytes / 8);
    assert!(tree.strings().len() <= bytes && tree.structure_bytes() <= bytes);
    for node in tree.nodes().take(200) {
        let _ = (
            node.cells(),
            node.child_cells(),
            node.to_cpu(1),
            node.number(b"reg"),
        );
        assert!(node.reg().map_or(0, Iterator::count) <= bytes);
        assert!(node.properties().count() <= bytes && node.strings(b"reg").count() <= bytes);
        assert!(node.children().all(|child| child.parent().is_some()));
    }
    let reservations = tree.reservations();
    assert!(reservations.is_ok_and(|all| all.count() <= bytes / 16) || reservations.is_err());
    let _ = (tree.find(b"/chosen"), tree.no_map().count());
    for size in [0, u64::MAX] {
        let _ = tree.is_another_kernels(Range::new(0, size));
    }
}

/// Looks at any bytes; checks that what is found is sane, and where the other parser takes the
/// tree, that both agree.
pub(crate) fn look(bytes: &[u8]) {
    let tree = match Tree::new(bytes) {
        Ok(tree) => tree,
        Err(error) => {
            assert!(error.at().is_none());
            return;
        }
    };
    walk(&tree, bytes.len());
    let mut peek = tree.peek();
    if let Some(error) = peek.damage {
        assert!((error.at().unwrap() as usize) <= bytes.len() + 3, "{error}");
    }
    let _ = (
        peek.compatible.count(),
        peek.psci.map(|psci| psci.compatible.count()),
    );
    let size = total_size(bytes).unwrap() as usize;
    let Ok(fdt) = Fdt::new(&bytes[..size]) else {
        return;
    };
    // The other parser does not look at the length of the structure block.
    let field = |at| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    if field(8) + field(36) < field(12) {
        return;
    }
    assert_eq!(peek.damage, None, "a tree that the other parser takes");
    let text = |path: &str, name: &str| {
        let node = fdt.find_node(path)?;
        let value = node.property(name)?.value().to_vec();
        Some(
            value
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default()
                .to_vec(),
        )
    };
    // A tree that has two nodes of one name has no one answer.
    let mut names = HashSet::new();
    if !fdt
        .root()
        .children()
        .all(|child| names.insert(child.name().to_owned()))
    {
        return;
    }
    assert_eq!(
        peek.bootargs,
        text("/chosen", "bootargs").unwrap_or_default()
    );
    assert_eq!(
        peek.compatible.next().unwrap_or_default(),
        text("/", "compatible").unwrap_or_default()
    );
    if text("/chosen", "stdout-path").is_none() {
        assert_eq!(peek.consoles, Consoles::NONE);
    }
}

#[test]
fn every_byte_changed_in_every_way_that_matters() {
    let good = virt();
    for at in 0..good.len() {
        for value in [
            0,
            1,
            2,
            3,
            4,
            9,
            0x2f,
            0x7f,
            0x80,
            0xff,
            good[at] ^ 1,
            good[at] ^ 0x40,
        ] {
            let mut bytes = good.clone();
            bytes[at] = value;
            look(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(config(256, 16))]

    #[test]
    fn any_words_in_a_good_header(words in prop::collection::vec(
        prop_oneof![0..=9_u32, 1..=4_u32, Just(0x6368_6f73), any::<u32>()], 0..40,
    )) {
        look(&structure(&words));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        look(&bytes);
        look(&[&[0xd0, 0x0d, 0xfe, 0xed, 0, 0, 0, 40][..], &bytes].concat());
    }

    #[test]
    fn several_words_of_a_good_tree_changed(changes in prop::collection::vec(
        (any::<prop::sample::Index>(), prop_oneof![0..=9_u32, 0..=2000_u32, any::<u32>()]), 1..6,
    )) {
        let mut bytes = virt();
        for (at, word) in changes {
            let at = at.index(bytes.len() / 4) * 4;
            bytes = with_word(bytes, at, word);
        }
        look(&bytes);
    }
}

#[test]
fn errors_are_one_line_and_their_codes_are_their_own() {
    let at = 0x123;
    let tree_errors = [
        TreeError::TooShort,
        TreeError::BadMagic,
        TreeError::BadSize,
        TreeError::BadVersion,
        TreeError::BadLayout,
        TreeError::Truncated { at },
        TreeError::BadToken { at },
        TreeError::BadName { at },
        TreeError::BadNesting { at },
        TreeError::TooDeep { at },
        TreeError::BadReservations { at },
    ];
    let texts = tree_errors.map(|error| (error.code(), error.text(), error.to_string()));
    let mut codes = HashSet::new();
    for (code, text, line) in texts {
        assert!(codes.insert(code), "{code:#x} twice");
        assert!(
            text.is_ascii() && text.len() <= 80 && !line.contains('\n'),
            "{line}"
        );
        assert!(line.starts_with(text));
    }
    assert!(
        TreeError::BadToken { at }
            .to_string()
            .ends_with("(at offset 0x123)")
    );
}
