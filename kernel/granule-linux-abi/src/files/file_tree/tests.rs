//! Tests of trees built from small archives, valid and invalid.

use super::super::cpio::tests::{entry, trailer};
use super::*;

type Host<'a> = Tree<'a, Vec<Node>>;

pub(crate) fn tree(archive: &[u8]) -> Result<Host<'_>, ArchiveError> {
    let nodes = vec![Node::EMPTY; nodes_needed(archive)?];
    Tree::build(archive, nodes)
}

fn names(tree: &Host<'_>, directory: NodeId) -> Vec<String> {
    tree.children(directory)
        .map(|id| String::from_utf8_lossy(tree.name(id)).into_owned())
        .collect()
}

#[test]
fn an_empty_archive_has_the_devices_and_the_own_program() {
    let tree = tree(&[]).unwrap();
    assert_eq!(names(&tree, NodeId::ROOT), ["dev", "proc", "sys"]);
    let dev = tree.child(NodeId::ROOT, b"dev").unwrap();
    let console = tree.child(dev, b"console").unwrap();
    assert_eq!(tree.kind(console), NodeKind::Device { major: 5, minor: 1 });
    assert_eq!(tree.about(console).mode, 0o020666);
    assert_eq!(tree.about(dev).links, 2);
    // Three subdirectories, "..", and ".".
    assert_eq!(tree.about(NodeId::ROOT).links, 5);
    let sys = tree.child(NodeId::ROOT, b"sys").unwrap();
    let kernel = tree.child(sys, b"kernel").unwrap();
    assert_eq!(names(&tree, kernel), ["kexec_loaded", "kexec_segments"]);
    let loaded = tree.child(kernel, b"kexec_loaded").unwrap();
    assert_eq!(tree.kind(loaded), NodeKind::Status(Status::KexecLoaded));
    assert_eq!(tree.about(loaded).mode, 0o100444);
    let firmware = tree.child(sys, b"firmware").unwrap();
    let machine = tree.child(firmware, b"fdt").unwrap();
    assert_eq!(tree.kind(machine), NodeKind::Status(Status::Tree));
    // It may have seeds.
    assert_eq!(tree.about(machine).mode, 0o100400);
    assert_eq!(tree.parent(NodeId::ROOT), NodeId::ROOT);
}

#[test]
fn directories_that_are_only_named_on_the_way_are_made() {
    let mut archive = entry((1, 0o100644, 1), (0, 0), "./etc/rc/start", b"x");
    archive.extend(entry((2, 0o040700, 2), (0, 0), "etc", b""));
    archive.extend(entry((3, 0o120777, 1), (0, 0), "/bin//sh", b"busybox"));
    archive.extend(trailer());
    let tree = tree(&archive).unwrap();
    let all = ["etc", "bin", "dev", "proc", "sys"];
    assert_eq!(names(&tree, NodeId::ROOT), all);
    let etc = tree.child(NodeId::ROOT, b"etc").unwrap();
    assert_eq!(tree.about(etc).mode, 0o040700);
    let rc = tree.child(etc, b"rc").unwrap();
    assert_eq!(tree.about(rc).mode, 0o040755);
    let start = tree.child(rc, b"start").unwrap();
    assert_eq!(tree.content(start), b"x");
    assert_eq!((tree.about(start).size, tree.about(start).uid), (1, 7));
    let bin = tree.child(NodeId::ROOT, b"bin").unwrap();
    let sh = tree.child(bin, b"sh").unwrap();
    assert_eq!(tree.kind(sh), NodeKind::Link);
    assert_eq!(tree.content(sh), b"busybox");
}

