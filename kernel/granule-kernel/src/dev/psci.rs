//! Power control of the machine and its CPUs by PSCI, through the conduit that the device tree
//! names.

use crate::handover::Conduit;
use core::sync::atomic::{AtomicU32, Ordering};
use smccc::{Hvc, Smc, psci};

static CONDUIT: AtomicU32 = AtomicU32::new(Conduit::Unknown as u32);

pub(crate) fn init(conduit: Conduit) {
    CONDUIT.store(conduit as u32, Ordering::Relaxed);
}

/// Whether PSCI can be called.
pub(crate) fn is_there() -> bool {
    CONDUIT.load(Ordering::Relaxed) != Conduit::Unknown as u32
}

/// Calls firmware by the conduit.
fn call<R>(
    smc: impl FnOnce() -> Result<R, psci::Error>,
    hvc: impl FnOnce() -> Result<R, psci::Error>,
) -> Result<R, psci::Error> {
    match CONDUIT.load(Ordering::Relaxed) {
        conduit if conduit == Conduit::Smc as u32 => smc(),
        conduit if conduit == Conduit::Hvc as u32 => hvc(),
        _ => Err(psci::Error::NotSupported),
    }
}

/// Starts the CPU with these affinity fields at `entry`, a physical address.
pub(crate) fn cpu_on(affinity: u64, entry: u64) -> Result<(), psci::Error> {
    call(
        || psci::cpu_on::<Smc>(affinity, entry, 0),
        || psci::cpu_on::<Hvc>(affinity, entry, 0),
    )
}

/// Powers this CPU off. Returns only if firmware refuses.
pub(crate) fn cpu_off() {
    let _ = call(psci::cpu_off::<Smc>, psci::cpu_off::<Hvc>);
}

/// Whether firmware reports the CPU with these affinity fields as off.
pub(crate) fn is_off(affinity: u64) -> Result<bool, psci::Error> {
    let level = psci::LowestAffinityLevel::All;
    let state = call(
        || psci::affinity_info::<Smc>(affinity, level),
        || psci::affinity_info::<Hvc>(affinity, level),
    )?;
    Ok(state == psci::AffinityState::Off)
}

/// Powers the machine off. Returns if that is impossible: without a conduit, or if firmware
/// refuses. The error is ignored: the caller can only stop.
pub(crate) fn system_off() {
    let _ = call(psci::system_off::<Smc>, psci::system_off::<Hvc>);
}
