//! Stops all other CPUs for a crash kernel: each stores its registers as a note of the core, and switches itself off, so
//! that the crash kernel can start it again.
//!
//! No lock is taken here: another CPU may have stopped while it held one.

#![allow(unsafe_code, reason = "the notes of CPUs")]

use crate::arch::{counter, cpu};
use crate::dev::{intc, psci, timer};
use crate::percpu::{self, stop};
use core::sync::atomic::{AtomicU64, Ordering};
use granule::hw::cache;
use granule_kcore::cpus::AFFINITY;
use granule_kcore::cpus::set::{AtomicCpuSet, CpuSet};
use granule_kcore::crash::registers::{self, CPU_BYTES};
use granule_kcore::exception_frame::Frame;

/// Seconds that a CPU may take to stop, and then to go off.
const PATIENCE_S: u64 = 1;

/// The address of the notes of CPU 0, behind which those of all others are.
static NOTES: AtomicU64 = AtomicU64::new(0);
static STOPPED: AtomicCpuSet = AtomicCpuSet::new();
/// Returns the number of the process that this CPU runs, for its note; 0 if it runs none. The function must not take a
/// lock.
pub(crate) static PID: spin::Once<fn() -> u32> = spin::Once::new();

/// Stores this CPU's registers at its place.
fn note(frame: &Frame) {
    let notes = NOTES.load(Ordering::Acquire);
    if notes == 0 {
        return;
    }
    let own = notes + (percpu::this().number() * CPU_BYTES) as u64;
    // SAFETY: `others` set an address of memory that is mapped, has room for all CPUs that are ready, and has no other
    // use; each CPU writes to its own place alone.
    let into = unsafe { &mut *(own as *mut [u8; CPU_BYTES]) };
    registers::write(into, frame, PID.get().map_or(0, |pid| pid()));
    cache::clean(own..own + CPU_BYTES as u64);
}

/// Stops all other CPUs, and stores the registers of all at `notes`, or nowhere if that is 0. Returns the CPUs that do not
/// answer.
///
/// # Safety
///
/// From `notes` on, unless it is 0, there is memory for the notes of all CPUs that are ready ([`percpu::ready`]). It is
/// mapped for good and has no other use.
pub(crate) unsafe fn others(notes: u64, frame: &Frame) -> CpuSet {
    NOTES.store(notes, Ordering::Release);
    note(frame);
    let others = percpu::online().without(percpu::this().number());
    stop::ask();
    let left = || {
        let stopped = STOPPED.load(Ordering::Acquire);
        others
            .iter()
            .filter(|number| !stopped.contains(*number))
            .fold(CpuSet::default(), CpuSet::with)
    };
    // An FIQ only where an IRQ does not do: it may come where the registers are not yet what they seem.
    for hard in [false, true] {
        let silent = left();
        if silent.is_empty() || !intc::send_stop(silent, hard) {
            continue;
        }
        cpu::send_event();
        wait_for(|| left().is_empty());
    }
    let left = left();
    for number in others.iter().filter(|number| !left.contains(*number)) {
        let affinity = percpu::of(number).map_or(0, |cpu| cpu.affinity.load(Ordering::Relaxed));
        wait_for(|| psci::is_off(affinity & AFFINITY) != Ok(false));
    }
    left
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let mut timeout = cpu::timeout(PATIENCE_S);
    while !done() && !timeout.is_over(cpu::counter_now()) {
        cpu::relax();
    }
}

/// Stops this CPU, which was interrupted with `frame`, at another one's request.
pub(crate) fn here(frame: &Frame) -> ! {
    let _ = cpu::mask_interrupts();
    note(frame);
    timer::off();
    counter::stop();
    // An interrupt that cannot be stopped is private to this CPU and stops with it.
    let _ = intc::quiesce_cpu(percpu::this());
    STOPPED.add(percpu::this().number(), Ordering::Release);
    psci::cpu_off();
    cpu::halt()
}
