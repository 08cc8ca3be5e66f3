//! Memory in pieces of the kernel's page size: half of it is free, and no page of a larger size
//! fits. Requests of a program of larger pages are refused then, its memory stays, and the others
//! go on.

use super::alloc_failure::free;
use super::files::{pipe, read, write};
use super::memory::{get, mapped, set};
use super::page;
use super::processes::{forked, status_of};
use super::sizes::{FROM, SELF, TO, number, partner, pointers, spawned};
use crate::{check, check_eq};
use granule_programs::calls::{
    self, DONT_NEED, EAGAIN, ENOMEM, EXECVE, GETRANDOM, call, fork, say, unmap, wish_page_size,
};
use granule_programs::start::Start;

/// Left to the kernel.
const SLACK: u64 = 4 << 20;
/// The most that larger pages find, what others leave meanwhile included.
const MOST: u64 = 4 * SLACK;
/// The least memory that is free in pieces.
const IN_PIECES: u64 = 32 << 20;

fn send_word(fd: i64) {
    check!(write(fd, b"x") == 1, "write");
}

fn await_word(fd: i64) {
    check!(read(fd, &mut [0]) == 1, "read");
}

/// All free memory but `slack` bytes, of which every other page is given back.
pub(super) struct Holes {
    at: u64,
    bytes: u64,
    page: u64,
}

impl Holes {
    pub(super) fn new(page: u64, slack: u64) -> Self {
        let bytes = (free() - slack) & !(2 * page - 1);
        let at = mapped(bytes);
        for index in (0..bytes).step_by(page as usize) {
            set(at + index, index);
        }
        for index in (0..bytes).step_by(2 * page as usize) {
            let given = call(calls::MADVISE, [at + index, page, DONT_NEED]);
            check_eq!(given, 0, "madvise");
        }
        Self { at, bytes, page }
    }

    /// The pages between the holes are what they were.
    pub(super) fn check(&self) {
        for index in (self.page..self.bytes).step_by(2 * self.page as usize) {
            check_eq!(get(self.at + index), index, "page {index:#x}");
        }
    }
}

/// The program with the kernel's page size; the second argument is the larger one.
pub(super) fn fragmented(start: Start) {
    let (page, larger) = (page(start), number(start, 2));
    check!(wish_page_size(larger) == 0, "prctl");
    let exits = pointers(&[c"init", c"exit", c"5"]);
    let (victim, from, to) = partner(&pointers(&[c"init", c"fragmented-larger"]));
    await_word(from);
    // Made while there is room for what the kernel keeps of a process.
    let (later, go) = pipe(0);
    let executes = forked(|| {
        await_word(later);
        let path = SELF.as_ptr() as u64;
        -call(EXECVE, [path, exits.as_ptr() as u64]) as i32
    });
    let holes = Holes::new(page, SLACK);
    check!(
        holes.bytes / 2 >= IN_PIECES,
        "{} bytes in pieces",
        holes.bytes
    );
    send_word(to);
    await_word(from);
    check!(free() >= IN_PIECES, "{} bytes are free", free());
    // A program of larger pages cannot be executed; who wanted to goes on.
    send_word(go);
    check_eq!(status_of(executes), 12 << 8, "execve");
    send_word(to);
    check_eq!(status_of(victim), 9, "who touches what there is not");
    holes.check();
    // Programs of the kernel's size run, and with the memory back the others as well.
    check!(wish_page_size(0) == 0, "prctl");
    check_eq!(
        status_of(spawned(SELF, &exits)),
        5 << 8,
        "a program meanwhile"
    );
    check!(unmap(holes.at, holes.bytes) == 0, "munmap");
    check!(wish_page_size(larger) == 0, "prctl");
    check_eq!(
        status_of(spawned(SELF, &exits)),
        5 << 8,
        "a program afterwards"
    );
    say(format_args!("fragmented\n"));
}

/// The program with larger pages.
pub(super) fn larger(start: Start) {
    let page = page(start);
    let most = MOST / page;
    let at = mapped((most + 2) * page);
    set(at, 7);
    send_word(TO);
    await_word(FROM);
    // The kernel writes to pages until none fits: a call fails, and does not end the process.
    let mut count = 1;
    check_eq!(
        loop {
            let result = call(GETRANDOM, [at + count * page, 8]);
            if result != 8 {
                break result;
            }
            count += 1;
            check!(count <= most, "{count} pages of {page} bytes fit");
        },
        ENOMEM,
        "no page fits"
    );
    let child = fork();
    check!(matches!(child, ENOMEM | EAGAIN), "fork: {child}");
    check!(get(at) == 7, "what was there is {}", get(at));
    // Addresses need no memory.
    let more = mapped(page);
    check!(more != 0 && unmap(more, page) == 0, "mmap and munmap");
    send_word(TO);
    await_word(FROM);
    // A process that has ended meanwhile may have left room for some.
    for index in count..=most {
        set(at + index * page, 1);
    }
    check!(false, "{most} pages of {page} bytes fit");
}
