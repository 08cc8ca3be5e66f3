//! Signals: numbers, actions, and the stack frame of a handler.
//!
//! The stack frame is part of the interface: handlers read and change the saved registers in it, and
//! `rt_sigreturn` restores the registers from there.

use super::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const SIGHUP: u8 = 1;
pub const SIGINT: u8 = 2;
pub const SIGQUIT: u8 = 3;
pub const SIGILL: u8 = 4;
pub const SIGTRAP: u8 = 5;
pub const SIGABRT: u8 = 6;
pub const SIGBUS: u8 = 7;
pub const SIGFPE: u8 = 8;
pub const SIGKILL: u8 = 9;
pub const SIGUSR1: u8 = 10;
pub const SIGSEGV: u8 = 11;
pub const SIGUSR2: u8 = 12;
pub const SIGPIPE: u8 = 13;
pub const SIGALRM: u8 = 14;
pub const SIGTERM: u8 = 15;
pub const SIGCHLD: u8 = 17;
pub const SIGCONT: u8 = 18;
pub const SIGSTOP: u8 = 19;
pub const SIGTSTP: u8 = 20;
pub const SIGTTIN: u8 = 21;
pub const SIGTTOU: u8 = 22;
pub const SIGURG: u8 = 23;
pub const SIGXCPU: u8 = 24;
pub const SIGXFSZ: u8 = 25;
pub const SIGWINCH: u8 = 28;
pub const SIGSYS: u8 = 31;
/// The highest signal number; the lowest is 1.
pub const SIGNALS: u8 = 64;
/// Bytes of a signal set. Callers must pass this size.
pub const SET_BYTES: u64 = 8;

/// The name of a standard signal, for messages.
pub const fn name(signal: u8) -> &'static str {
    match signal {
        SIGHUP => "SIGHUP",
        SIGINT => "SIGINT",
        SIGQUIT => "SIGQUIT",
        SIGILL => "SIGILL",
        SIGTRAP => "SIGTRAP",
        SIGABRT => "SIGABRT",
        SIGBUS => "SIGBUS",
        SIGFPE => "SIGFPE",
        SIGKILL => "SIGKILL",
        SIGUSR1 => "SIGUSR1",
        SIGSEGV => "SIGSEGV",
        SIGUSR2 => "SIGUSR2",
        SIGPIPE => "SIGPIPE",
        SIGALRM => "SIGALRM",
        SIGTERM => "SIGTERM",
        SIGCHLD => "SIGCHLD",
        SIGSYS => "SIGSYS",
        _ => "a signal",
    }
}

/// The default action, in place of a handler.
pub const SIG_DFL: u64 = 0;
/// Ignore the signal, in place of a handler.
pub const SIG_IGN: u64 = 1;

/// Ended children do not become zombies.
pub const SA_NOCLDWAIT: u64 = 2;
/// The action has a `restorer`.
pub const SA_RESTORER: u64 = 0x0400_0000;
/// The handler runs on the alternate stack.
pub const SA_ONSTACK: u64 = 0x0800_0000;
/// An interrupted call is restarted.
pub const SA_RESTART: u64 = 0x1000_0000;
/// The signal is not blocked in its own handler.
pub const SA_NODEFER: u64 = 0x4000_0000;
/// The action is reset to the default before the handler runs.
pub const SA_RESETHAND: u64 = 0x8000_0000;

pub const SIG_BLOCK: u32 = 0;
pub const SIG_UNBLOCK: u32 = 1;
pub const SIG_SETMASK: u32 = 2;

/// `siginfo` codes: sent by `kill`, by the kernel, by `tkill`.
pub const SI_USER: i32 = 0;
pub const SI_KERNEL: i32 = 0x80;
pub const SI_TKILL: i32 = -6;
/// SIGCHLD: the child exited, was killed, was killed with a core dump.
pub const CLD_EXITED: i32 = 1;
pub const CLD_KILLED: i32 = 2;
pub const CLD_DUMPED: i32 = 3;
/// SIGSEGV: nothing is mapped there; the mapping does not permit the access.
pub const SEGV_MAPERR: i32 = 1;
pub const SEGV_ACCERR: i32 = 2;
/// SIGBUS: a misaligned address; no such physical address.
pub const BUS_ADRALN: i32 = 1;
pub const BUS_ADRERR: i32 = 2;
/// SIGILL: an illegal instruction.
pub const ILL_ILLOPC: i32 = 1;
/// SIGTRAP: a breakpoint.
pub const TRAP_BRKPT: i32 = 1;

/// The argument and the result of `rt_sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct SigAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}
layout!(SigAction, 32, restorer at 16, mask at 24);

impl SigAction {
    /// [`SIG_DFL`].
    pub const DEFAULT: Self = Self {
        handler: SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
}

/// `siginfo`: 128 bytes, of which a signal uses at most 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct SigInfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pub pad: i32,
    /// The number and user of the sender or child; or the address of a fault.
    pub fields: [u32; 2],
    /// SIGCHLD: the exit status or the signal.
    pub status: i32,
    pub pad2: i32,
    pub rest: [u64; 12],
}
layout!(SigInfo, 128, code at 8, fields at 16, status at 24);

/// `SS_DISABLE`: no alternate stack.
pub const SS_DISABLE: i32 = 2;
/// `SS_ONSTACK`: the alternate stack is in use.
pub const SS_ONSTACK: i32 = 1;
/// The smallest alternate stack.
pub const MINSIGSTKSZ: u64 = 5120;

/// `stack_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct SigStack {
    pub base: u64,
    pub flags: i32,
    pub pad: i32,
    pub size: u64,
}
layout!(SigStack, 24, size at 16);

/// The magic number of the floating-point record.
pub const FPSIMD_MAGIC: u32 = 0x4650_8001;
/// Bytes of the floating-point record.
pub const FPSIMD_BYTES: u32 = 528;

/// The record of floating point and SIMD registers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FpsimdRecord {
    pub magic: u32,
    pub bytes: u32,
    pub fpsr: u32,
    pub fpcr: u32,
    /// 32 registers of 128 bits, the lower half first.
    pub v: [[u64; 2]; 32],
}
layout!(FpsimdRecord, 528, fpsr at 8, v at 16);

/// `struct sigcontext`, up to its tail of records.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct SigContext {
    pub fault_address: u64,
    pub x: [u64; 31],
    pub sp: u64,
    pub pc: u64,
    pub pstate: u64,
    /// Aligns the tail to 16 bytes.
    pub pad: u64,
}
layout!(SigContext, 288, x at 8, sp at 256, pc at 264, pstate at 272);

/// Bytes of the tail: records in sequence, ended by a record of zeros.
pub const TAIL_BYTES: usize = 4096;

/// The frame at a handler's stack pointer: `siginfo`, then `ucontext`. The unused rest of the tail is
/// not included: readers stop at the record of zeros, so these bytes need not be written.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct SigFrame {
    pub info: SigInfo,
    pub flags: u64,
    pub link: u64,
    pub stack: SigStack,
    pub mask: u64,
    /// Room for 1024 signals, and padding to the alignment of the context.
    pub unused: [u64; 16],
    pub context: SigContext,
    pub fpsimd: FpsimdRecord,
    pub end: [u64; 2],
}
layout!(SigFrame, 1136, flags at 128, stack at 144, mask at 168, context at 304, fpsimd at 592);

/// Bytes of the whole frame on the stack.
pub const FRAME_BYTES: u64 = 128 + 4560;
const _: () = assert!(
    core::mem::offset_of!(SigFrame, fpsimd) + TAIL_BYTES == FRAME_BYTES as usize,
    "ucontext is 4560 bytes"
);
