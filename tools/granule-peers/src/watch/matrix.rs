//! The machines on which Debian's kernels are watched: each kernel with each CPU that can run it,
//! one and four of them, and both QEMUs. Pure.

use granule_cli::PageSize;
use xtask::pairwise;

use crate::peers::LINUXES;

/// CPUs of QEMU, and whether they have 16K pages: one without VHE and hardware updates, one with
/// both, and one with all features of QEMU.
const CPUS: [(&str, bool); 3] = [("cortex-a57", false), ("neoverse-n1", true), ("max", true)];

const NUMBERS: [u32; 2] = [1, 4];
/// The places of the QEMUs in `emulator::QEMUS`.
const QEMUS: [usize; 2] = [0, 1];

/// A kernel on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// The place in `LINUXES`.
    pub(super) kernel: usize,
    cpu: usize,
    pub(super) cpus: u32,
    /// The place in `emulator::QEMUS`.
    pub(super) qemu: usize,
}

impl Machine {
    pub(super) fn cpu(&self) -> &'static str {
        CPUS[self.cpu].0
    }

    fn values(&self) -> Vec<usize> {
        vec![self.kernel, self.cpu, self.cpus as usize, self.qemu]
    }
}

pub(super) fn full() -> Vec<Machine> {
    let mut all = Vec::new();
    for (kernel, linux) in LINUXES.iter().enumerate() {
        for (cpu, (_, has_16k)) in CPUS.into_iter().enumerate() {
            if linux.page_size == PageSize::K16 && !has_16k {
                continue;
            }
            for cpus in NUMBERS {
                all.extend(QEMUS.map(|qemu| Machine {
                    kernel,
                    cpu,
                    cpus,
                    qemu,
                }));
            }
        }
    }
    all
}

pub(super) fn covering() -> Vec<Machine> {
    pairwise::covering(&full(), Machine::values)
}
