//! What it costs to go from one program to another, and what programs that do nothing take:
//! `granule-user-bench switches [COUNT]`. For one CPU.
//!
//! Two processes yield to each other, the second with each page size that programs can have. Then COUNT (200)
//! programs of each size wait for their end, and the memory that is gone is theirs: tables, stacks and what the
//! kernel keeps. Where the kernel has no `prctl` for page sizes there is one size.
//!
//! ```text
//! bench op=switch page=4096 other=65536 rounds=1000 best=1639245
//! bench op=programs page=4096 count=200 bytes=9830400
//! ```
//!
//! A round is two switches and two calls of `sched_yield`.

use super::rounds::{Failure, now};
use granule_user::calls::{self, EXECVE, call, fork, say, wait, wish_page_size};
use granule_user::start::{Start, number, page};

const DUP3: u64 = 24;
const CLOSE: u64 = 57;
const PIPE2: u64 = 59;
const READ: u64 = 63;
const KILL: u64 = 129;
const SYSINFO: u64 = 179;
const ROUNDS: u64 = 1000;
const REPEATS: usize = 5;
const DEFAULT_COUNT: u64 = 200;
/// Words of `struct sysinfo`, and the index of the one with the free bytes.
const SYSINFO_WORDS: usize = 14;
const FREE: usize = 5;

/// What a partner does, as the first word of its arguments.
const YIELDS: &[u8] = b"yields";
const WAITS: &[u8] = b"waits";

/// The work of a partner that was asked for; `None` if this process is none.
pub(crate) fn partner(start: Start) -> Option<i32> {
    match start.argument(1) {
        YIELDS => loop {
            call(calls::SCHED_YIELD, [0; 6]);
        },
        WAITS => {
            // The end of the file that is standard input.
            let mut byte = 0_u8;
            call(READ, [0, &raw mut byte as u64, 1, 0, 0, 0]);
            Some(0)
        }
        _ => None,
    }
}

/// Makes a program that does `what` with pages of `size` bytes.
fn begin(what: &core::ffi::CStr, size: u64) -> Result<i64, Failure> {
    let pid = fork();
    if pid == 0 {
        wish_page_size(size);
        let arguments = [c"bench".as_ptr() as u64, what.as_ptr() as u64, 0];
        let path = c"/proc/self/exe".as_ptr() as u64;
        call(EXECVE, [path, arguments.as_ptr() as u64, 0, 0, 0, 0]);
        calls::exit(1);
    }
    if pid < 0 { Err(("fork", pid)) } else { Ok(pid) }
}

fn end(pid: i64) {
    call(KILL, [pid as u64, 9, 0, 0, 0, 0]);
    let _ = wait(pid);
}

/// The sizes that programs can have, by their bytes, this program's first.
fn sizes(own: u64) -> impl Iterator<Item = u64> {
    let others = [4 << 10, 16 << 10, 64 << 10_u64].into_iter();
    let others = others.filter(move |size| *size != own && wish_page_size(*size) == 0);
    core::iter::once(own).chain(others)
}

pub(crate) fn measure(start: Start) -> Result<(), Failure> {
    let own = page(start);
    for other in sizes(own) {
        let pid = begin(c"yields", other)?;
        let mut best = u64::MAX;
        for _ in 0..REPEATS {
            let before = now();
            for _ in 0..ROUNDS {
                call(calls::SCHED_YIELD, [0; 6]);
            }
            best = best.min(now() - before);
        }
        end(pid);
        say(format_args!(
            "bench op=switch page={own} other={other} rounds={ROUNDS} best={best}\n"
        ));
    }
    let count = match number(start.argument(2)) {
        0 => DEFAULT_COUNT,
        count => count,
    };
    for size in sizes(own) {
        let bytes = programs(size, count)?;
        say(format_args!(
            "bench op=programs page={size} count={count} bytes={bytes}\n"
        ));
    }
    Ok(())
}

/// The bytes that `count` programs with pages of `size` bytes take.
fn programs(size: u64, count: u64) -> Result<u64, Failure> {
    let mut ends = [0_u32; 2];
    let made = call(PIPE2, [ends.as_mut_ptr() as u64, 0, 0, 0, 0, 0]);
    if made < 0 {
        return Err(("pipe2", made));
    }
    let [from, to] = ends.map(u64::from);
    // Standard input of the programs.
    call(DUP3, [from, 0, 0, 0, 0, 0]);
    call(CLOSE, [from, 0, 0, 0, 0, 0]);
    // What the first of them makes the kernel keep for all is not theirs.
    begin(c"waits", size)?;
    settle();
    let before = free();
    for _ in 0..count {
        begin(c"waits", size)?;
    }
    settle();
    let bytes = before.saturating_sub(free());
    call(KILL, [u64::MAX, 9, 0, 0, 0, 0]);
    call(CLOSE, [to, 0, 0, 0, 0, 0]);
    while wait(-1).is_ok() {}
    Ok(bytes)
}

/// Lets the others run until they wait.
fn settle() {
    for _ in 0..4000 {
        call(calls::SCHED_YIELD, [0; 6]);
    }
}

fn free() -> u64 {
    let mut words = [0_u64; SYSINFO_WORDS];
    call(SYSINFO, [words.as_mut_ptr() as u64, 0, 0, 0, 0, 0]);
    words[FREE]
}
