//! Switches off all CPUs but the boot CPU, for leaving the kernel, and starts them again if leaving fails.
//!
//! A CPU goes off from its own idle loop, where it holds no lock and runs no task, after it has
//! quiesced its part of the interrupt controller. Its own report does not count: the boot CPU polls
//! firmware until firmware reports the CPU off. [`offline`] defines the order of the steps and what
//! is undone.

use super::hook::CPUS;
use super::start::{self, Failure};
use super::state;
use crate::arch::{counter, cpu};
use crate::dev::console::println;
use crate::dev::{intc, psci, timer};
use crate::percpu::{self, PerCpu};
use core::fmt;
use core::sync::atomic::Ordering;
use granule_kcore::cpus::AFFINITY;
use granule_kcore::cpus::offline::{self, Others, Why};
use granule_kcore::cpus::set::{AtomicCpuSet, CpuSet};
use granule_kcore::timeout::Timeout;

/// Seconds that a CPU may take to go off.
const PATIENCE_S: u64 = 10;

/// Called on the starting CPU for each CPU that was off and is up again.
pub(crate) static CAME_BACK: spin::Once<fn(usize)> = spin::Once::new();

/// The CPUs that were requested to go off.
static ASKED: AtomicCpuSet = AtomicCpuSet::new();

/// Why some of the other CPUs are not off. Those that were off have been started again.
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
                "PSCI AFFINITY_INFO has not reported it as off within {PATIENCE_S} s"
            ),
            Why::Firmware(error) => write!(f, "PSCI AFFINITY_INFO returns: {error}"),
            Why::Runs => f.write_str("PSCI AFFINITY_INFO reports it as off, but it runs"),
            Why::ForGood => f.write_str(
                "it was started by its cpu-release-addr, and nothing switches such a CPU off; boot with maxcpus=1 to leave",
            ),
            Why::Parked => f.write_str(
                "it waits in this kernel's memory, parked or given up, and does not listen; boot without it",
            ),
        }
    }
}

/// Whether this CPU was requested to go off, from its idle loop ([`go`]).
pub(crate) fn is_asked(this: &PerCpu) -> bool {
    ASKED.contains(this.number(), Ordering::Acquire)
}

/// Switches this CPU off. Returns if the request was withdrawn meanwhile, or if firmware refuses in time. The
/// CPU's state is then restored, except the counting of instructions, which belongs to the boot.
pub(crate) fn go(this: &'static PerCpu) {
    if !claim(this.number()) {
        return;
    }
    let masked = cpu::mask_interrupts();
    timer::off();
    counter::stop();
    // An interrupt that cannot be stopped is private to this CPU and stops with it.
    let _ = intc::quiesce_cpu(this);
    let stays = CPUS.get().is_some_and(|hook| (hook.stays)(this.number()));
    if !stays {
        psci::cpu_off();
    }
    if let Err(error) = intc::init_cpu(this) {
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
        // The boot CPU gave this CPU up: no other CPU calls it when tables change.
        cpu::halt();
    }
    cpu::restore_interrupts(masked);
}

/// Takes the request to CPU `number`. Either that CPU takes it and goes off, or the requester takes it back
/// and the CPU stays. Returns whether this call took it.
fn claim(number: usize) -> bool {
    ASKED.remove(number, Ordering::AcqRel)
}

/// Switches all other CPUs off, one after the other, on the boot CPU. Returns the CPUs that were on. Tasks
/// must be frozen.
pub(crate) fn all_others() -> Result<CpuSet, StillOn> {
    offline::all(&Real).map_err(|(number, why)| StillOn {
        number,
        affinity: affinity(number),
        why,
    })
}

/// The affinity fields by which firmware identifies the CPU.
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
        // A number that no CPU has was started by nobody.
        state::of(number).is_some_and(|slot| slot.load(Ordering::Acquire) != state::OFF)
    }

    fn can_go_off(&self, number: usize) -> bool {
        !state::is_for_good(number).is_some_and(|for_good| for_good.load(Ordering::Relaxed))
    }

    fn is_off(&self, number: usize) -> Result<bool, Self::Error> {
        psci::is_off(affinity(number))
    }

    fn ask(&self, number: usize) {
        ASKED.add(number, Ordering::Release);
        intc::send_to(number);
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

    fn timeout(&self) -> Timeout {
        cpu::timeout(PATIENCE_S)
    }

    fn is_late(&self, timeout: &mut Timeout) -> bool {
        cpu::relax();
        timeout.is_over(cpu::counter_now())
    }
}

/// Restarts the CPUs that [`all_others`] switched off. Prints which of them do not come up.
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
            Err(failure) => print_failure(number, &failure),
        }
    }
}

fn print_failure(number: usize, failure: &Failure) {
    println!(
        "granule: CPU {number}, which was switched off to leave for the next kernel, {failure}"
    );
}
