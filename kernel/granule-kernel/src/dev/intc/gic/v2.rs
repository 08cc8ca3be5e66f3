//! The GICv2 driver: one set of registers for all CPUs, banked by the accessing CPU.
//!
//! The `arm-gic` crate's driver must be the only one, so a value of it exists only under this file's lock,
//! with interrupts masked.

#![allow(unsafe_code, reason = "the interrupt controller's registers")]

use super::super::common::{Error, StillOn};
use super::super::registers::Registers;
use super::{CALL, timer};
use crate::lock::MaskedLock;
use crate::percpu::per_cpu;
use arm_gic::gicv2::{GicV2, SgiTarget, SgiTargetListFilter};
use arm_gic::{IntId, InterruptGroup};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);
static CPU_INTERFACE: AtomicU64 = AtomicU64::new(0);
per_cpu! {
    /// The CPU's bit among the CPU interfaces.
    static INTERFACE: AtomicU32 = AtomicU32::new(0);
}
static LOCK: MaskedLock<()> = MaskedLock::new(());

/// GICD_ITARGETSR0. The byte of an SGI reads as the reading CPU's own interface.
const ITARGETSR0: u64 = 0x800;

/// Interrupts are in group 1 for a Non-secure kernel, and in group 0 where there is no Secure state. In both
/// cases the plain registers apply; the aliases belong to the Secure state.
const PLAIN: InterruptGroup = InterruptGroup::Group0;

/// Sets the addresses of the registers.
///
/// # Safety
///
/// The registers must be mapped there as Device memory, for good.
pub(in super::super) unsafe fn take(distributor: u64, cpu_interface: u64) {
    DISTRIBUTOR.store(distributor, Ordering::Relaxed);
    CPU_INTERFACE.store(cpu_interface, Ordering::Relaxed);
}

fn with<R>(work: impl FnOnce(&mut GicV2<'_>) -> R) -> R {
    LOCK.with(|()| {
        // SAFETY: `take`'s caller answers for the addresses. The lock excludes any other driver.
        let mut gic = unsafe {
            GicV2::new(
                DISTRIBUTOR.load(Ordering::Relaxed) as *mut _,
                CPU_INTERFACE.load(Ordering::Relaxed) as *mut _,
            )
        };
        work(&mut gic)
    })
}

/// Sets up this CPU's interface, and the distributor, whose repeated setup is harmless.
pub(in super::super) fn init_cpu() -> Result<(), Error> {
    let timer = timer();
    let result = with(|gic| {
        gic.setup();
        // With Security Extensions the Non-secure view has group 1's enable bit where the other view has
        // group 0's. This call sets that bit.
        gic.enable_group0(true);
        gic.set_interrupt_priority(CALL, 0x80);
        if let Some(timer) = timer {
            gic.set_interrupt_priority(timer, 0x80);
            gic.enable_interrupt(timer, true)?;
        }
        gic.enable_interrupt(CALL, true)
    });
    result.map_err(Error::V2)?;
    let targets = (DISTRIBUTOR.load(Ordering::Relaxed) + ITARGETSR0) as *const u32;
    // SAFETY: a register of the distributor, for which `take`'s caller answers. Reading it has no effect.
    let mut interface = unsafe { targets.read_volatile() } & 0xff;
    // With one CPU interface there is nothing to target, and these registers read as zero.
    let [distributor, _] = registers();
    if distributor.read(TYPER) >> 5 & 0b111 == 0 {
        interface = 1;
    }
    INTERFACE.this().store(interface, Ordering::Relaxed);
    if interface == 0 {
        return Err(Error::NoInterface);
    }
    Ok(())
}

/// The CPU interfaces of `cpus`, a bit for each.
fn interfaces(cpus: impl Iterator<Item = usize>) -> u32 {
    cpus.fold(0, |all, cpu| {
        all | INTERFACE
            .of(cpu)
            .map_or(0, |bit| bit.load(Ordering::Relaxed))
    })
}

/// See [`send_stop`](super::super::send_stop). The driver has a lock, so this writes the register itself.
pub(in super::super) fn send_stop(cpus: impl Iterator<Item = usize>) {
    const SGIR: u64 = 0xf00;
    let [distributor, _] = registers();
    distributor.write(SGIR, interfaces(cpus) << 16 | super::super::STOP);
}

/// See [`allow_stop`](super::super::allow_stop).
pub(in super::super) fn allow_stop() {
    let [distributor, _] = registers();
    super::allow_stop(distributor);
}

pub(in super::super) fn send(cpus: impl Iterator<Item = usize>) {
    let interfaces = interfaces(cpus);
    let target = SgiTarget::List {
        target_list_filter: SgiTargetListFilter::CPUTargetList,
        target_list: interfaces as u16,
    };
    with(|gic| gic.send_sgi(CALL, target));
}

pub(in super::super) fn acknowledge() -> Option<IntId> {
    // 1023 means none. An SGI's number carries the sender above it, which the end must repeat.
    with(|gic| gic.get_and_acknowledge_interrupt(PLAIN))
}

pub(in super::super) fn end(id: IntId) {
    with(|gic| gic.end_interrupt(id, PLAIN));
}

/// GICD_CTLR and GICC_CTLR.
const CTLR: u64 = 0;
/// GICD_TYPER: bits 4:0 hold the number of words of 32 interrupts less one; bits 7:5 the number of CPU
/// interfaces less one.
const TYPER: u64 = 4;
/// GICC_PMR.
const PMR: u64 = 4;
/// GICC_APR0 and GICC_NSAPR0, the first of four each.
const APR: u64 = 0xd0;
const NSAPR: u64 = 0xe0;
/// GICD_CPENDSGIR0, the first of four.
const CPENDSGIR: u64 = 0xf10;

/// The registers of the distributor and of the CPU interface.
fn registers() -> [Registers; 2] {
    // SAFETY: `take`'s caller answers for both.
    [&DISTRIBUTOR, &CPU_INTERFACE].map(|at| unsafe { Registers::at(at.load(Ordering::Relaxed)) })
}

/// See [`quiesce_cpu`](super::super::quiesce_cpu). The first word of interrupts is banked for each CPU.
pub(in super::super) fn quiesce_cpu() -> Result<(), StillOn> {
    let [distributor, interface] = registers();
    interface.write(CTLR, 0);
    interface.write(PMR, 0);
    // A kernel may leave from a panic in an interrupt, whose priority nothing else drops.
    for word in 0..4 {
        interface.write(APR + 4 * word, 0);
        interface.write(NSAPR + 4 * word, 0);
    }
    for word in 0..4 {
        distributor.write(CPENDSGIR + 4 * word, u32::MAX);
    }
    distributor.disable_all(0..1);
    // SGIs may be permanently enabled. They arrive only when a CPU sends them.
    distributor.check_disabled(0..1, 0xffff)
}

pub(in super::super) fn quiesce_rest() -> Result<(), StillOn> {
    let [distributor, _] = registers();
    distributor.write(CTLR, 0);
    let words = 1..u64::from(distributor.read(TYPER) & 0x1f) + 1;
    distributor.disable_all(words.clone());
    distributor.check_disabled(words, 0)
}
