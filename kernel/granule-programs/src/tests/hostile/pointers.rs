//! Every system call that takes a pointer, with each of its pointers leading everywhere it must not:
//! the call fails with EFAULT, changes nothing, and goes well when the pointer does.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::rows::For::{In, Link, Out, Path};
use super::rows::{CONSOLE, FILE, FOLDER, For, NULL, Null, Pointer, ROWS, Row, must};
use super::{KERNEL, UPPER, Victim};
use crate::tests::memory::{mapped, set};
use crate::tests::page;
use crate::tests::processes::{forked, status_of};
use crate::{check, check_eq};
use granule_programs::calls::{self, CLOSE_RANGE, EFAULT, HERE, READ, call, protect, say, unmap};
use granule_programs::start::Start;

/// Memory of every kind.
struct Memory {
    page: u64,
    /// Two pages that can be written, with nothing behind them.
    good: u64,
    read_only: u64,
    none: u64,
    /// The first page that is not there.
    hole: u64,
}

impl Memory {
    fn new(page: u64) -> Self {
        let at = mapped(8 * page);
        let memory = Self {
            page,
            good: at,
            read_only: at + 4 * page,
            none: at + 6 * page,
            hole: at + 2 * page,
        };
        // A page that was written, and one that never was there.
        set(memory.read_only, 0x1234);
        check!(unmap(memory.hole, page) == 0, "munmap");
        check!(protect(memory.read_only, page, 1) == 0, "mprotect");
        check!(protect(memory.none, page, 0) == 0, "mprotect");
        memory
    }

    /// Text without an end stands up to where memory ends.
    fn end_in_text(&self) {
        for at in self.hole - 16..self.hole {
            // SAFETY: the end of the good pages.
            unsafe { (at as *mut u8).write_volatile(b'x') };
        }
    }

    /// A good place for the pointer of an argument, with contents that a call accepts.
    fn place(&self, argument: usize, is_for: For) -> u64 {
        let at = self.good + 4096 / 8 * argument as u64;
        clear(at, 512);
        match is_for {
            Path | Link => {
                for (index, byte) in is_for.path().iter().enumerate() {
                    // SAFETY: in the good page.
                    unsafe { ((at + index as u64) as *mut u8).write_volatile(*byte) };
                }
            }
            // Two pieces of memory that is good, too: of the second page.
            In(32) => {
                for word in [0, 2] {
                    set(at + 8 * word, self.good + self.page);
                    set(at + 8 * word + 8, 16);
                }
            }
            In(_) | Out(_) => {}
        }
        at
    }
}

fn clear(address: u64, bytes: u64) {
    for at in (address..address + bytes).step_by(8) {
        set(at, 0);
    }
}

/// Makes the call with all its pointers good but, it may be, one.
fn made(memory: &Memory, row: &Row, other: Option<(usize, u64)>) -> i64 {
    let mut arguments = row.arguments;
    for pointer in row.pointers {
        let at = memory.place(pointer.argument, pointer.is_for);
        if let Some(argument) = arguments.get_mut(pointer.argument) {
            *argument = at;
        }
        // Null is as good where the two would stand in each other's way: a new stack is none.
        if row.number == 134 && pointer.argument == 1 {
            clear(at, 32);
        }
    }
    if let Some((argument, value)) = other
        && let Some(argument) = arguments.get_mut(argument)
    {
        *argument = value;
    }
    let result = call(row.number, arguments);
    // The descriptors that it opened.
    call(CLOSE_RANGE, [CONSOLE + 1, 60]);
    result
}

/// The addresses that an argument must not have. `top` is the end of user space.
fn bad(memory: &Memory, top: u64, pointer: &Pointer, mut each: impl FnMut(u64)) {
    let bytes = match pointer.is_for {
        In(bytes) | Out(bytes) => bytes,
        Path | Link => 2,
    };
    let fixed = [
        8,
        0xfff,
        memory.hole,
        memory.hole + memory.page - 1,
        memory.none,
        memory.none + 8,
        KERNEL,
        KERNEL + 0x20_0000,
        UPPER,
        0xffff_0000_0000_0000,
        0xffff_8000_0000_0000,
        1 << 55,
        1 << 48,
        1 << 63,
        // A tag, which nobody has agreed on.
        memory.good | 1 << 56,
        top,
        u64::MAX,
        u64::MAX - 7,
        u64::MAX - bytes + 1,
    ];
    fixed.into_iter().for_each(&mut each);
    if pointer.null == Null::Bad {
        each(0);
    }
    match pointer.is_for {
        Path | Link => {
            memory.end_in_text();
            each(memory.hole - 1);
            each(memory.hole - 8);
        }
        In(_) | Out(_) => {
            // All but the last byte is there, or the first alone.
            each(memory.hole - (bytes - 1));
            each(memory.hole - 1);
            each(top - (bytes - 1));
        }
    }
    if let Out(_) = pointer.is_for {
        each(memory.read_only);
        each(memory.read_only + memory.page - bytes);
        each(memory.read_only - 1);
        each(row_text());
    }
}

