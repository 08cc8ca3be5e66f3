//! Tests of open files of every kind, and of pipes end to end.

use super::cpio::tests::entry;
use super::file_tree::nodes_needed;
use super::*;
use crate::abi::file::{
    DIRECTORY_ENTRY_HEAD, O_APPEND, O_NONBLOCK, S_IFDIR, S_IFIFO, S_IFMT, SEEK_CUR, SEEK_END,
    SEEK_SET,
};
use crate::owned::host::{self, Array, HostFrames};

type HostFiles = Files<'static, HostFrames>;

/// A small archive with files of each kind, shared by all tests that use files.
pub(crate) fn archive() -> &'static [u8] {
    let archive: Vec<u8> = [
        (0o100755, "init", "#!/bin/sh\n"),
        (0o100644, "etc/text", "0123456789"),
        (0o040755, "empty", ""),
        (0o120777, "link", "etc/text"),
        (0o010644, "fifo", ""),
        (0o100755, "bin/prog", "elf"),
        (0o060600, "bin/ram0", ""),
    ]
    .into_iter()
    .flat_map(|(mode, name, data)| entry((1, mode, 1), (1, 0), name, data.as_bytes()))
    .collect();
    // As with a boot loader's initramfs, the memory is never freed.
    Box::leak(archive.into_boxed_slice())
}

/// The files of that archive.
pub(crate) fn files() -> HostFiles {
    let archive = archive();
    let nodes = Array::new(nodes_needed(archive).unwrap(), |_| Node::EMPTY).unwrap();
    Files::new(Tree::build(archive, nodes).unwrap()).unwrap()
}

fn open(files: &mut HostFiles, path: &str, flags: u32) -> Result<OpenId, Errno> {
    files.open(NodeId::ROOT, path.as_bytes(), flags, None)
}

fn read(files: &mut HostFiles, id: OpenId, most: usize) -> Result<Moved, Errno> {
    files.read(id, &mut vec![0; most])
}

#[test]
fn calls_that_would_write_the_tree_are_refused() {
    let mut files = files();
    let cases = [
        ("etc/text", O_WRONLY, Errno::EROFS),
        ("etc/text", O_RDWR, Errno::EROFS),
        ("etc/text", O_TRUNC, Errno::EROFS),
        ("etc/new", O_CREAT | O_WRONLY, Errno::EROFS),
        ("new/new", O_CREAT | O_WRONLY, Errno::ENOENT),
        ("etc/text", O_CREAT | O_EXCL, Errno::EEXIST),
        ("link", O_CREAT | O_EXCL, Errno::EEXIST),
        ("etc", O_WRONLY, Errno::EISDIR),
        ("etc", O_CREAT, Errno::EISDIR),
        ("etc/text", O_DIRECTORY, Errno::ENOTDIR),
        ("link", O_NOFOLLOW, Errno::ELOOP),
        ("fifo", 0, Errno::ENODEV),
        ("nothing", 0, Errno::ENOENT),
        ("etc/text/x", 0, Errno::ENOTDIR),
    ];
    for (path, flags, error) in cases {
        let opened = open(&mut files, path, flags);
        assert_eq!(opened, Err(error), "{path} {flags:o}");
    }
    assert_eq!(files.counts(), (0, 0));
    let id = open(&mut files, "etc/text", O_CREAT | O_APPEND | O_NONBLOCK).unwrap();
    assert_eq!(files.get(id).unwrap().flags, O_APPEND | O_NONBLOCK);
}

#[test]
fn a_file_is_read_from_its_offset_which_all_owners_share() {
    let mut files = files();
    let id = open(&mut files, "link", 0).unwrap();
    let mut four = [0; 4];
    assert_eq!(files.read(id, &mut four), Ok(Moved::Bytes(4)));
    assert_eq!(&four, b"0123");
    files.share(id).unwrap();
    assert_eq!(files.close(id), None);
    assert_eq!(read(&mut files, id, 100), Ok(Moved::Bytes(6)));
    assert_eq!(read(&mut files, id, 100), Ok(Moved::Bytes(0)));
    assert_eq!(files.write(id, b"x", 1), Err(Errno::EBADF));
    files.close(id);
    assert_eq!(read(&mut files, id, 1), Err(Errno::EBADF));
    assert_eq!(files.close(id), None);
}

