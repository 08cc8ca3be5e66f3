//! The table of system calls: number to function.
//!
//! A system call is a function of the [`Current`] task and its six arguments; what it gives goes
//! back in x0. It runs with interrupts let in, on the task's own kernel stack, and may sleep
//! ([`sched::sleep_until`](super::sched::sleep_until), [`sched::wait_in`](super::sched::wait_in)). What a program points to is reached
//! by its address space ([`access`](super::access)) only.

mod memory;
mod process;

pub(crate) use memory::LOWEST;

use super::abi::{Errno, number};
use super::task::Current;
use crate::console::println;
use core::sync::atomic::{AtomicU64, Ordering};

/// What a system call gives: x0, or why not.
pub(crate) type Outcome = Result<u64, Errno>;

/// x0 to x5.
pub(crate) type Arguments = [u64; 6];

/// A system call.
type Call = fn(&mut Current<'_>, Arguments) -> Outcome;

/// The function of a number.
fn function(number: u64) -> Option<Call> {
    Some(match number {
        number::EXIT | number::EXIT_GROUP => process::exit,
        number::SET_TID_ADDRESS => process::set_tid_address,
        number::SCHED_YIELD => process::sched_yield,
        number::GETPID | number::GETTID => process::getpid,
        number::GETPPID => process::getppid,
        number::CLONE => process::clone,
        number::WAIT4 => process::wait4,
        number::BRK => memory::brk,
        number::MMAP => memory::mmap,
        number::MUNMAP => memory::munmap,
        number::MPROTECT => memory::mprotect,
        number::MADVISE => memory::madvise,
        number::WRITE => process::write,
        _ => return None,
    })
}

/// The task called.
pub(super) fn call(current: &mut Current<'_>) {
    let [a, b, c, d, e, f, _, _, number, ..] = current.frame.x;
    let outcome = match function(number) {
        Some(function) => function(current, [a, b, c, d, e, f]),
        None => {
            tell_unknown(current, number);
            Err(Errno::ENOSYS)
        }
    };
    let [result, ..] = &mut current.frame.x;
    *result = outcome.unwrap_or_else(Errno::as_result);
}

const WORDS: usize = (number::COUNT as usize).div_ceil(64);
/// Numbers that were told of, and whether one was that is too large for that.
static TOLD: [AtomicU64; WORDS + 1] = [const { AtomicU64::new(0) }; WORDS + 1];

/// Says once that a number has no function.
fn tell_unknown(current: &Current<'_>, number: u64) {
    let (word, bit) = if number < number::COUNT {
        ((number / 64) as usize, 1 << (number % 64))
    } else {
        (WORDS, 1)
    };
    let told = TOLD
        .get(word)
        .is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit != 0);
    if !told {
        let name = number::name(number).unwrap_or("no name here");
        println!(
            "granule: process {} calls {number} ({name}), which there is not: ENOSYS; said once a number",
            current.task.pid()
        );
    }
}
