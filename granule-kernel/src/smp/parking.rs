//! Taking all other CPUs off the kernel's tables: for changes that no CPU may see half-done, and
//! that the rules for live entries (RWHZWS) do not allow.
//!
//! A parked CPU runs in the identity map, TTBR1 set to a root in which nothing is mapped, its TLB
//! emptied, interrupts masked, and waits at a flag in the identity map's writable page. It comes
//! back with an empty TLB.

use super::identity;
use super::percpu::{self, PerCpu};
use crate::lock::RawUnmaskedLock;
use crate::trace::bring_up;
use crate::user::sched;
use crate::{cpu, image, ipi};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;

/// Seconds for the others to get there, as for any call.
const PATIENCE_S: u64 = 10;

/// The flags, alone in a page of the smallest size. Mapped 1:1 too.
#[repr(C, align(4096))]
struct Control {
    /// The number of the parking that is over.
    released: AtomicU64,
    slots: [Slot; MOST_CPUS],
}

/// What a parked CPU says: one cache line, written from the identity map.
#[repr(C, align(64))]
struct Slot {
    /// The number of the parking that it is in, or was in last.
    parked: AtomicU64,
    /// PAR_EL1 after asking for a kernel address: bit 0 says that it does not translate.
    translation: AtomicU64,
}

static CONTROL: Control = Control {
    released: AtomicU64::new(0),
    slots: [const {
        Slot {
            parked: AtomicU64::new(0),
            translation: AtomicU64::new(0),
        }
    }; MOST_CPUS],
};

/// Held by the CPU that is parking the others.
static BUSY: RawUnmaskedLock = RawUnmaskedLock::new();

/// For `head::parked`.
pub(crate) const SLOT_PARKED: usize = offset_of!(Slot, parked);
/// For `head::parked`.
pub(crate) const SLOT_TRANSLATION: usize = offset_of!(Slot, translation);

unsafe extern "C" {
    /// See `head::parked`.
    fn park_on_identity(arguments: &Arguments);
    static park_identity_code: u8;
}

/// What the code in the identity map needs; it cannot reach any other memory.
#[repr(C)]
pub(crate) struct Arguments {
    /// Physical addresses of the slot, of the flag and of the code.
    pub(crate) slot: u64,
    pub(crate) released: u64,
    pub(crate) code: u64,
    /// TTBR values.
    pub(crate) identity: u64,
    pub(crate) empty: u64,
    /// The number of this parking.
    pub(crate) epoch: u64,
    /// A kernel address that must not translate while parked.
    pub(crate) probe: u64,
}

/// The address of the page that parking needs mapped 1:1, writable.
pub(super) fn page() -> u64 {
    &raw const CONTROL as u64
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
        !sched::is_open(),
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
    cpu.parkings.fetch_add(1, Ordering::Relaxed);
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

const _: () = assert!(size_of::<Control>() as u64 <= granule::arch::PageSize::MIN.bytes());
