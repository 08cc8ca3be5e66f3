//! The hook of CPUs that are started and switched off: which ID fields one reports, and whether
//! firmware switches one off.

use crate::handover::mailbox::Disguise;
use crate::hook::Hook;
use granule_kcore::parameters::Parameters;

/// Makes CPUs look other than they are.
pub(crate) trait CpuHook: Sync {
    /// What CPU `number` reports in the place of its own ID fields.
    fn disguise(&self, parameters: &Parameters<'_>, number: usize) -> Disguise;

    /// Whether CPU `number` is to stay on, as if firmware refused to switch it off.
    fn stays(&self, number: usize) -> bool;
}

/// The hook of CPUs.
pub(crate) static CPUS: Hook<dyn CpuHook> = Hook::new();
