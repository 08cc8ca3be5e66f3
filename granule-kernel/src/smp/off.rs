//! Switching all CPUs but the boot CPU off, for a kernel that leaves; and back on, if that comes to
//! nothing.
//!
//! A CPU goes off from its own loop, where it holds no lock and runs no task, and makes its part of
//! the interrupt controller quiet before. Nobody believes it: firmware is asked until it says so.

use super::percpu::{self, PerCpu, STATE_OFF, STATE_STAYS, STATE_UP};
use super::set::CpuSet;
use super::start::{self, Failure};
use super::{AFFINITY, MOST_CPUS};
use crate::console::println;
use crate::kexec::machine::machine;
use crate::user::{registers, sched, timer};
use crate::{counter, cpu, gic, ipi, psci};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Seconds that a CPU may take to go off.
const PATIENCE_S: u64 = 10;

/// The CPUs that are to go off.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Why not all others are off. Those that were are back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StillOn {
    number: usize,
    affinity: u64,
    why: Why,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// It was told to, and is still there.
    Stays,
    /// Firmware has not said that it is off.
    Late,
    /// Firmware does not say.
    Firmware(smccc::psci::Error),
    /// It is in this kernel's memory and does not listen.
    Parked,
}

impl fmt::Display for StillOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            affinity,
            why,
        } = self;
        write!(
            f,
            "CPU {number} (MPIDR {affinity:#x}) cannot be switched off: "
        )?;
        match why {
            Why::Stays => f.write_str("firmware refuses PSCI CPU_OFF"),
            Why::Late => write!(
                f,
                "PSCI AFFINITY_INFO has not said within {PATIENCE_S} s that it is off"
            ),
            Why::Firmware(error) => write!(f, "PSCI AFFINITY_INFO says: {error}"),
            Why::Parked => f.write_str(
                "it could not live with the tables and waits in this kernel's memory; boot without it",
            ),
        }
    }
}

/// Whether this CPU is to go off, from its loop ([`go`]).
pub(super) fn is_asked(this: &PerCpu) -> bool {
    CpuSet(ASKED.load(Ordering::Acquire)).contains(this.number())
}

/// Goes off. Comes back only if firmware refuses, with all as it was but the counting of instructions,
/// which is the boot's; or if that was withdrawn meanwhile.
pub(super) fn go(this: &'static PerCpu) {
    if !claim(this.number()) {
        return;
    }
    let masked = cpu::mask_interrupts();
    timer::off();
    counter::stop();
    // What of it does not fall silent is this CPU's, and goes with it.
    let _ = gic::quiet_cpu(this);
    if !for_a_test_it_stays(this) {
        psci::cpu_off();
    }
    if let Err(error) = gic::init_cpu(this) {
        println!("granule: CPU {}: {error}", this.number());
    }
    this.state.store(STATE_STAYS, Ordering::Release);
    cpu::restore_interrupts(masked);
}

/// Takes back that a CPU is to go off: that CPU, which then goes, or who told it to, and then it stays.
/// Whether it was not taken back before.
fn claim(number: usize) -> bool {
    let one = CpuSet::one(number).0;
    ASKED.fetch_and(!one, Ordering::AcqRel) & one != 0
}

/// As if firmware had refused.
fn for_a_test_it_stays(this: &PerCpu) -> bool {
    let stays = machine().and_then(|machine| machine.words.stays);
    stays == Some(this.number() as u64)
}

/// Switches all others off, one after the other, by the boot CPU; gives those that were on. Tasks
/// must be frozen.
pub(crate) fn all_others() -> Result<CpuSet, StillOn> {
    let others = percpu::online().without(percpu::this().number());
    // One that did not come up may still be in the image, which is about to be written over.
    for number in 1..MOST_CPUS {
        let Some(cpu) = percpu::of(number) else {
            continue;
        };
        let started = cpu.state.load(Ordering::Relaxed) != STATE_OFF;
        if started && !others.contains(number) {
            let affinity = cpu.affinity.load(Ordering::Relaxed) & AFFINITY;
            match psci::is_off(affinity) {
                Ok(true) => {}
                Ok(false) => return Err(still_on(cpu, Why::Parked)),
                Err(error) => return Err(still_on(cpu, Why::Firmware(error))),
            }
        }
    }
    let mut gone = CpuSet::default();
    for cpu in others.iter().filter_map(percpu::of) {
        let went = one(cpu);
        if went.is_ok() || !stays(cpu) {
            percpu::now_offline(cpu.number());
            gone.0 |= CpuSet::one(cpu.number()).0;
        }
        if let Err(why) = went {
            bring_back(gone);
            return Err(still_on(cpu, why));
        }
    }
    Ok(gone)
}

fn still_on(cpu: &PerCpu, why: Why) -> StillOn {
    StillOn {
        number: cpu.number(),
        affinity: cpu.affinity.load(Ordering::Relaxed),
        why,
    }
}

/// After it did not go off in time: whether it is one of those that run, now and later.
fn stays(cpu: &PerCpu) -> bool {
    if cpu.state.load(Ordering::Acquire) == STATE_STAYS {
        cpu.state.store(STATE_UP, Ordering::Relaxed);
        return true;
    }
    claim(cpu.number())
}

fn one(cpu: &PerCpu) -> Result<(), Why> {
    let one = CpuSet::one(cpu.number());
    let affinity = cpu.affinity.load(Ordering::Relaxed) & AFFINITY;
    // Firmware that does not know of it is not to be found when it has gone.
    if psci::is_off(affinity).map_err(Why::Firmware)? {
        return Ok(());
    }
    ASKED.fetch_or(one.0, Ordering::Release);
    gic::send(one);
    let start = cpu::counter_now();
    loop {
        if psci::is_off(affinity).map_err(Why::Firmware)? {
            return Ok(());
        }
        if cpu.state.load(Ordering::Acquire) == STATE_STAYS {
            return Err(Why::Stays);
        }
        if cpu::counter_now().wrapping_sub(start) > PATIENCE_S * cpu::cntfrq_el0() {
            return Err(Why::Late);
        }
        cpu::relax();
    }
}

/// Starts CPUs again that [`all_others`] switched off; says on the console which do not come.
pub(crate) fn bring_back(gone: CpuSet) {
    if !gone.is_empty() {
        println!("granule: switched off to leave, and started again: CPU {gone}");
    }
    for number in gone.iter() {
        match start::again(number) {
            Ok(()) => {
                // As on all CPUs while there are programs.
                if sched::is_open() {
                    ipi::call(CpuSet::one(number), &|_| registers::open());
                }
            }
            Err(failure) => tell(number, &failure),
        }
    }
}

fn tell(number: usize, failure: &Failure) {
    println!(
        "granule: CPU {number}, which was switched off to leave for the next kernel, {failure}"
    );
}
