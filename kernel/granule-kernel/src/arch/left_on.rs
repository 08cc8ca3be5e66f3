//! Units that the last owner of a CPU may have left on in it: the PMU and timers. The entry code turns debug
//! exceptions off.

#![allow(unsafe_code, reason = "system registers")]

use super::cpu;
use core::arch::asm;

/// PMCR_EL0.E, CNTP_CTL and CNTV_CTL.ENABLE.
const ENABLE: u64 = 1;

/// Turns it off on this CPU. Returns the names of what was on; `None` for what was off.
pub(crate) fn stop() -> [Option<&'static str>; 2] {
    let (physical, virtual_): (u64, u64);
    let mut pmu = 0_u64;
    // SAFETY: registers of every CPU. Nothing in this kernel uses the virtual timer, and the physical timer is not in
    // use yet. At EL2 with E2H the timers' names are those of that level.
    unsafe {
        asm!(
            "mrs {physical}, cntp_ctl_el0",
            "msr cntp_ctl_el0, xzr",
            "mrs {virtual_}, cntv_ctl_el0",
            "msr cntv_ctl_el0, xzr",
            "isb",
            physical = out(reg) physical,
            virtual_ = out(reg) virtual_,
            options(nomem, nostack, preserves_flags)
        );
    }
    // ID_AA64DFR0_EL1.PMUVer: 0 is none, and 15 one of another design.
    if !matches!(cpu::id_aa64dfr0_el1() >> 8 & 0xf, 0 | 15) {
        // SAFETY: the CPU has a PMUv3, whose counters are not in use yet.
        unsafe {
            asm!(
                "mrs {pmu}, pmcr_el0",
                "bic {scratch}, {pmu}, #1",
                "msr pmcr_el0, {scratch}",
                "mov {scratch}, #-1",
                "msr pmcntenclr_el0, {scratch}",
                "msr pmintenclr_el1, {scratch}",
                "msr pmovsclr_el0, {scratch}",
                "msr pmuserenr_el0, xzr",
                "isb",
                pmu = out(reg) pmu,
                scratch = out(reg) _,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
    [
        (pmu & ENABLE, "the PMU"),
        ((physical | virtual_) & ENABLE, "a timer"),
    ]
    .map(|(on, name)| (on != 0).then_some(name))
}
