//! Memory in pieces of the kernel's page size: half of it is free, and no page of a larger size
//! fits. Requests of a program of larger pages are refused then, its memory stays, and the others
//! go on.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::alloc_failure::free;
use super::files::{pipe, read, write};
use super::page;
use super::processes::{forked, status_of};
use super::sizes::{FROM, SELF, TO, number, partner, spawned};
use crate::check;
use granule_programs::calls::{self, EXECVE, call, fork, map, say, unmap, wish_page_size};
use granule_programs::start::Start;

const GETRANDOM: u64 = 278;
const DONT_NEED: u64 = 4;
const EAGAIN: i64 = -11;
const ENOMEM: i64 = -12;

/// Left to the kernel.
const SLACK: u64 = 4 << 20;
/// The most that larger pages find, what others leave meanwhile included.
const MOST: u64 = 4 * SLACK;
/// The least memory that is free in pieces.
const IN_PIECES: u64 = 32 << 20;

fn set(address: u64, value: u64) {
    // SAFETY: memory that this test mapped; without memory this process ends, which is the point.
    unsafe { (address as *mut u64).write_volatile(value) };
}

fn get(address: u64) -> u64 {
    // SAFETY: memory that this test mapped.
    unsafe { (address as *const u64).read_volatile() }
}

fn send_word(fd: i64) {
    check!(write(fd, b"x") == 1, "write");
}

fn await_word(fd: i64) {
    check!(read(fd, &mut [0]) == 1, "read");
}

/// The program with the kernel's page size; the second argument is the larger one.
pub(super) fn fragmented(start: Start) {
    let (page, larger) = (page(start), number(start, 2));
    check!(wish_page_size(larger) == 0, "prctl");
    let program = |name: u64, last: u64| [c"init".as_ptr() as u64, name, last, 0];
    let (victim, from, to) = partner(&program(c"fragmented-larger".as_ptr() as u64, 0));
    await_word(from);
    // Made while there is room for what the kernel keeps of a process.
    let (later, go) = pipe(0);
    let executes = forked(|| {
        await_word(later);
        let path = SELF.as_ptr() as u64;
        let arguments = program(c"exit".as_ptr() as u64, c"5".as_ptr() as u64);
        -call(EXECVE, [path, arguments.as_ptr() as u64, 0, 0, 0, 0]) as i32
    });
    let bytes = (free() - SLACK) & !(2 * page - 1);
    check!(bytes / 2 >= IN_PIECES, "{bytes} bytes are free");
    let at = map(bytes, calls::READ_WRITE).unwrap_or(0);
    check!(at != 0, "{bytes} bytes cannot be mapped");
    for index in (0..bytes).step_by(page as usize) {
        set(at + index, index);
    }
    for index in (0..bytes).step_by(2 * page as usize) {
        let gone = call(calls::MADVISE, [at + index, page, DONT_NEED, 0, 0, 0]);
        check!(gone == 0, "madvise: {gone}");
    }
    send_word(to);
    await_word(from);
    check!(free() >= IN_PIECES, "{} bytes are free", free());
    // A program of larger pages cannot be executed; who wanted to goes on.
    send_word(go);
    let status = status_of(executes);
    check!(status == 12 << 8, "execve: {status:#x}");
    send_word(to);
    let status = status_of(victim);
    check!(status == 9, "who touches what there is not: {status:#x}");
    for index in (page..bytes).step_by(2 * page as usize) {
        let found = get(at + index);
        check!(found == index, "page {index:#x} has {found:#x}");
    }
    // Programs of the kernel's size run, and with the memory back the others as well.
    check!(wish_page_size(0) == 0, "prctl");
    let exits = program(c"exit".as_ptr() as u64, c"5".as_ptr() as u64);
    let own = status_of(spawned(SELF, &exits));
    check!(own == 5 << 8, "a program meanwhile: {own:#x}");
    check!(unmap(at, bytes) == 0, "munmap");
    check!(wish_page_size(larger) == 0, "prctl");
    let after = status_of(spawned(SELF, &exits));
    check!(after == 5 << 8, "a program afterwards: {after:#x}");
    say(format_args!("fragmented\n"));
}

/// The program with larger pages.
pub(super) fn larger(start: Start) {
    let page = page(start);
    let most = MOST / page;
    let at = map((most + 2) * page, calls::READ_WRITE).unwrap_or(0);
    check!(at != 0, "no room");
    set(at, 7);
    send_word(TO);
    await_word(FROM);
    // The kernel writes to pages until none fits: a call fails, and does not end the process.
    let mut count = 1;
    let refused = loop {
        let result = call(GETRANDOM, [at + count * page, 8, 0, 0, 0, 0]);
        if result != 8 {
            break result;
        }
        count += 1;
        check!(count <= most, "{count} pages of {page} bytes fit");
    };
    check!(refused == ENOMEM, "no page fits: {refused}");
    let child = fork();
    check!(matches!(child, ENOMEM | EAGAIN), "fork: {child}");
    check!(get(at) == 7, "what was there is {}", get(at));
    // Addresses need no memory.
    let more = map(page, calls::READ_WRITE).unwrap_or(0);
    check!(more != 0 && unmap(more, page) == 0, "mmap and munmap");
    send_word(TO);
    await_word(FROM);
    // A process that has ended meanwhile may have left room for some.
    for index in count..=most {
        set(at + index * page, 1);
    }
    check!(false, "{most} pages of {page} bytes fit");
}
