//! Files, pipes and programs that are run in the place of this one. The archive that the tests
//! bring has `/etc/text` with ten digits, a link to it, and scripts.

use super::processes::{forked, status_of};
use crate::check;
use granule_programs::calls::{self, call, say};
use granule_programs::start::Start;

const GETCWD: u64 = 17;
pub(super) const DUP3: u64 = 24;
const CHDIR: u64 = 49;
const OPENAT: u64 = 56;
const CLOSE: u64 = 57;
const PIPE2: u64 = 59;
const GETDENTS64: u64 = 61;
const LSEEK: u64 = 62;
const READ: u64 = 63;
const PPOLL: u64 = 73;
const READLINKAT: u64 = 78;
const FSTAT: u64 = 80;
const RT_SIGACTION: u64 = 134;
const EXECVE: u64 = 221;

const HERE: u64 = -100_i64 as u64;
const O_CLOEXEC: u64 = 0o2000000;

/// A path ends with a NUL, which its writer brings.
fn open(path: &[u8], flags: u64) -> i64 {
    call(OPENAT, [HERE, path.as_ptr() as u64, flags, 0, 0, 0])
}

pub(super) fn read(fd: i64, into: &mut [u8]) -> i64 {
    let at = into.as_mut_ptr() as u64;
    call(READ, [fd as u64, at, into.len() as u64, 0, 0, 0])
}

pub(super) fn write(fd: i64, from: &[u8]) -> i64 {
    let at = from.as_ptr() as u64;
    call(calls::WRITE, [fd as u64, at, from.len() as u64, 0, 0, 0])
}

pub(super) fn close(fd: i64) {
    let closed = call(CLOSE, [fd as u64, 0, 0, 0, 0, 0]);
    check!(closed == 0, "close {fd}: {closed}");
}

pub(super) fn pipe(flags: u64) -> (i64, i64) {
    let mut both = [0_u32; 2];
    let made = call(PIPE2, [both.as_mut_ptr() as u64, flags, 0, 0, 0, 0]);
    check!(made == 0, "pipe2: {made}");
    let [out, into] = both;
    (i64::from(out), i64::from(into))
}

pub(super) fn files(_: Start) {
    tree();
    directory();
    pipes();
    say(format_args!("filed\n"));
}

