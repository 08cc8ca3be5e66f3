//! Runs code on a stack in the linear map.

use core::arch::global_asm;
use core::sync::atomic::AtomicU64;

// call_on_stack(top, function, argument): calls the function on the stack that ends at `top`.
//
// touch_stack_later(top, ready, go): pushes a value on that stack, sets the flag at `ready`, waits for the
// flag at `go` without touching the stack, pushes and pops; returns 0 if the first value came back.
global_asm!(
    r#"
    .section .text.conflict_test, "ax"
    .global call_on_stack
call_on_stack:
    stp     x29, x30, [sp, #-32]!
    str     x19, [sp, #16]
    mov     x29, sp
    mov     x19, sp
    mov     sp, x0
    mov     x0, x2
    blr     x1
    mov     sp, x19
    ldr     x19, [sp, #16]
    ldp     x29, x30, [sp], #32
    ret

    .global touch_stack_later
touch_stack_later:
    stp     x29, x30, [sp, #-16]!
    mov     x29, sp
    mov     sp, x0
    stp     x29, x30, [sp, #-16]!
    mov     x3, #1
    stlr    x3, [x1]
1:  yield                           // see `cpu::relax`
    ldar    x3, [x2]
    cbz     x3, 1b
    stp     x3, x3, [sp, #-16]!
    add     sp, sp, #16
    ldp     x4, x5, [sp], #16
    sub     x0, x4, x29
    sub     x5, x5, x30
    orr     x0, x0, x5
    mov     sp, x29
    ldp     x29, x30, [sp], #16
    ret
"#
);

unsafe extern "C" {
    fn call_on_stack(top: u64, function: extern "C" fn(*mut ()), argument: *mut ());
    fn touch_stack_later(top: u64, ready: *mut u64, go: *mut u64) -> u64;
}

/// Runs `work` on the stack that ends at `top`.
pub(super) fn on_stack(top: u64, work: &mut dyn FnMut()) {
    extern "C" fn call(work: *mut ()) {
        // SAFETY: the pointer that `on_stack` passed. `on_stack` waits below, on its own stack.
        let work = unsafe { &mut *work.cast::<&mut dyn FnMut()>() };
        work();
    }
    let mut work = work;
    // SAFETY: the stack is in the test memory, 16-byte aligned, and used by nothing else.
    unsafe { call_on_stack(top, call, (&raw mut work).cast()) };
}

/// Waits for `go` on the stack that ends at `top`, without touching it once `ready` is set. Returns whether
/// the earlier value came back.
pub(super) fn wait_on_stack(top: u64, ready: &AtomicU64, go: &AtomicU64) -> bool {
    // SAFETY: the stack is in the test memory, 16-byte aligned, and used by nothing else.
    unsafe { touch_stack_later(top, ready.as_ptr(), go.as_ptr()) == 0 }
}
