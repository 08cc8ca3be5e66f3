//! Drives the interrupt controller of the Raspberry Pi 2 and 3, each core by its own registers. What is written there
//! is decided in `granule_kcore::bcm2836`.

#![allow(unsafe_code, reason = "the interrupt controller's registers")]

use super::common::{Error, StillOn, timer};
use super::registers::Registers;
use crate::percpu::{self, PerCpu};
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::bcm2836::{self, Core};

static REGISTERS: AtomicU64 = AtomicU64::new(0);
/// The registers of the controller behind it; 0 if the tree has none.
static SHARED: AtomicU64 = AtomicU64::new(0);

impl bcm2836::Registers for Registers {
    fn read(self, offset: u64) -> u32 {
        Self::read(self, offset)
    }

    fn write(self, offset: u64, value: u32) {
        Self::write(self, offset, value);
    }
}

/// Sets the addresses of the registers, and of those of the controller behind it.
///
/// # Safety
///
/// They must be mapped there as Device memory, for good.
pub(super) unsafe fn take(registers: u64, shared: Option<u64>) {
    REGISTERS.store(registers, Ordering::Relaxed);
    SHARED.store(shared.unwrap_or_default(), Ordering::Relaxed);
}

fn registers() -> Registers {
    // SAFETY: `take`'s caller answers for the registers. None of them changes by being read.
    unsafe { Registers::at(REGISTERS.load(Ordering::Relaxed)) }
}

/// Stops all that the cores share: nothing here turns it on, but a bootloader may have.
fn silence() {
    bcm2836::silence(registers());
    let shared = SHARED.load(Ordering::Relaxed);
    if shared != 0 {
        // SAFETY: as for `registers`. The registers that are read do not change by it.
        bcm2836::silence_shared(unsafe { Registers::at(shared) });
    }
}

fn core(cpu: &PerCpu) -> Option<Core<Registers>> {
    Core::of(registers(), cpu.affinity.load(Ordering::Relaxed))
}

/// Lets calls and the timer of this CPU through, and nothing else. `first` silences what all CPUs share too.
pub(super) fn init_cpu(cpu: &PerCpu, first: bool) -> Result<(), Error> {
    if first {
        silence();
    }
    core(cpu).ok_or(Error::NoCore)?.enable(timer());
    Ok(())
}

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