#[test]
fn seeking() {
    let mut files = files();
    let id = open(&mut files, "etc/text", 0).unwrap();
    let file = files.get_mut(id).unwrap();
    assert_eq!(file.seek(3, SEEK_SET, 10), Ok(3));
    assert_eq!(file.seek(-1, SEEK_CUR, 10), Ok(2));
    assert_eq!(file.seek(-4, SEEK_END, 10), Ok(6));
    assert_eq!(file.seek(5, SEEK_END, 10), Ok(15));
    assert_eq!(file.seek(-11, SEEK_END, 10), Err(Errno::EINVAL));
    assert_eq!(file.seek(0, 9, 10), Err(Errno::EINVAL));
    assert_eq!(file.seek(i64::MAX, SEEK_CUR, 10), Err(Errno::EOVERFLOW));
    assert_eq!(file.offset, 15);
    assert_eq!(read(&mut files, id, 4), Ok(Moved::Bytes(0)));
    let null = open(&mut files, "dev/null", O_RDWR).unwrap();
    assert_eq!(files.get_mut(null).unwrap().seek(7, SEEK_SET, 0), Ok(0));
    let console = open(&mut files, "dev/console", O_RDWR).unwrap();
    let console = files.get_mut(console).unwrap();
    assert_eq!(console.seek(0, SEEK_SET, 0), Err(Errno::ESPIPE));
}

#[test]
fn devices_do_what_they_are_there_for() {
    let mut files = files();
    let mut bytes = [7; 3];
    let null = open(&mut files, "dev/null", O_RDWR | O_TRUNC).unwrap();
    assert_eq!(files.read(null, &mut bytes), Ok(Moved::Bytes(0)));
    assert_eq!(files.write(null, b"abc", 3), Ok(Moved::Bytes(3)));
    let zero = open(&mut files, "dev/zero", 0).unwrap();
    assert_eq!(files.read(zero, &mut bytes), Ok(Moved::Bytes(3)));
    assert_eq!(bytes, [0; 3]);
    assert_eq!(files.write(zero, b"x", 1), Err(Errno::EBADF));
    let console = open(&mut files, "dev/console", O_RDWR).unwrap();
    assert_eq!(files.write(console, b"x", 1), Ok(Moved::Console));
    assert_eq!(files.read(console, &mut bytes), Ok(Moved::Bytes(0)));
    let always = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM;
    assert_eq!(files.poll(console), (always, Channel::Nothing));
    assert_eq!(open(&mut files, "etc", O_PATH), Err(Errno::EINVAL));
}

#[test]
fn a_pipe_waits_ends_and_breaks() {
    let mut files = files();
    let (out, into) = files.pipe(0).unwrap();
    let channel = Channel::Pipe(0);
    assert_eq!(read(&mut files, out, 4), Ok(Moved::Wait(channel)));
    assert_eq!(files.read(into, &mut [0; 1]), Err(Errno::EBADF));
    assert_eq!(files.write(out, b"x", 1), Err(Errno::EBADF));
    assert_eq!(files.write(into, b"hello", 5), Ok(Moved::Bytes(5)));
    assert_eq!(files.poll(out).0, POLLIN | POLLRDNORM);
    let mut bytes = [0; 9];
    assert_eq!(files.read(out, &mut bytes), Ok(Moved::Bytes(5)));
    assert_eq!(&bytes[..5], b"hello");
    // A second owner keeps the writing end open.
    files.share(into).unwrap();
    assert_eq!(files.close(into), None);
    assert_eq!(read(&mut files, out, 4), Ok(Moved::Wait(channel)));
    files.write(into, b"!", 1).unwrap();
    assert_eq!(files.close(into), Some(channel));
    assert_eq!(files.poll(out).0, POLLIN | POLLRDNORM | POLLHUP);
    assert_eq!(read(&mut files, out, 4), Ok(Moved::Bytes(1)));
    assert_eq!(read(&mut files, out, 4), Ok(Moved::Bytes(0)));
    files.close(out);
    assert_eq!(files.counts(), (0, 0));

    let (out, into) = files.pipe(0).unwrap();
    files.close(out);
    assert_eq!(files.write(into, b"x", 1), Ok(Moved::NobodyReads));
    assert!(files.can_write(into, 1));
    assert_eq!(files.poll(into).0 & POLLERR, POLLERR);
}

