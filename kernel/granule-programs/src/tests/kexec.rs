//! Next kernels that are loaded and refused. Arguments of `kexec-refused` are `PATH=ERROR`, or
//! `PATH,INITRD=ERROR`; whatever comes of each, memory is as it was before, what was loaded before is
//! still loaded, and other programs still run.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::alloc_failure::{arm, free};
use super::processes::{forked, status_of};
use super::{number, page};
use crate::check;
use granule_programs::calls::{
    self, CLOSE, DONT_NEED, EADDRNOTAVAIL, EBADF, EINVAL, ENOMEM, EXECVE, HERE, KEXEC_FILE_LOAD,
    OPENAT, READ, REBOOT, call, map, say,
};
use granule_programs::start::Start;

const UNLOAD: u64 = 1;
const ON_CRASH: u64 = 2;
const NO_INITRAMFS: u64 = 4;
const NO_CMA: u64 = 0x10;

/// The one that is well.
pub(super) const GOOD: &[u8] = b"/boot/Image";

/// A path without its NUL.
pub(super) fn open(path: &[u8]) -> u64 {
    let mut text = [0; 64];
    for (to, from) in text.iter_mut().zip(path) {
        *to = *from;
    }
    let fd = call(OPENAT, [HERE, text.as_ptr() as u64]);
    check!(fd >= 0, "open {}: {fd}", path.escape_ascii());
    fd as u64
}

pub(super) fn close(fd: u64) {
    let closed = call(CLOSE, [fd]);
    check!(closed == 0, "close {fd}: {closed}");
}

const LINE: &[u8] = b"quiet\0";

pub(super) fn load_with(kernel: u64, initrd: Option<u64>, line: &[u8], flags: u64) -> i64 {
    let none = if initrd.is_none() { NO_INITRAMFS } else { 0 };
    let initrd = initrd.unwrap_or(u64::MAX);
    let at = line.as_ptr() as u64;
    call(
        KEXEC_FILE_LOAD,
        [kernel, initrd, line.len() as u64, at, flags | none],
    )
}

pub(super) fn unload() {
    let done = call(KEXEC_FILE_LOAD, [0, 0, 0, 0, UNLOAD]);
    check!(done == 0, "unload: {done}");
}

/// Reads the list of loaded segments from the kernel.
pub(super) fn segments() -> [u8; 1024] {
    let mut text = [0; 1024];
    let fd = open(b"/sys/kernel/kexec_segments");
    let got = call(READ, [fd, text.as_mut_ptr() as u64, 1024]);
    check!(got >= 0, "read: {got}");
    close(fd);
    let fd = open(b"/sys/kernel/kexec_loaded");
    let mut loaded = [0; 8];
    let read = call(READ, [fd, loaded.as_mut_ptr() as u64, 8]);
    let expected = if got > 0 { b'1' } else { b'0' };
    check!(
        read == 2 && loaded.starts_with(&[expected, b'\n', 0]),
        "loaded: {loaded:?}"
    );
    close(fd);
    text
}

/// The kernel still makes processes and runs programs.
pub(super) fn still_works() {
    let pid = forked(|| {
        let words = [c"init", c"exit", c"5"].map(|word| word.as_ptr() as u64);
        let list = [words[0], words[1], words[2], 0];
        let path = c"/init".as_ptr() as u64;
        call(EXECVE, [path, list.as_ptr() as u64]);
        6
    });
    let status = status_of(pid);
    check!(status == 5 << 8, "a program: {status:#x}");
}

/// Something that is to fail so, and to leave everything as it was.
#[track_caller]
pub(super) fn fails(what: &[u8], error: i64, work: impl FnOnce() -> i64) {
    let was = segments();
    let before = free();
    let result = work();
    let what = what.escape_ascii();
    check!(result == error, "{what}: {result}, expected {error}");
    check!(segments() == was, "{what}: something else is loaded");
    still_works();
    let now = free();
    check!(now == before, "{what}: {before} bytes were free, now {now}");
}

