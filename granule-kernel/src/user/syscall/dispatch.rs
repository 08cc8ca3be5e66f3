//! What an SVC does: which function a number has, and what its result means for the registers.
//!
//! A system call is a function of the [`Current`] task and its six arguments; what it gives goes
//! back in x0. It runs with interrupts let in, on the task's own kernel stack, and may sleep. Those
//! that change registers, tasks or address spaces are named here; all others are the table's
//! of `granule-linux-abi`.

use super::{Arguments, Outcome, memory, tasks};
use crate::dev::console::println;
use crate::user::execve;
use crate::user::hook::TASKS;
use crate::user::next_kernel;
use crate::user::task::Current;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_linux_abi::abi::number;
use granule_linux_abi::syscall::deliver::{self, Interrupted};
use granule_linux_abi::syscall::{Args, Fail, call, unknown};

/// A system call of a task.
type Call = fn(&mut Current<'_>, Arguments) -> Outcome;

/// The function of a number.
fn function(number: u64) -> Option<Call> {
    Some(match number {
        number::EXIT | number::EXIT_GROUP => tasks::exit,
        number::SET_TID_ADDRESS => tasks::set_tid_address,
        number::SCHED_YIELD => tasks::sched_yield,
        number::CLONE => tasks::clone,
        number::EXECVE => |current, [path, arguments, environment, ..]| {
            execve::execve(current, path, arguments, environment)
        },
        number::BRK => memory::brk,
        number::MMAP => memory::mmap,
        number::MUNMAP => memory::munmap,
        number::MPROTECT => memory::mprotect,
        number::MADVISE => memory::madvise,
        number::KEXEC_FILE_LOAD => next_kernel::load,
        number::REBOOT => next_kernel::reboot,
        _ => return None,
    })
}

/// The task called. What is given was interrupted, and a signal decides what becomes of it.
pub(crate) fn enter(current: &mut Current<'_>) -> Option<Interrupted> {
    let [a, b, c, d, e, f, _, _, number, ..] = current.frame.x;
    let arguments = [a, b, c, d, e, f];
    let hook = TASKS.get().filter(|_| number == number::PRCTL);
    let hooked = hook.and_then(|hook| hook.prctl(current.task, [a, b, c]));
    if let Some(result) = hooked {
        let [x0, ..] = &mut current.frame.x;
        *x0 = result;
        return None;
    }
    let result = match number {
        number::RT_SIGRETURN => {
            // All registers come from the frame.
            deliver::sigreturn(current);
            return None;
        }
        number::SIGALTSTACK => deliver::sigaltstack(current, a, b),
        _ => match function(number) {
            Some(function) => function(current, arguments).map_err(Fail::from),
            None => {
                call(current, number, Args(arguments)).unwrap_or_else(|| unknown(current, number))
            }
        },
    };
    let [x0, ..] = &mut current.frame.x;
    deliver::finish(x0, result)
}

const WORDS: usize = (number::COUNT as usize).div_ceil(64);
/// Numbers that were told of, and whether one was that is too large for that.
static TOLD: [AtomicU64; WORDS + 1] = [const { AtomicU64::new(0) }; WORDS + 1];

/// Says once that a number has no function.
pub(crate) fn tell_unknown(pid: u32, number: u64) {
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
            "granule: process {pid} calls {number} ({name}), which there is not: ENOSYS; said once a number"
        );
    }
}
