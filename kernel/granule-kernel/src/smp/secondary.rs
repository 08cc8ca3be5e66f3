//! The first code of a secondary CPU at a virtual address.

use super::{place, state};
use crate::arch::{cpu, left_on};
use crate::cpu::identity;
use crate::dev::console::println;
use crate::dev::{intc, psci};
use crate::exception;
use crate::percpu::{self, PerCpu};
use crate::trace::bring_up;
use core::sync::atomic::Ordering;

/// The idle loop that a CPU enters once it is up.
static IDLE: spin::Once<fn(&'static PerCpu) -> !> = spin::Once::new();

/// Sets the idle loop of CPUs that come up from here on.
pub(super) fn go_on_with(idle: fn(&'static PerCpu) -> !) {
    IDLE.call_once(|| idle);
}

/// The virtual address to which `head::mmu_on` jumps.
pub(super) fn entry() -> u64 {
    let main: extern "C" fn(&'static PerCpu) -> ! = secondary_main;
    main as usize as u64
}

/// Runs on this CPU's own stack, in the kernel's tables, with the identity map still in TTBR0.
extern "C" fn secondary_main(this: &'static PerCpu) -> ! {
    percpu::take(this);
    exception::init();
    // What it returns is the boot CPU's to report: the last owner left all CPUs alike, and most of them off.
    let _ = left_on::stop();
    let number = this.number();
    if let Some(mailbox) = place::mailbox(number) {
        bring_up::came_up(&mailbox.command(), &mailbox.look());
    }
    identity::leave();
    let state = match intc::init_cpu(this) {
        Ok(()) => state::UP,
        Err(error) => {
            println!("granule: CPU {}: {error}", this.number());
            state::FAILED
        }
    };
    let said = state::of(number).is_some_and(|slot| {
        slot.compare_exchange(state::STARTING, state, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    });
    if !said || state != state::UP {
        // The CPU was given up or cannot be used. No other CPU waits for an answer.
        psci::cpu_off();
        cpu::halt();
    }
    cpu::unmask_interrupts();
    match IDLE.get() {
        Some(idle) => idle(this),
        None => cpu::halt(),
    }
}
