//! Taking all other CPUs off the kernel's tables: for changes that no CPU may see half-done, and
//! that the rules for live entries (RWHZWS) do not allow.
//!
//! A parked CPU runs in the identity map, TTBR1 set to a root in which nothing is mapped, its TLB
//! emptied, interrupts masked, and waits at a flag in the identity map's writable page. It comes
//! back with an empty TLB.

use super::identity;
use crate::arch::{cpu, image};
use crate::cpu::ipi;
use crate::handover::parking::{Arguments, CONTROL};
use crate::lock::RawUnmaskedLock;
use crate::percpu::{self, Aligned, Local, PerCpu};
use crate::trace::bring_up;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;

/// Seconds for the others to get there, as for any call.
const PATIENCE_S: u64 = 10;

/// Whether programs run, so that CPUs cannot be parked.
static PROGRAMS_RUN: AtomicBool = AtomicBool::new(false);

/// Times that each CPU was parked, and came back.
static PARKINGS: Local<AtomicU64> = Local([const { Aligned(AtomicU64::new(0)) }; MOST_CPUS]);

/// Says whether programs run.
pub(crate) fn programs_run(run: bool) {
    PROGRAMS_RUN.store(run, Ordering::Release);
}

/// Times that CPU `number` was parked.
#[cfg(feature = "test-image")]
pub(crate) fn parkings(number: usize) -> u64 {
    PARKINGS
        .of(number)
        .map_or(0, |count| count.load(Ordering::Relaxed))
}

/// Held by the CPU that is parking the others.
static BUSY: RawUnmaskedLock = RawUnmaskedLock::new();

unsafe extern "C" {
    /// See `head::parked`.
    fn park_on_identity(arguments: &Arguments);
    static park_identity_code: u8;
}

/// Runs `work` here with interrupts masked while every other CPU is parked, and returns what it
/// returned when all are back.
///
/// Panics, naming the CPU, when one does not get there or does not come back. `work` must not call
/// other CPUs. It may do to the kernel's tables what it likes, if it flushes this CPU's own TLB:
/// the others come back with an empty one. Not while there is user space: they come back without
/// their programs' tables in TTBR0, and the identity map has another shape.
pub(crate) fn with_others_parked<R>(work: impl FnOnce() -> R) -> R {
    assert!(
        !PROGRAMS_RUN.load(Ordering::Acquire),
        "CPUs cannot be parked while they run programs"
    );
    // The CPU that is parking the others parks this one too, with interrupts masked or not.
    let before = loop {
        match BUSY.try_acquire() {
            Some(before) => break before,
            None => ipi::answer(),
        }
        cpu::relax();
    };
    let others = percpu::online().without(percpu::this().number());
    // Only the CPU that is busy changes it.
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
        // The walkers of the others see what was stored before they see the flag: no load-acquire of
        // theirs orders their walks, and no barrier of `work` need have reached them.
        bring_up::dsb_ishst();
        bring_up::returning(others, roots);
        CONTROL.released.store(epoch, Ordering::Release);
        cpu::send_event();
        cpu::restore_interrupts(masked);
        result
    });
    // SAFETY: taken above.
    unsafe { BUSY.release(before) };
    result
}

/// The other side: on the CPU that is parked, in its interrupt handler.
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
    // SAFETY: calls are answered with interrupts masked; the code and the page of the flags are in
    // the identity map, and TTBR1 comes back as it was.
    unsafe { park_on_identity(&arguments) };
    PARKINGS.this().fetch_add(1, Ordering::Relaxed);
}

fn wait_for(number: usize, epoch: u64) {
    let Some(slot) = CONTROL.slots.get(number) else {
        return;
    };
    let start = cpu::counter_now();
    while slot.parked.load(Ordering::Acquire) != epoch {
        assert!(
            cpu::counter_now().wrapping_sub(start) < PATIENCE_S * cpu::cntfrq_el0(),
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
