//! Queries firmware about the machine, in a safe order.
//!
//! Depending on its age, firmware answers an unknown call with NOT_SUPPORTED or with an exception,
//! and no exception vectors exist yet. So each call is made only after an earlier answer proves
//! that it exists: PSCI from 1.0 on reports whether SMCCC exists, SMCCC from 1.1 on reports its own
//! calls, and SMCCC from 1.2 on has the SoC's identity. The kernel issues the calls.

use super::peek::Psci;

const PSCI_VERSION: u32 = 0x8400_0000;
const PSCI_FEATURES: u32 = 0x8400_000a;
const SMCCC_VERSION: u32 = 0x8000_0000;
const SMCCC_ARCH_FEATURES: u32 = 0x8000_0001;
const SMCCC_ARCH_SOC_ID: u32 = 0x8000_0002;

/// The SoC's identity (SMCCC_ARCH_SOC_ID, type 0), if firmware has that call.
///
/// `call` issues one call with a function number and a first argument, and returns the first
/// result.
pub fn soc_id(psci: &Psci<'_>, mut call: impl FnMut(u32, u32) -> u32) -> Option<u32> {
    // Before 0.2 the device tree gives the function numbers, and no call reports a version.
    let numbered = psci.compatible.has(b"arm,psci-1.0") || psci.compatible.has(b"arm,psci-0.2");
    if !numbered {
        return None;
    }
    let mut ask = |function, argument| {
        let answer = call(function, argument);
        // A negative number is an error.
        (answer as i32 >= 0).then_some(answer)
    };
    let version = |major: u32, minor: u32| major << 16 | minor;
    if ask(PSCI_VERSION, 0)? < version(1, 0) {
        return None;
    }
    ask(PSCI_FEATURES, SMCCC_VERSION)?;
    if ask(SMCCC_VERSION, 0)? < version(1, 2) {
        return None;
    }
    ask(SMCCC_ARCH_FEATURES, SMCCC_ARCH_SOC_ID)?;
    ask(SMCCC_ARCH_SOC_ID, 0)
}
