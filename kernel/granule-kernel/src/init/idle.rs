//! The idle loop of a secondary CPU outside of interrupts: it runs jobs and tasks, merges leaves of the
//! linear map, goes off, and otherwise waits.

use crate::arch::cpu;
use crate::cpu::jobs;
use crate::mm::merge;
use crate::percpu::PerCpu;
use crate::sched;
use crate::smp::off;

/// Works and waits for ever, with interrupts unmasked in between.
pub(super) fn serve(this: &'static PerCpu) -> ! {
    loop {
        // Interrupts are masked between the check and the wait, so that a job that arrives there is not
        // missed: a pending interrupt ends the wait even while masked.
        let masked = cpu::mask_interrupts();
        let job = jobs::mine();
        // Asked even with a job: a CPU that notes a range must not take this one for a CPU that merges.
        let nothing_noted = merge::may_sleep();
        let goes_off = off::is_asked(this);
        if job.is_none() && nothing_noted && !goes_off && sched::may_sleep() {
            cpu::wait_for_interrupt();
        }
        sched::woke();
        cpu::restore_interrupts(masked);
        if goes_off {
            if !nothing_noted {
                merge::wake();
            }
            off::go(this);
            continue;
        }
        match job {
            None => {
                if !sched::run_one() {
                    merge::idle();
                    cpu::relax();
                }
            }
            Some(job) => {
                if !nothing_noted {
                    merge::wake();
                }
                job.run();
            }
        }
    }
}
