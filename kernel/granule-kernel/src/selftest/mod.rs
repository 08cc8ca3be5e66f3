//! The parts of the test image: self-tests, deliberate failures and fault injection, selected by words of the
//! command line.
//!
//! Ordinary code does not name this module. A test changes the kernel only through a hook (`hook`), functions
//! that the changed part of the kernel calls. [`install`] installs them. Only an image with the
//! feature `test-image` contains them.
//!
//! | word | where |
//! | --- | --- |
//! | `granule.test=` with a failure of one CPU | [`failures`] |
//! | `granule.test=` with calls, parking, failures of other CPUs | [`calls`] |
//! | `granule.test=` with changes of the linear map | [`memory`] |
//! | `granule.test=conflict` and its like | [`conflict`] |
//! | `granule.test=copies` | [`copies`] |
//! | `granule.test=needs-4k` and its like | [`drivers`] |
//! | `granule.test=kexec:` | [`kexec`] |
//! | `granule.crash=` | [`crash`] |
//! | `granule.test=alloc-failure` | [`alloc_failure`] |
//! | every boot of that image | [`aliases`] |
//! | `granule.test=stacks` | [`stacks`] |
//! | `arm64.inject_conflict=` | [`inject`] |
//! | `arm64.fake_cpu=` | [`install`] |

mod aliases;
mod alloc_failure;
mod calls;
mod conflict;
mod copies;
mod crash;
mod drivers;
mod early_walk;
mod failures;
mod inject;
mod kexec;
mod memory;
mod registers;
mod stacks;

use crate::dev::registry::MORE_DRIVERS;
use crate::exception::hook::{ABORTS, AbortHook};
use crate::init::hook::{BOOT, BootHook};
use crate::kexec::hook::KEXEC;
use crate::mm::hook::{ALLOCATIONS, TABLES};
use crate::sched::hook::{STACKS, StackHook};
use crate::smp::hook::{CPUS, CpuHook};
use crate::task::hook::{TASKS, TaskHook};

/// Installs every hook. The test image's first action at its virtual address.
pub(crate) fn install() {
    ABORTS.install(&AbortHook {
        is_conflict: inject::stands_for,
        before_conflict: || {
            inject::probe();
            inject::mend();
        },
        before_translation_fault: early_walk::wait,
    });
    ALLOCATIONS.install(&alloc_failure::REFUSES);
    BOOT.install(&BootHook {
        console_is_up: |parameters| {
            kexec::note(parameters);
            crash::note(parameters);
            failures::run(parameters);
        },
        counter_is_up: failures::count,
        needs_pages: |parameters| {
            parameters
                .test
                .asks_for(b"pages")
                .then_some("granule.test=pages")
        },
        before_check: failures::corrupt,
        tables_are_up: inject::init,
        boot_is_done: |request, parameters| {
            calls::run(request, parameters);
            conflict::run(request, parameters);
            memory::run(parameters);
            copies::run(parameters);
        },
    });
    CPUS.install(&CpuHook {
        disguise: |parameters, number| parameters.test.fake_cpu(number),
        stays: kexec::stays,
    });
    KEXEC.install(&kexec::DAMAGE);
    MORE_DRIVERS.install(&drivers::HOOK);
    STACKS.install(&StackHook {
        made: stacks::made,
        unused: stacks::unused,
    });
    TABLES.install(&inject::Injection);
    TASKS.install(&TaskHook {
        before_first: |parameters| {
            alloc_failure::open(parameters);
            stacks::open(parameters);
        },
        after_last: stacks::report,
        begins: failures::task_begins,
        forks: alloc_failure::inherit,
        prctl: |task, [what, first, all]| {
            let armed = || alloc_failure::arm(task, first, all);
            let is_asked = alloc_failure::is_asked(what);
            is_asked.then(armed).or_else(|| aliases::answer(what))
        },
    });
}
