//! Calls code that is not the kernel's, firmware's, so that an exception of it comes back as an error.
//!
//! The called code runs in the lower half of the address space. A synchronous exception there, that nothing else
//! handles, ends the call: its stack frames are dropped, and the registers that a call preserves get back the
//! values before it. What the code had half done stays so, hence it must not be called again.

use crate::percpu::per_cpu;
use core::arch::global_asm;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::exception_frame::Frame;
use granule_kcore::syndrome;

// x0 = the function, x1 = its five arguments, x2 = where the stack pointer goes. Returns x0 of the function, and
// x1 = 0, or 1 if an exception ended the call: `recover` leads it to `guarded_call_ended`, with the stack
// pointer that was stored.
global_asm!(
    r#"
    .section .text.guarded_call, "ax"
    .global guarded_call
guarded_call:
    stp     x29, x30, [sp, #-96]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    mov     x29, sp
    mov     x8, x0
    mov     x9, x1
    str     x29, [x2]
    ldp     x0, x1, [x9]
    ldp     x2, x3, [x9, #16]
    ldr     x4, [x9, #32]
    blr     x8
    mov     x1, xzr
1:  ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #96
    ret
    .global guarded_call_ended
guarded_call_ended:
    mov     x1, #1
    b       1b
"#
);

/// The two registers that the assembly returns.
#[repr(C)]
struct Returned {
    value: u64,
    is_ended: u64,
}

unsafe extern "C" {
    fn guarded_call(function: u64, arguments: *const [u64; 5], sp: *mut u64) -> Returned;
    static guarded_call_ended: u8;
}

/// Why a call ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    esr: u64,
    far: u64,
    elr: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = syndrome::describe(self.esr, self.far);
        write!(f, "{words}, at {:#x}", self.elr)
    }
}

/// A CPU's guarded call: the stack pointer to go back to, 0 outside of a call, and what ended the last one.
#[derive(Debug)]
struct Guard {
    sp: AtomicU64,
    esr: AtomicU64,
    far: AtomicU64,
    elr: AtomicU64,
}

per_cpu! {
    static GUARD: Guard = Guard {
        sp: AtomicU64::new(0),
        esr: AtomicU64::new(0),
        far: AtomicU64::new(0),
        elr: AtomicU64::new(0),
    };
}

/// Calls `function` with these arguments and returns its result.
///
/// # Safety
///
/// Interrupts must be masked. The function must be code for this CPU in the lower half, with the calling
/// convention of C, and the caller answers for what it does to memory. It may use any register of FP and SIMD.
pub(crate) unsafe fn call(function: u64, arguments: &[u64; 5]) -> Result<u64, Fault> {
    let guard = GUARD.this();
    // SAFETY: the caller vouches for the function; the routine keeps the registers that a call preserves.
    let returned = unsafe { guarded_call(function, arguments, guard.sp.as_ptr()) };
    guard.sp.store(0, Ordering::Relaxed);
    if returned.is_ended == 0 {
        return Ok(returned.value);
    }
    Err(Fault {
        esr: guard.esr.load(Ordering::Relaxed),
        far: guard.far.load(Ordering::Relaxed),
        elr: guard.elr.load(Ordering::Relaxed),
    })
}

/// PSTATE that stays: the level and its stack pointer, PAN and UAO.
const KEPT: u64 = 0xf | 1 << 22 | 1 << 23;
/// All interrupts masked.
const MASKED: u64 = 0xf << 6;

/// Whether an exception was in a guarded call, which it then returns to as the end of that call.
pub(super) fn recover(frame: &mut Frame) -> bool {
    // The upper half has the kernel's own code, whose errors are no one else's.
    if frame.elr >> 63 != 0 {
        return false;
    }
    let guard = GUARD.this();
    let sp = guard.sp.swap(0, Ordering::Relaxed);
    if sp == 0 {
        return false;
    }
    guard.esr.store(frame.esr, Ordering::Relaxed);
    guard.far.store(frame.far, Ordering::Relaxed);
    guard.elr.store(frame.elr, Ordering::Relaxed);
    frame.elr = &raw const guarded_call_ended as u64;
    frame.sp = sp;
    frame.spsr = frame.spsr & KEPT | MASKED;
    true
}
