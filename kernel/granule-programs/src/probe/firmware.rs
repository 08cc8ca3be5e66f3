//! PSCI calls, by the conduit that the device tree names: which CPUs are on, and the machine's
//! power.

use granule_boot::peek::Conduit;
use smccc::{Call, Hvc, Smc};

const AFFINITY_INFO: u32 = 0xc400_0004;
const SYSTEM_OFF: u32 = 0x8400_0008;
/// AFFINITY_INFO's value for a CPU that is off.
const OFF: u64 = 1;

fn call(conduit: Conduit, function: u32, first: u64) -> u64 {
    let arguments = [first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let [answer, ..] = match conduit {
        Conduit::Hvc => Hvc::call64(function, arguments),
        _ => Smc::call64(function, arguments),
    };
    answer
}

/// Whether the CPU with these affinity fields is off.
pub(crate) fn is_off(conduit: Conduit, affinity: u64) -> bool {
    call(conduit, AFFINITY_INFO, affinity) == OFF
}

/// Powers the machine off. Returns if firmware refuses.
pub(crate) fn system_off(conduit: Conduit) {
    let arguments = [0; 7];
    let _ = match conduit {
        Conduit::Hvc => Hvc::call32(SYSTEM_OFF, arguments),
        _ => Smc::call32(SYSTEM_OFF, arguments),
    };
}
