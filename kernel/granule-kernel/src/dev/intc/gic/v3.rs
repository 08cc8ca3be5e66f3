//! The GICv3 and GICv4 driver: a redistributor for each CPU, and the CPU interface in system
//! registers.

#![allow(unsafe_code, reason = "the interrupt controller's registers")]

use super::super::common::{Error, StillOn};
use super::super::registers::Registers;
use super::{CALL, STOP, STOP_HARD, timer};
use crate::percpu::{self, PerCpu};
use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{
    GicCpuInterface, GicRedistributor, GicV3, HIGHEST_NS_PRIORITY, SgiTarget, SgiTargetGroup,
};
use arm_gic::{IntId, InterruptGroup, UniqueMmioPointer};
use core::arch::asm;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::devicetree::intc::MOST_REGIONS;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);
/// Start and end of each region of redistributors; 0 for an unused slot.
static REGIONS: [[AtomicU64; 2]; MOST_REGIONS] =
    [const { [const { AtomicU64::new(0) }; 2] }; MOST_REGIONS];
/// The bytes from one redistributor to the next; 0 if each one's type has them.
static STRIDE: AtomicU64 = AtomicU64::new(0);

/// Bytes of a redistributor without virtual LPIs: two frames of 64K.
const REDISTRIBUTOR: u64 = size_of::<GicrSgi>() as u64;

/// Sets the addresses of the registers.
///
/// # Safety
///
/// The registers must be mapped there as Device memory, for good.
pub(in super::super) unsafe fn take(
    distributor: u64,
    redistributors: &[Range<u64>],
    stride: Option<u64>,
) {
    DISTRIBUTOR.store(distributor, Ordering::Relaxed);
    STRIDE.store(stride.unwrap_or(0), Ordering::Relaxed);
    for (slot, region) in REGIONS.iter().zip(redistributors) {
        let [start, end] = slot;
        start.store(region.start, Ordering::Relaxed);
        end.store(region.end, Ordering::Relaxed);
    }
}

/// Sets up this CPU's redistributor and interface, and on the `first` CPU the distributor too.
pub(in super::super) fn init_cpu(percpu: &PerCpu, first: bool) -> Result<(), Error> {
    let affinity = percpu.affinity.load(Ordering::Relaxed);
    if affinity & 0xff >= 16 {
        return Err(Error::Affinity);
    }
    let redistributor = redistributor(affinity)?;
    let distributor = DISTRIBUTOR.load(Ordering::Relaxed) as *mut Gicd;
    let distributor = NonNull::new(distributor).ok_or(Error::NoRedistributor)?;
    // SAFETY: `take`'s caller answers for the registers. CPUs are set up one after the other, so
    // only one driver exists at a time, and it has this CPU's redistributor only.
    let gic = unsafe { GicV3::new(UniqueMmioPointer::new(distributor), redistributor, 1) };
    let mut gic = gic.map_err(Error::V3)?;
    if first {
        gic.setup(0);
    } else {
        gic.init_cpu(0);
        let mut redistributor = gic.redistributor(0).map_err(Error::V3)?;
        redistributor.configure_default_settings();
        GicCpuInterface::enable_group1(true);
    }
    GicCpuInterface::set_priority_mask(0xff);
    gic.set_interrupt_priority(CALL, Some(0), HIGHEST_NS_PRIORITY)
        .map_err(Error::V3)?;
    gic.enable_interrupt(CALL, Some(0), true)
        .map_err(Error::V3)?;
    if let Some(timer) = timer() {
        gic.set_interrupt_priority(timer, Some(0), HIGHEST_NS_PRIORITY)
            .map_err(Error::V3)?;
        gic.enable_interrupt(timer, Some(0), true)
            .map_err(Error::V3)?;
    }
    gic.gicr_barrier(0).map_err(Error::V3)
}

