//! Builds the stack frame of a signal handler, and takes the registers back out of it.
//!
//! This file handles bytes and registers only. The caller copies the frame to and from the program's
//! stack, and treats the bytes read back as untrusted.

use super::Cause;
use super::set::SignalSet;
use crate::abi::signal::{
    FPSIMD_BYTES, FPSIMD_MAGIC, FRAME_BYTES, SA_RESTORER, SigAction, SigFrame, SigStack,
};
use zerocopy::FromZeros;

/// N, Z, C and V.
const CONDITIONS: u64 = 0xf << 28;
const TCO: u64 = 1 << 25;
const DIT: u64 = 1 << 24;
const SSBS: u64 = 1 << 12;
const BTYPE: u64 = 0b11 << 10;

/// The bits of PSTATE that a handler inherits. It is entered with tag checks, and not by a branch.
const PSTATE_OF_HANDLERS: u64 = CONDITIONS | DIT | SSBS;

/// Returns the bits of PSTATE that a program may set on a CPU with these ID_AA64PFR0_EL1 and ID_AA64PFR1_EL1. Other
/// bits would choose its exception level, or are reserved.
#[must_use]
pub const fn pstate_of_users(pfr0: u64, pfr1: u64) -> u64 {
    let dit = pfr0 >> 48 & 0xf >= 1;
    let (bti, ssbs, mte) = (pfr1 & 0xf, pfr1 >> 4 & 0xf, pfr1 >> 8 & 0xf);
    CONDITIONS
        | if dit { DIT } else { 0 }
        | if ssbs >= 1 { SSBS } else { 0 }
        | if bti >= 1 { BTYPE } else { 0 }
        // Without FEAT_MTE2 there are no tag checks that could be overridden.
        | if mte >= 2 { TCO } else { 0 }
}

/// The registers of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// The program counter.
    pub pc: u64,
    /// PSTATE, as in SPSR.
    pub pstate: u64,
}

/// The floating-point and SIMD registers of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct FpRegisters {
    /// V0 to V31, the lower half first.
    pub v: [[u64; 2]; 32],
    /// FPSR.
    pub fpsr: u32,
    /// FPCR.
    pub fpcr: u32,
}

/// The stack content and registers for the start of a handler.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The address of [`frame`](Self::frame): the handler's stack pointer.
    pub at: u64,
    /// The frame.
    pub frame: SigFrame,
    /// The address of the frame record that links a backtrace from the handler to the interrupted code.
    pub record_at: u64,
    /// The frame record.
    pub record: [u64; 2],
    /// The initial registers of the handler.
    pub registers: Registers,
}

/// Prepares a handler's frame below `stack`. `trampoline` is code that calls `rt_sigreturn`, for actions
/// without a restorer. `None` if there is no room below `stack`.
pub fn prepare(
    interrupted: &Registers,
    fp: &FpRegisters,
    (signal, cause): (u8, Cause),
    action: &SigAction,
    (mask, other_stack): (SignalSet, SigStack),
    stack: u64,
    trampoline: u64,
) -> Option<Prepared> {
    // The ABI requires a stack pointer that is a multiple of 16.
    let record_at = (stack & !15).checked_sub(16)?;
    let at = record_at.checked_sub(FRAME_BYTES)? & !15;
    let mut frame = SigFrame::new_zeroed();
    frame.info = cause.info(signal);
    frame.stack = other_stack;
    frame.mask = mask.0;
    frame.context.fault_address = match frame.info.code {
        // A positive code other than SI_KERNEL belongs to a fault and comes with an address.
        1..0x80 if signal != crate::abi::signal::SIGCHLD => cause.value,
        _ => 0,
    };
    frame.context.x = interrupted.x;
    frame.context.sp = interrupted.sp;
    frame.context.pc = interrupted.pc;
    frame.context.pstate = interrupted.pstate;
    frame.fpsimd.magic = FPSIMD_MAGIC;
    frame.fpsimd.bytes = FPSIMD_BYTES;
    frame.fpsimd.fpsr = fp.fpsr;
    frame.fpsimd.fpcr = fp.fpcr;
    frame.fpsimd.v = fp.v;

    let [.., fp_register, link] = interrupted.x;
    let mut registers = Registers {
        sp: at,
        pc: action.handler,
        pstate: interrupted.pstate & PSTATE_OF_HANDLERS,
        ..*interrupted
    };
    let return_to = if action.flags & SA_RESTORER != 0 {
        action.restorer
    } else {
        trampoline
    };
    let [x0, x1, x2, .., x29, x30] = &mut registers.x;
    *x0 = u64::from(signal);
    *x1 = at;
    // `ucontext` follows `siginfo`.
    *x2 = at + size_of_val(&frame.info) as u64;
    *x29 = record_at;
    *x30 = return_to;
    Some(Prepared {
        at,
        frame,
        record_at,
        record: [fp_register, link],
        registers,
    })
}

