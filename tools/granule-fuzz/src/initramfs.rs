//! Targets for the initramfs, which a boot loader supplies, as a tree of files; and for paths in it, which
//! programs supply.

use crate::bytes::Bytes;
use granule_linux_abi::files::cpio;
use granule_linux_abi::files::file_tree::{
    MOST_NAME_BYTES, Node, NodeId, NodeKind, Tree, nodes_needed,
};
use granule_linux_abi::files::path::{Last, PathError, lookup, path_of};

/// Names that collide: parts of one another, above and below, `.`, and too long.
const NAMES: [&str; 12] = [
    "a",
    "b",
    "a/b",
    "a/b/c",
    "./a",
    "/b//c",
    "..",
    "dev",
    "dev/null",
    "proc/self",
    ".",
    "",
];
const KINDS: [u32; 6] = [0o040755, 0o100644, 0o120777, 0o020666, 0o010644, 0];

/// An archive of mostly well-formed entries.
fn archive(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    while !bytes.is_empty() && out.len() < 4000 {
        let name = match bytes.below(NAMES.len() + 2) {
            0 => "x".repeat(bytes.below(300)),
            1 => "TRAILER!!!".to_owned(),
            other => NAMES[other % NAMES.len()].to_owned(),
        };
        let data = match bytes.below(3) {
            0 => String::new(),
            1 => NAMES[bytes.below(NAMES.len())].to_owned(),
            _ => "/".repeat(bytes.below(9)),
        };
        let kind = KINDS[bytes.below(KINDS.len())];
        let (ino, links) = (bytes.below(3), bytes.below(3));
        let mut numbers = [0; 13];
        numbers[0] = ino;
        numbers[1] = kind as usize;
        numbers[4] = links;
        numbers[6] = data.len();
        numbers[11] = name.len() + 1;
        // Now and then something else.
        if bytes.byte() == 0 {
            numbers[bytes.below(13)] = bytes.word() as u32 as usize;
        }
        append(&mut out, numbers, &name, &data);
    }
    out
}

/// Appends an entry with these numbers in its header.
fn append(out: &mut Vec<u8>, numbers: [usize; 13], name: &str, data: &str) {
    out.extend_from_slice(b"070701");
    for number in numbers {
        out.extend_from_slice(format!("{number:08x}").as_bytes());
    }
    for part in [&format!("{name}\0"), data] {
        out.extend_from_slice(part.as_bytes());
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

pub(crate) fn cpio_tree(bytes: &[u8]) {
    let mut given = Bytes(bytes);
    let made;
    let archive = if given.below(4) > 0 {
        made = archive(&mut given);
        &made[..]
    } else {
        bytes
    };
    let mut entries = 0;
    for entry in cpio::entries(archive).flatten() {
        assert!(archive.get(entry.data.clone()).is_some());
        assert!(!entry.name.is_empty() && !entry.name.contains(&0));
        entries += 1;
        assert!(entries <= archive.len() / 110, "more entries than fit");
    }
    let Ok(needed) = nodes_needed(archive) else {
        return;
    };
    match Tree::build(archive, vec![Node::EMPTY; needed]) {
        Ok(tree) => check(&tree),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Every node is found by its path, and only its directory lists it.
fn check(tree: &Tree<'_, Vec<Node>>) {
    let mut seen = 1;
    for number in 0..tree.node_count() {
        let Some(node) = tree.existing(number) else {
            panic!("node {number} of {} is missing", tree.node_count());
        };
        let mut room = [0; 8192];
        let path = path_of(tree, node, &mut room);
        let path = path.unwrap_or_else(|| panic!("an archive this small has shorter paths"));
        assert_eq!(lookup(tree, NodeId::ROOT, path, Last::Keep, None), Ok(node));
        seen += tree.children(node).count() as u32;
        assert!(tree.children(node).all(|child| tree.parent(child) == node));
        let about = tree.about(node);
        assert_eq!(about.size, tree.content(node).len() as u64);
        assert!(about.links > 0, "{about:?}");
    }
    assert_eq!(
        seen,
        tree.node_count(),
        "each node but the root is in one directory"
    );
}

/// Parts of paths: from the archive below, from added files, circular links, and names that do not exist.
const PARTS: [&str; 16] = [
    "a",
    "b",
    "c",
    "up",
    "self",
    "loop",
    "abs",
    "here",
    "..",
    ".",
    "",
    "none",
    "file",
    "dir/",
    "proc/self/exe",
    "void",
];

fn append_file(out: &mut Vec<u8>, mode: usize, name: &str, data: &str) {
    let (data_bytes, name_bytes) = (data.len(), name.len() + 1);
    let numbers = [1, mode, 0, 0, 1, 0, data_bytes, 0, 0, 0, 0, name_bytes, 0];
    append(out, numbers, name, data);
}

pub(crate) fn path_lookup(bytes: &[u8]) {
    let mut given = Bytes(bytes);
    let mut archive = Vec::new();
    for (mode, name) in [
        (0o040755, "a"),
        (0o040755, "a/b/c"),
        (0o100644, "a/file"),
        (0o040755, "dir"),
    ] {
        append_file(&mut archive, mode, name, "");
    }
    // Links to anywhere, made of the same parts.
    for name in [
        "up",
        "a/self",
        "a/loop",
        "a/b/abs",
        "a/b/c/here",
        "dir/file",
        "void",
    ] {
        let target: Vec<_> = (0..given.below(4))
            .map(|_| PARTS[given.below(PARTS.len())])
            .collect();
        let root = if given.below(3) == 0 { "/" } else { "" };
        let target = format!("{root}{}", target.join("/"));
        append_file(&mut archive, 0o120777, name, &target);
    }
    let built =
        nodes_needed(&archive).and_then(|needed| Tree::build(&archive, vec![Node::EMPTY; needed]));
    let tree = built.unwrap_or_else(|error| panic!("well formed, but {error}"));
    let exe = tree
        .child(NodeId::ROOT, b"a")
        .and_then(|a| tree.child(a, b"file"));
    let mut path = String::new();
    while !given.is_empty() && path.len() < 2000 {
        path.push_str(PARTS[given.below(PARTS.len())]);
        path.push_str(["/", "/", "//", ""][given.below(4)]);
    }
    let find = |path: &[u8], last| lookup(&tree, NodeId::ROOT, path, last, exe);
    for path in [path.as_bytes(), bytes] {
        for last in [Last::Follow, Last::Keep] {
            match find(path, last) {
                Ok(node) => {
                    let kind = tree.kind(node);
                    let is_link = matches!(kind, NodeKind::Link | NodeKind::ExeLink);
                    assert!(last == Last::Keep || !is_link, "{path:?} ends at a link");
                    let mut room = [0; 256];
                    let plain = path_of(&tree, node, &mut room);
                    let found = plain.map(|plain| find(plain, Last::Keep));
                    assert_eq!(found, Some(Ok(node)), "{path:?}");
                    // A slash at the end: the same directory, or an error.
                    let slash = [path, b"/"].concat();
                    let again = find(&slash, last);
                    if kind == NodeKind::Directory {
                        assert_eq!(again, Ok(node), "{path:?}");
                    } else if !is_link {
                        assert_eq!(again, Err(PathError::NotDirectory), "{path:?}");
                    }
                }
                Err(PathError::NameTooLong) => {
                    assert!(path.len() > MOST_NAME_BYTES);
                }
                Err(_) => {}
            }
        }
    }
}
