//! Programs of several page sizes at once: `granule-user-bench BYTES ROUNDS together=4096,65536`.
//!
//! One program of each size has BYTES of its own, and they take turns: one works while the others, with all
//! their memory, wait. So the times of each are its own, however many there are. Then they all do
//! the same without waiting for each other, which takes what their sum takes, and the switches
//! between them.
//!
//! ```text
//! bench op=fork page=4096 best=1639245 median=1639300 worst=1650001 at=3
//! bench op=fork-at-once times=1 best=4917735 median=4917735 worst=4917735 at=20
//! ```

use super::clock::{Took, print, timed, took};
use super::rounds::{
    Failure, MOST_ROUNDS, bytes, done, ended_well, fork_and, has, mapped, pipe, write_all,
};
use core::ffi::CStr;
use granule_programs::calls::{
    self, CLOSE, DUP3, EXECVE, KILL, READ, call, fork, say, wish_page_size,
};
use granule_programs::start::{Start, number, page};

/// The most sizes there are.
const MOST: usize = 3;
/// A worker's first argument.
const WORKER: &CStr = c"worker";
/// The descriptors of a worker: where orders come from and results go to.
const ORDERS: u64 = 0;
const RESULTS: u64 = 3;
/// Added to an order that is not to be timed.
const AT_ONCE: u8 = 0x80;
/// The result of a worker that failed.
const FAILED: u64 = u64::MAX;

const OPS: [&str; 3] = ["touch", "fork", "munmap"];

/// Does the work of a worker to its end; `None` if this process is none.
pub(crate) fn worker(start: Start) -> Option<i32> {
    if start.argument(1) != WORKER.to_bytes() {
        return None;
    }
    let bytes = bytes(start.argument(2)).unwrap_or(0);
    let (page, large) = (page(start), has(start, b"large"));
    let mut memory = None;
    loop {
        let mut order = 0_u8;
        if call(READ, [ORDERS, &raw mut order as u64, 1]) != 1 {
            return Some(0);
        }
        let is_timed = order & AT_ONCE == 0;
        let result = match obey(
            order & !AT_ONCE,
            is_timed,
            &mut memory,
            (bytes, page, large),
        ) {
            Ok(ticks) => ticks,
            Err((what, error)) => {
                say(format_args!("bench failed {what} {error}, {page} pages\n"));
                FAILED
            }
        };
        call(calls::WRITE, [RESULTS, &raw const result as u64, 8]);
    }
}

/// The ticks of one piece of work, or 0 if it is not timed.
fn obey(
    order: u8,
    is_timed: bool,
    memory: &mut Option<u64>,
    (bytes, page, large): (u64, u64, bool),
) -> Result<u64, Failure> {
    let there = match *memory {
        Some(there) => there,
        None => *memory.insert(mapped(bytes, large)?),
    };
    let name = OPS.get(usize::from(order)).copied().unwrap_or("an order");
    let work = || match order {
        0 => {
            write_all(there, bytes, page);
            Ok(0)
        }
        1 => fork_and(|| ()),
        2 => done(calls::unmap(there, bytes)),
        _ => Err(i64::from(order)),
    };
    let (ticks, result) = if is_timed {
        let (took, result) = timed(work);
        (took.ticks, result)
    } else {
        (0, work())
    };
    let result = result.map_err(|error| (name, error))?;
    match order {
        1 => ended_well(result)?,
        2 => *memory = None,
        _ => {}
    }
    Ok(ticks)
}

/// The workers, each by where its orders go, and where results come from.
struct Workers {
    orders: [u64; MOST],
    count: usize,
    results: u64,
}

impl Workers {
    fn begin(start: Start, sizes: impl Iterator<Item = u64>) -> Result<Self, Failure> {
        let results = pipe()?;
        let mut workers = Self {
            orders: [0; MOST],
            count: 0,
            results: results.read,
        };
        for (size, to) in sizes.zip(0..MOST) {
            let orders = pipe()?;
            let pid = fork();
            if pid == 0 {
                call(DUP3, [orders.read, ORDERS]);
                call(DUP3, [results.write, RESULTS]);
                wish_page_size(size);
                let bytes = start.argument(1).as_ptr() as u64;
                let large = if has(start, b"large") { c"large" } else { c"" };
                let arguments = [
                    c"bench".as_ptr() as u64,
                    WORKER.as_ptr() as u64,
                    bytes,
                    large.as_ptr() as u64,
                    0,
                ];
                let path = c"/proc/self/exe".as_ptr() as u64;
                call(EXECVE, [path, arguments.as_ptr() as u64]);
                calls::exit(1);
            }
            if pid < 0 {
                return Err(("fork", pid));
            }
            call(CLOSE, [orders.read]);
            workers.orders[to] = orders.write;
            workers.count += 1;
        }
        Ok(workers)
    }

    fn order(&self, worker: usize, order: u8) -> Result<(), Failure> {
        let to = self.orders[worker];
        match call(calls::WRITE, [to, &raw const order as u64, 1]) {
            1 => Ok(()),
            error => Err(("an order", error)),
        }
    }

    fn result(&self) -> Result<u64, Failure> {
        let mut result = 0_u64;
        match call(READ, [self.results, &raw mut result as u64, 8]) {
            8 if result != FAILED => Ok(result),
            8 => Err(("a worker", -1)),
            error => Err(("a result", error)),
        }
    }

    /// All of them do the same once, one after the other.
    fn in_turns(&self, order: u8) -> Result<[Took; MOST], Failure> {
        let mut times = [Took::default(); MOST];
        for (worker, time) in times.iter_mut().enumerate().take(self.count) {
            self.order(worker, order)?;
            *time = took(self.result()?);
        }
        Ok(times)
    }

    /// All of them do the same once, at the same time.
    fn at_once(&self, order: u8) -> Result<Took, Failure> {
        let (took, result) = timed(|| {
            for worker in 0..self.count {
                self.order(worker, order | AT_ONCE)?;
            }
            (0..self.count).try_for_each(|_| self.result().map(drop))
        });
        result.map(|()| took)
    }
}

fn sizes(word: &[u8]) -> impl Iterator<Item = u64> {
    word.split(|byte| *byte == b',').map(number).take(MOST)
}

/// Measures programs of the sizes in `word` in turns and at once. Returns the number of lines printed.
pub(crate) fn measure(start: Start, word: &[u8], rounds: usize) -> Result<usize, Failure> {
    let workers = Workers::begin(start, sizes(word))?;
    let mut turns = [[[Took::default(); MOST_ROUNDS]; MOST]; OPS.len()];
    let mut together = [[Took::default(); MOST_ROUNDS]; OPS.len()];
    for round in 0..rounds {
        for (op, turns) in turns.iter_mut().enumerate() {
            for (times, time) in turns.iter_mut().zip(workers.in_turns(op as u8)?) {
                times[round] = time;
            }
        }
        for (op, times) in together.iter_mut().enumerate() {
            times[round] = workers.at_once(op as u8)?;
        }
    }
    for ((name, turns), together) in OPS.iter().zip(&mut turns).zip(&mut together) {
        for (size, times) in sizes(word).zip(turns) {
            print(format_args!("op={name} page={size}"), &mut times[..rounds]);
        }
        print(
            format_args!("op={name}-at-once times=1"),
            &mut together[..rounds],
        );
    }
    call(KILL, [u64::MAX, 9]);
    while calls::wait(-1).is_ok() {}
    Ok(OPS.len() * (workers.count + 1))
}
