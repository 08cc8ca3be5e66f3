//! The entry of exceptions from EL0 and the return to EL0. No action of a program may panic the kernel.

#![allow(unsafe_code, reason = "the entry of exceptions from EL0")]

use super::hook::TASKS;
use super::task_table::{self, Current};
use super::{process, syscall};
use crate::arch::cpu;
use crate::cpu::irq;
use crate::dev::console::println;
use crate::fatal::panic;
use crate::sched;
use crate::trace::bring_up;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::space::SpaceError;
use granule_kcore::exception_frame::Frame;
use granule_kcore::syndrome::{self, Abort};
use granule_linux_abi::abi::process::Status;
use granule_linux_abi::abi::signal::{
    BUS_ADRALN, BUS_ADRERR, ILL_ILLOPC, SEGV_ACCERR, SEGV_MAPERR, SI_KERNEL, SIGBUS, SIGFPE,
    SIGILL, SIGKILL, SIGSEGV, SIGTRAP, TRAP_BRKPT,
};
use granule_linux_abi::env::Env;
use granule_linux_abi::signals::Cause;
use granule_linux_abi::syscall::deliver::{After, Interrupted, deliver};

/// The vectors of EL0 in AArch64.
const SYNCHRONOUS: u64 = 8;
const IRQ: u64 = 9;

/// Faults that address spaces resolved.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// The number of faults at EL0 that address spaces resolved.
pub(super) fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// The vectors call this with interrupts masked. On return they go to EL0 with the frame.
#[unsafe(no_mangle)]
extern "C" fn user_exception_taken(frame: &mut Frame, vector: u64) {
    let Some(mut current) = entered(frame) else {
        panic!("an exception from EL0 on a CPU that runs no task");
    };
    let mut interrupted = None;
    match vector {
        SYNCHRONOUS => {
            cpu::unmask_interrupts();
            interrupted = synchronous(&mut current);
            let _ = cpu::mask_interrupts();
        }
        IRQ => {
            if let Err(number) = irq::handle() {
                panic::exception(
                    current.frame,
                    format_args!("interrupt {number}, which nobody asked for"),
                );
            }
        }
        // No program can cause these: an SError of the machine or a secure interrupt.
        _ => panic::exception(
            current.frame,
            format_args!("unexpected exception {vector} from EL0"),
        ),
    }
    before_return(&mut current, interrupted);
}

/// A task's first call in the kernel, masked. On return the vectors go to EL0 with the frame.
#[unsafe(no_mangle)]
extern "C" fn user_task_begun(frame: &mut Frame) {
    if let Some(hook) = TASKS.get() {
        (hook.begins)();
    }
    if let Some(mut current) = entered(frame) {
        before_return(&mut current, None);
    }
}

fn entered(frame: &mut Frame) -> Option<Current<'_>> {
    let task = task_table::taken_up()?;
    // SAFETY: the task runs on this CPU and has just come from EL0, or has not been there yet. It enters
    // the kernel once until the vectors leave with this frame.
    unsafe { Current::new(task, frame) }
}

/// Does the pending work before a task returns to EL0; mostly there is none. Interrupts stay masked from
/// the last check on. A later request comes with an interrupt, unless this CPU makes it.
#[inline]
fn before_return(current: &mut Current<'_>, interrupted: Option<Interrupted>) {
    let task = current.task;
    let nothing_pending =
        interrupted.is_none() && task.killed().is_none() && !task.notified.load(Ordering::Acquire);
    if !nothing_pending || sched::needs_reschedule() {
        do_pending_work(current, interrupted);
    }
}

/// Does the pending work. Signals decide the fate of an interrupted call.
#[cold]
#[inline(never)]
fn do_pending_work(current: &mut Current<'_>, mut interrupted: Option<Interrupted>) {
    loop {
        if let Some(status) = current.task.killed() {
            cpu::unmask_interrupts();
            process::end(current, status);
        }
        let notified = current.task.notified.swap(false, Ordering::AcqRel);
        if notified || interrupted.is_some() {
            cpu::unmask_interrupts();
            if let After::Ends { signal, dump } = deliver(current, interrupted.take()) {
                let status = Status::Killed { signal, core: dump };
                current.task.set_killed(status.word());
            }
            let _ = cpu::mask_interrupts();
            continue;
        }
        if !sched::take_reschedule() {
            return;
        }
        cpu::unmask_interrupts();
        sched::yield_now(current.task.place());
        let _ = cpu::mask_interrupts();
    }
}

/// Handles a synchronous exception. Returns the call that a signal interrupted, if any.
fn synchronous(current: &mut Current<'_>) -> Option<Interrupted> {
    let (esr, far, pc) = (current.frame.esr, current.frame.far, current.frame.elr);
    match syndrome::cause(esr) {
        syndrome::Cause::SystemCall => return syscall::enter(current),
        syndrome::Cause::Abort(abort) if abort.status.is_tlb_conflict() => {
            // A TLB conflict in the lower half: flush, as `exception::conflict` does for the kernel's
            // half.
            bring_up::tlbi_vmalle1_local();
        }
        syndrome::Cause::Abort(abort) => aborted(current, abort, far),
        syndrome::Cause::Misaligned => fault(current, SIGBUS, BUS_ADRALN, pc),
        syndrome::Cause::FloatingPoint => fault(current, SIGFPE, SI_KERNEL, pc),
        syndrome::Cause::Debug => fault(current, SIGTRAP, TRAP_BRKPT, pc),
        syndrome::Cause::Other => fault(current, SIGILL, ILL_ILLOPC, pc),
    }
    None
}

/// An instruction or data abort.
fn aborted(current: &mut Current<'_>, abort: Abort, far: u64) {
    if !abort.status.is_by_tables() {
        return fault(current, SIGBUS, BUS_ADRERR, far);
    }
    let Some(space) = current.memory() else {
        return;
    };
    match space.with(|tables| tables.fault(far, abort.access)) {
        Ok(_) => {
            FAULTS.fetch_add(1, Ordering::Relaxed);
        }
        // Memory is exhausted: the process that needs more is ended.
        Err(error @ (SpaceError::OutOfFrames { .. } | SpaceError::Tables(_)))
            if far < super::platform::end() =>
        {
            println!("granule: process {} is ended: {error}", current.task.pid());
            let status = Status::Killed {
                signal: SIGKILL,
                core: false,
            };
            current.task.set_killed(status.word());
        }
        Err(SpaceError::Denied { .. }) => fault(current, SIGSEGV, SEGV_ACCERR, far),
        Err(_) => fault(current, SIGSEGV, SEGV_MAPERR, far),
    }
}

/// Sends the signal for a faulting instruction: the program's handler runs, or the process ends.
fn fault(current: &mut Current<'_>, signal: u8, code: i32, address: u64) {
    let cause = Cause {
        code,
        status: 0,
        value: address,
    };
    current.with(|processes, place| {
        if let Ok(own) = processes.get_mut(place) {
            own.signals.force(signal, cause);
        }
    });
    current.task.notified.store(true, Ordering::Release);
}