#[test]
fn hard_links_are_one_file_whichever_of_them_brings_the_content() {
    for with in 0..3 {
        let mut archive = Vec::new();
        for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
            let data: &[u8] = if index == with { b"content" } else { b"" };
            archive.extend(entry((9, 0o100755, 3), (0, 0), name, data));
        }
        // Another file, with its own inode number and links.
        archive.extend(entry((10, 0o100755, 2), (0, 0), "d", b"other"));
        let tree = tree(&archive).unwrap();
        let mut inos = Vec::new();
        for name in ["a", "b", "c"] {
            let id = tree.child(NodeId::ROOT, name.as_bytes()).unwrap();
            assert_eq!(tree.content(id), b"content", "{name}, brought by {with}");
            assert_eq!(tree.about(id).links, 3);
            inos.push(tree.about(id).ino);
        }
        inos.dedup();
        assert_eq!(inos.len(), 1);
        let other = tree.child(NodeId::ROOT, b"d").unwrap();
        assert_eq!(tree.content(other), b"other");
        assert_eq!(tree.about(other).links, 1);
    }
}

#[test]
fn entries_of_the_archive_are_not_replaced() {
    let mut archive = entry((1, 0o020600, 1), (204, 64), "dev/console", b"");
    archive.extend(entry((2, 0o100644, 1), (0, 0), "proc", b"a file"));
    let tree = tree(&archive).unwrap();
    let dev = tree.child(NodeId::ROOT, b"dev").unwrap();
    assert_eq!(tree.children(dev).count(), DEVICES.len());
    let console = tree.child(dev, b"console").unwrap();
    let (major, minor) = (204, 64);
    assert_eq!(tree.kind(console), NodeKind::Device { major, minor });
    let proc = tree.child(NodeId::ROOT, b"proc").unwrap();
    assert_eq!(tree.content(proc), b"a file");
}

#[test]
fn a_later_entry_replaces_an_earlier_one_of_its_name() {
    let mut archive = entry((1, 0o100644, 1), (0, 0), "a", b"old");
    archive.extend(entry((2, 0o100755, 1), (0, 0), "a", b"new one"));
    let tree = tree(&archive).unwrap();
    let a = tree.child(NodeId::ROOT, b"a").unwrap();
    assert_eq!(tree.content(a), b"new one");
    assert_eq!(names(&tree, NodeId::ROOT), ["a", "dev", "proc", "sys"]);
}

#[test]
fn names_that_lead_out_or_through_a_file_are_refused() {
    let two = |first: (u32, &str), second: (u32, &str)| {
        let mut archive = entry((1, first.0, 1), (0, 0), first.1, b"");
        archive.extend(entry((2, second.0, 1), (0, 0), second.1, b""));
        tree(&archive).map(|tree| tree.node_count())
    };
    let (file, directory) = (0o100644, 0o040755);
    let is_name = |result| matches!(result, Err(ArchiveError::Name(_)));
    let long = "x".repeat(256);
    for (first, second) in [
        ((file, "a"), (file, "a/b")),
        ((file, "a"), (directory, "a")),
        ((directory, "a"), (file, "a")),
        ((file, "a"), (file, "b/../c")),
        ((file, "a"), (file, &long)),
        ((file, "a"), (file, ".")),
    ] {
        assert!(is_name(two(first, second)), "{second:?} after {first:?}");
    }
    assert!(two((file, "a"), (file, &"x".repeat(255))).is_ok());
    assert!(two((file, "a"), (directory, ".")).is_ok());
}

#[test]
fn storage_that_is_too_small_is_reported() {
    let mut archive = entry((1, 0o100644, 1), (0, 0), "a/b/c", b"");
    archive.extend(entry((1, 0o100644, 1), (0, 0), "d", b""));
    let needed = nodes_needed(&archive).unwrap();
    assert!(Tree::build(&archive, vec![Node::EMPTY; needed]).is_ok());
    for short in 0..needed - Source::LATER.len() {
        let built = Tree::build(&archive, vec![Node::EMPTY; short]).map(|tree| tree.node_count());
        assert_eq!(built, Err(ArchiveError::NoRoom), "{short}");
    }
}

#[test]
fn an_id_that_is_not_there_is_the_root() {
    let tree = tree(&[]).unwrap();
    let id = NodeId(1000);
    assert_eq!(tree.kind(id), NodeKind::Directory);
    assert_eq!(tree.existing(1000), None);
    assert_eq!(tree.parent(id), NodeId::ROOT);
}
