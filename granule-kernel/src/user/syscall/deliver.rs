//! Signals on the way back to the program: handlers begin, calls that were interrupted fail or are
//! made again, and what ends the process does so.

use super::env::{Env, get};
use super::{Fail, Restart};
use crate::user::abi::Errno;
use crate::user::abi::signal::{SA_RESTART, SI_KERNEL, SIGSEGV, SigFrame};
use crate::user::signals::frame::{FpRegisters, Registers, prepare, restore};
use crate::user::signals::{Cause, Next};
use zerocopy::IntoBytes;

/// The registers of the process, beside what every call needs.
pub(crate) trait Machine: Env {
    /// General registers.
    fn registers(&self) -> Registers;
    /// Sets them.
    fn set_registers(&mut self, registers: &Registers);
    /// Floating point and SIMD registers.
    fn fp(&self) -> FpRegisters;
    /// Sets them.
    fn set_fp(&mut self, registers: &FpRegisters);
    /// Code in the program's memory that calls `rt_sigreturn`; for programs that bring none.
    fn trampoline(&self) -> u64;
}

/// What becomes of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It goes on.
    GoesOn,
    /// It ends by this signal.
    Ends { signal: u8, dump: bool },
}

/// A call that a signal interrupted: how it may be made again, and what it had in x0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    pub(crate) restart: Restart,
    pub(crate) x0: u64,
}

/// Bytes of the instruction that makes a call.
pub(super) const SVC_BYTES: u64 = 4;

/// What a call's result means for x0: it is the value, unless a signal is to decide.
pub(crate) const fn finish(x0: &mut u64, result: super::Result) -> Option<Interrupted> {
    let before = *x0;
    *x0 = match result {
        Ok(value) => value,
        Err(Fail::Error(error)) => error.as_result(),
        Err(Fail::Interrupted(restart)) => {
            *x0 = Errno::EINTR.as_result();
            return Some(Interrupted {
                restart,
                x0: before,
            });
        }
    };
    None
}

/// Deals with the signals that are let in, until there are none. Each handler's frame goes on top of
/// the one before, so that the last one that came to its turn runs first: none waits for another to
/// return unless that one's mask keeps it out.
pub(crate) fn deliver<M: Machine>(machine: &mut M, mut interrupted: Option<Interrupted>) -> After {
    loop {
        let next = machine.with(|world, place| world.own_mut(place).ok()?.signals.next());
        match next {
            None => {
                // A mask that was in place for the call may have kept something out.
                let more = machine.with(|world, place| {
                    let own = world.own_mut(place);
                    own.is_ok_and(|own| {
                        own.signals.end_call();
                        own.signals.has_work()
                    })
                });
                if more {
                    continue;
                }
                if let Some(call) = interrupted {
                    again(machine, call);
                }
                return After::GoesOn;
            }
            Some(Next::Terminate { signal, dump }) => return After::Ends { signal, dump },
            Some(handle @ Next::Handle { .. }) => {
                if begin(machine, handle, interrupted) {
                    // What the call is to become is in this handler's frame.
                    interrupted = None;
                    continue;
                }
                // No stack for the handler: there is no going on but by a handler with another.
                machine.with(|world, place| {
                    if let Ok(own) = world.own_mut(place) {
                        let cause = Cause {
                            code: SI_KERNEL,
                            ..Cause::default()
                        };
                        if let Next::Handle {
                            signal: SIGSEGV, ..
                        } = handle
                        {
                            own.signals.forbid(SIGSEGV);
                        }
                        own.signals.force(SIGSEGV, cause);
                    }
                });
            }
        }
    }
}

/// The call is made again, as if it had never been.
fn again<M: Machine>(machine: &mut M, call: Interrupted) {
    let mut registers = machine.registers();
    let [x0, ..] = &mut registers.x;
    *x0 = call.x0;
    registers.pc = registers.pc.wrapping_sub(SVC_BYTES);
    machine.set_registers(&registers);
}

/// A handler begins; false if its frame cannot be written.
#[inline(never)]
fn begin<M: Machine>(machine: &mut M, next: Next, interrupted: Option<Interrupted>) -> bool {
    let Next::Handle {
        signal,
        cause,
        action,
        mask,
    } = next
    else {
        return true;
    };
    let mut registers = machine.registers();
    if let Some(call) = interrupted
        && call.restart == Restart::IfAsked
        && action.flags & SA_RESTART != 0
    {
        let [x0, ..] = &mut registers.x;
        *x0 = call.x0;
        registers.pc = registers.pc.wrapping_sub(SVC_BYTES);
    }
    let sp = registers.sp;
    let stacks = machine.with(|world, place| {
        let own = world.own_mut(place).ok()?;
        own.restart_at = None;
        let stack = own.signals.handler_stack(action.flags, sp);
        Some((own.signals.stack(sp), stack))
    });
    let Some((other_stack, stack)) = stacks else {
        return false;
    };
    let fp = machine.fp();
    let trampoline = machine.trampoline();
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
    let record = machine.write(prepared.record_at, prepared.record.as_bytes());
    let frame = machine.write(prepared.at, prepared.frame.as_bytes());
    if record.is_err() || frame.is_err() {
        return false;
    }
    machine.set_registers(&prepared.registers);
    true
}

/// `rt_sigreturn`: the registers, the mask and the stack are what the frame at the stack pointer
/// says. Without one the process has lost its way.
#[inline(never)]
pub(crate) fn sigreturn<M: Machine>(machine: &mut M) {
    let sp = machine.registers().sp;
    let frame = if sp.is_multiple_of(16) {
        get::<SigFrame>(machine, sp).ok()
    } else {
        None
    };
    let Some(restored) = frame.as_ref().and_then(restore) else {
        machine.with(|world, place| {
            if let Ok(own) = world.own_mut(place) {
                own.signals.force(SIGSEGV, Cause::KERNEL);
            }
            // Before its next instruction: nobody else says that there is something to be done.
            world.unblocked(place);
        });
        return;
    };
    machine.set_registers(&restored.registers);
    machine.set_fp(&restored.fp);
    let sp = restored.registers.sp;
    machine.with(|world, place| {
        if let Ok(own) = world.own_mut(place) {
            own.signals.set_mask(restored.mask);
            // As in `sigaltstack`, but nobody is told of a stack that makes no sense.
            let _ = own.signals.set_stack(restored.stack, sp);
            world.unblocked(place);
        }
    });
}

/// `sigaltstack`, which needs the stack pointer.
pub(crate) fn sigaltstack<M: Machine>(machine: &mut M, new: u64, old: u64) -> super::Result {
    use super::env::put_if;
    let sp = machine.registers().sp;
    let wanted = if new == 0 {
        None
    } else {
        Some(get(machine, new)?)
    };
    let before = machine.with(|world, place| {
        let signals = &mut world.own_mut(place)?.signals;
        let before = signals.stack(sp);
        if let Some(stack) = wanted {
            signals.set_stack(stack, sp)?;
        }
        Ok::<_, Errno>(before)
    })?;
    put_if(machine, old, &before)?;
    Ok(0)
}

#[cfg(test)]
mod tests;