fn tree() {
    let fd = open(b"/etc/link\0", 0);
    check!(fd == 3, "open: {fd}");
    let mut bytes = [0; 16];
    check!(read(fd, &mut bytes) == 10, "read");
    check!(bytes.starts_with(b"0123456789\0"), "content {bytes:?}");
    let sought = call(LSEEK, [fd as u64, -4_i64 as u64, 2, 0, 0, 0]);
    check!(sought == 6, "lseek: {sought}");
    check!(read(fd, &mut bytes) == 4, "read behind a seek");
    check!(read(fd, &mut bytes) == 0, "read at the end");
    let mut stat = [0_u64; 16];
    let result = call(FSTAT, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
    check!(result == 0 && stat[6] == 10, "fstat: {result}, {}", stat[6]);
    check!(open(b"/etc/text\0", 1) == -30, "open for writing");
    check!(open(b"/etc/new\0", 0o101) == -30, "creating");
    check!(open(b"/etc/none/x\0", 0) == -2, "what there is not");
    check!(open(b"/etc/text/x\0", 0) == -20, "below a file");
    close(fd);
    let mut path = [0; 32];
    let at = path.as_mut_ptr() as u64;
    let name = b"/proc/self/exe\0";
    let length = call(READLINKAT, [HERE, name.as_ptr() as u64, at, 32, 0, 0]);
    check!(
        length == 5 && path.starts_with(b"/init"),
        "own program {path:?}"
    );
    let changed = call(CHDIR, [c"/etc".as_ptr() as u64, 0, 0, 0, 0, 0]);
    check!(changed == 0, "chdir: {changed}");
    let length = call(GETCWD, [at, 32, 0, 0, 0, 0]);
    check!(
        length == 5 && path.starts_with(b"/etc\0"),
        "getcwd {path:?}"
    );
    let null = open(b"../dev/null\0", 2);
    check!(
        write(null, b"gone") == 4 && read(null, &mut path) == 0,
        "null"
    );
    close(null);
}

fn directory() {
    let fd = open(b"/etc\0", 0o40000);
    let mut bytes = [0; 512];
    let at = bytes.as_mut_ptr() as u64;
    let used = call(GETDENTS64, [fd as u64, at, 512, 0, 0, 0]);
    check!(used > 0, "getdents64: {used}");
    let mut names = 0;
    let mut left = &bytes[..used as usize];
    while let [
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        low,
        high,
        ..,
    ] = left
    {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let name = left.get(19..length).unwrap_or_default();
        let known: [&[u8]; 4] = [b".\0", b"..\0", b"text\0", b"link\0"];
        check!(
            known.iter().any(|known| name.starts_with(known)),
            "{name:?}"
        );
        names += 1;
        left = left.get(length..).unwrap_or_default();
    }
    check!(names == 4, "{names} names");
    check!(
        call(GETDENTS64, [fd as u64, at, 512, 0, 0, 0]) == 0,
        "the end"
    );
    close(fd);
}

/// The bytes from a pipe are those that went in, whatever the pieces, and its end is reported.
fn pipes() {
    const BYTES: usize = 300_000;
    let (out, into) = pipe(0);
    let child = forked(|| {
        close(out);
        let mut sent = 0;
        let mut piece = [0; 5000];
        while sent < BYTES {
            let length = (sent % 4999 + 1).min(BYTES - sent);
            for (index, byte) in piece.iter_mut().take(length).enumerate() {
                *byte = ((sent + index) % 251) as u8;
            }
            let done = write(into, &piece[..length]);
            check!(done == length as i64, "write to a pipe: {done}");
            sent += length;
        }
        0
    });
    close(into);
    // Something comes, sooner or later.
    let mut asked = [out as u64 | 1 << 32];
    let ready = call(PPOLL, [asked.as_mut_ptr() as u64, 1, 0, 0, 0, 0]);
    check!(
        ready == 1 && asked[0] >> 48 & 1 == 1,
        "ppoll: {ready}, {asked:x?}"
    );
    let mut got = 0;
    let mut piece = [0; 3000];
    loop {
        let some = read(out, &mut piece[..got % 2999 + 1]);
        check!(some >= 0, "read from a pipe: {some}");
        if some == 0 {
            break;
        }
        for byte in &piece[..some as usize] {
            check!(usize::from(*byte) == got % 251, "byte {got}: {byte}");
            got += 1;
        }
    }
    check!(got == BYTES, "{got} bytes");
    check!(status_of(child) == 0, "who wrote");
    close(out);
    // Nobody reads: an error for who ignores the signal, the end for who does not.
    let (out, into) = pipe(0);
    close(out);
    let ignore = [1_u64, 0, 0, 0];
    let at = ignore.as_ptr() as u64;
    let child = forked(|| write(into, b"x") as i32);
    check!(status_of(child) == 13, "SIGPIPE");
    check!(
        call(RT_SIGACTION, [13, at, 0, 8, 0, 0]) == 0,
        "rt_sigaction"
    );
    check!(write(into, b"x") == -32, "a pipe that nobody reads");
    close(into);
    // As a shell does it: the child's output is what the parent reads.
    let (out, into) = pipe(O_CLOEXEC);
    let child = forked(|| {
        let copied = call(DUP3, [into as u64, 1, 0, 0, 0, 0]);
        check!(copied == 1, "dup3: {copied}");
        run(b"/init\0", &[b"/init\0", b"hello\0"])
    });
    close(into);
    let mut text = [0; 512];
    let mut used = 0;
    loop {
        let some = read(out, &mut text[used..]);
        if some <= 0 {
            break;
        }
        used += some as usize;
    }
    check!(text.starts_with(b"hello from process "), "{text:?}");
    check!(status_of(child) == 0, "what was run");
    close(out);
}

/// Runs another program in the place of this one; the error, if it comes back.
fn run(path: &[u8], arguments: &[&[u8]]) -> i32 {
    let mut list = [0_u64; 5];
    for (to, from) in list.iter_mut().zip(arguments) {
        *to = from.as_ptr() as u64;
    }
    let at = list.as_ptr() as u64;
    call(EXECVE, [path.as_ptr() as u64, at, 0, 0, 0, 0]) as i32
}

pub(super) fn execs(_: Start) {
    let ends = |path: &[u8], arguments: &[&[u8]], status: u32| {
        let ended = status_of(forked(|| run(path, arguments)));
        check!(ended == status, "{}: {ended:#x}", path.escape_ascii());
    };
    ends(b"/init\0", &[b"init\0", b"exit\0", b"7\0"], 7 << 8);
    // `/init exit /script9`: the only digit is the exit code.
    ends(b"/script9\0", &[b"x\0"], 9 << 8);
    ends(b"/proc/self/exe\0", &[b"init\0", b"exit\0", b"3\0"], 3 << 8);
    let fails = |path: &[u8], error: i32| {
        let failed = run(path, &[b"x\0"]);
        check!(failed == error, "{}: {failed}", path.escape_ascii());
    };
    fails(b"/none\0", -2);
    fails(b"/etc/text\0", -13);
    fails(b"/etc\0", -13);
    fails(b"/text\0", -8);
    fails(b"/lost\0", -2);
    let bad = call(EXECVE, [8, 0, 0, 0, 0, 0]);
    check!(bad == calls::EFAULT, "a bad path: {bad}");
    let path = c"/init".as_ptr() as u64;
    let bad = call(EXECVE, [path, 8, 0, 0, 0, 0]);
    check!(bad == calls::EFAULT, "bad arguments: {bad}");
    // What is marked is closed by it, and only that.
    let (out, into) = pipe(O_CLOEXEC);
    let kept = call(DUP3, [into as u64, 20, 0, 0, 0, 0]);
    check!(kept == 20, "dup3: {kept}");
    let child = forked(|| run(b"/init\0", &[b"init\0", b"descriptors\0"]));
    close(out);
    check!(status_of(child) == 0, "descriptors after execve");
    say(format_args!("executed\n"));
}

/// Run by [`execs`]: of its descriptors 20 is open, and those below that were marked are not.
pub(super) fn descriptors(_: Start) {
    for fd in 3..20 {
        let closed = call(CLOSE, [fd, 0, 0, 0, 0, 0]);
        check!(closed == -9, "descriptor {fd} is open");
    }
    close(20);
}