#[test]
fn small_writes_go_into_a_pipe_whole_or_not_at_all() {
    let mut files = files();
    let (out, into) = files.pipe(0).unwrap();
    let capacity = 65536;
    let fill = vec![1; capacity - 100];
    let filled = files.write(into, &fill, fill.len());
    assert_eq!(filled, Ok(Moved::Bytes(capacity - 100)));
    let wait = Ok(Moved::Wait(Channel::Pipe(0)));
    assert_eq!(files.write(into, &[2; 101], 101), wait);
    assert!(!files.can_write(into, 101) && files.can_write(into, 100));
    // A large write is accepted in part.
    assert_eq!(files.write(into, &[2; 4096], 5000), Ok(Moved::Bytes(100)));
    assert!(!files.can_write(into, 5000));
    assert_eq!(files.write(into, &[2; 4096], 5000), wait);
    assert_eq!(files.poll(into).0, 0);
    read(&mut files, out, 4096).unwrap();
    assert_eq!(files.poll(into).0, POLLOUT | POLLWRNORM);
}

#[test]
fn a_lack_of_memory_or_room_is_refused_and_leaves_nothing() {
    let mut files = files();
    let before = host::held();
    host::run_out_after(0);
    assert_eq!(files.pipe(0), Err(Errno::ENOMEM));
    host::run_out_after(usize::MAX);
    assert_eq!((files.counts(), host::held()), ((0, 0), before));
    let mut pipes = Vec::new();
    while let Ok(pipe) = files.pipe(0) {
        pipes.push(pipe);
    }
    assert_eq!(pipes.len(), MOST_PIPES);
    while open(&mut files, "dev/null", 0).is_ok() {}
    assert_eq!(files.counts(), (MOST_OPEN, MOST_PIPES));
    assert_eq!(open(&mut files, "dev/null", 0), Err(Errno::ENFILE));
    let (out, into) = pipes.pop().unwrap();
    files.close(out);
    // Only one open file is free, and a pipe needs two.
    assert_eq!(files.pipe(0), Err(Errno::ENFILE));
    files.close(into);
    assert_eq!(files.counts(), (MOST_OPEN - 2, MOST_PIPES - 1));
    assert!(files.pipe(0).is_ok());
    drop(files);
    assert!(host::held() < before);
}

fn find(files: &HostFiles, path: &str) -> NodeId {
    let found = files.find(NodeId::ROOT, path.as_bytes(), Last::Keep, None);
    found.unwrap()
}

/// The entries of a directory, read in small pieces.
fn listed(files: &HostFiles, directory: &str, room: usize) -> Vec<(String, u8, u64)> {
    let node = find(files, directory);
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let mut bytes = vec![0xee; room];
        let (used, next) = files.list(node, at, &mut bytes).unwrap();
        if used == 0 {
            assert_eq!(files.list(node, next, &mut bytes), Ok((0, next)));
            return found;
        }
        let mut bytes = &bytes[..used];
        while !bytes.is_empty() {
            let length = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
            let name = &bytes[DIRECTORY_ENTRY_HEAD..length];
            let end = name.iter().position(|byte| *byte == 0).unwrap();
            assert!(length.is_multiple_of(8) && name[end..].iter().all(|byte| *byte == 0));
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            let ino = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            found.push((name, bytes[18], ino));
            at = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            bytes = &bytes[length..];
        }
        assert_eq!(at, next);
    }
}