/// The redistributor whose GICR_TYPER has this affinity.
fn redistributor(affinity: u64) -> Result<NonNull<GicrSgi>, Error> {
    let stride = STRIDE.load(Ordering::Relaxed);
    for [start, end] in &REGIONS {
        let (mut at, end) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
        // The region may end before a redistributor that is marked as the last.
        while let Some(base) = NonNull::new(at as *mut GicrSgi)
            && at + REDISTRIBUTOR <= end
        {
            // SAFETY: `take`'s caller answers for the region. CPUs search for their redistributors one
            // after the other, and each only reads the types of others'.
            let typer = GicRedistributor::new(unsafe { UniqueMmioPointer::new(base) }).typer();
            if typer.core_mpidr() == affinity {
                return Ok(base);
            }
            if typer.last_redistributor() {
                break;
            }
            at += match stride {
                0 => REDISTRIBUTOR << u32::from(typer.virtual_lpis_supported()),
                stride => stride,
            };
        }
    }
    Err(Error::NoRedistributor)
}

/// Sends to `cpus`, ascending: neighbours in one cluster, up to 16, share one write.
pub(in super::super) fn send(cpus: impl Iterator<Item = usize>) {
    send_sgi(CALL, SgiTargetGroup::CurrentGroup1, cpus);
}

/// See [`send_stop`](super::super::send_stop).
pub(in super::super) fn send_stop(cpus: impl Iterator<Item = usize>, hard: bool) -> bool {
    if !hard {
        send_sgi(STOP, SgiTargetGroup::CurrentGroup1, cpus);
    } else if has_fiqs() {
        send_sgi(STOP_HARD, SgiTargetGroup::Group0, cpus);
    }
    !hard || has_fiqs()
}

/// GICD_CTLR.DS: there is one security state, as in virtual machines. Group 0 is the kernel's then, and comes as FIQs.
const ONE_SECURITY_STATE: u32 = 1 << 6;
/// GICD_CTLR.EnableGrp0, in that state.
const GROUP_0: u32 = 1;

fn has_fiqs() -> bool {
    distributor().read(CTLR) & ONE_SECURITY_STATE != 0
}

/// See [`allow_stop`](super::super::allow_stop).
pub(in super::super) fn allow_stop(percpu: &PerCpu) {
    // The redistributor was found when this CPU was set up.
    if let Ok(redistributor) = redistributor(percpu.affinity.load(Ordering::Relaxed)) {
        // SAFETY: this CPU's redistributor, for which `take`'s caller answers.
        let own = unsafe { Registers::at(redistributor.as_ptr() as u64 + SGI_FRAME) };
        super::allow_stop(own);
        if has_fiqs() {
            super::allow_stop_hard(own);
            let distributor = distributor();
            distributor.write(CTLR, distributor.read(CTLR) | GROUP_0);
            distributor.wait(CTLR, DISTRIBUTOR_WRITES);
            GicCpuInterface::enable_group0(true);
        }
    }
}

#[inline(always)]
fn send_sgi(id: IntId, group: SgiTargetGroup, cpus: impl Iterator<Item = usize>) {
    let mut cluster = None;
    let send = |cluster| send_to_cluster(id, group, cluster);
    for cpu in cpus {
        let Some(cpu) = percpu::of(cpu) else {
            continue;
        };
        let affinity = cpu.affinity.load(Ordering::Relaxed);
        // Below 16, because a CPU with a larger Aff0 is not brought up.
        let one = 1 << (affinity & 0xf);
        cluster = match cluster {
            Some((same, list)) if same == affinity >> 8 => Some((same, list | one)),
            other => {
                send(other);
                Some((affinity >> 8, one))
            }
        };
    }
    send(cluster);
}