/// The state that `rt_sigreturn` restores from a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The general registers.
    pub registers: Registers,
    /// The floating-point and SIMD registers.
    pub fp: FpRegisters,
    /// The signal mask.
    pub mask: SignalSet,
    /// The alternate stack.
    pub stack: SigStack,
}

/// Reads a frame of any bytes, with the bits of [`pstate_of_users`]. `None` without the floating-point record of
/// [`prepare`].
pub fn restore(frame: &SigFrame, pstate_of_users: u64) -> Option<Restored> {
    if (frame.fpsimd.magic, frame.fpsimd.bytes) != (FPSIMD_MAGIC, FPSIMD_BYTES) {
        return None;
    }
    Some(Restored {
        registers: Registers {
            x: frame.context.x,
            sp: frame.context.sp,
            pc: frame.context.pc,
            pstate: frame.context.pstate & pstate_of_users,
        },
        fp: FpRegisters {
            v: frame.fpsimd.v,
            fpsr: frame.fpsimd.fpsr,
            fpcr: frame.fpsimd.fpcr,
        },
        mask: SignalSet(frame.mask),
        stack: frame.stack,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::signal::{SEGV_MAPERR, SIGSEGV, SIGUSR1};
    use zerocopy::{FromBytes, IntoBytes};

    fn registers() -> Registers {
        let mut x = [0; 31];
        for (number, value) in x.iter_mut().enumerate() {
            *value = 0x1000 + number as u64;
        }
        Registers {
            x,
            sp: 0x7fff_1234,
            pc: 0x40_0000,
            pstate: 0x6000_0000,
        }
    }

    fn fp() -> FpRegisters {
        let mut v = [[0; 2]; 32];
        for (number, value) in v.iter_mut().enumerate() {
            *value = [number as u64, !(number as u64)];
        }
        FpRegisters {
            v,
            fpsr: 0x10,
            fpcr: 0x20,
        }
    }

    fn prepared(flags: u64, signal: u8, cause: Cause) -> Prepared {
        prepared_from(&registers(), flags, signal, cause)
    }

    fn prepared_from(from: &Registers, flags: u64, signal: u8, cause: Cause) -> Prepared {
        let action = SigAction {
            handler: 0x41_0000,
            flags,
            restorer: 0x42_0000,
            mask: 0,
        };
        let mask = (SignalSet(0x55), SigStack::default());
        let signal = (signal, cause);
        prepare(from, &fp(), signal, &action, mask, 0x7fff_1234, 0x99).unwrap()
    }

    #[test]
    fn a_handler_finds_what_the_interface_says() {
        let cause = Cause {
            code: SEGV_MAPERR,
            status: 0,
            value: 0xdead_beef_0000,
        };
        let made = prepared(0, SIGSEGV, cause);
        assert_eq!(made.at % 16, 0);
        assert_eq!(made.record_at, 0x7fff_1220);
        assert_eq!(made.at, 0x7fff_1220 - 4688);
        assert_eq!(made.registers.x[..3], [11, made.at, made.at + 128]);
        assert_eq!(made.registers.x[29..], [made.record_at, 0x99]);
        assert_eq!((made.registers.sp, made.registers.pc), (made.at, 0x41_0000));
        assert_eq!(made.record, [0x1000 + 29, 0x1000 + 30]);
        // Checks the offsets that C programs use.
        let bytes = made.frame.as_bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(word(0), 11);
        assert_eq!((word(8), word(16)), (1, 0xdead_beef_0000));
        assert_eq!(word(128 + 40), 0x55, "uc_sigmask");
        assert_eq!(word(128 + 176), 0xdead_beef_0000, "fault_address");
        assert_eq!(word(128 + 184 + 8 * 5), 0x1005, "regs[5]");
        assert_eq!(word(128 + 432), 0x7fff_1234, "sp");
        assert_eq!(word(128 + 440), 0x40_0000, "pc");
        assert_eq!(word(128 + 464), 0x210_4650_8001, "floating point");
        assert_eq!(word(128 + 464 + 16 + 16 * 31), 31, "v31");
        assert_eq!((word(1120), word(1128)), (0, 0), "the last record");
        assert_eq!(bytes.len(), 1136);
    }

    #[test]
    fn a_restorer_is_taken_if_the_action_has_one() {
        let made = prepared(SA_RESTORER, SIGUSR1, Cause::process(0, 7));
        assert_eq!(made.registers.x[30], 0x42_0000);
        assert_eq!(made.frame.context.fault_address, 0);
        assert_eq!(made.frame.info.fields, [7, 0]);
    }

    #[test]
    fn a_signal_frame_restores_all_that_a_program_may_choose() {
        let made = prepared(0, SIGUSR1, Cause::process(0, 7));
        let copy = SigFrame::read_from_bytes(made.frame.as_bytes()).unwrap();
        let back = restore(&copy, CONDITIONS).unwrap();
        assert_eq!((back.registers, back.fp), (registers(), fp()));
        assert_eq!(back.mask, SignalSet(0x55));
        let mut hostile = copy;
        hostile.fpsimd.magic = 0;
        assert_eq!(restore(&hostile, u64::MAX), None);
    }

    /// The bits of SPSR by the Arm ARM, and the fields of the two ID registers that grant them.
    #[test]
    fn legal_bits_of_pstate_survive_a_signal_and_no_others_come_in() {
        let (dit, bti, ssbs, mte2) = (1 << 48, 1, 1 << 4, 2 << 8);
        for (pfr0, pfr1, legal, of_handlers) in [
            (0, 0, 0xf << 28, 0xf << 28),
            (dit, 0, 0xf1 << 24, 0xf1 << 24),
            (0, ssbs, 0xf << 28 | 1 << 12, 0xf << 28 | 1 << 12),
            (0, bti, 0xf << 28 | 3 << 10, 0xf << 28),
            (0, mte2 >> 1, 0xf << 28, 0xf << 28),
            (0, mte2, 0xf2 << 24, 0xf << 28),
            (
                dit | 0xf_0fff,
                bti | (2 * ssbs) | mte2,
                0xf3 << 24 | 7 << 10,
                0xf1 << 24 | 1 << 12,
            ),
        ] {
            let users = pstate_of_users(pfr0, pfr1);
            for bit in 0..64 {
                let mut interrupted = registers();
                interrupted.pstate = 1 << bit;
                let made = prepared_from(&interrupted, 0, SIGUSR1, Cause::process(0, 7));
                let entered = made.registers.pstate;
                assert_eq!(
                    entered & legal,
                    1 << bit & of_handlers,
                    "bit {bit} at the handler's entry"
                );
                assert_eq!(
                    entered & !(0xf1 << 24 | 1 << 12),
                    0,
                    "bit {bit} at the handler's entry"
                );
                let goes_on = restore(&made.frame, users).unwrap().registers.pstate;
                assert_eq!(goes_on, 1 << bit & legal, "bit {bit} after rt_sigreturn");
            }
        }
    }

    #[test]
    fn a_stack_without_room_is_none() {
        let action = SigAction::default();
        let with = |stack| {
            let mask = (SignalSet::EMPTY, SigStack::default());
            let signal = (1, Cause::KERNEL);
            prepare(&registers(), &fp(), signal, &action, mask, stack, 0).is_some()
        };
        assert!(!with(0));
        assert!(!with(4703));
        assert!(with(4704));
        assert!(with(u64::MAX));
    }
}
