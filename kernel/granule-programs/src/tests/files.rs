//! Files, pipes and programs that are run in the place of this one. The archive that the tests
//! bring has `/etc/text` with ten digits, a link to it, and scripts.

use super::processes::{forked, status_of};
use crate::{check, check_eq};
use granule_programs::calls::{
    self, CHDIR, CLOSE, DUP3, EXECVE, FSTAT, GETCWD, GETDENTS64, HERE, LSEEK, OPENAT, PIPE2, PPOLL,
    READ, READLINKAT, RT_SIGACTION, call, say,
};
use granule_programs::start::Start;

const O_CLOEXEC: u64 = 0o2000000;

/// A path ends with a NUL, which its writer brings.
fn open(path: &[u8], flags: u64) -> i64 {
    call(OPENAT, [HERE, path.as_ptr() as u64, flags])
}

pub(super) fn read(fd: i64, into: &mut [u8]) -> i64 {
    let at = into.as_mut_ptr() as u64;
    call(READ, [fd as u64, at, into.len() as u64])
}

pub(super) fn write(fd: i64, from: &[u8]) -> i64 {
    let at = from.as_ptr() as u64;
    call(calls::WRITE, [fd as u64, at, from.len() as u64])
}

pub(super) fn close(fd: i64) {
    check_eq!(call(CLOSE, [fd as u64]), 0, "close {fd}");
}

pub(super) fn pipe(flags: u64) -> (i64, i64) {
    let mut both = [0_u32; 2];
    check_eq!(call(PIPE2, [both.as_mut_ptr() as u64, flags]), 0, "pipe2");
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
    check_eq!(call(LSEEK, [fd as u64, -4_i64 as u64, 2]), 6, "lseek");
    check!(read(fd, &mut bytes) == 4, "read behind a seek");
    check!(read(fd, &mut bytes) == 0, "read at the end");
    let mut stat = [0_u64; 16];
    let result = call(FSTAT, [fd as u64, stat.as_mut_ptr() as u64]);
    check!(result == 0 && stat[6] == 10, "fstat: {result}, {}", stat[6]);
    check!(open(b"/etc/text\0", 1) == -30, "open for writing");
    check!(open(b"/etc/new\0", 0o101) == -30, "creating");
    check!(open(b"/etc/none/x\0", 0) == -2, "what there is not");
    check!(open(b"/etc/text/x\0", 0) == -20, "below a file");
    close(fd);
    let mut path = [0; 32];
    let at = path.as_mut_ptr() as u64;
    let name = b"/proc/self/exe\0";
    let length = call(READLINKAT, [HERE, name.as_ptr() as u64, at, 32]);
    check!(
        length == 5 && path.starts_with(b"/init"),
        "own program {path:?}"
    );
    check_eq!(call(CHDIR, [c"/etc".as_ptr() as u64]), 0, "chdir");
    let length = call(GETCWD, [at, 32]);
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
    let mut names = 0;
    each_name(fd, |name| {
        let known: [&[u8]; 4] = [b".\0", b"..\0", b"text\0", b"link\0"];
        check!(known.contains(&name), "{name:?}");
        names += 1;
    });
    check!(names == 4, "{names} names");
    close(fd);
}

/// Calls `each` with each name in a folder, its NUL included.
pub(super) fn each_name(fd: i64, mut each: impl FnMut(&[u8])) {
    let mut bytes = [0_u8; 2048];
    loop {
        let used = call(GETDENTS64, [fd as u64, bytes.as_mut_ptr() as u64, 2048]);
        check!(used >= 0, "getdents64: {used}");
        let mut left = bytes.get(..used as usize).unwrap_or_default();
        if left.is_empty() {
            return;
        }
        while let Some(length) = left.get(16..18) {
            let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
            let name = left.get(19..length).unwrap_or_default();
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
            each(name.get(..=end).unwrap_or_default());
            left = left.get(length..).unwrap_or_default();
        }
    }
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
            check_eq!(
                write(into, &piece[..length]),
                length as i64,
                "write to a pipe"
            );
            sent += length;
        }
        0
    });
    close(into);
    // Something comes, sooner or later.
    let mut asked = [out as u64 | 1 << 32];
    let ready = call(PPOLL, [asked.as_mut_ptr() as u64, 1]);
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
    check!(call(RT_SIGACTION, [13, at, 0, 8]) == 0, "rt_sigaction");
    check!(write(into, b"x") == -32, "a pipe that nobody reads");
    close(into);
    // As a shell does it: the child's output is what the parent reads.
    let (out, into) = pipe(O_CLOEXEC);
    let child = forked(|| {
        check_eq!(call(DUP3, [into as u64, 1]), 1, "dup3");
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

/// Runs another program in the place of this one; the error, if it comes back. Texts end with a NUL.
pub(super) fn run(path: &[u8], arguments: &[&[u8]]) -> i32 {
    let mut list = [0_u64; 5];
    for (to, from) in list.iter_mut().zip(arguments) {
        *to = from.as_ptr() as u64;
    }
    let at = list.as_ptr() as u64;
    call(EXECVE, [path.as_ptr() as u64, at]) as i32
}

pub(super) fn execs(_: Start) {
    let ends = |path: &[u8], arguments: &[&[u8]], status: u32| {
        check_eq!(
            status_of(forked(|| run(path, arguments))),
            status,
            "{}",
            path.escape_ascii()
        );
    };
    ends(b"/init\0", &[b"init\0", b"exit\0", b"7\0"], 7 << 8);
    // `/init exit /script9`: the only digit is the exit code.
    ends(b"/script9\0", &[b"x\0"], 9 << 8);
    ends(b"/proc/self/exe\0", &[b"init\0", b"exit\0", b"3\0"], 3 << 8);
    let fails = |path: &[u8], error: i32| {
        check_eq!(run(path, &[b"x\0"]), error, "{}", path.escape_ascii());
    };
    fails(b"/none\0", -2);
    fails(b"/etc/text\0", -13);
    fails(b"/etc\0", -13);
    fails(b"/text\0", -8);
    fails(b"/lost\0", -2);
    check_eq!(call(EXECVE, [8]), calls::EFAULT, "a bad path");
    let path = c"/init".as_ptr() as u64;
    check_eq!(call(EXECVE, [path, 8]), calls::EFAULT, "bad arguments");
    // What is marked is closed by it, and only that.
    let (out, into) = pipe(O_CLOEXEC);
    check_eq!(call(DUP3, [into as u64, 20]), 20, "dup3");
    let child = forked(|| run(b"/init\0", &[b"init\0", b"descriptors\0"]));
    close(out);
    check!(status_of(child) == 0, "descriptors after execve");
    say(format_args!("executed\n"));
}

/// Run by [`execs`]: of its descriptors 20 is open, and those below that were marked are not.
pub(super) fn descriptors(_: Start) {
    for fd in 3..20 {
        let closed = call(CLOSE, [fd]);
        check!(closed == -9, "descriptor {fd} is open");
    }
    close(20);
}
