//! Deliberate failures, for tests of how failures are reported.
//!
//! On the kernel's command line: `granule.test=panic` panics, `granule.test=exception` reads an unmapped
//! address, `granule.test=write-text` writes to the kernel's code, `granule.test=overflow` uses up the stack,
//! and `granule.test=overflow-task` that of the first task, before it is at EL0; `overflow-task-briefly` uses its last
//! word alone, and `overflow-task-slowly` what is mapped below one until an interrupt comes. Each must end in outcome
//! `panic`.
//!
//! `granule.test=corrupt-WHAT` changes one leaf of the finished linear map, mostly the first of its largest ones,
//! and must end in outcome `self-check-failed`:
//!
//! | WHAT | the leaf | found by |
//! |---|---|---|
//! | `output` | points one leaf further | the walk |
//! | `permission` | is executable and writable | the walk |
//! | `read-only` | is read-only | the walk |
//! | `missing` | is invalid | the walk, by its bytes |
//! | `hint` | has the other contiguous bit | the walk, by its count of leaves |
//! | `sampled` | points one leaf further; the last that is neither at an edge nor left out by a sample | the walk |
//! | `translation` | points one leaf further, after the walk | the CPU's translations |
//! | `pattern` | points one leaf further, after those too | the patterns |
//!
//! `granule.test=needs-4k` and its like are test drivers, in `drivers`. Two words are not failures:
//! `granule.test=count` and `granule.test=count-alone` count a loop that is too long for a 32-bit counter and
//! its overflow flag, with and without the virtual counter's help, and print the result.

#![allow(unsafe_code, reason = "deliberate faults")]

use crate::arch::counter::InstructionCounter;
use crate::arch::cpu;
use crate::dev::console::println;
use crate::mm::selfcheck::Stage;
use crate::mm::walker::{self, Tree};
use crate::sched::stack::BYTES;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering};
use granule::arch::{Descriptor, Kind};
use granule::linear::Placement;
use granule::table::{Entry, Visit};
use granule_kcore::parameters::{Parameters, SelfCheck};

