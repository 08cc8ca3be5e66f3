//! The dispatch of an SVC: the function for each number, and the effect of its result on the registers.
//!
//! A system call is a function of the [`Current`] task and six arguments; its result goes to x0. It runs
//! with interrupts enabled, on the task's kernel stack, and may sleep. This file names the calls that
//! change registers, tasks or address spaces; all others are in the table of `granule-linux-abi`.

use super::{Arguments, CallResult, memory, tasks};
use crate::dev::console::println;
use crate::task::hook::TASKS;
use crate::task::task_table::Current;
use crate::task::{execve, modules, next_kernel};
use core::sync::atomic::{AtomicU64, Ordering};
use granule_linux_abi::abi::number;
use granule_linux_abi::syscall::deliver::{self, Interrupted};
use granule_linux_abi::syscall::{Args, Fail, call, unknown};

/// The function of a system call.
type Call = fn(&mut Current<'_>, Arguments) -> CallResult;

/// The kernel's function for a number, if any.
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
        number::KEXEC_LOAD => next_kernel::load_segments,
        number::KEXEC_FILE_LOAD => next_kernel::load,
        number::INIT_MODULE => modules::init,
        number::FINIT_MODULE => modules::finit,
        number::DELETE_MODULE => modules::delete,
        number::REBOOT => next_kernel::reboot,
        _ => return None,
    })
}

/// Makes a task's system call. Returns an interrupted call, whose fate a signal decides.
pub(crate) fn enter(current: &mut Current<'_>) -> Option<Interrupted> {
    let [a, b, c, d, e, f, _, _, number, ..] = current.frame.x;
    let arguments = [a, b, c, d, e, f];
    let hook = TASKS.get().filter(|_| number == number::PRCTL);
    let hooked = hook.and_then(|hook| (hook.prctl)(current.task, [a, b, c]));
    if let Some(result) = hooked {
        let [x0, ..] = &mut current.frame.x;
        *x0 = result;
        return None;
    }
    let result = match number {
        number::RT_SIGRETURN => {
            // The frame on the stack sets all registers, x0 included.
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
/// A bit for each number already reported; the last word is for all larger numbers.
static REPORTED: [AtomicU64; WORDS + 1] = [const { AtomicU64::new(0) }; WORDS + 1];

pub(crate) fn report_unknown(pid: u32, number: u64) {
    let (word, bit) = if number < number::COUNT {
        ((number / 64) as usize, 1 << (number % 64))
    } else {
        (WORDS, 1)
    };
    let reported = REPORTED
        .get(word)
        .is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit != 0);
    if !reported {
        let name = number::name(number).unwrap_or("no name here");
        println!(
            "granule: process {pid} calls {number} ({name}), which is not implemented: ENOSYS; reported once per number"
        );
    }
}
