//! Programs of several page sizes at once: each is started by one of every other size, exchanges
//! data with it through pipes, and is ended by it. Any other tests run too, with every size at the
//! same time.

#![allow(unsafe_code, reason = "memory that the test mapped, and children")]

use super::files::{close, pipe, read, write};
use super::memory::mapped;
use super::page;
use super::processes::{forked, status_of};
use crate::{check, check_eq};
use core::arch::asm;
use core::ffi::CStr;
use granule_programs::calls::{
    self, DUP3, EINVAL, EXECVE, KILL, call, page_size_wish, say, unmap, wish_page_size,
};
use granule_programs::start::Start;

/// Where a program finds the ends of the pipes from and to the one that made it.
pub(super) const FROM: i64 = 20;
pub(super) const TO: i64 = 21;
/// Bytes that go through a pipe, more than it holds, and a number that divides no page.
const BYTES: usize = 150_001;
const STACK: u64 = 0x4_0000;
/// This program.
pub(super) const SELF: &CStr = c"/proc/self/exe";

/// The sizes that programs can have here, by their bytes.
fn usable() -> impl Iterator<Item = u64> {
    [4 << 10, 16 << 10, 64 << 10_u64]
        .into_iter()
        .filter(|bytes| wish_page_size(*bytes) == 0)
}

struct Digits([u8; 8]);

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut text = [b'0', b'0', b'0', b'0', b'0', b'0', b'0', 0];
        for digit in text.iter_mut().rev().skip(1) {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        Self(text)
    }

    fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The list of a program's arguments, which a null pointer ends.
pub(super) fn pointers(words: &[&CStr]) -> [u64; 6] {
    let mut list = [0; 6];
    for (to, word) in list.iter_mut().zip(words) {
        *to = word.as_ptr() as u64;
    }
    list
}

/// A child that executes a program, in the memory of its parent until then, as `posix_spawn` does.
pub(super) fn spawned(path: &CStr, arguments: &[u64]) -> i64 {
    const VM_VFORK: u64 = 0x4100 | 17;
    let stack = mapped(STACK);
    let pid: i64;
    // SAFETY: the child only executes a program or ends; the parent finds all registers as they were.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x0, x11",
            "mov x1, x12",
            "mov x2, xzr",
            "mov x8, {execve}",
            "svc #0",
            "mov x0, #99",
            "mov x8, {exit}",
            "svc #0",
            "2:",
            in("x8") calls::CLONE,
            inlateout("x0") VM_VFORK => pid,
            in("x1") stack + STACK,
            in("x2") 0u64,
            in("x3") 0u64,
            in("x4") 0u64,
            in("x11") path.as_ptr(),
            in("x12") arguments.as_ptr(),
            execve = const EXECVE,
            exit = const calls::EXIT_GROUP,
        );
    }
    check!(pid > 0, "clone: {pid}");
    check!(unmap(stack, STACK) == 0, "munmap of a stack");
    pid
}

/// The process has pages of `bytes` in all that it can see.
fn has_pages(start: Start, bytes: u64) {
    check!(page(start) == bytes, "{} is not {bytes}", page(start));
    let at = mapped(1);
    check!(at != 0 && at.is_multiple_of(bytes), "mapped at {at:#x}");
    let last = (at + bytes - 1) as *mut u8;
    // SAFETY: the last byte of the page that was just mapped.
    unsafe {
        check!(last.read_volatile() == 0, "the page is not zero");
        last.write_volatile(1);
    }
    check_eq!(unmap(at + bytes / 2, bytes), EINVAL, "half a page unmapped");
    check!(unmap(at, 1) == 0, "munmap");
}

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// Writes what [`receive`] expects.
fn send(fd: i64, salt: u8) {
    let mut buffer = [0; 4999];
    let mut at = 0;
    while at < BYTES {
        let part = buffer.len().min(BYTES - at);
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(at + index) ^ salt;
        }
        let mut done = 0;
        while done < part {
            let wrote = write(fd, buffer.get(done..part).unwrap_or_default());
            check!(wrote > 0, "write: {wrote}");
            done += wrote as usize;
        }
        at += part;
    }
}

/// Reads what [`send`] writes, straight into new pages.
fn receive(fd: i64, salt: u8) {
    let room = mapped(BYTES as u64);
    // SAFETY: just mapped.
    let all = unsafe { core::slice::from_raw_parts_mut(room as *mut u8, BYTES) };
    let mut at = 0;
    while at < BYTES {
        let count = read(fd, all.get_mut(at..).unwrap_or_default());
        check!(count > 0, "read: {count} at {at}");
        at += count as usize;
    }
    let odd = all
        .iter()
        .enumerate()
        .find(|(at, byte)| **byte != pattern(*at) ^ salt);
    check!(odd.is_none(), "{odd:?} came through the pipe");
    check!(unmap(room, BYTES as u64) == 0, "munmap");
}

