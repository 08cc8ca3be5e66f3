//! The cost of a switch from one program to another, and the memory of programs that do nothing.
//! For one CPU.
//!
//! Two processes yield to each other, the second with each page size that programs can have: a piece of work is
//! `times` switches, each with its call of `sched_yield`. Then programs of 4K pages wait for their end, and
//! the memory that is gone is theirs: tables, stacks and what the kernel keeps. Where the kernel has no `prctl`
//! for page sizes there is one size.
//!
//! ```text
//! bench op=switch-other other=65536 times=2000 best=1639245 median=1639245 worst=1639250 at=30
//! bench op=programs-1000 page=4096 bytes=49152000
//! ```

use super::clock::{Took, print, timed};
use super::rounds::Failure;
use granule_programs::calls::{
    self, CLOSE, DUP3, EXECVE, KILL, PIPE2, READ, SYSINFO, call, fork, say, wait, wish_page_size,
};
use granule_programs::start::Start;

const ROUNDS: u64 = 1000;
const REPEATS: usize = 5;
/// The pages of the programs that wait.
const SMALL: u64 = 4096;
/// Words of `struct sysinfo`, and the index of the one with the free bytes.
const SYSINFO_WORDS: usize = 14;
const FREE: usize = 5;

/// The action of a partner, as the first word of its arguments.
const YIELDS: &[u8] = b"yields";
const WAITS: &[u8] = b"waits";

/// Does the requested work of a partner; `None` if this process is none.
pub(crate) fn partner(start: Start) -> Option<i32> {
    match start.argument(1) {
        YIELDS => loop {
            call(calls::SCHED_YIELD, []);
        },
        WAITS => {
            // The end of the file that is standard input.
            let mut byte = 0_u8;
            call(READ, [0, &raw mut byte as u64, 1]);
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
        call(EXECVE, [path, arguments.as_ptr() as u64]);
        calls::exit(1);
    }
    if pid < 0 { Err(("fork", pid)) } else { Ok(pid) }
}

fn end(pid: i64) {
    call(KILL, [pid as u64, 9]);
    let _ = wait(pid);
}

/// The sizes that programs can have, by their bytes, this program's first.
fn sizes(own: u64) -> impl Iterator<Item = u64> {
    let others = [4 << 10, 16 << 10, 64 << 10_u64].into_iter();
    let others = others.filter(move |size| *size != own && wish_page_size(*size) == 0);
    core::iter::once(own).chain(others)
}

/// Switches to a program of each size. Returns the number of lines printed.
pub(crate) fn switches(own: u64) -> Result<usize, Failure> {
    let mut lines = 0;
    for other in sizes(own) {
        let pid = begin(c"yields", other)?;
        let mut times = [Took::default(); REPEATS];
        for time in &mut times {
            let yields = || {
                for _ in 0..ROUNDS {
                    call(calls::SCHED_YIELD, []);
                }
            };
            *time = timed(yields).0;
        }
        end(pid);
        let op = if other == own { "same" } else { "other" };
        let switches = 2 * ROUNDS;
        let name = format_args!("op=switch-{op} other={other} times={switches}");
        print(name, &mut times);
        lines += 1;
    }
    Ok(lines)
}

/// Measures `count` programs of small pages, if the kernel can have such. Returns the number of
/// lines printed.
pub(crate) fn programs(own: u64, count: u64) -> Result<usize, Failure> {
    if count == 0 || !sizes(own).any(|size| size == SMALL) {
        return Ok(0);
    }
    let bytes = waiting(SMALL, count)?;
    say(format_args!(
        "bench op=programs-{count} page={SMALL} bytes={bytes}\n"
    ));
    Ok(1)
}

/// The bytes that `count` programs with pages of `size` bytes take.
fn waiting(size: u64, count: u64) -> Result<u64, Failure> {
    let mut ends = [0_u32; 2];
    let made = call(PIPE2, [ends.as_mut_ptr() as u64]);
    if made < 0 {
        return Err(("pipe2", made));
    }
    let [from, to] = ends.map(u64::from);
    // Standard input of the programs.
    call(DUP3, [from]);
    call(CLOSE, [from]);
    // What the first of them makes the kernel keep for all is not theirs.
    begin(c"waits", size)?;
    settle();
    let before = free();
    for _ in 0..count {
        begin(c"waits", size)?;
    }
    settle();
    let bytes = before.saturating_sub(free());
    call(KILL, [u64::MAX, 9]);
    call(CLOSE, [to]);
    while wait(-1).is_ok() {}
    Ok(bytes)
}

/// Lets the others run until they wait.
fn settle() {
    for _ in 0..4000 {
        call(calls::SCHED_YIELD, []);
    }
}

fn free() -> u64 {
    let mut words = [0_u64; SYSINFO_WORDS];
    call(SYSINFO, [words.as_mut_ptr() as u64]);
    words[FREE]
}
