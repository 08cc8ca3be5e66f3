//! The hook over starting CPUs and switching them off: which ID fields a CPU reports, and whether
//! firmware refuses to switch a CPU off.

use crate::handover::mailbox::Disguise;
use crate::hook::Hook;
use granule_kcore::parameters::Parameters;

/// Changes how CPUs appear.
pub(crate) struct CpuHook {
    /// The ID fields that CPU `number` reports in place of its own.
    pub(crate) disguise: fn(&Parameters<'_>, usize) -> Disguise,
    /// Whether CPU `number` stays on, as if firmware refused to switch it off.
    pub(crate) stays: fn(usize) -> bool,
}

/// The installed hook over CPUs.
pub(crate) static CPUS: Hook<CpuHook> = Hook::new();
