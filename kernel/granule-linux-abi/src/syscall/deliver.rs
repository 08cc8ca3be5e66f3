//! Handles signals on the return to the program: handlers, interrupted calls, the end of the process.
//!
//! A call that a signal interrupts returns neither value nor error, but the way to repeat it. Delivery
//! decides, because only then it is known whether a handler runs. All deliverable signals are delivered
//! before the program goes on: each handler's frame lies on the one before. Programs without a restorer of
//! their own return from handlers to a page behind the stack that every program has.

use super::{Fail, Restart};
use crate::abi::Errno;
use crate::abi::signal::{SA_RESTART, SIGSEGV, SigFrame};
use crate::env::{Env, get, put_if};
use crate::signals::frame::{Registers, prepare, restore};
use crate::signals::{Cause, Next};
use zerocopy::IntoBytes;

/// The state of the process after signal delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The process continues.
    GoesOn,
    /// A signal ends the process.
    Ends {
        /// The signal.
        signal: u8,
        /// Whether the default action is to dump core.
        dump: bool,
    },
}

/// A call interrupted by a signal: the rule for its repetition, and its original x0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// When the call is repeated.
    pub restart: Restart,
    /// The original value of x0.
    pub x0: u64,
}

/// Bytes of the SVC instruction.
pub const SVC_BYTES: u64 = 4;

/// Stores a call's result in x0. An interrupted call is returned instead, for a signal to decide.
pub const fn finish(x0: &mut u64, result: super::Result) -> Option<Interrupted> {
    let before = *x0;
    let (value, interrupted) = match result {
        Ok(value) => (value, None),
        Err(Fail::Error(error)) => (error.as_result(), None),
        Err(Fail::Interrupted(restart)) => {
            let x0 = before;
            (Errno::EINTR.as_result(), Some(Interrupted { restart, x0 }))
        }
    };
    *x0 = value;
    interrupted
}

/// Handles the unblocked signals until none is left. Each handler's frame goes on top of the one before,
/// so the handler started last runs first. A handler waits for an earlier one only if the earlier one's
/// mask blocks its signal.
pub fn deliver<E: Env>(env: &mut E, mut interrupted: Option<Interrupted>) -> After {
    loop {
        let next = env.with(|processes, place| processes.get_mut(place).ok()?.signals.take_next());
        match next {
            None => {
                // The temporary mask of a call may have blocked a signal.
                let more = env.with(|processes, place| {
                    let process = processes.get_mut(place);
                    process.is_ok_and(|process| {
                        process.signals.end_call();
                        process.signals.has_work()
                    })
                });
                if more {
                    continue;
                }
                if let Some(call) = interrupted {
                    let mut registers = env.registers();
                    again(&mut registers, call);
                    env.set_registers(&registers);
                }
                return After::GoesOn;
            }
            Some(Next::Terminate { signal, dump }) => return After::Ends { signal, dump },
            Some(handle @ Next::Handle { .. }) => {
                if begin(env, handle, interrupted) {
                    // The handler's frame now holds the outcome of the call.
                    interrupted = None;
                    continue;
                }
                // The handler has no stack. Only a SIGSEGV handler on another stack could go on.
                let of_fault = matches!(handle, Next::Handle { signal, .. } if signal == SIGSEGV);
                env.with(|processes, place| {
                    if let Ok(process) = processes.get_mut(place) {
                        if of_fault {
                            process.signals.reset_action(SIGSEGV);
                        }
                        process.signals.force(SIGSEGV, Cause::KERNEL);
                    }
                });
            }
        }
    }
}

/// Lets the program with these registers repeat the call as if it had not begun.
const fn again(registers: &mut Registers, call: Interrupted) {
    let [x0, ..] = &mut registers.x;
    *x0 = call.x0;
    registers.pc = registers.pc.wrapping_sub(SVC_BYTES);
}

/// Starts a handler. False if its frame cannot be written.
#[inline(never)]
fn begin<E: Env>(env: &mut E, next: Next, interrupted: Option<Interrupted>) -> bool {
    let Next::Handle {
        signal,
        cause,
        action,
        mask,
    } = next
    else {
        return true;
    };
    let mut registers = env.registers();
    if let Some(call) = interrupted
        && call.restart == Restart::IfAsked
        && action.flags & SA_RESTART != 0
    {
        again(&mut registers, call);
    }
    let sp = registers.sp;
    let stacks = env.with(|processes, place| {
        let process = processes.get_mut(place).ok()?;
        process.restart_at = None;
        let stack = process.signals.handler_stack(action.flags, sp);
        Some((process.signals.stack(sp), stack))
    });
    let Some((other_stack, stack)) = stacks else {
        return false;
    };
    let fp = env.fp();
    let trampoline = env.trampoline();
    let masks = (mask, other_stack);
    let Some(prepared) = prepare(
        &registers,
        &fp,
        (signal, cause),
        &action,
        masks,
        stack,
        trampoline,
    ) else {
        return false;
    };
    let record = env.write(prepared.record_at, prepared.record.as_bytes());
    let frame = env.write(prepared.at, prepared.frame.as_bytes());
    if record.is_err() || frame.is_err() {
        return false;
    }
    env.set_registers(&prepared.registers);
    true
}

/// `rt_sigreturn`: restores registers, mask and alternate stack from the frame at the stack pointer.
/// Without a valid frame the process gets SIGSEGV.
#[inline(never)]
pub fn sigreturn<E: Env>(env: &mut E) {
    let sp = env.registers().sp;
    let frame = if sp.is_multiple_of(16) {
        get::<SigFrame>(env, sp).ok()
    } else {
        None
    };
    let pstate = env.pstate_bits();
    let restored = frame.as_ref().and_then(|frame| restore(frame, pstate));
    let Some(restored) = restored else {
        env.with(|processes, place| {
            if let Ok(process) = processes.get_mut(place) {
                process.signals.force(SIGSEGV, Cause::KERNEL);
            }
            // Nothing else makes the process handle the signal before its next instruction.
            processes.unblocked(place);
        });
        return;
    };
    env.set_registers(&restored.registers);
    env.set_fp(&restored.fp);
    let sp = restored.registers.sp;
    env.with(|processes, place| {
        if let Ok(process) = processes.get_mut(place) {
            process.signals.set_mask(restored.mask);
            // As in `sigaltstack`, but an invalid stack is ignored silently.
            let _ = process.signals.set_stack(restored.stack, sp);
            processes.unblocked(place);
        }
    });
}

/// `sigaltstack`, which needs the stack pointer.
pub fn sigaltstack<E: Env>(env: &mut E, new: u64, old: u64) -> super::Result {
    let sp = env.registers().sp;
    let wanted = if new == 0 { None } else { Some(get(env, new)?) };
    let before = env.with(|processes, place| {
        let signals = &mut processes.get_mut(place)?.signals;
        let before = signals.stack(sp);
        if let Some(stack) = wanted {
            signals.set_stack(stack, sp)?;
        }
        Ok::<_, Errno>(before)
    })?;
    put_if(env, old, &before)?;
    Ok(0)
}

#[cfg(test)]
mod tests;
