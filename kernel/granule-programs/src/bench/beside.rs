//! The cost of calls beside memory, and of small changes of it: `calls`. Each piece of work is a number of calls.
//!
//! `getpid` does nothing else in the kernel. `dup` puts a file at a descriptor that another one has. `spawn` is `fork`,
//! `execve` of a program that ends at once, and the wait for it; `exec` one child that executes itself again and again.
//! Of an area whose pages were all written single pages are unmapped (`munmap-part`), mapped again (`mmap-part`),
//! taken the right to be written, which divides the area (`mprotect-part`), and given it back, which makes it whole
//! (`mprotect-whole`).
//!
//! ```text
//! bench op=dup times=1000 best=1639245 median=1639245 worst=1639250 at=30
//! ```

use super::clock::{Took, print, timed};
use super::rounds::{Failure, done, ended_well, mapped, write_all};
use granule_programs::calls::{
    self, DUP3, EXECVE, GETPID, MAP_FIXED, MMAP, PRIVATE_ANONYMOUS, PROT_READ, READ_WRITE, call,
    fork, wish_page_size,
};
use granule_programs::start::{Start, number, page};

/// Calls between two readings of the clock: of the short ones, and of those that begin a program.
const CALLS: u64 = 1000;
const PROGRAMS: u64 = 32;
const REPEATS: usize = 5;
/// Changed pages of the area, each with others of it round it.
const PARTS: u64 = 64;
const STRIDE: u64 = 4;
/// The descriptor that is replaced.
const FILE: u64 = 9;

/// The action of a program that executes itself so many times more, as the first word of its arguments.
const AGAIN: &[u8] = b"again";

/// Executes itself as often as asked; `None` if this process is none of those.
pub(crate) fn again(start: Start) -> Option<i32> {
    (start.argument(1) == AGAIN).then(|| match number(start.argument(2)) {
        0 => 0,
        more => {
            execute(start, more - 1);
            1
        }
    })
}

/// Executes the program that does so `more` times. Returns only if that fails.
fn execute(start: Start, more: u64) {
    let digits = [b'0' + (more / 10 % 10) as u8, b'0' + (more % 10) as u8, 0];
    let words = [
        start.argument(0).as_ptr() as u64,
        c"again".as_ptr() as u64,
        digits.as_ptr() as u64,
        0,
    ];
    // Its own path, as the first process: Linux has no `/proc` yet.
    call(
        EXECVE,
        [start.argument(0).as_ptr() as u64, words.as_ptr() as u64],
    );
}

/// Begins a program that executes itself `more` times, and waits for its end.
fn begin(start: Start, more: u64) -> Result<(), Failure> {
    let pid = fork();
    if pid == 0 {
        // The one before may have wished for another one.
        wish_page_size(page(start));
        execute(start, more);
        calls::exit(1);
    }
    ended_well(done(pid).map_err(|error| ("fork", error))?)
}

/// Measures all of them. Returns the number of lines printed.
pub(crate) fn measure(start: Start) -> Result<usize, Failure> {
    let page = page(start);
    let bytes = PARTS * STRIDE * page;
    let area = mapped(bytes, false)?;
    write_all(area, bytes, page);
    let parts = |what: &dyn Fn(u64) -> i64| {
        (0..PARTS).try_for_each(|part| {
            let result = what(area + (part * STRIDE + 1) * page);
            done(result)
                .map(drop)
                .map_err(|error| ("a part of an area", error))
        })
    };
    let fixed = |at| {
        call(
            MMAP,
            [
                at,
                page,
                READ_WRITE,
                PRIVATE_ANONYMOUS | MAP_FIXED,
                u64::MAX,
            ],
        )
    };
    type Work<'a> = (&'a str, u64, &'a dyn Fn() -> Result<(), Failure>);
    let work: [Work<'_>; 8] = [
        ("getpid", CALLS, &|| {
            for _ in 0..CALLS {
                call(GETPID, []);
            }
            Ok(())
        }),
        ("dup", CALLS, &|| {
            (0..CALLS).try_for_each(|_| {
                let made = done(call(DUP3, [1, FILE]));
                made.map(drop).map_err(|error| ("dup3", error))
            })
        }),
        ("munmap-part", PARTS, &|| {
            parts(&|at| calls::unmap(at, page))
        }),
        ("mmap-part", PARTS, &|| parts(&fixed)),
        ("mprotect-part", PARTS, &|| {
            parts(&|at| calls::protect(at, page, PROT_READ))
        }),
        ("mprotect-whole", PARTS, &|| {
            parts(&|at| calls::protect(at, page, READ_WRITE))
        }),
        ("spawn", PROGRAMS, &|| {
            (0..PROGRAMS).try_for_each(|_| begin(start, 0))
        }),
        ("exec", PROGRAMS, &|| begin(start, PROGRAMS - 1)),
    ];
    let mut times = [[Took::default(); REPEATS]; 8];
    for repeat in 0..REPEATS {
        for ((_, _, what), times) in work.iter().zip(&mut times) {
            let (took, result) = timed(what);
            result?;
            times[repeat] = took;
        }
        // All pages are there again.
        write_all(area, bytes, page);
    }
    for ((name, count, _), times) in work.iter().zip(&mut times) {
        print(format_args!("op={name} times={count}"), times);
    }
    done(calls::unmap(area, bytes)).map_err(|error| ("munmap", error))?;
    call(calls::CLOSE, [FILE]);
    Ok(work.len())
}
