//! The steps, on memory of each kind.

#![allow(unsafe_code, reason = "memory that the program mapped")]

use granule_programs::calls::{
    self, DONT_NEED, MREMAP, READ_WRITE, call, exit, fork, protect, say, unmap, wait,
};
use granule_programs::start::{Start, number, page};

const PRIVATE_ANONYMOUS: u64 = 0x22;
const HUGETLB: u64 = 0x4_0000;
/// The place of the size of huge pages, as a power of two, in the flags.
const HUGE_SHIFT: u32 = 26;
const MAY_MOVE: u64 = 1;
const HUGE_PAGE: u64 = 14;
const READ: u64 = 1;

/// The signal of an access that is not allowed, as a status has it.
const SEGV: u32 = 11;

/// Bytes of ordinary memory.
const ORDINARY: u64 = 4 << 20;

/// Memory with a number in each piece.
#[derive(Clone, Copy)]
struct Memory {
    start: u64,
    bytes: u64,
    /// From one number to the next.
    step: u64,
}

/// The exit code of a child that reads zeros instead of what its parent wrote.
const LOST: i32 = 2;

enum Wrong {
    /// A part that failed.
    Failed(&'static str),
    /// `fork` did not give a child what its parent wrote, which Linux is known to do with huge pages.
    Lost,
    /// A child ended with another status than it must.
    Ended { found: u32, wanted: u32 },
}

pub(crate) fn run(start: Start) -> i32 {
    let size = number(start.argument(2));
    let done = match start.argument(1) {
        b"" => ordinary(page(start)),
        b"huge" => huge(size << 10),
        b"thp" => transparent(size, page(start)),
        _ => failed("usage: granule-user-memory [huge KIB | thp BYTES]"),
    };
    match done {
        Ok(()) => {
            say(format_args!("memory: all was right\n"));
            0
        }
        Err(Wrong::Failed(what)) => {
            say(format_args!("memory: {what}\n"));
            1
        }
        Err(Wrong::Lost) => {
            say(format_args!(
                "memory: a child reads zeros where its parent wrote\n"
            ));
            LOST
        }
        Err(Wrong::Ended { found, wanted }) => {
            say(format_args!(
                "memory: a child ended with status {found:#x}, where {wanted:#x} is right\n"
            ));
            1
        }
    }
}

fn ordinary(page: u64) -> Result<(), Wrong> {
    let memory = Memory::map(ORDINARY, page, 0)?;
    memory.work(page)?;
    memory.discard()?;
    let memory = memory.moved()?;
    memory.work(page)?;
    memory.away()
}

fn huge(size: u64) -> Result<(), Wrong> {
    if !size.is_power_of_two() {
        return failed("the size of huge pages must be a power of two");
    }
    // The child copies one of both pages, which takes a third.
    let flags = HUGETLB | u64::from(size.trailing_zeros()) << HUGE_SHIFT;
    let memory = Memory::map(2 * size, size / 4, flags)?;
    memory.work(size)?;
    memory.away()
}

fn transparent(size: u64, page: u64) -> Result<(), Wrong> {
    if !size.is_power_of_two() {
        return failed("the size of huge pages must be a power of two");
    }
    let all = Memory::map(2 * size, size / 4, 0)?;
    // One aligned huge page is inside.
    let memory = Memory {
        start: all.start.next_multiple_of(size),
        bytes: size,
        step: size / 4,
    };
    if call(calls::MADVISE, [all.start, all.bytes, HUGE_PAGE]) != 0 {
        return failed("madvise refused huge pages");
    }
    // Rights of single pages of it split it.
    memory.work(page)?;
    memory.discard()?;
    memory.work(size)?;
    all.away()
}

fn failed(what: &'static str) -> Result<(), Wrong> {
    Err(Wrong::Failed(what))
}

fn is(done: bool, wrong: &'static str) -> Result<(), Wrong> {
    if done { Ok(()) } else { failed(wrong) }
}

impl Memory {
    fn map(bytes: u64, step: u64, flags: u64) -> Result<Self, Wrong> {
        let flags = PRIVATE_ANONYMOUS | flags;
        let start = call(calls::MMAP, [0, bytes, READ_WRITE, flags, u64::MAX]);
        is(start > 0, "mmap gave no memory")?;
        let start = start as u64;
        Ok(Self { start, bytes, step })
    }

