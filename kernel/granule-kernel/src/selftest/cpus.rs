//! CPUs that report other features than they have: `arm64.fake_cpu=`; and a CPU that firmware does not switch
//! off.

use super::kexec;
use crate::handover::mailbox::Disguise;
use crate::smp::hook::CpuHook;
use granule_kcore::parameters::Parameters;

/// The CPU hook, which follows the command line.
pub(super) struct Cpus;

impl CpuHook for Cpus {
    fn disguise(&self, parameters: &Parameters<'_>, number: usize) -> Disguise {
        parameters.test.fake_cpu(number)
    }

    fn stays(&self, number: usize) -> bool {
        kexec::stays(number)
    }
}
