//! CPUs that look other than they are: `arm64.fake_cpu=`, and one that firmware does not switch off.

use super::kexec;
use crate::dev::console::println;
use crate::handover::mailbox::Disguise;
use crate::smp::hook::CpuHook;
use granule_kcore::cpus::fake;

/// What the command line says of CPUs.
pub(super) struct Cpus;

impl CpuHook for Cpus {
    fn before_start(&self, bootargs: &[u8]) {
        // No CPU is number 0 to this, so what cannot be understood is all that is heard.
        fake::of_cpu(bootargs, 0, |bad| {
            println!(
                "granule: arm64.fake_cpu={}: expected N:FIELD=VALUE[,...] with N from 1 and ID fields such as parange, tgran4, bbm; ignored",
                bad.value.escape_ascii()
            );
        });
    }

    fn disguise(&self, bootargs: &[u8], number: usize) -> Disguise {
        fake::of_cpu(bootargs, number, |_| ())
    }

    fn stays(&self, number: usize) -> bool {
        kexec::stays(number)
    }
}
