//! Enters the crash kernel, in a panic: nothing here waits for a lock, allocates, or changes the kernel's tables.

#![allow(unsafe_code, reason = "the notes of CPUs, and the jump")]

use super::loaded;
use crate::arch::{counter, cpu};
use crate::cpu::{ipi, stop};
use crate::dev::console::println;
use crate::dev::{intc, timer};
use crate::fatal::panic::{CRASH, Crash};
use crate::mm::kernel_tables;
use crate::mm::kernel_tables::pointer;
use crate::percpu;
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule_kcore::exception_frame::Frame;
use granule_kexec::relocate;

/// Lets each CPU be stopped, and has panics come here. Called each time that a crash kernel is loaded.
pub(super) fn prepare() {
    ipi::call(percpu::online(), &|_| intc::allow_stop());
    CRASH.call_once(|| Crash {
        prepare: stop_all,
        enter,
        stop: stop::here,
    });
}

/// Stops the other CPUs, stores all registers, and checks the crash kernel.
fn stop_all(frame: &Frame) -> bool {
    let Some(kernel) = loaded() else {
        return false;
    };
    // A program's own segments have no place for notes.
    let notes = (kernel.notes.bytes > 0).then(|| pointer(PhysicalAddress(kernel.notes.start)));
    let notes = notes.flatten().map_or(0, |notes| notes.as_ptr() as u64);
    // SAFETY: the memory of the notes is part of the loaded header, with room for all CPUs that were ready then, which
    // are all there are: CPUs are added at boot only. Nothing else uses it.
    let silent = unsafe { stop::others(notes, frame) };
    if !silent.is_empty() {
        println!("granule: CPU {silent} did not stop; its registers are not in the core");
    }
    let is_whole = kernel.is_whole();
    if !is_whole {
        println!("granule: the crash kernel was written over: it is not entered");
    }
    println!(
        "@granule crash.silent={}\n@granule crash.entered={is_whole}",
        silent.len()
    );
    is_whole
}

fn enter() -> ! {
    let (Some(kernel), Some(tables)) = (loaded(), kernel_tables::kernel()) else {
        cpu::halt();
    };
    let _ = cpu::mask_interrupts();
    timer::off();
    counter::stop();
    // What stays on is turned off by the next kernel too.
    let _ = intc::quiesce_cpu(percpu::this());
    let _ = intc::quiesce_rest();
    let head = kernel.head.wrapping_add(tables.placement.distance());
    // SAFETY: the other CPUs are off, or do not touch this memory; interrupts are masked. The list, its tables and the
    // code are as they were made, sealed and cleaned (`is_whole`), and in the reserved range, which the kernel's tables
    // still show: nothing that changes them changes that part.
    unsafe { relocate::leave(VirtualAddress(head)) }
}
