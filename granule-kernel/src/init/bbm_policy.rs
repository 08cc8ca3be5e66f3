//! How far this machine's CPUs are trusted to change the sizes of live leaves: the library's
//! decision, asked for the boot CPU before the linear map is made, and for all CPUs once they are
//! up.

use crate::dev::console::println;
use crate::mm::map::Request;
use crate::smp::start::Facts;
use granule::arch::CpuFeatures;
use granule::arch::bbm::BbmLevel;
use granule::arch::errata::Errata;
use granule::arch::trust::{Decision, System, decide};
use granule_kcore::parameters::Rodata;

/// TLB conflict aborts are dealt with where exceptions are: the handler, its stack and all it
/// touches lie in the image's own mapping, which is never split.
const HANDLES_CONFLICTS: bool = true;

/// What counts besides the CPUs: `limit` and `forced` are told on the command line.
pub(crate) const fn system(limit: BbmLevel, forced: Errata) -> System {
    System {
        limit,
        handles_conflicts: HANDLES_CONFLICTS,
        forced,
    }
}

/// The boot CPU's, by which the linear map is made; the console has why.
pub(crate) fn of_boot_cpu(cpu: &CpuFeatures, system: &System, rodata: Rodata) -> Decision {
    let decision = decide([(0, *cpu)], system);
    let map = match (rodata.changes_pages(), decision.splits_blocks()) {
        (false, _) => "its blocks are never split",
        (true, true) => "it has the largest leaves, which are split live",
        (true, false) => "it is made of pages",
    };
    println!("granule: {decision}; linear map: {map}");
    decision
}

/// That of all CPUs that are up. The console has why, if it is less than the map was made by.
pub(crate) fn of_all(facts: &[Facts], system: &System, request: &Request<'_>) -> Decision {
    let cpus = facts.iter().map(|facts| (facts.number, facts.features));
    let decision = decide(cpus, system);
    if decision.level < request.trust.level {
        println!("granule: {decision}");
    }
    decision
}