    fn places(self) -> impl Iterator<Item = u64> {
        (self.start..self.start + self.bytes).step_by(self.step as usize)
    }

    fn write(self, seed: u64) {
        for at in self.places() {
            // SAFETY: it is memory of the mapping, which nothing but this program refers to.
            unsafe { (at as *mut u64).write_volatile(at ^ seed) };
        }
    }

    fn read(self, at: u64) -> u64 {
        // SAFETY: as in `write`.
        unsafe { (at as *const u64).read_volatile() }
    }

    fn holds(self, seed: u64) -> bool {
        self.places().all(|at| self.read(at) == at ^ seed)
    }

    /// Everything that leaves the memory mapped and writable. `part` is what rights are changed of alone.
    fn work(self, part: u64) -> Result<(), Wrong> {
        self.write(1);
        is(self.holds(1), "it does not hold what was written")?;
        let first = Self {
            bytes: part,
            ..self
        };
        // The child copies a part on its write, and this program the rest.
        child(0, || {
            // No number that is written is zero. The first zero ends it: each read of a page that was lost takes one.
            if self.places().any(|at| self.read(at) == 0) {
                return LOST;
            }
            let before = self.holds(1);
            first.write(2);
            i32::from(!(before && first.holds(2)))
        })?;
        is(self.holds(1), "a child's write is seen")?;
        self.write(3);
        is(protect(first.start, part, READ) == 0, "mprotect refused")?;
        is(self.holds(3), "read-only memory does not hold what it did")?;
        child(SEGV, || {
            first.write(4);
            0
        })?;
        is(
            protect(first.start, part, READ_WRITE) == 0,
            "mprotect refused",
        )?;
        self.write(5);
        is(self.holds(5), "it does not hold what was written last")
    }

    /// Gives the contents back: zeros are read.
    fn discard(self) -> Result<(), Wrong> {
        let done = call(calls::MADVISE, [self.start, self.bytes, DONT_NEED]);
        is(done == 0, "madvise refused")?;
        let zeros = self.places().all(|at| self.read(at) == 0);
        is(zeros, "what was discarded is still there")
    }

    /// Moves the memory to where twice as much is free.
    fn moved(self) -> Result<Self, Wrong> {
        let bytes = self.bytes * 2;
        let start = call(MREMAP, [self.start, self.bytes, bytes, MAY_MOVE]);
        is(start > 0, "mremap refused")?;
        let start = start as u64;
        Ok(Self {
            start,
            bytes,
            ..self
        })
    }

    /// Unmaps it, after which a child dies of an access.
    fn away(self) -> Result<(), Wrong> {
        self.write(6);
        is(unmap(self.start, self.bytes) == 0, "munmap refused")?;
        child(SEGV, || i32::from(!self.holds(6)))
    }
}

/// Runs a child, which must end with this status: 0, or the signal that it dies of.
fn child(wanted: u32, run: impl FnOnce() -> i32) -> Result<(), Wrong> {
    let pid = fork();
    if pid == 0 {
        exit(run());
    }
    is(pid > 0, "fork refused")?;
    let Ok((_, found)) = wait(pid) else {
        return failed("there is no child to wait for");
    };
    // The status also shows a memory dump of the child.
    let found = found & 0xff7f;
    if found == wanted {
        Ok(())
    } else if found == (LOST as u32) << 8 {
        Err(Wrong::Lost)
    } else {
        Err(Wrong::Ended { found, wanted })
    }
}