/// Each pair of sizes: the first process makes a program of one, and that makes one of the other.
pub(super) fn sizes(start: Start) {
    let own = page(start);
    let mut count = 0;
    for first in usable() {
        for second in usable() {
            check!(wish_page_size(first) == 0, "prctl");
            let (own_text, next) = (Digits::of(first), Digits::of(second));
            let words = [c"init", c"sizes-first", own_text.text(), next.text()];
            let arguments = pointers(&words);
            check_eq!(
                status_of(spawned(SELF, &arguments)),
                0,
                "{first} and {second}"
            );
            count += 1;
        }
    }
    check!(wish_page_size(0) == 0 && page_size_wish() == 0, "prctl");
    check!(wish_page_size(own / 2 + 1) == EINVAL, "prctl of no size");
    has_pages(start, own);
    say(format_args!("{count} pairs of sizes\n"));
}

/// Makes a program of this file that communicates by pipes, whose ends it finds at [`FROM`] and
/// [`TO`]. Returns it, and the ends from and to it.
pub(super) fn partner(arguments: &[u64]) -> (i64, i64, i64) {
    let (from, child_to) = pipe(0);
    let (child_from, to) = pipe(0);
    for (fd, as_fd) in [(child_from, FROM), (child_to, TO)] {
        check_eq!(call(DUP3, [fd as u64, as_fd as u64]), as_fd, "dup3");
        close(fd);
    }
    let child = spawned(SELF, arguments);
    close(FROM);
    close(TO);
    (child, from, to)
}

/// Makes a program of the second size, exchanges words with it, and ends it.
pub(super) fn first(start: Start) {
    let (own, other) = (number(start, 2), number(start, 3));
    has_pages(start, own);
    check!(page_size_wish() == own as i64, "no wish is left");
    let text = Digits::of(other);
    let arguments = pointers(&[c"init", c"sizes-second", text.text()]);
    check!(wish_page_size(other) == 0, "prctl");
    let (child, from, to) = partner(&arguments);
    send(to, 0);
    receive(from, 0x55);
    // A child by fork has this program's size, whatever the wish.
    let forked = forked(|| {
        has_pages(start, own);
        0
    });
    check!(status_of(forked) == 0, "a child by fork");
    check_eq!(call(KILL, [child as u64, 9]), 0, "kill");
    check!(status_of(child) == 9, "not ended by SIGKILL");
}

/// Speaks, and then touches memory until it is ended.
pub(super) fn second(start: Start) {
    let own = number(start, 2);
    has_pages(start, own);
    receive(FROM, 0);
    send(TO, 0x55);
    loop {
        has_pages(start, own);
    }
}

pub(super) fn number(start: Start, index: usize) -> u64 {
    granule_programs::start::number(start.argument(index))
}

/// Runs the other arguments, each with every page size, all at once: a test of this program, or the
/// path of another; its arguments follow, with commas between.
pub(super) fn beside(start: Start) {
    all(start, usable());
}

/// As [`beside`], with one page size.
pub(super) fn only(start: Start) {
    all(start, [page(start)].into_iter());
}

fn all(start: Start, sizes: impl Iterator<Item = u64>) {
    let mut children = [0_i64; 64];
    let mut count = 0;
    for bytes in sizes {
        for index in 2..start.count() {
            check!(wish_page_size(bytes) == 0, "prctl");
            let Some(child) = children.get_mut(count) else {
                check!(false, "too many tests");
                return;
            };
            *child = child_of(start.argument(index));
            count += 1;
        }
    }
    for child in children.iter().take(count) {
        check_eq!(status_of(*child), 0, "process {child}");
    }
    say(format_args!("{count} tests side by side\n"));
}

/// Makes a child that runs the test or the program in a word.
fn child_of(word: &[u8]) -> i64 {
    let mut text = [0; 64];
    check!(word.len() < text.len(), "too long: {}", word.escape_ascii());
    for (to, byte) in text.iter_mut().zip(word) {
        *to = if *byte == b',' { 0 } else { *byte };
    }
    let path = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    let path = if word.starts_with(b"/") { path } else { SELF };
    // The name of a test is its program's first argument.
    let mut arguments = [c"init".as_ptr() as u64, 0, 0, 0, 0, 0];
    let first = usize::from(!word.starts_with(b"/"));
    let mut at = text.as_ptr() as u64;
    for (to, part) in arguments
        .iter_mut()
        .skip(first)
        .zip(word.split(|byte| *byte == b','))
    {
        *to = at;
        at += part.len() as u64 + 1;
    }
    check!(
        arguments[5] == 0,
        "too many arguments: {}",
        word.escape_ascii()
    );
    spawned(path, &arguments)
}
