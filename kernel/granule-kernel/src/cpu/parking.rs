//! Takes all other CPUs off the kernel's tables, for changes that no CPU may see half-done and that the rules
//! for live entries (RWHZWS) do not allow.
//!
//! A parked CPU runs in the identity map with interrupts masked, TTBR1 set to an empty root, and its TLB
//! emptied. It waits for a flag in the identity map's writable page. It returns to the kernel's tables with
//! an empty TLB.
//!
//! Before it waits, a parked CPU proves by an AT that a kernel address no longer translates. At all other
//! times TTBR0 has the empty root too.

#![allow(unsafe_code, reason = "parking of CPUs, with interrupts masked")]

use super::identity;
use crate::arch::{cpu, image};
use crate::cpu::ipi;
use crate::handover::parking::{Arguments, CONTROL};
use crate::lock::RawUnmaskedLock;
use crate::percpu::{self, PerCpu, per_cpu};
use crate::trace::bring_up;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Seconds that the other CPUs may take to park, as for any call.
const PATIENCE_S: u64 = 10;

/// Whether user programs run, which forbids parking.
static PROGRAMS_RUN: AtomicBool = AtomicBool::new(false);

per_cpu! {
    /// The number of times that the CPU was parked and came back.
    static PARKINGS: AtomicU64 = AtomicU64::new(0);
}

pub(crate) fn programs_run(run: bool) {
    PROGRAMS_RUN.store(run, Ordering::Release);
}

/// Returns the number of times that CPU `number` was parked.
#[cfg(feature = "test-image")]
pub(crate) fn parkings(number: usize) -> u64 {
    PARKINGS
        .of(number)
        .map_or(0, |count| count.load(Ordering::Relaxed))
}

/// The CPU that parks the others holds this lock.
static BUSY: RawUnmaskedLock = RawUnmaskedLock::new();

unsafe extern "C" {
    /// See `head::parked`.
    fn park_on_identity(arguments: &Arguments);
    static park_identity_code: u8;
}

/// Runs `work` here with interrupts masked while every other CPU is parked. Returns the result of `work` when
/// all are back.
///
/// Panics, naming the CPU, when one does not park or does not come back. `work` must not call other CPUs. It
/// may change the kernel's tables in any way, if it invalidates this CPU's own TLB: the others come back with
/// an empty one. Not allowed while user programs run: parked CPUs come back without the programs' tables in
/// TTBR0, and the identity map has another shape.
pub(crate) fn with_others_parked<R>(work: impl FnOnce() -> R) -> R {
    assert!(
        !PROGRAMS_RUN.load(Ordering::Acquire),
        "CPUs cannot be parked while they run programs"
    );
    // While this CPU waits for the lock, its holder may park this CPU too, with interrupts masked or not.
    let before = loop {
        match BUSY.try_acquire() {
            Some(before) => break before,
            None => ipi::answer(),
        }
        cpu::relax();
    };
    let others = percpu::online().without(percpu::this().number());
    // Only the CPU that holds `BUSY` changes the epoch.
    let epoch = CONTROL.released.load(Ordering::Relaxed) + 1;
    let result = ipi::call_while(others, &|cpu| park(cpu, epoch), || {
        let masked = cpu::mask_interrupts();
        for number in others.iter() {
            wait_for(number, epoch);
        }
        let roots = bring_up::Roots {
            identity: identity::identity(),
            empty: identity::empty(),
        };
        bring_up::parked(others, roots);
        let result = work();
        // The other CPUs' walkers must see the stores of `work` before those CPUs see the flag. A
        // load-acquire there does not order walks, and `work` need not have issued a barrier that reaches
        // them.
        bring_up::dsb_ishst();
        bring_up::returning(others, roots);
        CONTROL.released.store(epoch, Ordering::Release);
        cpu::send_event();
        cpu::restore_interrupts(masked);
        result
    });
    // SAFETY: this function took the lock above.
    unsafe { BUSY.release(before) };
    result
}

/// Parks this CPU, in its interrupt handler.
fn park(cpu: &PerCpu, epoch: u64) {
    let Some(slot) = CONTROL.slots.get(cpu.number()) else {
        return;
    };
    let arguments = Arguments {
        slot: identity::physical(&raw const *slot as u64),
        released: identity::physical(&raw const CONTROL.released as u64),
        code: identity::physical(&raw const park_identity_code as u64),
        identity: identity::identity(),
        empty: identity::empty(),
        epoch,
        probe: image::start(),
    };
    // SAFETY: calls are answered with interrupts masked. The code and the page of the flags are in the
    // identity map, and TTBR1 is restored before the return.
    unsafe { park_on_identity(&arguments) };
    PARKINGS.this().fetch_add(1, Ordering::Relaxed);
}

fn wait_for(number: usize, epoch: u64) {
    let Some(slot) = CONTROL.slots.get(number) else {
        return;
    };
    let mut timeout = cpu::timeout(PATIENCE_S);
    while slot.parked.load(Ordering::Acquire) != epoch {
        assert!(
            !timeout.is_over(cpu::counter_now()),
            "CPU {number} did not park within {PATIENCE_S} s"
        );
        cpu::relax();
    }
    let translation = slot.translation.load(Ordering::Relaxed);
    assert!(
        translation & 1 != 0,
        "CPU {number} is parked but still translates a kernel address, to {translation:#x}"
    );
}
