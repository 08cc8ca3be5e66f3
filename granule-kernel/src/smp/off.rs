//! Switching all CPUs but the boot CPU off, for a kernel that leaves; and back on, if that comes to
//! nothing.
//!
//! A CPU goes off from its own loop, where it holds no lock and runs no task, and makes its part of
//! the interrupt controller quiet before. Nobody believes it: firmware is asked until it says so. In
//! which order, and what is taken back, is [`offline`]'s.

use super::hook::CPUS;
use super::start::{self, Failure};
use super::state;
use crate::arch::{counter, cpu};
use crate::dev::console::println;
use crate::dev::timer;
use crate::dev::{gic, psci};
use crate::percpu::{self, PerCpu};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::cpus::AFFINITY;
use granule_kcore::cpus::offline::{self, Others, Why};
use granule_kcore::cpus::set::CpuSet;

/// Seconds that a CPU may take to go off.
const PATIENCE_S: u64 = 10;

/// What is done for a CPU that was off and is up again, by the CPU that started it.
pub(crate) static CAME_BACK: spin::Once<fn(usize)> = spin::Once::new();

/// The CPUs that are to go off.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Why not all others are off. Those that were are back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StillOn {
    number: usize,
    affinity: u64,
    why: Why<smccc::psci::Error>,
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
            Why::Runs => f.write_str("PSCI AFFINITY_INFO says that it is off, and it runs"),
            Why::Parked => f.write_str(
                "it waits in this kernel's memory, parked or given up, and does not listen; boot without it",
            ),
        }
    }
}

/// Whether this CPU is to go off, from its loop ([`go`]).
pub(crate) fn is_asked(this: &PerCpu) -> bool {
    CpuSet(ASKED.load(Ordering::Acquire)).contains(this.number())
}

/// Goes off. Comes back only if firmware refuses in time, with all as it was but the counting of
/// instructions, which is the boot's; or if that was withdrawn meanwhile.
pub(crate) fn go(this: &'static PerCpu) {
    if !claim(this.number()) {
        return;
    }
    let masked = cpu::mask_interrupts();
    timer::off();
    counter::stop();
    // What of it does not fall silent is this CPU's, and goes with it.
    let _ = gic::quiet_cpu(this);
    let stays = CPUS.get().is_some_and(|hook| hook.stays(this.number()));
    if !stays {
        psci::cpu_off();
    }
    if let Err(error) = gic::init_cpu(this) {
        println!("granule: CPU {}: {error}", this.number());
    }
    let said = state::of(this.number()).is_some_and(|slot| {
        slot.compare_exchange(
            state::UP,
            state::STAYS,
            Ordering::Release,
            Ordering::Relaxed,
        )
        .is_ok()
    });
    if !said {
        // Given up: nobody calls this CPU any more when tables change.
        cpu::halt();
    }
    cpu::restore_interrupts(masked);
}

/// Takes back that a CPU is to go off: that CPU, which then goes, or who told it to, and then it stays.
/// Whether it was not taken back before.
fn claim(number: usize) -> bool {
    let one = CpuSet::one(number).0;
    ASKED.fetch_and(!one, Ordering::AcqRel) & one != 0
}

/// Switches all others off, one after the other, by the boot CPU; gives those that were on. Tasks
/// must be frozen.
pub(crate) fn all_others() -> Result<CpuSet, StillOn> {
    offline::all(&Real).map_err(|(number, why)| StillOn {
        number,
        affinity: affinity(number),
        why,
    })
}

/// The affinity fields by which firmware knows it.
fn affinity(number: usize) -> u64 {
    percpu::of(number).map_or(0, |cpu| cpu.affinity.load(Ordering::Relaxed) & AFFINITY)
}

/// The CPUs and the firmware of this machine.
struct Real;

impl Real {
    fn is_in_state(number: usize, state: u32) -> bool {
        state::of(number).is_some_and(|slot| slot.load(Ordering::Acquire) == state)
    }
}

impl Others for Real {
    type Error = smccc::psci::Error;

    fn online(&self) -> CpuSet {
        percpu::online().without(percpu::this().number())
    }

    fn was_started(&self, number: usize) -> bool {
        !Self::is_in_state(number, state::OFF)
    }

    fn is_off(&self, number: usize) -> Result<bool, Self::Error> {
        psci::is_off(affinity(number))
    }

    fn ask(&self, number: usize) {
        let one = CpuSet::one(number);
        ASKED.fetch_or(one.0, Ordering::Release);
        gic::send(one);
    }

    fn take_back(&self, number: usize) -> bool {
        claim(number)
    }

    fn stays(&self, number: usize) -> bool {
        Self::is_in_state(number, state::STAYS)
    }

    fn give_up(&self, number: usize) -> bool {
        state::of(number).is_some_and(|slot| {
            let (from, to) = (state::UP, state::GIVEN_UP);
            slot.compare_exchange(from, to, Ordering::Relaxed, Ordering::Acquire)
                .is_ok()
        })
    }

    fn goes_on(&self, number: usize) {
        if let Some(slot) = state::of(number) {
            slot.store(state::UP, Ordering::Relaxed);
        }
    }

    fn is_gone(&self, number: usize) {
        percpu::now_offline(number);
    }

    fn bring_back(&self, gone: CpuSet) {
        bring_back(gone);
    }

    fn is_late(&self, since: u64) -> bool {
        cpu::relax();
        cpu::counter_now().wrapping_sub(since) > PATIENCE_S * cpu::cntfrq_el0()
    }

    fn now(&self) -> u64 {
        cpu::counter_now()
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
                if let Some(came_back) = CAME_BACK.get() {
                    came_back(number);
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
