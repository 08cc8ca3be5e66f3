//! The instructions of every job and subject of `granule-bench` on arm64, then its goals: one JSON object a line, at
//! last `done`. With `ranges=small` on the command line the ranges are those of `granule-bench --quick`.
//!
//! For QEMU's machine `virt` with `-icount shift=0`, where the cycle counter counts instructions. The MMU is off:
//! the tables are memory like any other. Each turn is made once, for a count repeats to the last digit.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use board::{power_off, println};
use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use granule_bench::arena::Arena;
use granule_bench::goals::{Measurement, goals};
use granule_bench::job::{Job, jobs, jobs_of_larger_pages};
use granule_bench::subjects;
use granule_bench::turn::{self, Measured};

global_asm!(
    ".global _start; _start: msr daifset, #0xf",
    "adrp x0, __bss_start; adrp x1, __bss_end",
    "1: cmp x0, x1; b.hs 2f; stp xzr, xzr, [x0], #16; b 1b",
    "2: adrp x0, __stack_top; mov sp, x0",
    "adr x0, vectors; msr vbar_el1, x0; isb",
    "adrp x0, __arena_start; b count",
    ".balign 2048; vectors: .rept 16; mrs x0, esr_el1; mrs x1, elr_el1; b unexpected_exception; .balign 128; .endr",
);

/// Memory that is never given back: the lists of trees are all that is allocated, and they are kept.
struct Heap(AtomicUsize);

#[global_allocator]
static HEAP: Heap = Heap(AtomicUsize::new(0));

unsafe extern "C" {
    static __heap_start: u8;
    static __heap_end: u8;
}

// SAFETY: no two allocations overlap, for the next begins behind the one before, and all lie in the heap.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (start, end) = (&raw const __heap_start, &raw const __heap_end);
        let next = start.addr() + self.0.load(Ordering::Relaxed);
        let at = next.next_multiple_of(layout.align());
        if layout.size() > end.addr() - at {
            return core::ptr::null_mut();
        }
        self.0.store(at + layout.size() - start.addr(), Ordering::Relaxed);
        start.cast_mut().with_addr(at)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// Instructions so far: QEMU's cycle counter runs at 1 GHz, and an instruction takes 1 ns with `-icount shift=0`.
fn now() -> u64 {
    let count: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("isb; mrs {}, pmccntr_el0", out(reg) count, options(nomem, nostack)) };
    count
}

/// Turns the cycle counter on, with 64 bits. Its own reading takes `cost`. False if it does not count
/// instructions.
fn start() -> Option<u64> {
    // SAFETY: registers of the PMU, which nobody else uses.
    unsafe {
        asm!(
            "msr pmcr_el0, {control}", "msr pmccfiltr_el0, xzr", "msr pmcntenset_el0, {counter}", "isb",
            control = in(reg) 0b100_0101_u64, counter = in(reg) 1_u64 << 31, options(nomem, nostack)
        );
    }
    let cost = now().abs_diff(now());
    let before = now();
    // SAFETY: counts a register down.
    unsafe { asm!("mov {0}, #4096; 1: subs {0}, {0}, #1; b.ne 1b", out(reg) _, options(nomem, nostack)) };
    let seen = now() - before - cost;
    (8192..8256).contains(&seen).then_some(cost)
}

fn print(job: &Job, subject: &str, counts: Measured) {
    for (step, count) in job.steps().iter().zip(counts) {
        println!(
            "{{\"bytes\": {}, \"leaf_bytes\": {}, \"calls\": \"{}\", \"subject\": \"{subject}\", \"step\": \"{step}\", \
             \"leaves\": {}, \"call_count\": {}, \"instructions\": {count}}}",
            job.bytes,
            job.leaf.bytes(),
            job.calls_name(),
            job.leaves(),
            job.call_count(),
        );
    }
}

/// Prints the goals of instructions, by the instructions of each step of a call.
fn judge(all: &[Measurement<'_, [f64; 4]>]) {
    for goal in goals().iter().filter(|goal| goal.is_counted()) {
        let Some(compared) = goal.compared(all, |counts| counts[goal.step]) else {
            continue;
        };
        let ratio = compared.ours[goal.step] / compared.other.map_or(1.0, |other| other[goal.step]);
        println!(
            "{{\"what\": \"{}\", \"at_most\": {}, \"measured\": {ratio:.3}, \"reached\": {}}}",
            goal.what(compared.job),
            goal.most,
            ratio <= goal.most
        );
    }
}

fn run(arena: u64) -> Result<(), Box<dyn core::error::Error + Send + Sync>> {
    let cost = start().ok_or("the cycle counter does not count instructions: expected -icount shift=0")?;
    let is_small = board::word(b"ranges=").starts_with(b"small");
    let jobs: Vec<Job> = jobs(is_small).chain(jobs_of_larger_pages()).collect();
    let bytes = jobs.iter().map(Job::table_bytes).max().unwrap_or(0);
    let memory = core::ptr::with_exposed_provenance_mut(arena as usize);
    let memory = NonNull::new(memory).ok_or("no memory")?;
    // SAFETY: RAM behind the image, which nothing else uses.
    let arena = unsafe { Arena::new(memory, bytes as usize) };
    let mut subjects = subjects::all()?;
    subjects.extend(subjects::library_alone()?);
    let mut all = Vec::new();
    for job in &jobs {
        // The floor has no calls.
        if job.calls.is_range() {
            let (counts, _) = turn::floor(job, &arena, false, now)?;
            print(job, "floor", counts.map(|count| count.saturating_sub(cost)));
        }
        for subject in subjects.iter_mut().filter(|subject| subject.takes(job)) {
            let (counts, _) = turn::subject(job, subject.as_mut(), &arena, false, now)?;
            let counts = counts.map(|count| count.saturating_sub(cost));
            print(job, subject.name(), counts);
            let value = counts.map(|count| count as f64 / job.call_count() as f64);
            all.push(Measurement { job, subject: subject.name(), value });
        }
    }
    judge(&all);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn count(arena: u64) -> ! {
    match run(arena) {
        Ok(()) => println!("done"),
        Err(error) => println!("failed: {error:#}"),
    }
    power_off()
}
