//! CPUs that look other than they are: `arm64.fake_cpu=`, and one that firmware does not switch off.

use super::kexec;
use crate::handover::mailbox::Disguise;
use crate::smp::hook::CpuHook;
use granule_kcore::parameters::Parameters;

/// What the command line says of CPUs.
pub(super) struct Cpus;

impl CpuHook for Cpus {
    fn disguise(&self, parameters: &Parameters<'_>, number: usize) -> Disguise {
        parameters.test.fake_cpu(number)
    }

    fn stays(&self, number: usize) -> bool {
        kexec::stays(number)
    }
}
