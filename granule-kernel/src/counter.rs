//! Counts instructions, when `granule.count=instructions` asks for it.
//!
//! By the PMU's retired-instruction event where there is a PMU. Else by the virtual
//! counter, which under QEMU's `-icount shift=0` advances by one nanosecond an
//! instruction and is good to one tick. Either is first tried on a loop whose length
//! is known: a counter that does not count it is an error, not a zero.

use crate::cpu;
use core::arch::asm;
use core::fmt;

/// PMU event: instruction architecturally executed.
const INST_RETIRED: u64 = 0x08;
/// PMEVTYPER.NSH: count at EL2 as well. At EL1 it stays 0.
const COUNT_AT_EL2: u64 = 1 << 27;
/// PMCR: on, event counters to 0, 64-bit counters where they exist.
const PMCR_ON: u64 = 1 << 0 | 1 << 1 | 1 << 7;

/// The trial loop: two instructions an iteration.
const TRIAL_ITERATIONS: u64 = 4096;
const TRIAL_INSTRUCTIONS: u64 = 2 * TRIAL_ITERATIONS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Event counter 0; `wide` if it has 64 bits.
    Pmu { wide: bool },
    /// The virtual counter, at so many nanoseconds, hence instructions, a tick.
    VirtualCounter { per_tick: u64 },
}

/// A counter that was seen to count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionCounter {
    source: Source,
    /// What measuring nothing gives.
    cost: u64,
}

/// Why instructions cannot be counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotCounting {
    source: Source,
    seen: u64,
}

impl fmt::Display for NotCounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.source {
            Source::Pmu { .. } => "the PMU",
            Source::VirtualCounter { .. } => "the virtual counter (there is no PMU)",
        };
        write!(
            f,
            "cannot count instructions: {by} says {} for a loop of {TRIAL_INSTRUCTIONS}; \
             under QEMU run with -icount shift=0 (granule boot --icount)",
            self.seen
        )
    }
}

impl fmt::Display for InstructionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Pmu { wide: true } => f.write_str("PMU event 0x08, 64 bits"),
            Source::Pmu { wide: false } => f.write_str("PMU event 0x08, 32 bits and overflow"),
            Source::VirtualCounter { per_tick } => {
                write!(f, "virtual counter, {per_tick} instructions a tick")
            }
        }
    }
}

impl InstructionCounter {
    /// Sets a counter up and tries it. `dfr0` is ID_AA64DFR0_EL1; `at_el2` tells
    /// where the kernel runs.
    pub(crate) fn new(dfr0: u64, at_el2: bool) -> Result<Self, NotCounting> {
        let source = choose(dfr0, at_el2);
        let mut counter = Self { source, cost: 0 };
        // The second run of each: the first may meet cold code, and the smaller of
        // two is what is always there.
        let nothing = || counter.measure(|| ()).1;
        let cost = nothing().min(nothing());
        counter.cost = cost;
        let ((), seen) = counter.measure(trial);
        let slack = match source {
            Source::Pmu { .. } => 64,
            Source::VirtualCounter { per_tick } => 64 + 2 * per_tick,
        };
        if seen.abs_diff(TRIAL_INSTRUCTIONS) <= slack {
            Ok(counter)
        } else {
            Err(NotCounting { source, seen })
        }
    }

    /// Runs `what` and says how many instructions it took. Not to be nested: there
    /// is one counter. With 32-bit counters good up to 2^33 - 1 instructions, as the
    /// overflow flag tells of one overflow only.
    pub(crate) fn measure<R>(&self, what: impl FnOnce() -> R) -> (R, u64) {
        match self.source {
            Source::Pmu { wide } => {
                pmu_restart();
                let result = what();
                let count = pmu_read(wide);
                (result, count.saturating_sub(self.cost))
            }
            Source::VirtualCounter { per_tick } => {
                let start = cpu::counter_now();
                let result = what();
                let ticks = cpu::counter_now().wrapping_sub(start);
                (result, (ticks * per_tick).saturating_sub(self.cost))
            }
        }
    }
}

fn choose(dfr0: u64, at_el2: bool) -> Source {
    // PMUVer: 0 none, 15 an implementation's own; 64-bit event counters from 6
    // (PMUv3p5).
    let version = dfr0 >> 8 & 0xf;
    if version != 0 && version != 15 {
        let filter = if at_el2 { COUNT_AT_EL2 } else { 0 };
        let wide = version >= 6;
        let pmcr = if wide { PMCR_ON } else { PMCR_ON & !(1 << 7) };
        let counters: u64;
        // SAFETY: the PMU exists (PMUVer), and only this module uses it; its registers
        // have no effect on memory.
        unsafe {
            asm!("mrs {}, pmcr_el0", out(reg) counters, options(nomem, nostack, preserves_flags));
        }
        if counters >> 11 & 0x1f != 0 {
            // SAFETY: as above; event counter 0 exists, as N is not 0.
            unsafe {
                asm!(
                    "msr pmintenclr_el1, {all}",
                    "msr pmcntenclr_el0, {all}",
                    "msr pmevtyper0_el0, {event}",
                    "msr pmcr_el0, {pmcr}",
                    "msr pmcntenset_el0, {zeroth}",
                    "isb",
                    all = in(reg) 0xffff_ffffu64,
                    event = in(reg) INST_RETIRED | filter,
                    pmcr = in(reg) pmcr,
                    zeroth = in(reg) 1u64,
                    options(nomem, nostack, preserves_flags)
                );
            }
            return Source::Pmu { wide };
        }
    }
    let per_tick = 1_000_000_000 / cpu::cntfrq_el0().max(1);
    Source::VirtualCounter { per_tick }
}

/// Sets event counter 0 and its overflow flag to 0.
#[inline(never)]
fn pmu_restart() {
    // SAFETY: the PMU exists, or there would be no `Source::Pmu`; ISBs keep what is
    // measured inside.
    unsafe {
        asm!(
            "isb",
            "msr pmovsclr_el0, {zeroth}",
            "msr pmevcntr0_el0, xzr",
            "isb",
            zeroth = in(reg) 1u64,
            options(nostack, preserves_flags)
        );
    }
}

/// Event counter 0, with its overflow as bit 32 where it has only 32 bits.
#[inline(never)]
fn pmu_read(wide: bool) -> u64 {
    let (count, overflow): (u64, u64);
    // SAFETY: as in `pmu_restart`.
    unsafe {
        asm!(
            "isb",
            "mrs {count}, pmevcntr0_el0",
            "mrs {overflow}, pmovsclr_el0",
            count = out(reg) count,
            overflow = out(reg) overflow,
            options(nostack, preserves_flags)
        );
    }
    if wide {
        count
    } else {
        (count & 0xffff_ffff) | (overflow & 1) << 32
    }
}

/// A loop of [`TRIAL_INSTRUCTIONS`], give or take its setting up.
fn trial() {
    // SAFETY: counts a register down.
    unsafe {
        asm!(
            "1:",
            "subs {n}, {n}, #1",
            "b.ne 1b",
            n = inout(reg) TRIAL_ITERATIONS => _,
            options(nomem, nostack)
        );
    }
}