pub(super) fn refused(start: Start) {
    // This takes some of the stack.
    fails(b"nothing", 0, || 0);
    let before = free();
    for loaded in [false, true] {
        if loaded {
            let kernel = open(GOOD);
            let done = load_with(kernel, None, LINE, 0);
            check!(done == 0, "load: {done}");
            close(kernel);
            check!(segments()[0] != 0 && free() < before, "nothing is loaded");
        }
        for index in 2..start.count() {
            one(start.argument(index));
        }
        arguments();
    }
    unload();
    check!(segments()[0] == 0, "something is loaded");
    let now = free();
    check!(now == before, "{before} bytes were free, now {now}");
    // Of nothing.
    unload();
    say(format_args!("refused\n"));
}

fn one(argument: &[u8]) {
    let mut parts = argument.split(|byte| *byte == b'=');
    let (Some(paths), Some(error)) = (parts.next(), parts.next()) else {
        check!(false, "{} is not PATH=ERROR", argument.escape_ascii());
        return;
    };
    let error = -(number(error) as i64);
    for flags in [0, NO_CMA] {
        fails(argument, error, || {
            let mut paths = paths.split(|byte| *byte == b',');
            let kernel = open(paths.next().unwrap_or_default());
            let initrd = paths.next().map(open);
            let result = load_with(kernel, initrd, LINE, flags);
            initrd.into_iter().chain([kernel]).for_each(close);
            result
        });
    }
}

/// Calls with wrong arguments.
fn arguments() {
    let kernel = open(GOOD);
    let directory = open(b"/boot");
    let console = open(b"/dev/console");
    fails(b"no descriptor", EBADF, || load_with(77, None, LINE, 0));
    fails(b"a directory", EBADF, || {
        load_with(directory, None, LINE, 0)
    });
    fails(b"a device", EBADF, || load_with(console, None, LINE, 0));
    fails(b"no initramfs", EBADF, || {
        load_with(kernel, Some(77), LINE, 0)
    });
    fails(b"no NUL", EINVAL, || load_with(kernel, None, b"quiet", 0));
    fails(b"two NULs", EINVAL, || {
        load_with(kernel, None, b"a\0b\0", 0)
    });
    fails(b"a long line", EINVAL, || {
        load_with(kernel, None, &[b'x'; 2049], 0)
    });
    fails(b"for a crash", EADDRNOTAVAIL, || {
        load_with(kernel, None, LINE, ON_CRASH)
    });
    fails(b"an unknown flag", EINVAL, || {
        load_with(kernel, None, LINE, 1 << 20)
    });
    fails(b"a line that is nowhere", calls::EFAULT, || {
        call(KEXEC_FILE_LOAD, [kernel, 0, 8, 64, NO_INITRAMFS])
    });
    fails(b"a reboot without the magic", EINVAL, || {
        call(REBOOT, [1, 2, 0x4558_4543])
    });
    for fd in [kernel, directory, console] {
        close(fd);
    }
}

/// Refusals without end: each is an error, and the log does not name each. Nor does it name what is
/// loaded.
pub(super) fn flood(_: Start) {
    for _ in 0..500 {
        let result = call(REBOOT, [1, 2, 0x4558_4543]);
        check!(result == EINVAL, "reboot: {result}");
    }
    let kernel = open(GOOD);
    for _ in 0..100 {
        let done = load_with(kernel, None, LINE, 0);
        check!(done == 0, "load: {done}");
    }
    close(kernel);
    unload();
    // Of another kind, which is reported.
    let result = leave();
    check!(result == EINVAL, "leave: {result}");
    say(format_args!("flooded\n"));
}

/// A list that changed after it was complete (`granule.test=kexec:flip@…`): the kernel is not left, and
/// goes on as it was; likewise when nothing is loaded.
pub(super) fn corrupted(_: Start) {
    still_works();
    fails(b"nothing is loaded", EINVAL, leave);
    let before = free();
    let kernel = open(GOOD);
    for flags in [0, NO_CMA] {
        let done = load_with(kernel, None, LINE, flags);
        check!(done == 0, "load: {done}");
        // Whatever is tried, it stays so.
        fails(b"a list that changed", EINVAL, leave);
        fails(b"the same list", EINVAL, leave);
    }
    close(kernel);
    unload();
    let now = free();
    check!(now == before, "{before} bytes were free, now {now}");
    say(format_args!("corrupted\n"));
}