#[test]
fn directories_are_listed_whatever_the_room() {
    let files = files();
    let whole = listed(&files, "/", 4096);
    let names: Vec<_> = whole.iter().map(|entry| entry.0.as_str()).collect();
    let expected = ". .. init etc empty link fifo bin dev proc sys";
    assert_eq!(names.join(" "), expected);
    let kinds: Vec<_> = whole.iter().map(|entry| entry.1).collect();
    assert_eq!(kinds, [4, 4, 8, 4, 4, 10, 1, 4, 4, 4, 4]);
    for room in [32, 48, 100] {
        assert_eq!(listed(&files, "/", room), whole, "{room}");
    }
    let above = listed(&files, "/etc", 4096);
    assert_eq!((above[1].0.as_str(), above[1].2), ("..", whole[0].2));
    assert_eq!(listed(&files, "empty", 4096).len(), 2);
    let root = NodeId::ROOT;
    assert_eq!(files.list(root, 0, &mut [0; 23]), Err(Errno::EINVAL));
    // Positions from no listing give nothing or a child, never an entry of another directory.
    for at in [3, 4, 1000, u64::MAX, u64::from(u32::MAX) + 3] {
        let mut bytes = [0; 4096];
        files.list(root, at, &mut bytes).unwrap();
    }
    let (etc, empty) = (find(&files, "etc"), find(&files, "empty"));
    let none = files.list(empty, u64::from(etc.0) + 3, &mut [0; 99]);
    assert_eq!(none.unwrap().0, 0);
}

#[test]
fn stat_tells_what_is_there() {
    let mut files = files();
    let (about_text, device) = files.about_node(find(&files, "etc/text"));
    let stat = about::stat(&about_text, device);
    assert_eq!((stat.mode, stat.size, stat.nlink), (0o100644, 10, 1));
    assert_eq!((stat.uid, stat.gid, stat.blocks), (7, 8, 1));
    assert_eq!(stat.mtime, [1_700_000_000, 0]);
    let (about_console, device) = files.about_node(find(&files, "dev/console"));
    assert_eq!(about::stat(&about_console, device).rdev, 0x501);
    let (out, _) = files.pipe(0).unwrap();
    let (about_pipe, other) = files.about_open(files.get(out).unwrap());
    let stat = about::stat(&about_pipe, other);
    assert_eq!((stat.mode & S_IFMT, stat.size), (S_IFIFO, 0));
    assert_ne!(other, device);
    let root = about::stat(&files.about_node(NodeId::ROOT).0, device);
    assert_eq!((root.mode & S_IFMT, root.nlink), (S_IFDIR, 8));
}

#[test]
fn the_list_of_loaded_segments_reads_like_a_file_and_refuses_writes() {
    let mut files = files();
    let path = "/sys/kernel/kexec_segments";
    let loaded = open(&mut files, "/sys/kernel/kexec_loaded", 0).unwrap();
    let segments = open(&mut files, path, 0).unwrap();
    let text = |files: &mut HostFiles, id, at| {
        let mut bytes = [0; 2000];
        files.get_mut(id).unwrap().offset = at;
        match files.read(id, &mut bytes) {
            Ok(Moved::Bytes(count)) => String::from_utf8(bytes[..count].to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(text(&mut files, loaded, 0), "0\n");
    assert_eq!(text(&mut files, segments, 0), "");
    files.kexec = kexec::Kexec::of(&"kernel 0x1000\nentry\n");
    assert_eq!(text(&mut files, loaded, 0), "1\n");
    assert_eq!(text(&mut files, segments, 0), "kernel 0x1000\nentry\n");
    assert_eq!(text(&mut files, segments, 14), "entry\n");
    assert_eq!(text(&mut files, segments, u64::MAX), "");
    files.get_mut(loaded).unwrap().offset = 0;
    // The offset belongs to the open file, so the reads continue one another.
    assert_eq!(read(&mut files, loaded, 1), Ok(Moved::Bytes(1)));
    assert_eq!(read(&mut files, loaded, 8), Ok(Moved::Bytes(1)));
    assert_eq!(read(&mut files, loaded, 8), Ok(Moved::Bytes(0)));
    assert_eq!(files.get_mut(segments).unwrap().seek(0, SEEK_END, 0), Ok(0));
    for flags in [O_WRONLY, O_RDWR, O_TRUNC] {
        assert_eq!(open(&mut files, path, flags), Err(Errno::EROFS));
    }
    let tree = open(&mut files, "/sys/firmware/fdt", 0).unwrap();
    assert_eq!(text(&mut files, tree, 0), "");
    files.machine = b"a device tree";
    assert_eq!(text(&mut files, tree, 2), "device tree");
    // A text that is too long is cut.
    files.kexec = kexec::Kexec::of(&"x".repeat(2000));
    assert_eq!(text(&mut files, segments, 0).len(), 1024);
}
