//! The cost of user memory: `granule-user-bench [BYTES] [ROUNDS] [large] [calls]
//! [switches] [programs=COUNT] [areas=COUNTS] [together=SIZES] [off]`.
//!
//! Maps BYTES (1G) of private anonymous memory in pages of the base size, or with `large` in the
//! size that the kernel takes for the best, and times each kind of work on all of it, ROUNDS (3)
//! times. One source for every kernel with the arm64 Linux system calls, and for every page size:
//! it can be `/init` with nothing else in the initramfs. With `off` it powers the machine off when
//! it is done, as the first process of Linux has to, and then ends, as it does anyway.
//!
//! With `calls` it then counts calls beside memory and small changes of it (`beside`), with `switches` switches
//! between programs, and with `programs=` what programs take that wait (`switches`). With `areas=` and numbers,
//! separated by commas, it counts changes of one area among so many (`areas`). With `together=` and page sizes in bytes,
//! separated by commas, programs of these sizes do the work, some of it, instead (`turns`).
//!
//! It prints a line for each kind of work, and nothing else unless something fails:
//!
//! ```text
//! bench begin page=4096 bytes=1073741824 pages=262144 rounds=3 frequency=62500000
//! bench op=fork best=1639245 median=1639300 worst=1650001 at=11
//! bench end ops=11 timed=33
//! ```
//!
//! `at` is the number of the fastest piece of work among all that were timed, `timed` how many these were (`clock`).
//!
//! Times are ticks of the virtual counter, `frequency` of which are a second. Under QEMU with
//! `-icount shift=0` an instruction is a nanosecond of that counter's time, so they are counts of
//! instructions, kernel's and program's, in steps of 16.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod areas;
#[cfg(target_os = "none")]
mod beside;
#[cfg(target_os = "none")]
mod clock;
#[cfg(target_os = "none")]
mod rounds;
#[cfg(target_os = "none")]
mod run;
#[cfg(target_os = "none")]
mod switches;
#[cfg(target_os = "none")]
mod turns;

granule_programs::program!(run::run);