/// Causes the failure that the command line requests, if any.
pub(crate) fn run(parameters: &Parameters<'_>) {
    for test in parameters.test.tests() {
        match test {
            b"panic" => panic!("granule.test=panic asked for this"),
            b"exception" => {
                // Below the upper VA range and outside the identity map.
                // SAFETY: none; the read is meant to fault.
                unsafe { core::ptr::read_volatile(0xdead_0000 as *const u32) };
            }
            b"write-text" => {
                // SAFETY: none; the image's text is mapped read-only, and the write is meant to fault.
                unsafe { core::ptr::write_volatile(crate::arch::image::start() as *mut u32, 0) };
            }
            b"overflow" => {
                overflow(1);
            }
            b"overflow-task" => TASK_OVERFLOWS.store(ALL, Ordering::Relaxed),
            b"overflow-task-briefly" => TASK_OVERFLOWS.store(LAST_WORD, Ordering::Relaxed),
            b"overflow-task-slowly" => TASK_OVERFLOWS.store(SLOWLY, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// The way in which a task must use up its kernel stack.
static TASK_OVERFLOWS: AtomicU32 = AtomicU32::new(0);
/// Without end.
const ALL: u32 = 1;
/// Up to its last word, and back.
const LAST_WORD: u32 = 2;
/// Into the stack or page below in the same frame, where there is one, until an interrupt comes.
const SLOWLY: u32 = 3;

/// Called on the stack of a new task.
pub(crate) fn task_begins() {
    let mut local = 0_u64;
    let here = core::hint::black_box(&raw mut local) as u64;
    match TASK_OVERFLOWS.load(Ordering::Relaxed) {
        ALL => {
            overflow(1);
        }
        LAST_WORD => {
            // SAFETY: the lowest word of this task's own stack, which is mapped and aligned to its size; that the
            // kernel sees the damage is the test.
            unsafe { ((here & !(BYTES - 1)) as *mut u64).write_volatile(0) };
        }
        SLOWLY if here & (3 * BYTES) != 0 => {
            cpu::unmask_interrupts();
            overflow_to((here & !(BYTES - 1)) - 1024);
        }
        _ => {}
    }
}

/// Recurses until the stack pointer is below `end`, and stays there.
#[inline(never)]
fn overflow_to(end: u64) -> u64 {
    let mut frame = [end; 32];
    let here = &raw mut frame[(end % 32) as usize];
    // SAFETY: an element of a local array.
    unsafe { here.write_volatile(end) };
    if (here as u64) < end {
        loop {
            core::hint::spin_loop();
        }
    }
    overflow_to(end) + core::hint::black_box(&frame)[0]
}

/// The loop of `granule.test=count`: one kilobyte of code, repeated until it exceeds 2^33 instructions.
const LOOP: u64 = 256;
const ROUNDS: u64 = ((1 << 33) + (1 << 20)) / LOOP;

/// Counts a long loop, if the command line requests it.
pub(crate) fn count(parameters: &Parameters<'_>, counter: &InstructionCounter) {
    let counter = match parameters.test.tests().last() {
        Some(b"count") => *counter,
        Some(b"count-alone") => counter.alone(),
        _ => return,
    };
    let ((), counted) = counter.measure(|| {
        // SAFETY: the loop only counts a register down.
        unsafe {
            core::arch::asm!(
                "1:",
                ".rept {nops}",
                "nop",
                ".endr",
                "subs {n}, {n}, #1",
                "b.ne 1b",
                nops = const LOOP - 2,
                n = inout(reg) ROUNDS => _,
                options(nomem, nostack)
            );
        }
    });
    let instructions = LOOP * ROUNDS;
    match counted {
        Ok(counted) => println!("granule: a loop of {instructions}: counted {counted}"),
        Err(lost) => println!("granule: a loop of {instructions}: not counted: {lost}"),
    }
}

/// The bits of a stage 1 descriptor that this file changes.
const READ_ONLY: u64 = 1 << 7;
const CONTIGUOUS: u64 = 1 << 52;
const NEVER_EXECUTE: u64 = 0b11 << 53;

/// Corrupts the linear map before `stage` of the self-check, if the command line requests that stage.
pub(crate) fn corrupt(
    parameters: &Parameters<'_>,
    stage: Stage,
    tables: &mut Tree<'_>,
    placement: &Placement,
) {
    let what = parameters.test.after(b"corrupt-");
    let Some(what) = what else { return };
    let when = match what {
        b"translation" => Stage::Translations,
        b"pattern" => Stage::Patterns,
        _ => Stage::Walk,
    };
    if when != stage {
        return;
    }
    let mut largest: Option<Entry> = None;
    let ControlFlow::Continue(()) = tables.visit_all(|entry| {
        let in_linear = placement.physical_address(entry.start).is_some();
        let larger = || largest.is_none_or(|largest| entry.bytes > largest.bytes);
        // The last one: the first tables are those around the image, which a sample walks.
        let in_sample = || {
            let table = entry.output.0 / (entry.bytes * (entry.bytes / 8));
            entry.index != 0 && entry.index as u64 == table % SelfCheck::SHARE
        };
        let wanted = || match what {
            b"sampled" => in_sample(),
            _ => larger(),
        };
        if entry.kind == Kind::Leaf && in_linear && wanted() {
            largest = Some(*entry);
        }
        Visit::EVERYTHING
    });
    let Some(entry) = largest else { return };
    let old = entry.descriptor.0;
    let new = match what {
        b"output" | b"sampled" | b"translation" | b"pattern" => old + entry.bytes,
        b"permission" => old & !NEVER_EXECUTE,
        b"read-only" => old | READ_ONLY,
        b"missing" => 0,
        b"hint" => old ^ CONTIGUOUS,
        _ => return,
    };
    for descriptor in [Descriptor::INVALID, Descriptor(new)] {
        // SAFETY: the new mapping is wrong on purpose, and the boot ends with the self-check.
        unsafe { walker::overwrite(tables, &entry, descriptor) };
    }
}

/// Recurses until the stack ends. The volatile array keeps each call's frame.
#[inline(never)]
#[allow(unconditional_recursion, reason = "that is the point")]
pub(crate) fn overflow(depth: u64) -> u64 {
    let mut frame = [depth; 32];
    // SAFETY: an element of a local array.
    unsafe { (&raw mut frame[(depth % 32) as usize]).write_volatile(depth) };
    overflow(depth + 1) + core::hint::black_box(&frame)[0]
}
