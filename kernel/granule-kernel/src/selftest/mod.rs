//! The parts of the test image: self-tests, deliberate failures and fault injection, selected by words of the
//! command line.
//!
//! Ordinary code does not name this module. A test changes the kernel only through a hook (`hook`), a trait
//! that the changed part of the kernel owns. [`install`] installs the implementations. Only an image with the
//! feature `test-image` contains them.
//!
//! | word | where |
//! | --- | --- |
//! | `granule.test=` with a failure of one CPU | [`failures`] |
//! | `granule.test=` with calls, parking, failures of other CPUs | [`calls`] |
//! | `granule.test=` with changes of the linear map | [`memory`] |
//! | `granule.test=conflict` and its like | [`conflict`] |
//! | `granule.test=needs-4k` and its like | [`drivers`] |
//! | `granule.test=kexec:` | [`kexec`] |
//! | `granule.test=alloc-failure` | [`alloc_failure`] |
//! | `granule.test=stacks` | [`stacks`] |
//! | `arm64.inject_conflict=` | [`inject`] |
//! | `arm64.fake_cpu=` | [`cpus`] |

mod alloc_failure;
mod calls;
mod conflict;
mod cpus;
mod drivers;
mod early_walk;
mod failures;
mod inject;
mod kexec;
mod memory;
mod registers;
mod stacks;

use crate::arch::counter::InstructionCounter;
use crate::exception::hook::{ABORTS, AbortHook};
use crate::init::hook::{BOOT, BootHook};
use crate::mm::hook::{ALLOCATIONS, TABLES};
use crate::mm::map::Request;
use crate::mm::selfcheck::Stage;
use crate::mm::walker::Tree;
use crate::task::hook::{TASKS, TaskHook};
use crate::task::task_table::Task;
use granule::linear::Placement;
use granule::table::TableError;
use granule_kcore::parameters::Parameters;

/// Installs every hook. The test image's first action at its virtual address.
pub(crate) fn install() {
    ABORTS.install(&Aborts);
    ALLOCATIONS.install(&alloc_failure::Refusals);
    BOOT.install(&Boot);
    TABLES.install(&inject::Injection);
    TASKS.install(&Tasks);
    crate::sched::hook::STACKS.install(&stacks::Painter);
    crate::dev::registry::MORE_DRIVERS.install(&drivers::TestDrivers);
    crate::kexec::hook::KEXEC.install(&kexec::Damage);
    crate::smp::hook::CPUS.install(&cpus::Cpus);
}

struct Boot;

impl BootHook for Boot {
    fn console_is_up(&self, parameters: &Parameters<'_>) {
        kexec::note(parameters);
        failures::run(parameters);
    }

    fn counter_is_up(&self, parameters: &Parameters<'_>, counter: &InstructionCounter) {
        failures::count(parameters, counter);
    }

    fn before_check(
        &self,
        parameters: &Parameters<'_>,
        stage: Stage,
        tables: &mut dyn Tree,
        placement: &Placement,
    ) {
        failures::corrupt(parameters, stage, tables, placement);
    }

    fn tables_are_up(&self, parameters: &Parameters<'_>) -> Result<(), TableError> {
        inject::init(parameters)
    }

    fn boot_is_done(&self, request: &Request<'_>, parameters: &Parameters<'_>) {
        calls::run(request, parameters);
        conflict::run(request, parameters);
        memory::run(parameters);
    }
}

struct Aborts;

impl AbortHook for Aborts {
    fn is_conflict(&self, address: u64) -> bool {
        inject::stands_for(address)
    }

    fn before_conflict(&self) {
        inject::probe();
        inject::mend();
    }

    fn before_translation_fault(&self) {
        early_walk::wait();
    }
}

struct Tasks;

impl TaskHook for Tasks {
    fn before_first(&self, parameters: &Parameters<'_>) {
        alloc_failure::open(parameters);
        stacks::open(parameters);
    }

    fn after_last(&self) {
        stacks::report();
    }

    fn begins(&self) {
        failures::task_begins();
    }

    fn forks(&self, parent: &Task, child: &Task) {
        alloc_failure::inherit(parent, child);
    }

    fn prctl(&self, task: &Task, [what, first, all]: [u64; 3]) -> Option<u64> {
        alloc_failure::is_asked(what).then(|| alloc_failure::arm(task, first, all))
    }
}
