//! A GICv2: one set of registers for all CPUs, banked by the one that asks.
//!
//! The crate's driver wants to be the only one, so a value of it lives only under the lock here,
//! with interrupts masked.

use super::common::{CALL, Error, timer};
use super::quiet::{Registers, StillOn};
use crate::lock::MaskedLock;
use crate::percpu::{Aligned, Local};
use arm_gic::gicv2::{GicV2, SgiTarget, SgiTargetListFilter};
use arm_gic::{IntId, InterruptGroup};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::set::CpuSet;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);
static CPU_INTERFACE: AtomicU64 = AtomicU64::new(0);
/// The bit of each CPU among the CPU interfaces.
static INTERFACES: Local<AtomicU32> = Local([const { Aligned(AtomicU32::new(0)) }; MOST_CPUS]);
static LOCK: MaskedLock<()> = MaskedLock::new(());

/// GICD_ITARGETSR0: of an SGI it reads as the CPU interface of who reads.
const ITARGETSR0: u64 = 0x800;

/// Interrupts are in group 1 for a Non-secure kernel and in group 0 where there is no Secure state;
/// either way the plain registers (not the aliases, which are the Secure state's) deal with them.
const PLAIN: InterruptGroup = InterruptGroup::Group0;

/// Takes the registers.
///
/// # Safety
///
/// They must be mapped as Device memory at these addresses, for good.
pub(super) unsafe fn take(distributor: u64, cpu_interface: u64) {
    DISTRIBUTOR.store(distributor, Ordering::Relaxed);
    CPU_INTERFACE.store(cpu_interface, Ordering::Relaxed);
}

fn with<R>(work: impl FnOnce(&mut GicV2<'_>) -> R) -> R {
    LOCK.with(|()| {
        // SAFETY: `take`'s caller vouched for the addresses; under the lock there is no other driver.
        let mut gic = unsafe {
            GicV2::new(
                DISTRIBUTOR.load(Ordering::Relaxed) as *mut _,
                CPU_INTERFACE.load(Ordering::Relaxed) as *mut _,
            )
        };
        work(&mut gic)
    })
}

/// This CPU's interface, and the distributor, which it does no harm to set up again.
pub(super) fn init_cpu() -> Result<(), Error> {
    let timer = timer();
    let result = with(|gic| {
        gic.setup();
        // With Security Extensions the Non-secure view has the enable of group 1 where the other
        // view has that of group 0, which is the bit that this sets.
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
    // SAFETY: a register of the distributor, which `take`'s caller vouched for; reading it has no
    // effect.
    let mut interface = unsafe { targets.read_volatile() } & 0xff;
    // With one CPU interface there is nothing to target, and these registers read as zero.
    let [distributor, _] = registers();
    if distributor.read(TYPER) >> 5 & 0b111 == 0 {
        interface = 1;
    }
    INTERFACES.this().store(interface, Ordering::Relaxed);
    if interface == 0 {
        return Err(Error::NoInterface);
    }
    Ok(())
}

pub(super) fn send(cpus: CpuSet) {
    let interfaces = cpus.iter().fold(0, |all, cpu| {
        all | INTERFACES
            .of(cpu)
            .map_or(0, |bit| bit.load(Ordering::Relaxed))
    });
    let target = SgiTarget::List {
        target_list_filter: SgiTargetListFilter::CPUTargetList,
        target_list: interfaces as u16,
    };
    with(|gic| gic.send_sgi(CALL, target));
}

pub(super) fn acknowledge() -> Option<IntId> {
    // 1023 is none; of an SGI the sender stands above the number, which the end must repeat.
    with(|gic| gic.get_and_acknowledge_interrupt(PLAIN))
}

pub(super) fn end(id: IntId) {
    with(|gic| gic.end_interrupt(id, PLAIN));
}

/// GICD_CTLR and GICC_CTLR.
const CTLR: u64 = 0;
/// GICD_TYPER: in bits 4:0 how many words of 32 interrupts there are, less one; in bits 7:5 how many
/// CPU interfaces, less one.
const TYPER: u64 = 4;
/// GICC_PMR.
const PMR: u64 = 4;
/// GICD_CPENDSGIR0, of four.
const CPENDSGIR: u64 = 0xf10;

/// Distributor and CPU interface.
fn registers() -> [Registers; 2] {
    // SAFETY: `take`'s caller vouched for both.
    [&DISTRIBUTOR, &CPU_INTERFACE].map(|at| unsafe { Registers::at(at.load(Ordering::Relaxed)) })
}

/// See [`quiet_cpu`](super::quiet_cpu). The first word of interrupts is each CPU's own.
pub(super) fn quiet_cpu() -> Result<(), StillOn> {
    let [distributor, interface] = registers();
    interface.write(CTLR, 0);
    interface.write(PMR, 0);
    for word in 0..4 {
        distributor.write(CPENDSGIR + 4 * word, u32::MAX);
    }
    distributor.silence(0..1);
    // SGIs may be enabled for good. They come only from who sends them.
    distributor.silent(0..1, 0xffff)
}

/// See [`quiet_rest`](super::quiet_rest).
pub(super) fn quiet_rest() -> Result<(), StillOn> {
    let [distributor, _] = registers();
    distributor.write(CTLR, 0);
    let words = 1..u64::from(distributor.read(TYPER) & 0x1f) + 1;
    distributor.silence(words.clone());
    distributor.silent(words, 0)
}
