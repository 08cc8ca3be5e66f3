//! Power control of the machine and its CPUs by PSCI, through the conduit that the device tree
//! names.

use crate::handover::Conduit;
use core::sync::atomic::{AtomicU32, Ordering};
use smccc::{Hvc, Smc, psci};

static CONDUIT: AtomicU32 = AtomicU32::new(Conduit::Unknown as u32);

/// Sets the conduit.
pub(crate) fn init(conduit: Conduit) {
    CONDUIT.store(conduit as u32, Ordering::Relaxed);
}

/// Whether PSCI can be called.
pub(crate) fn is_there() -> bool {
    CONDUIT.load(Ordering::Relaxed) != Conduit::Unknown as u32
}

/// Starts the CPU with these affinity fields at `entry`, a physical address.
pub(crate) fn cpu_on(affinity: u64, entry: u64) -> Result<(), psci::Error> {
    let conduit = CONDUIT.load(Ordering::Relaxed);
    if conduit == Conduit::Smc as u32 {
        psci::cpu_on::<Smc>(affinity, entry, 0)
    } else if conduit == Conduit::Hvc as u32 {
        psci::cpu_on::<Hvc>(affinity, entry, 0)
    } else {
        Err(psci::Error::NotSupported)
    }
}

/// Powers this CPU off. Returns only if firmware refuses.
pub(crate) fn cpu_off() {
    let conduit = CONDUIT.load(Ordering::Relaxed);
    if conduit == Conduit::Smc as u32 {
        let _ = psci::cpu_off::<Smc>();
    } else if conduit == Conduit::Hvc as u32 {
        let _ = psci::cpu_off::<Hvc>();
    }
}

/// Whether firmware reports the CPU with these affinity fields as off.
pub(crate) fn is_off(affinity: u64) -> Result<bool, psci::Error> {
    let conduit = CONDUIT.load(Ordering::Relaxed);
    let level = psci::LowestAffinityLevel::All;
    let state = if conduit == Conduit::Smc as u32 {
        psci::affinity_info::<Smc>(affinity, level)
    } else if conduit == Conduit::Hvc as u32 {
        psci::affinity_info::<Hvc>(affinity, level)
    } else {
        Err(psci::Error::NotSupported)
    };
    Ok(state? == psci::AffinityState::Off)
}

/// Powers the machine off. Returns if that is impossible: without a conduit, or if firmware
/// refuses.
pub(crate) fn system_off() {
    // The error is ignored: the caller can only stop.
    let conduit = CONDUIT.load(Ordering::Relaxed);
    if conduit == Conduit::Smc as u32 {
        let _ = psci::system_off::<Smc>();
    } else if conduit == Conduit::Hvc as u32 {
        let _ = psci::system_off::<Hvc>();
    }
}
