//! Power by PSCI, through the conduit that the device tree names.

use crate::handover::Conduit;
use core::sync::atomic::{AtomicU32, Ordering};
use smccc::{Hvc, Smc, psci};

static CONDUIT: AtomicU32 = AtomicU32::new(Conduit::Unknown as u32);

/// Takes the conduit.
pub(crate) fn init(conduit: Conduit) {
    CONDUIT.store(conduit as u32, Ordering::Relaxed);
}

/// Powers the machine off. Returns if that cannot be done: without a conduit, or
/// with a firmware that refuses.
pub(crate) fn system_off() {
    // What an error would say does not matter to a caller that can only stop.
    let conduit = CONDUIT.load(Ordering::Relaxed);
    if conduit == Conduit::Smc as u32 {
        let _ = psci::system_off::<Smc>();
    } else if conduit == Conduit::Hvc as u32 {
        let _ = psci::system_off::<Hvc>();
    }
}