/// This program's own code.
fn row_text() -> u64 {
    row_text as *const () as u64 & !7
}

pub(in crate::tests) fn pointers(start: Start) {
    let page = page(start);
    let victim = Victim::new(page);
    let memory = Memory::new(page);
    open_all();
    let top = top();
    let mut calls_made = 0_u64;
    for (index, row) in ROWS.iter().enumerate() {
        let good = made(&memory, row, None);
        let expected = good >= 0 && row.error == 0 || good == row.error && good != EFAULT;
        check!(expected, "row {index}, call {}: {good}", row.number);
        for pointer in row.pointers {
            let argument = pointer.argument;
            bad(&memory, top, pointer, |address| {
                let result = made(&memory, row, Some((argument, address)));
                // The last bytes of user space may be a page that can be read.
                let is_readable = address >= top - page && !matches!(pointer.is_for, Out(_));
                // A misaligned word of a lock is reported first.
                let misaligned = row.number == 98 && address % 4 != 0 && result == -22;
                // Random bytes are given in pieces: those before are there.
                let some = row.number == 278 && result > 0 && result < 1000;
                check!(
                    result == EFAULT || is_readable && address < top || misaligned || some,
                    "row {index}, call {} with {address:#x} for argument {argument}: {result}",
                    row.number
                );
                calls_made += 1;
            });
            // Nothing here has to be aligned but the words of locks.
            if row.number != 98 && !matches!(pointer.is_for, In(32)) {
                let at = memory.place(argument, pointer.is_for);
                let result = match pointer.is_for {
                    Path | Link => moved(&memory, row, pointer),
                    _ => made(&memory, row, Some((argument, at + 1))),
                };
                check!(
                    result != EFAULT,
                    "row {index}, call {} with a misaligned argument {argument}",
                    row.number
                );
            }
            if pointer.null == Null::Good {
                let result = made(&memory, row, Some((argument, 0)));
                check!(result != EFAULT, "row {index}, call {}: null", row.number);
            }
        }
        // SAFETY: mapped by `Memory::new`.
        let kept = unsafe { (memory.read_only as *const u64).read_volatile() };
        check!(kept == 0x1234, "row {index} wrote what is read-only");
    }
    inside(&memory);
    of_processes(&memory, top);
    ranges(&memory, top);
    victim.end();
    check!(calls_made > 500, "only {calls_made} bad pointers");
    say(format_args!("every pointer\n"));
}

/// With a path that begins at an odd address.
fn moved(memory: &Memory, row: &Row, pointer: &Pointer) -> i64 {
    let other = memory.good + 7 * 512 + 1;
    for (index, byte) in pointer.is_for.path().iter().enumerate() {
        // SAFETY: in the good page.
        unsafe { ((other + index as u64) as *mut u8).write_volatile(*byte) };
    }
    made(memory, row, Some((pointer.argument, other)))
}

fn open_all() {
    for (path, fd) in [
        (c"/init", FILE),
        (c"/", FOLDER),
        (c"/dev/null", NULL),
        (c"/dev/console", CONSOLE),
    ] {
        let flags = if fd >= NULL { 2 } else { 0 };
        let opened = call(56, [HERE, path.as_ptr() as u64, flags]);
        // The victim's pipe may have one.
        let moved = call(24, [opened as u64, fd]);
        check!(
            moved == fd as i64 || opened == fd as i64,
            "{path:?}: {moved}"
        );
    }
}

/// Where user space ends: behind the largest address that a mapping may end at.
fn top() -> u64 {
    // MAP_FIXED_NOREPLACE: nothing that is there goes.
    (30..=52)
        .rev()
        .map(|bits| 1_u64 << bits)
        .find(|end| {
            let at = end - 0x1_0000;
            let mapped = call(calls::MMAP, [at, 0x1_0000, 0, 0x10_0022, u64::MAX]);
            // There is the kernel's own page; or it is taken away again.
            mapped == -17 || mapped as u64 == at && unmap(at, 0x1_0000) == 0
        })
        .unwrap_or(0)
}

/// Lengths and offsets that reach beyond everything.
fn inside(memory: &Memory) {
    let at = memory.good;
    // Lengths that reach beyond everything: as much as there is, or an error.
    let rest = (memory.hole - at) as i64;
    for length in [u64::MAX, 1 << 63, 1 << 47, 1 << 32] {
        let written = call(calls::WRITE, [NULL, at, length]);
        check!(
            written <= rest && written != 0,
            "write of {length:#x}: {written}"
        );
        let got = call(READ, [FILE, at, length]);
        check!(got <= rest && got != 0, "read of {length:#x}: {got}");
        let random = call(278, [at, length]);
        check!(
            random <= rest && random != 0,
            "getrandom of {length:#x}: {random}"
        );
        call(62, [FILE]);
    }
    for offset in [u64::MAX, 1 << 63, i64::MAX as u64] {
        let sought = call(62, [FILE, offset, 1]);
        let again = call(READ, [FILE, at, 8]);
        check!(again <= 8, "read behind {offset:#x}, {sought}: {again}");
        call(62, [FILE]);
    }
}

