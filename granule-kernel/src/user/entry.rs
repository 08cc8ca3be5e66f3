//! Where exceptions of EL0 arrive, and the way back: nothing that a program does ends the kernel.

use super::abi::process::Status;
use super::abi::signal::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTRAP};
use super::task::Current;
use super::{process, sched, syscall};
use crate::console::println;
use crate::exception::{Frame, syndrome};
use crate::{cpu, irq, panic};
use core::sync::atomic::{AtomicU64, Ordering};
use granule::space::{Access, SpaceError};

/// The vectors of EL0 in AArch64.
const SYNCHRONOUS: u64 = 8;
const IRQ: u64 = 9;

/// Faults that an address space dealt with.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Faults of EL0 that address spaces dealt with.
pub(super) fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// What the vectors call, with interrupts masked; they go to EL0 by the frame when it returns.
#[unsafe(no_mangle)]
extern "C" fn user_exception_taken(frame: &mut Frame, vector: u64) {
    let Some(mut current) = entered(frame) else {
        panic!("an exception from EL0 on a CPU that runs no task");
    };
    match vector {
        SYNCHRONOUS => {
            cpu::unmask_interrupts();
            synchronous(&mut current);
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
        // What no program can cause: an error that the machine tells of, or a secure interrupt.
        _ => panic::exception(
            current.frame,
            format_args!("unexpected exception {vector} from EL0"),
        ),
    }
    before_return(&mut current);
}

/// The first steps of a task, masked; the vectors go to EL0 by the frame when it returns.
#[unsafe(no_mangle)]
extern "C" fn user_task_begun(frame: &mut Frame) {
    if let Some(mut current) = entered(frame) {
        before_return(&mut current);
    }
}

fn entered(frame: &mut Frame) -> Option<Current<'_>> {
    let task = sched::current()?;
    // SAFETY: the task that runs on this CPU, which has just come from EL0 or has not been there;
    // it is in the kernel once, until the vectors leave it by this frame.
    unsafe { Current::new(task, frame) }
}

/// What is to be done before a task goes on at EL0, with interrupts masked from the last look on.
fn before_return(current: &mut Current<'_>) {
    loop {
        if let Some(status) = current.task.killed() {
            cpu::unmask_interrupts();
            process::end(current, status);
        }
        if !sched::take_again() {
            return;
        }
        cpu::unmask_interrupts();
        sched::yield_now(current.task);
        let _ = cpu::mask_interrupts();
    }
}

fn synchronous(current: &mut Current<'_>) {
    let (esr, far) = (current.frame.esr, current.frame.far);
    let status = esr & 0x3f;
    match syndrome::class(esr) {
        // SVC.
        0x15 => syscall::call(current),
        // Instruction and data aborts.
        0x20 | 0x24 if status == syndrome::TLB_CONFLICT => {
            // Of a group in the lower half: as `exception::conflict` does for the kernel's own.
            cpu::tlbi_vmalle1_local();
        }
        class @ (0x20 | 0x24) => abort(current, class == 0x20, esr, far),
        // A misaligned program counter or stack pointer.
        0x22 | 0x26 => end_by(current, SIGBUS),
        0x2c => end_by(current, SIGFPE),
        // Breakpoints, steps, watchpoints, BRK.
        0x30..=0x35 | 0x3c => end_by(current, SIGTRAP),
        // Undefined, trapped, illegal state, and whatever comes with later CPUs.
        _ => end_by(current, SIGILL),
    }
}

/// An instruction or data abort.
fn abort(current: &mut Current<'_>, fetch: bool, esr: u64, far: u64) {
    let access = match (fetch, esr >> 6 & 1, esr >> 8 & 1) {
        (true, ..) => Access::Execute,
        // CM: cache maintenance says that it writes, and does not.
        (false, 1, 0) => Access::Write,
        _ => Access::Read,
    };
    // Address size, translation, access flag and permission faults of any level.
    if !matches!(esr & 0x3f, 0x00..=0x0f | 0x29 | 0x2b) {
        return end_by(current, SIGBUS);
    }
    let Some(space) = current.memory() else {
        return;
    };
    match space.with(|tables| tables.fault(far, access)) {
        Ok(_) => {
            FAULTS.fetch_add(1, Ordering::Relaxed);
        }
        // There is no memory left: whoever wants some now is ended.
        Err(error @ (SpaceError::OutOfFrames { .. } | SpaceError::Tables(_)))
            if far < super::memory::end() =>
        {
            println!("granule: process {} is ended: {error}", current.task.pid());
            end_by(current, SIGKILL);
        }
        Err(_) => end_by(current, SIGSEGV),
    }
}

/// The program did what ends it by this signal.
fn end_by(current: &mut Current<'_>, signal: u8) {
    let status = Status::Killed {
        signal,
        core: false,
    };
    current.task.set_killed(status.word());
}
