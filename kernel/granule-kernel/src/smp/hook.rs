//! The hook over starting CPUs and switching them off: which ID fields a CPU reports, and whether
//! firmware refuses to switch a CPU off.

use crate::handover::mailbox::Disguise;
use crate::hook::Hook;
use granule_kcore::parameters::Parameters;

/// Changes how CPUs appear.
pub(crate) trait CpuHook: Sync {
    /// The ID fields that CPU `number` reports in place of its own.
    fn disguise(&self, parameters: &Parameters<'_>, number: usize) -> Disguise;

    /// Whether CPU `number` stays on, as if firmware refused to switch it off.
    fn stays(&self, number: usize) -> bool;
}

/// The installed hook over CPUs.
pub(crate) static CPUS: Hook<dyn CpuHook> = Hook::new();