/// Each allocation of loading fails once (`granule.test=alloc-failure`): loading is refused, or done in
/// another way, and every page is free afterwards. The second argument is the step from one allocation to
/// the next.
pub(super) fn alloc_failure(start: Start) {
    check!(arm(0, 0) == 0, "not offered");
    let step = number(start.argument(2)).max(1) as usize;
    let (kernel, initrd) = (open(GOOD), open(b"/init"));
    for flags in [0, NO_CMA] {
        run_out(step, &|| load_with(kernel, Some(initrd), LINE, flags));
    }
    close(kernel);
    close(initrd);
    run_out(step, &super::segments::three);
    say(format_args!("short\n"));
}

/// The same where free memory is in pieces of one page each: pages are found in place here and there,
/// and the list is long. With a second argument, then leaves.
pub(super) fn fragmented(start: Start) {
    let page = page(start);
    // Some for what the kernel needs beside.
    let bytes = (free() - (4 << 20)) & !(2 * page - 1);
    let at = map(bytes, calls::READ_WRITE).unwrap_or(0);
    check!(at != 0, "{bytes} bytes cannot be mapped");
    for index in (0..bytes).step_by(page as usize) {
        // SAFETY: just mapped.
        unsafe { ((at + index) as *mut u64).write_volatile(index) };
    }
    for index in (0..bytes).step_by(2 * page as usize) {
        let gone = call(calls::MADVISE, [at + index, page, DONT_NEED]);
        check!(gone == 0, "madvise: {gone}");
    }
    if start.argument(2).is_empty() {
        let (kernel, initrd) = (open(GOOD), open(b"/init"));
        run_out(1, &|| load_with(kernel, Some(initrd), LINE, 0));
        close(kernel);
        close(initrd);
    } else {
        let kernel = open(GOOD);
        let line = b"granule.kexec=digest\0";
        let done = load_with(kernel, Some(open(b"/init")), line, 0);
        check!(done == 0, "load: {done}");
        let text = segments();
        calls::write(text.split(|byte| *byte == 0).next().unwrap_or_default());
        check!(false, "left: {}", leave());
    }
    // The pages that are left are what they were.
    for index in (page..bytes).step_by(2 * page as usize) {
        // SAFETY: as above.
        let found = unsafe { ((at + index) as *const u64).read_volatile() };
        check!(found == index, "page {index:#x} has {found:#x}");
    }
    say(format_args!("in pieces\n"));
}

pub(super) fn leave() -> i64 {
    call(REBOOT, [0xfee1_dead, 0x2812_1969, 0x4558_4543])
}

fn run_out(step: usize, load: &dyn Fn() -> i64) {
    let attempt = |first: u64, all: u64| {
        arm(first, all);
        let result = load();
        (result, arm(0, 0))
    };
    let (result, most) = attempt(u64::MAX, 0);
    check!(result == 0 && most > 20, "{result}, {most} allocations");
    unload();
    let (mut done, mut refused) = (0, 0);
    // Twice, since memory is in other pieces at first, and one is passed over where that changes.
    let each = || (1..=most as u64).step_by(step);
    for first in each().chain(each()) {
        for all in [0, 1] {
            let before = free();
            let (result, made) = attempt(first, all);
            // Memory is in other pieces each time.
            check!(
                made >= first as i64 || result == 0,
                "{first}: {made} allocations, {result}"
            );
            match result {
                0 => {
                    done += 1;
                    unload();
                }
                ENOMEM => refused += 1,
                _ => check!(false, "allocation {first} fails, {all}: {result}"),
            }
            // Nothing is left to be done without, once all behind it fail.
            check!(
                result != 0 || all == 0 || made < first as i64,
                "allocation {first} and all behind it fail: {result}"
            );
            let now = free();
            check!(
                now == before && segments()[0] == 0,
                "allocation {first} fails, {all}: {before} bytes were free, now {now}"
            );
        }
    }
    still_works();
    check!(refused > 20, "{refused} refused, {done} done");
    say(format_args!(
        "{most} allocations: {refused} times refused, {done} times done otherwise\n"
    ));
}
