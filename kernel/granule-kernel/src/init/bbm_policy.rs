//! Decides how far this machine's CPUs are trusted to change the sizes of live leaves. The rules
//! are the library's; this file applies them to the boot CPU before the linear map is built, and to
//! all CPUs once they are up.

use crate::dev::console::println;
use crate::mm::map::Request;
use crate::smp::start;
use granule::arch::CpuFeatures;
use granule::arch::bbm::BbmLevel;
use granule::arch::bbm_policy::{Decision, SystemLimits};
use granule::arch::errata::Errata;
use granule_kcore::parameters::Rodata;

/// This kernel handles TLB conflict aborts: the handler, its stack and all memory that it accesses
/// lie in the image's own mapping, which is never split.
const HANDLES_CONFLICTS: bool = true;

/// The inputs besides the CPUs. `limit` and `forced` come from the command line.
pub(crate) const fn system(limit: BbmLevel, forced: Errata) -> SystemLimits {
    SystemLimits {
        limit,
        handles_conflicts: HANDLES_CONFLICTS,
        forced,
    }
}

/// The decision for the boot CPU, by which the linear map is built. Prints the reason.
pub(crate) fn of_boot_cpu(cpu: &CpuFeatures, system: &SystemLimits, rodata: Rodata) -> Decision {
    let decision = system.decide([(0, *cpu)]);
    let map = match (rodata.changes_pages(), decision.splits_blocks()) {
        (false, _) => "its blocks are never split",
        (true, true) => "it has the largest leaves, which are split live",
        (true, false) => "it is made of pages",
    };
    println!("granule: {decision}; linear map: {map}");
    decision
}

/// The decision for all CPUs that are up. Prints the reason if it grants less than the map was
/// built by.
pub(crate) fn of_all(system: &SystemLimits, request: &Request<'_>) -> Decision {
    let cpus = start::facts().map(|facts| (facts.number, facts.features));
    let decision = system.decide(cpus);
    if decision.level < request.bbm_policy.level {
        println!("granule: {decision}");
    }
    decision
}
