//! A secondary CPU from its first instruction at a virtual address.

use super::percpu::{self, PerCpu, STATE_FAILED, STATE_STARTING, STATE_UP};
use super::{identity, jobs, mailbox};
use crate::console::println;
use crate::trace::bring_up;
use crate::{cpu, exception, gic, psci};
use core::sync::atomic::Ordering;

/// The virtual address at which `head::mmu_on` goes on.
pub(super) fn entry() -> u64 {
    let main: extern "C" fn(&'static PerCpu) -> ! = secondary_main;
    main as usize as u64
}

/// On this CPU's own stack, in the kernel's tables, with the identity map still in TTBR0.
extern "C" fn secondary_main(this: &'static PerCpu) -> ! {
    percpu::take(this);
    exception::init();
    let number = this.number();
    if let (Some(command), Some(report)) = (mailbox::command(number), mailbox::look(number)) {
        bring_up::came_up(&command, &report);
    }
    identity::leave();
    let state = match gic::init_cpu(this) {
        Ok(()) => STATE_UP,
        Err(error) => {
            println!("granule: CPU {}: {error}", this.number());
            STATE_FAILED
        }
    };
    let said =
        this.state
            .compare_exchange(STATE_STARTING, state, Ordering::Release, Ordering::Relaxed);
    if said.is_err() || state != STATE_UP {
        // Given up, or of no use: nobody waits for an answer from us.
        psci::cpu_off();
        cpu::halt();
    }
    cpu::unmask_interrupts();
    jobs::serve(this)
}
