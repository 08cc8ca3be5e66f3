//! Calls code that is not the kernel's, firmware's, so that an exception of it comes back as an error; and reads
//! memory that may not be there.
//!
//! A synchronous exception outside of the kernel's own code, that nothing else handles, ends the call: its stack
//! frames are dropped, and the registers that a call preserves get back the values before it. What the code had half
//! done stays so, hence it must not be called again. An SError comes at any time, also after the call, and ends the
//! kernel; so does what the code breaks in the kernel's memory.

#![allow(unsafe_code, reason = "calls of firmware that an exception ends")]

use crate::arch::image::{self, Permission};
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
    stp     x29, x30, [sp, #-112]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    mrs     x8, daif
    str     x8, [sp, #96]
    mov     x29, sp
    mov     x8, x0
    mov     x9, x1
    str     x29, [x2]
    ldp     x0, x1, [x9]
    ldp     x2, x3, [x9, #16]
    ldr     x4, [x9, #32]
    blr     x8
    mov     x1, xzr
    // The function may have let interrupts in.
1:  ldr     x8, [sp, #96]
    msr     daif, x8
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #112
    ret
    .global guarded_call_ended
guarded_call_ended:
    mov     x1, #1
    b       1b

    // x0 = an address. Returns what is there. It is called as firmware is: its first instruction may fault.
    .global guarded_read
guarded_read:
    ldr     x0, [x0]
    ret
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
    static guarded_read: u8;
    static exception_vectors: u8;
}

/// Whether an address is in the vectors' own code, before the frame is stored.
fn is_in_vectors(code: u64) -> bool {
    const BYTES: u64 = 16 * 128;
    code.wrapping_sub(&raw const exception_vectors as u64) < BYTES
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
        let elr = self.elr;
        if is_in_vectors(elr) {
            // The first exception's own registers are lost.
            write!(f, "{words}, by the stack pointer that it left")
        } else {
            write!(f, "{words}, at {elr:#x}")
        }
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
/// Interrupts must be masked. The function must be code for this CPU with the calling convention of C, and the
/// caller answers for what it does to memory. It may use any register of FP and SIMD.
pub(crate) unsafe fn call(function: u64, arguments: &[u64; 5]) -> Result<u64, Fault> {
    // SAFETY: the caller vouches for the function; the routine keeps the registers that a call preserves.
    ended(|sp| unsafe { guarded_call(function, arguments, sp) })
}

/// Reads the 8 bytes at an address where there may be nothing.
///
/// # Safety
///
/// Interrupts must be masked. What is there, if anything, must be memory that may be read, at a multiple of 8.
pub(crate) unsafe fn read(at: u64) -> Result<u64, Fault> {
    // SAFETY: the routine reads and returns; the caller vouches for the address.
    unsafe { call(&raw const guarded_read as u64, &[at, 0, 0, 0, 0]) }
}

/// Makes the call, which leaves its stack pointer where it is told, and says how it ended.
fn ended(call: impl FnOnce(*mut u64) -> Returned) -> Result<u64, Fault> {
    let guard = GUARD.this();
    let returned = call(guard.sp.as_ptr());
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

/// Whether an exception at this address is the kernel's own error. Two places of its code only do what firmware says:
/// the read above, and the vectors, which store through the stack pointer that firmware left.
fn is_kernels_own(elr: u64) -> bool {
    let offset = elr.wrapping_sub(image::start());
    let is_code = image::segments()
        .iter()
        .any(|one| one.permission == Permission::Text && one.range.contains(&offset));
    is_code && elr != &raw const guarded_read as u64 && !is_in_vectors(elr)
}

/// Whether an exception was in a guarded call, which it then returns to as the end of that call.
pub(super) fn recover(frame: &mut Frame) -> bool {
    if is_kernels_own(frame.elr) {
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

#[cfg(feature = "test-image")]
pub(crate) use test::ruin;

/// Code that behaves as broken firmware does.
#[cfg(feature = "test-image")]
mod test {
    use super::{Fault, Returned, ended};
    use core::arch::global_asm;

    // `ruin`: x0 = a stack pointer, or 0 for the one that is there; x1 = where to go on, or 0 to return. It lets
    // interrupts in, and unless it returns it overwrites every register that a call preserves.
    //
    // `guarded_call_marked`: as `guarded_call`, with values of its own in the registers that a call preserves. Returns
    // in x0 the bits that changed in any of them, and in DAIF.
    global_asm!(
        r#"
    .section .text.guarded_call_marked, "ax"
    .global ruin
ruin:
    msr     daifclr, #2
    cbz     x1, 2f
    cbz     x0, 1f
    mov     sp, x0
1:  .irp    number, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    mvn     x\number, x1
    .endr
    br      x1
2:  ret

    .global guarded_call_marked
guarded_call_marked:
    stp     x29, x30, [sp, #-112]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    mrs     x3, daif
    mov     x4, sp
    stp     x3, x4, [sp, #96]
    mov     x29, sp
    .irp    number, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28
    mov     x\number, #\number
    .endr
    bl      guarded_call
    ldp     x3, x4, [sp, #96]
    mrs     x5, daif
    eor     x0, x3, x5
    mov     x5, sp
    eor     x4, x4, x5
    orr     x0, x0, x4
    eor     x4, x29, x5
    orr     x0, x0, x4
    .irp    number, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28
    mov     x4, #\number
    eor     x4, x4, x\number
    orr     x0, x0, x4
    .endr
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #112
    ret
"#
    );

    unsafe extern "C" {
        fn guarded_call_marked(function: u64, arguments: *const [u64; 5], sp: *mut u64)
        -> Returned;
        #[link_name = "ruin"]
        static RUIN: u8;
    }

    /// Calls code that goes on at `target` with all registers changed, and with this stack pointer if it is not 0. If
    /// `target` is 0, it returns at once. Returns the bits that the call changed in registers that it must keep, and
    /// why it ended.
    ///
    /// # Safety
    ///
    /// Interrupts must be masked, and nothing may be executed at `target`.
    pub(crate) unsafe fn ruin(sp: u64, target: u64) -> (u64, Option<Fault>) {
        let arguments = [sp, target, 0, 0, 0];
        let mut changed = 0;
        let result = ended(|place| {
            // SAFETY: as in `call`: the code accesses no memory, and what it changes is what this is about.
            let returned =
                unsafe { guarded_call_marked(&raw const RUIN as u64, &arguments, place) };
            changed = returned.value;
            returned
        });
        (changed, result.err())
    }
}
