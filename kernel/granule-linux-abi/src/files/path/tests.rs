//! Tests of path lookup, with and without symbolic links.

use super::super::cpio::tests::entry;
use super::super::file_tree::nodes_needed;
use super::*;

const FILE: u32 = 0o100644;
const DIRECTORY: u32 = 0o040755;
const LINK: u32 = 0o120777;

fn archive() -> Vec<u8> {
    [
        (FILE, "init", "script"),
        (DIRECTORY, "bin", ""),
        (FILE, "bin/busybox", "elf"),
        (LINK, "bin/sh", "busybox"),
        (LINK, "bin/up", ".."),
        (LINK, "sbin", "bin"),
        (LINK, "lib", "/bin/"),
        (LINK, "loop", "loop2"),
        (LINK, "loop2", "/loop"),
        (LINK, "gone", "nowhere/x"),
        (LINK, "slash", "init/"),
        (LINK, "void", ""),
        (FILE, "a/b/c/d", "deep"),
        (LINK, "a/b/out", "../../bin/sh"),
        (LINK, "here", "."),
        (LINK, "top", "///"),
    ]
    .into_iter()
    .flat_map(|(mode, name, data)| entry((1, mode, 1), (0, 0), name, data.as_bytes()))
    .collect()
}

/// The result of a lookup, as a path without links.
fn led(from: &str, path: &[u8], last: Last) -> Result<String, PathError> {
    let archive = archive();
    let nodes = vec![Node::EMPTY; nodes_needed(&archive).unwrap()];
    let tree = Tree::build(&archive, nodes).unwrap();
    let find = |from, path: &[u8], last| {
        let exe = lookup(&tree, NodeId::ROOT, b"/bin/busybox", Last::Keep, None).ok();
        lookup(&tree, from, path, last, exe)
    };
    let from = find(NodeId::ROOT, from.as_bytes(), Last::Follow).unwrap();
    let node = find(from, path, last)?;
    let mut room = [0; 64];
    let path = path_of(&tree, node, &mut room).unwrap();
    // The resulting path leads to the same node.
    assert_eq!(find(from, path, Last::Keep), Ok(node));
    Ok(String::from_utf8_lossy(path).into_owned())
}

#[track_caller]
fn leads(from: &str, path: &str, to: &str) {
    assert_eq!(led(from, path.as_bytes(), Last::Follow).as_deref(), Ok(to));
}

#[track_caller]
fn fails(path: &str, error: PathError) {
    assert_eq!(
        led("/", path.as_bytes(), Last::Follow),
        Err(error),
        "{path}"
    );
}

#[test]
fn ways_over_directories_and_links() {
    leads("/", "/", "/");
    leads("/bin", "/init", "/init");
    leads("/bin", "busybox", "/bin/busybox");
    leads("/bin", "../init", "/init");
    leads("/a/b", "./c//d", "/a/b/c/d");
    leads("/a/b", ".././../../..", "/");
    leads("/", "bin/sh", "/bin/busybox");
    leads("/", "sbin/sh", "/bin/busybox");
    leads("/", "sbin/up/sbin/../init", "/init");
    leads("/", "lib/sh", "/bin/busybox");
    leads("/", "lib", "/bin");
    leads("/", "a/b/out", "/bin/busybox");
    leads("/", "here/here/bin", "/bin");
    leads("/a", "/top/init", "/init");
    leads("/a", "/proc/self/exe", "/bin/busybox");
    leads("/", "bin/", "/bin");
    leads("/", "sbin///", "/bin");
}

#[test]
fn a_link_at_the_end_may_be_what_is_looked_for() {
    let kept = |path: &str| led("/", path.as_bytes(), Last::Keep).unwrap();
    assert_eq!(kept("bin/sh"), "/bin/sh");
    assert_eq!(kept("sbin/sh"), "/bin/sh");
    assert_eq!(kept("sbin"), "/sbin");
    assert_eq!(kept("gone"), "/gone");
    assert_eq!(kept("/proc/self/exe"), "/proc/self/exe");
    // A trailing slash selects the directory.
    assert_eq!(kept("sbin/"), "/bin");
}

#[test]
fn ways_that_lead_nowhere() {
    let missing = |only_last| PathError::NotFound { only_last };
    fails("", missing(false));
    fails("/nothing", missing(true));
    fails("/nothing/", missing(true));
    fails("/nothing/more", missing(false));
    fails("gone", missing(false));
    fails("void", missing(false));
    fails("init/", PathError::NotDirectory);
    fails("init/x", PathError::NotDirectory);
    fails("init/..", PathError::NotDirectory);
    fails("slash", PathError::NotDirectory);
    fails("bin/sh/", PathError::NotDirectory);
    fails("/proc/self/exe/", PathError::NotDirectory);
    fails("/proc/self/exe/x", PathError::NotDirectory);
    fails("loop", PathError::Loop);
    fails("loop/x", PathError::Loop);
    fails(&"y".repeat(256), PathError::NameTooLong);
    fails(&"y".repeat(255), missing(true));
}

#[test]
fn forty_links_are_followed_and_one_more_is_not() {
    let way = |links: usize| {
        let path = "here/".repeat(links) + "init";
        led("/", path.as_bytes(), Last::Follow)
    };
    assert_eq!(way(40).as_deref(), Ok("/init"));
    assert_eq!(way(41), Err(PathError::Loop));
}

#[test]
fn a_program_of_nobody_is_nowhere() {
    let nodes = vec![Node::EMPTY; nodes_needed(&[]).unwrap()];
    let tree = Tree::build(&[], nodes).unwrap();
    let found = lookup(&tree, NodeId::ROOT, b"/proc/self/exe", Last::Follow, None);
    assert_eq!(found, Err(PathError::NotFound { only_last: false }));
}

#[test]
fn a_path_that_does_not_fit_is_none() {
    let archive = archive();
    let nodes = vec![Node::EMPTY; nodes_needed(&archive).unwrap()];
    let tree = Tree::build(&archive, nodes).unwrap();
    let node = lookup(&tree, NodeId::ROOT, b"a/b/c/d", Last::Keep, None).unwrap();
    assert_eq!(path_of(&tree, node, &mut [0; 8]), Some(&b"/a/b/c/d"[..]));
    assert_eq!(path_of(&tree, node, &mut [0; 7]), None);
    assert_eq!(path_of(&tree, NodeId::ROOT, &mut []), None);
    assert_eq!(path_of(&tree, NodeId::ROOT, &mut [0; 1]), Some(&b"/"[..]));
}
