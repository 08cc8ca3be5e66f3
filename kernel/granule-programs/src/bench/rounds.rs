//! The rounds of the benchmark: what is done, and how long it takes.

#![allow(unsafe_code, reason = "memory that the round mapped")]

use super::clock::{Took, timed};
use granule_programs::calls::{self, CLOSE, PIPE2, PROT_READ, READ, call, fork};
use granule_programs::start::{Start, number};

/// The kinds of work, in the order of a round.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    /// The first write to each page.
    Touch,
    /// A fork whose child ends at once; the time in the parent until it goes on.
    Fork,
    /// The next write to each page, which is not shared any more.
    Reuse,
    /// A fork whose child sleeps until the parent has taken the time: what the call alone takes.
    ForkHeld,
    /// The next write to each page, which the sleeping child still has.
    Copy,
    /// To read-only.
    ProtectRead,
    /// To writable again: the call.
    ProtectWrite,
    /// The next write to each page.
    Rewrite,
    /// A write to each page that nothing stands in the way of: what the loop itself takes.
    Loop,
    /// The end of it.
    Unmap,
    /// The end of as much memory that was touched and no more: what an unmap takes whatever came before.
    UnmapTouched,
}

pub(crate) const OPS: [(Op, &str); 11] = [
    (Op::Touch, "touch"),
    (Op::Fork, "fork"),
    (Op::Reuse, "reuse"),
    (Op::ForkHeld, "fork-held"),
    (Op::Copy, "copy"),
    (Op::ProtectRead, "mprotect-read"),
    (Op::ProtectWrite, "mprotect-write"),
    (Op::Rewrite, "rewrite"),
    (Op::Loop, "loop"),
    (Op::Unmap, "munmap"),
    (Op::UnmapTouched, "munmap-touched"),
];

/// The most rounds there is room for.
pub(crate) const MOST_ROUNDS: usize = 15;

/// No transparent huge pages.
const MADV_NOHUGEPAGE: u64 = 15;

/// The reason why there are no figures: the call, and its result.
pub(crate) type Failure = (&'static str, i64);

/// Whether a word is among the arguments.
pub(crate) fn has(start: Start, word: &[u8]) -> bool {
    (1..start.count()).any(|index| start.argument(index) == word)
}

/// One round: the time of each kind of work.
pub(crate) fn round(bytes: u64, page: u64, large: bool) -> Result<[Took; OPS.len()], Failure> {
    let memory = mapped(bytes, large)?;
    let all = || {
        write_all(memory, bytes, page);
        Ok(0)
    };
    let mut held = None;
    let mut child = -1;
    let mut times = [Took::default(); OPS.len()];
    for ((op, name), time) in OPS.into_iter().zip(&mut times) {
        let (took, result) = match op {
            Op::Touch | Op::Reuse | Op::Copy | Op::Rewrite | Op::Loop => timed(all),
            Op::Fork => timed(|| fork_and(|| ())),
            Op::ForkHeld => {
                let pipe = held.insert(pipe()?);
                timed(|| fork_and(|| pipe.wait()))
            }
            Op::ProtectRead => timed(|| done(calls::protect(memory, bytes, PROT_READ))),
            Op::ProtectWrite => timed(|| done(calls::protect(memory, bytes, calls::READ_WRITE))),
            Op::Unmap => timed(|| done(calls::unmap(memory, bytes))),
            Op::UnmapTouched => {
                let fresh = mapped(bytes, large)?;
                write_all(fresh, bytes, page);
                timed(|| done(calls::unmap(fresh, bytes)))
            }
        };
        *time = took;
        let result = result.map_err(|error| (name, error))?;
        // Work that is not to be measured.
        match op {
            Op::Fork => ended_well(result)?,
            Op::ForkHeld => child = result,
            Op::Copy => {
                if let Some(pipe) = held.take() {
                    pipe.end();
                    ended_well(child)?;
                }
            }
            _ => {}
        }
    }
    Ok(times)
}

/// Maps memory in the pages that the kernel chooses, or in pages of the base size.
pub(crate) fn mapped(bytes: u64, large: bool) -> Result<u64, Failure> {
    let memory = calls::map(bytes, calls::READ_WRITE).map_err(|error| ("mmap", error))?;
    if !large {
        // A kernel without huge pages may not support the call.
        call(calls::MADVISE, [memory, bytes, MADV_NOHUGEPAGE]);
    }
    Ok(memory)
}

pub(crate) fn done(result: i64) -> Result<i64, i64> {
    if result < 0 { Err(result) } else { Ok(result) }
}

/// Forks; the child does `child` and ends.
#[inline(always)]
pub(crate) fn fork_and(child: impl FnOnce()) -> Result<i64, i64> {
    let pid = fork();
    if pid == 0 {
        child();
        calls::exit(0);
    }
    done(pid)
}

/// Waits for a child, which must have ended with 0.
pub(crate) fn ended_well(child: i64) -> Result<(), Failure> {
    match calls::wait(child) {
        Ok((_, 0)) => Ok(()),
        Ok((_, status)) => Err(("a child's status", i64::from(status))),
        Err(error) => Err(("wait4", error)),
    }
}

/// Writes a word to each page.
#[inline(never)]
pub(crate) fn write_all(memory: u64, bytes: u64, page: u64) {
    let mut at = memory;
    while at < memory + bytes {
        // SAFETY: memory that the round mapped, which nobody else in this process reaches.
        unsafe { (at as *mut u64).write_volatile(at) };
        at += page;
    }
}

/// Reads a word of a page that the program mapped.
pub(crate) fn read_one(page: u64) {
    // SAFETY: as in `write_all`.
    unsafe { (page as *const u64).read_volatile() };
}

/// A pipe that a child waits at until the parent has ended it.
pub(crate) struct Pipe {
    pub(crate) read: u64,
    pub(crate) write: u64,
}

pub(crate) fn pipe() -> Result<Pipe, Failure> {
    let mut ends = [0u32; 2];
    let made = call(PIPE2, [ends.as_mut_ptr() as u64]);
    done(made).map_err(|error| ("pipe2", error))?;
    Ok(Pipe {
        read: u64::from(ends[0]),
        write: u64::from(ends[1]),
    })
}

impl Pipe {
    /// Until there is no writer left: so this one must not be.
    fn wait(&self) {
        call(CLOSE, [self.write]);
        let mut byte = 0u8;
        call(READ, [self.read, &raw mut byte as u64, 1]);
    }

    fn end(&self) {
        call(CLOSE, [self.write]);
        call(CLOSE, [self.read]);
    }
}

/// A number with K, M or G behind it, or none of them.
pub(crate) fn bytes(text: &[u8]) -> Option<u64> {
    let (shift, digits) = match text.split_last()? {
        (b'G' | b'g', digits) => (30, digits),
        (b'M' | b'm', digits) => (20, digits),
        (b'K' | b'k', digits) => (10, digits),
        _ => (0, text),
    };
    match number(digits) << shift {
        0 => None,
        bytes => Some(bytes),
    }
}