/// Calls that end the caller, replace it, or make another one.
fn of_processes(memory: &Memory, top: u64) {
    let pointer = must(0, Out(4));
    bad(memory, top, &pointer, |address| {
        // Where a zero is to go at the end, and is not.
        check_eq!(
            status_of(forked(|| {
                call(96, [address]);
                3
            })),
            3 << 8,
            "set_tid_address {address:#x}"
        );
        // The child's copy of its number, and one to be cleared.
        for flag in [0x100_0000, 0x20_0000] {
            let pid = call(calls::CLONE, [0x11 | flag, 0, 0, 0, address]);
            if pid == 0 {
                calls::exit(0);
            }
            check!(
                pid == EFAULT || pid > 0 && status_of(pid) == 0,
                "clone {flag:#x} with {address:#x}: {pid}"
            );
        }
        let pid = forked(|| 0);
        let waited = call(calls::WAIT4, [pid as u64, 0, 0, address]);
        check!(
            waited == EFAULT || address == 0,
            "wait4's usage at {address:#x}: {waited}"
        );
    });
    let path = c"/init".as_ptr() as u64;
    let name = c"x".as_ptr() as u64;
    let reading = must(0, In(8));
    memory.end_in_text();
    bad(memory, top, &reading, |address| {
        let lists: [[u64; 3]; 3] = [[address, 0, 0], [path, address, 0], [path, 0, address]];
        for [path, arguments, environment] in lists {
            let ended = status_of(forked(|| {
                let failed = call(221, [path, arguments, environment]);
                // The list's first pointer may lie in memory that can be read.
                i32::from(failed != EFAULT && address < top && address >= top - memory.page)
                    + i32::from(failed != EFAULT) * 2
            }));
            // Null is not a list; what is run then has no test of that name, and fails with that.
            let runs = address == 0 && path != 0 && ended == 2 << 8;
            check!(
                ended == 0 || runs || address >= top - memory.page && address < top,
                "execve with {address:#x}: {ended:#x}"
            );
        }
        // Inside a list.
        set(memory.good, name);
        set(memory.good + 8, address);
        set(memory.good + 16, 0);
        if address != 0 && (address < top - memory.page || address >= top) {
            check_eq!(
                call(221, [path, memory.good]),
                EFAULT,
                "execve with argument {address:#x}"
            );
        }
    });
}

/// Ranges of memory that are none, or somebody else's.
fn ranges(memory: &Memory, top: u64) {
    let page = memory.page;
    for (start, bytes) in [
        (KERNEL, page),
        (UPPER, page),
        (0xffff_0000_0000_0000, page),
        (top, page),
        (top - page, 2 * page),
        (1 << 55, page),
        (!(page - 1), page),
        (memory.good, u64::MAX),
        (memory.good, u64::MAX - page),
        (memory.good, top),
        (memory.good + 1, page),
        (page, u64::MAX - page + 1),
        (page, !(page - 1)),
    ] {
        for (number, third) in [
            (calls::MUNMAP, 0),
            (calls::MPROTECT, 3),
            (calls::MPROTECT, 7),
            (calls::MPROTECT, u64::MAX),
            (calls::MADVISE, 4),
        ] {
            let result = call(number, [start, bytes, third]);
            check!(
                matches!(result, -22 | -12),
                "call {number} of {start:#x}, {bytes:#x}: {result}"
            );
        }
        for flags in [0x32, 0x10_0022] {
            let result = call(calls::MMAP, [start, bytes, 3, flags, u64::MAX]);
            check!(
                matches!(result, -22 | -12 | -1 | -17),
                "mmap of {start:#x}, {bytes:#x}: {result}"
            );
        }
        let result = call(calls::MMAP, [start, bytes, 3, 0x22, u64::MAX]);
        check!(
            result < 0 || bytes <= 2 * page && result as u64 + bytes <= top,
            "mmap near {start:#x}, {bytes:#x}: {result:#x}"
        );
        if result >= 0 {
            unmap(result as u64, bytes);
        }
        // Nothing of these is the heap's.
        let heap = call(calls::BRK, []);
        check!(
            (memory.good..=top).contains(&start) || call(calls::BRK, [start]) == heap,
            "brk to {start:#x}"
        );
    }
    // SAFETY: mapped by `Memory::new`.
    unsafe { (memory.good as *mut u64).read_volatile() };
}
