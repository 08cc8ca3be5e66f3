//! `granule.test=stacks`: how much of their kernel stacks tasks use. A stack is painted when it is made, and the paint
//! that is left at its end is measured. Nothing else lives here.

#![allow(unsafe_code, reason = "unused stacks are painted and read")]

use crate::dev::console::println;
use crate::sched::stack::BYTES;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule_kcore::parameters::Parameters;

/// A value that no stack frame is likely to have in many words.
const PAINT: u64 = 0x5041_494e_5450_4149;

/// Whether stacks are measured.
static ASKED: AtomicBool = AtomicBool::new(false);
/// The most bytes that a task has used of its stack.
static MOST_USED: AtomicU64 = AtomicU64::new(0);

/// Measures from here on if the command line requests it.
pub(super) fn open(parameters: &Parameters<'_>) {
    ASKED.store(parameters.test.asks_for(b"stacks"), Ordering::Relaxed);
}

/// Returns the words of a stack but the lowest, which detects overflows.
fn words(bottom: u64) -> impl Iterator<Item = *mut u64> {
    (bottom + 8..bottom + BYTES)
        .step_by(8)
        .map(|at| at as *mut u64)
}

/// Paints a stack.
///
/// # Safety
///
/// As for [`StackHook::made`](crate::sched::hook::StackHook::made).
pub(super) unsafe fn made(bottom: u64) {
    if !ASKED.load(Ordering::Relaxed) {
        return;
    }
    for word in words(bottom) {
        // SAFETY: the caller guarantees it.
        unsafe { word.write_volatile(PAINT) };
    }
}

/// Measures a stack.
///
/// # Safety
///
/// As for [`made`].
pub(super) unsafe fn unused(bottom: u64) {
    if !ASKED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the caller guarantees it.
    let unused = words(bottom).take_while(|word| unsafe { word.read_volatile() } == PAINT);
    let used = BYTES - 8 * (unused.count() as u64 + 1);
    MOST_USED.fetch_max(used, Ordering::Relaxed);
}

/// Prints the most that a task has used of its stack.
pub(super) fn report() {
    if ASKED.load(Ordering::Relaxed) {
        let used = MOST_USED.load(Ordering::Relaxed);
        println!("@granule user.kernel_stack_used={used}");
    }
}
