//! What firmware tells of the machine: which questions may be asked, and in which order.
//!
//! A call that firmware does not know may be answered with NOT_SUPPORTED or with an exception, by
//! its age, and there is nobody yet to take an exception. So each question is asked only once the
//! answer before says that it exists: PSCI from 1.0 on can be asked for SMCCC, SMCCC from 1.1 on for
//! its own calls, and those from 1.2 on have the SoC's identity. Issuing a call is the kernel's.

use super::peek::Psci;

const PSCI_VERSION: u32 = 0x8400_0000;
const PSCI_FEATURES: u32 = 0x8400_000a;
const SMCCC_VERSION: u32 = 0x8000_0000;
const SMCCC_ARCH_FEATURES: u32 = 0x8000_0001;
const SMCCC_ARCH_SOC_ID: u32 = 0x8000_0002;

/// The SoC's identity (SMCCC_ARCH_SOC_ID, type 0), if firmware has that call.
///
/// `call` issues one call with function number and first argument and gives the first result.
pub fn soc_id(psci: &Psci<'_>, mut call: impl FnMut(u32, u32) -> u32) -> Option<u32> {
    // Before 0.2 the function numbers are the tree's, and there is no version to ask for.
    let numbered = psci.compatible.has(b"arm,psci-1.0") || psci.compatible.has(b"arm,psci-0.2");
    if !numbered {
        return None;
    }
    let mut ask = |function, argument| {
        let answer = call(function, argument);
        // An error is a negative number.
        (answer.cast_signed() >= 0).then_some(answer)
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
