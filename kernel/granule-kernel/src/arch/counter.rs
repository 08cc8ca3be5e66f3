//! Counts instructions with `granule.count=instructions`.
//!
//! The source is the PMU's retired-instruction event, or without a PMU the virtual counter, which
//! advances by one nanosecond an instruction under QEMU's `-icount shift=0`. The virtual counter is
//! exact to one tick. Each source is first tried on a loop of known length: a source that does not
//! count the loop is an error, not a zero.
//!
//! Event counters have 32 bits before PMUv3p5. Their overflow is corrected from the virtual
//! counter, if the trial shows that it advances with the instructions ([`counter_wrap`]).

#![allow(unsafe_code, reason = "registers of the PMU")]

use crate::arch::cpu;
use core::arch::asm;
use core::fmt;
use granule_kcore::counter_wrap::{self, Lost};

/// PMU event: instruction architecturally executed.
const INST_RETIRED: u64 = 0x08;
/// PMEVTYPER.NSH: count at EL2 too. At EL1 the bit stays 0.
const COUNT_AT_EL2: u64 = 1 << 27;
/// PMCR: enable, reset the event counters, 64-bit counters where they exist.
const PMCR_ON: u64 = 1 << 0 | 1 << 1 | 1 << 7;

/// Iterations of the trial loop, of two instructions each.
const TRIAL_ITERATIONS: u64 = 4096;
const TRIAL_INSTRUCTIONS: u64 = 2 * TRIAL_ITERATIONS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Event counter 0; `wide` if it has 64 bits.
    Pmu { wide: bool },
    /// The virtual counter; `per_tick` is nanoseconds a tick, and so instructions a tick.
    VirtualCounter { per_tick: u64 },
}

/// A counter that passed its trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionCounter {
    source: Source,
    /// The count for an empty measurement.
    cost: u64,
    /// Instructions a tick of the virtual counter, if it advances with them.
    clock: Option<u64>,
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
            "cannot count instructions: {by} counts {} for a loop of {TRIAL_INSTRUCTIONS}; \
             under QEMU run with -icount shift=0 (granule boot --icount)",
            self.seen
        )
    }
}

impl fmt::Display for InstructionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Pmu { wide: true } => f.write_str("PMU event 0x08, 64 bits"),
            Source::Pmu { wide: false } => {
                f.write_str("PMU event 0x08, 32 bits, ")?;
                f.write_str(match self.clock {
                    Some(_) => "those above from the virtual counter",
                    None => "as long as it cannot overflow twice",
                })
            }
            Source::VirtualCounter { per_tick } => {
                write!(f, "virtual counter, {per_tick} instructions a tick")
            }
        }
    }
}

impl InstructionCounter {
    /// Sets up a counter and tries it. `dfr0` is ID_AA64DFR0_EL1. `at_el2` is true if the kernel
    /// runs at EL2.
    pub(crate) fn new(dfr0: u64, at_el2: bool) -> Result<Self, NotCounting> {
        let source = choose(dfr0, at_el2);
        let mut counter = Self {
            source,
            cost: 0,
            clock: None,
        };
        // The trial is too short for an overflow. If one is reported all the same, the trial fails
        // too.
        let count = |counter: &Self, what: fn()| counter.measure(what).1.unwrap_or(u64::MAX);
        // Each is run twice: the first run may meet cold code, so the smaller count is the constant
        // part.
        let nothing = || count(&counter, || ());
        counter.cost = nothing().min(nothing());
        let before = cpu::counter_now();
        let seen = count(&counter, trial);
        let ticks = cpu::counter_now().wrapping_sub(before);
        let slack = match source {
            Source::Pmu { .. } => 64,
            Source::VirtualCounter { per_tick } => 64 + 2 * per_tick,
        };
        if seen.abs_diff(TRIAL_INSTRUCTIONS) > slack {
            return Err(NotCounting { source, seen });
        }
        // The count includes reading the registers.
        let per_tick = nanoseconds_a_tick();
        if (ticks * per_tick).abs_diff(TRIAL_INSTRUCTIONS) <= 128 + 2 * per_tick {
            counter.clock = Some(per_tick);
        }
        Ok(counter)
    }

    /// The instructions a tick of the virtual counter, if it advances with them.
    pub(crate) const fn per_tick(&self) -> Option<u64> {
        match self.source {
            Source::VirtualCounter { per_tick } => Some(per_tick),
            Source::Pmu { .. } => self.clock,
        }
    }

    /// Runs `what` and returns the number of instructions it took, or why that number is unknown.
    /// Calls must not nest, because there is one counter.
    pub(crate) fn measure<R>(&self, what: impl FnOnce() -> R) -> (R, Result<u64, Lost>) {
        let start = cpu::counter_now();
        if let Source::Pmu { .. } = self.source {
            pmu_restart();
        }
        let result = what();
        // The PMU is read first, so that reading the virtual counter is not counted.
        let pmu = match self.source {
            Source::Pmu { .. } => pmu_read(),
            Source::VirtualCounter { .. } => (0, false),
        };
        let ticks = cpu::counter_now().wrapping_sub(start);
        let count = match self.source {
            Source::Pmu { wide: true } => Ok(pmu.0),
            Source::Pmu { wide: false } => counter_wrap::unwrap(
                pmu.0 as u32,
                pmu.1,
                ticks.saturating_mul(nanoseconds_a_tick()),
                self.clock.map(|per_tick| ticks.saturating_mul(per_tick)),
            ),
            Source::VirtualCounter { per_tick } => Ok(ticks * per_tick),
        };
        (result, count.map(|count| count.saturating_sub(self.cost)))
    }

    /// The same counter without correction from the virtual counter, as on a CPU whose virtual
    /// counter does not advance with the instructions.
    #[cfg(feature = "test-image")]
    pub(crate) const fn alone(self) -> Self {
        Self {
            clock: None,
            ..self
        }
    }
}

/// Nanoseconds a tick, rounded up: an underestimated time could hide a second overflow.
fn nanoseconds_a_tick() -> u64 {
    1_000_000_000_u64.div_ceil(cpu::cntfrq_el0().max(1))
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
        // SAFETY: the PMU exists (PMUVer), and only this module uses it. Its registers do not
        // affect memory.
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
    let per_tick = nanoseconds_a_tick();
    Source::VirtualCounter { per_tick }
}

/// Stops every counter of this CPU and its overflow interrupt.
pub(crate) fn stop() {
    // PMUVer: 0 none, 15 an implementation's own.
    if matches!(cpu::id_aa64dfr0_el1() >> 8 & 0xf, 0 | 15) {
        return;
    }
    // SAFETY: the PMU exists; its registers do not affect memory.
    unsafe {
        asm!(
            "msr pmcr_el0, xzr",
            "msr pmcntenclr_el0, {all}",
            "msr pmintenclr_el1, {all}",
            "msr pmovsclr_el0, {all}",
            "isb",
            all = in(reg) 0xffff_ffffu64,
            options(nomem, nostack, preserves_flags)
        );
    }
}

/// Resets event counter 0 and its overflow flag.
#[inline(never)]
fn pmu_restart() {
    // SAFETY: the PMU exists, or there would be no `Source::Pmu`. ISBs keep the measured code
    // inside.
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

/// Reads event counter 0, and whether a 32-bit counter overflowed.
#[inline(never)]
fn pmu_read() -> (u64, bool) {
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
    (count, overflow & 1 == 1)
}

/// A loop of [`TRIAL_INSTRUCTIONS`] instructions, apart from its setup.
fn trial() {
    // SAFETY: the loop only counts a register down.
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