/// Sends to CPUs of one cluster: their affinity without Aff0, and a bit for each Aff0.
fn send_to_cluster(id: IntId, group: SgiTargetGroup, cluster: Option<(u64, u16)>) {
    let Some((affinity, target_list)) = cluster else {
        return;
    };
    let target = SgiTarget::List {
        affinity3: (affinity >> 24) as u8,
        affinity2: (affinity >> 8) as u8,
        affinity1: affinity as u8,
        target_list,
    };
    // Fails only for an interrupt that is not an SGI.
    let _ = GicCpuInterface::send_sgi(id, target, group);
}

pub(in super::super) fn acknowledge() -> Option<IntId> {
    GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1)
}

pub(in super::super) fn end(id: IntId) {
    GicCpuInterface::end_interrupt(id, InterruptGroup::Group1);
}

/// GICD_CTLR and GICR_CTLR.
const CTLR: u64 = 0;
/// The group enables of GICD_CTLR, in either view.
const GROUPS: u32 = 0b111;
/// GICD_CTLR.RWP: a write is pending.
const DISTRIBUTOR_WRITES: u32 = 1 << 31;
/// GICR_CTLR.RWP.
const REDISTRIBUTOR_WRITES: u32 = 1 << 3;
/// GICD_TYPER: bits 4:0 hold the number of words of 32 interrupts less one.
const TYPER: u64 = 4;
/// Offset from a redistributor's first frame to its frame of SGIs and PPIs.
const SGI_FRAME: u64 = 0x1_0000;

pub(in super::super) fn quiesce_cpu(percpu: &PerCpu) -> Result<(), StillOn> {
    GicCpuInterface::enable_group1(false);
    GicCpuInterface::set_priority_mask(0);
    // A kernel may leave from a panic in an interrupt.
    drop_priorities();
    // The redistributor was found when this CPU was set up.
    let Ok(redistributor) = redistributor(percpu.affinity.load(Ordering::Relaxed)) else {
        return Ok(());
    };
    let start = redistributor.as_ptr() as u64;
    // SAFETY: this CPU's redistributor, for which `take`'s caller answers.
    let (control, own) = unsafe { (Registers::at(start), Registers::at(start + SGI_FRAME)) };
    own.disable_all(0..1);
    control.wait(CTLR, REDISTRIBUTOR_WRITES);
    own.check_disabled(0..1, 0)
}

/// Drops the priorities of interrupts that were acknowledged and never ended, of which a reset alone would free the
/// interface: `ICC_AP1R<n>_EL1`, of which there are as many as 2^(PRIbits - 5).
fn drop_priorities() {
    let control: u64;
    // SAFETY: registers of the interface, which the kernel has turned on; no interrupt is handled any more.
    unsafe {
        asm!("mrs {}, S3_0_C12_C12_4", "msr S3_0_C12_C9_0, xzr", out(reg) control, options(nostack));
        // ICC_CTLR_EL1.PRIbits: one less than the bits.
        if control >> 8 & 7 > 4 {
            asm!("msr S3_0_C12_C9_1, xzr", options(nostack));
        }
        if control >> 8 & 7 > 5 {
            asm!(
                "msr S3_0_C12_C9_2, xzr",
                "msr S3_0_C12_C9_3, xzr",
                options(nostack)
            );
        }
    }
}

fn distributor() -> Registers {
    // SAFETY: `take`'s caller answers for the distributor.
    unsafe { Registers::at(DISTRIBUTOR.load(Ordering::Relaxed)) }
}

pub(in super::super) fn quiesce_rest() -> Result<(), StillOn> {
    let distributor = distributor();
    // Affinity routing stays on: turning it off is UNPREDICTABLE.
    distributor.write(CTLR, distributor.read(CTLR) & !GROUPS);
    distributor.wait(CTLR, DISTRIBUTOR_WRITES);
    let words = 1..u64::from(distributor.read(TYPER) & 0x1f) + 1;
    distributor.disable_all(words.clone());
    distributor.wait(CTLR, DISTRIBUTOR_WRITES);
    distributor.check_disabled(words, 0)
}
