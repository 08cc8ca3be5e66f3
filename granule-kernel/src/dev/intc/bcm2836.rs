//! Drives the interrupt controller of the Raspberry Pi 2 and 3, each core by its own registers. What is written there
//! is decided in `granule_kcore::bcm2836`.

use super::common::{Error, StillOn, timer};
use super::registers::Registers;
use crate::percpu::{self, PerCpu};
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::bcm2836::{self, Core};

static REGISTERS: AtomicU64 = AtomicU64::new(0);

impl bcm2836::Registers for Registers {
    fn read(self, offset: u64) -> u32 {
        Self::read(self, offset)
    }

    fn write(self, offset: u64, value: u32) {
        Self::write(self, offset, value);
    }
}

/// Sets the address of the registers.
///
/// # Safety
///
/// They must be mapped there as Device memory, for good.
pub(super) unsafe fn take(registers: u64) {
    REGISTERS.store(registers, Ordering::Relaxed);
}

/// The core that is this CPU.
fn core(cpu: &PerCpu) -> Option<Core<Registers>> {
    // SAFETY: `take`'s caller answers for the registers. None of them changes by being read.
    let registers = unsafe { Registers::at(REGISTERS.load(Ordering::Relaxed)) };
    Core::of(registers, cpu.affinity.load(Ordering::Relaxed))
}

/// Lets calls and the timer of this CPU through.
pub(super) fn init_cpu(cpu: &PerCpu) -> Result<(), Error> {
    core(cpu).ok_or(Error::NoCore)?.enable(timer());
    Ok(())
}

/// See [`quiesce_cpu`](super::quiesce_cpu).
pub(super) fn quiesce_cpu(cpu: &PerCpu) -> Result<(), StillOn> {
    core(cpu)
        .map_or(Ok(()), Core::disable)
        .map_err(StillOn::enabled)
}

pub(super) fn send(cpus: impl Iterator<Item = usize>) {
    for cpu in cpus {
        if let Some(core) = percpu::of(cpu).and_then(core) {
            core.call();
        }
    }
}

pub(super) fn acknowledge() -> Option<u32> {
    core(percpu::this())?.take()
}
