//! What a secondary CPU does outside of interrupts: jobs, tasks, merging of what became alike in the
//! linear map, going off; and what it does otherwise, which is to wait.

use crate::arch::cpu;
use crate::cpu::jobs;
use crate::mm::merge;
use crate::percpu::PerCpu;
use crate::smp::off;
use crate::user::sched;

/// Works, and waits in between, with interrupts let in.
pub(super) fn serve(this: &'static PerCpu) -> ! {
    loop {
        // Masked, so that a job that comes between the look and the wait is not slept over: a
        // pending interrupt ends the wait whether or not it is masked.
        let masked = cpu::mask_interrupts();
        let job = jobs::mine();
        // With a job, too: whoever notes something must not take this CPU for one that merges.
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
