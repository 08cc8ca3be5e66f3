//! The hook of CPUs that are started and switched off: which ID fields one reports, and whether
//! firmware switches one off.

use crate::handover::mailbox::Disguise;
use crate::hook::Hook;

/// Makes CPUs look other than they are.
pub(crate) trait CpuHook: Sync {
    /// Comes once before any other CPU is started, with the command line.
    fn before_start(&self, bootargs: &[u8]);

    /// What CPU `number` reports in the place of its own ID fields.
    fn disguise(&self, bootargs: &[u8], number: usize) -> Disguise;

    /// Whether CPU `number` is to stay on, as if firmware refused to switch it off.
    fn stays(&self, number: usize) -> bool;
}

/// The hook of CPUs.
pub(crate) static CPUS: Hook<dyn CpuHook> = Hook::new();
