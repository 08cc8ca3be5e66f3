//! The interrupt controller: the parts needed for calls between CPUs and each CPU's timer.
//!
//! `granule_kcore::devicetree::intc` finds the controller; [`gic`] drives both versions of the GIC,
//! [`bcm2836`] that of the Raspberry Pi 2 and 3; the rest of the kernel calls the functions here,
//! and only they depend on the kind.

mod bcm2836;
mod common;
mod gic;
mod registers;

pub(crate) use common::{Error, StillOn};

use crate::dev::driver::Driver;
use crate::percpu::{self, PerCpu};
use arm_gic::IntId;
use arrayvec::ArrayVec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use gic::{v2, v3};
use granule_boot::driver::Requirement;
use granule_kcore::bcm2836::CALL;
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::devicetree::intc::MOST_REGIONS;

pub(crate) static GIC_V2_DRIVER: Driver = Driver::new("gic-v2", Requirement::Any);
pub(crate) static GIC_V3_DRIVER: Driver = Driver::new("gic-v3", Requirement::Any);
pub(crate) static BCM2836_DRIVER: Driver = Driver::new("bcm2836-l1-intc", Requirement::Any);

/// A controller with mapped registers, by virtual addresses.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "the boot has one, on its stack")]
pub(crate) enum Mapped {
    /// Distributor and CPU interface.
    GicV2 {
        distributor: u64,
        cpu_interface: u64,
    },
    /// Distributor, the regions of redistributors, and their own stride.
    GicV3 {
        distributor: u64,
        redistributors: ArrayVec<Range<u64>, MOST_REGIONS>,
        stride: Option<u64>,
    },
    /// All registers, and those of the controller behind it.
    Bcm2836 { registers: u64, shared: Option<u64> },
}

/// The controller's kind; [`NONE`] before it is set up.
static KIND: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = 0;
const GIC_V2: u32 = 2;
const GIC_V3: u32 = 3;
const BCM2836: u32 = 4;

fn kind() -> u32 {
    KIND.load(Ordering::Relaxed)
}

/// Sets up what all CPUs share and this CPU's part, which is the boot CPU's.
///
/// # Safety
///
/// The registers must be mapped as Device memory at these addresses for good. The function must be called
/// only once, before any other function here.
#[allow(unsafe_code, reason = "the interrupt controller's registers")]
pub(crate) unsafe fn init(mapped: &Mapped, cpu: &PerCpu) -> Result<(), Error> {
    let kind = match mapped {
        Mapped::GicV2 {
            distributor,
            cpu_interface,
        } => {
            // SAFETY: the caller answers for the mapping.
            unsafe { v2::take(*distributor, *cpu_interface) };
            GIC_V2
        }
        Mapped::GicV3 {
            distributor,
            redistributors,
            stride,
        } => {
            // SAFETY: the caller answers for the mapping.
            unsafe { v3::take(*distributor, redistributors, *stride) };
            GIC_V3
        }
        Mapped::Bcm2836 { registers, shared } => {
            // SAFETY: the caller answers for the mapping.
            unsafe { bcm2836::take(*registers, *shared) };
            BCM2836
        }
    };
    KIND.store(kind, Ordering::Relaxed);
    restore(cpu)
}

/// Sets up this CPU's part. CPUs must call this one after the other.
pub(crate) fn init_cpu(cpu: &PerCpu) -> Result<(), Error> {
    set_up(cpu, false)
}

/// Restores the state after [`init`]. The boot CPU calls this.
pub(crate) fn restore(cpu: &PerCpu) -> Result<(), Error> {
    set_up(cpu, true)
}

/// `first` sets up what all CPUs share too.
fn set_up(cpu: &PerCpu, first: bool) -> Result<(), Error> {
    match kind() {
        GIC_V2 => v2::init_cpu(),
        GIC_V3 => v3::init_cpu(cpu, first),
        BCM2836 => bcm2836::init_cpu(cpu, first),
        _ => Ok(()),
    }
}

/// Stops all interrupts of this CPU: none of its private interrupts is enabled, pending or active, and its
/// interface, if it has one, is off. Interrupts must be masked.
pub(crate) fn quiesce_cpu(cpu: &PerCpu) -> Result<(), StillOn> {
    match kind() {
        GIC_V2 => v2::quiesce_cpu(),
        GIC_V3 => v3::quiesce_cpu(cpu),
        BCM2836 => bcm2836::quiesce_cpu(cpu),
        _ => Ok(()),
    }
}

/// Stops all shared interrupts. The last CPU calls this.
pub(crate) fn quiesce_rest() -> Result<(), StillOn> {
    match kind() {
        GIC_V2 => v2::quiesce_rest(),
        GIC_V3 => v3::quiesce_rest(),
        // The Raspberry Pi's shared interrupts are another controller's. `set_up` has turned them off, and nothing
        // turns them on again.
        _ => Ok(()),
    }
}

/// Sends the call interrupt to `cpus`. The receiver sees everything that was stored before.
pub(crate) fn send(cpus: CpuSet) {
    send_each(cpus.iter());
}

/// Sends the call interrupt to one CPU, as [`send`] does.
pub(crate) fn send_to(cpu: usize) {
    send_each(core::iter::once(cpu));
}

/// The interrupt by which a CPU that panics stops the others: an SGI that nothing else uses.
const STOP: u32 = 1;

/// Lets this CPU take the interrupt to stop. Nothing here waits for a lock.
pub(crate) fn allow_stop() {
    match kind() {
        GIC_V2 => v2::allow_stop(),
        GIC_V3 => v3::allow_stop(percpu::this()),
        // Its mailboxes are the calls'.
        _ => {}
    }
}

/// Sends the interrupt to stop to `cpus`, which have allowed it; the `hard` one is an FIQ, which a CPU takes with IRQs
/// masked. Returns whether there is such an interrupt. Nothing here waits for a lock.
pub(crate) fn send_stop(cpus: CpuSet, hard: bool) -> bool {
    granule::hw::dsb_ishst();
    let sent = match (kind(), hard) {
        (GIC_V2, false) => {
            v2::send_stop(cpus.iter());
            true
        }
        (GIC_V3, _) => v3::send_stop(cpus.iter(), hard),
        _ => false,
    };
    granule::hw::isb();
    sent
}

fn send_each(cpus: impl Iterator<Item = usize>) {
    // Sending is not an access to memory that the receiver reads, so only a barrier orders it
    // after the stores that it announces.
    granule::hw::dsb_ishst();
    match kind() {
        GIC_V2 => v2::send(cpus),
        GIC_V3 => v3::send(cpus),
        BCM2836 => bcm2836::send(cpus),
        _ => {}
    }
    granule::hw::isb();
}

/// Acknowledges the pending interrupt with the highest priority; `None` if it went away.
pub(crate) fn acknowledge() -> Option<Taken> {
    let taken = match kind() {
        GIC_V2 => v2::acknowledge().map(Taken::GicV2),
        GIC_V3 => v3::acknowledge().map(Taken::GicV3),
        BCM2836 => bcm2836::acknowledge().map(Taken::Bcm2836),
        _ => None,
    }?;
    // Data that the interrupt announces must be read after the acknowledgement.
    granule::hw::dsb_sy();
    granule::hw::isb();
    Some(taken)
}

/// Ends the handling of an interrupt.
pub(crate) fn end(taken: Taken) {
    match taken {
        Taken::GicV2(id) => v2::end(id),
        Taken::GicV3(id) => v3::end(id),
        // It ended with its cause.
        Taken::Bcm2836(_) => {}
    }
    granule::hw::isb();
}

/// An interrupt that was acknowledged, by the number that its controller gives it.
#[derive(Debug)]
pub(crate) enum Taken {
    GicV2(IntId),
    GicV3(IntId),
    Bcm2836(u32),
}

impl Taken {
    /// Whether the interrupt is a call from another CPU.
    pub(crate) fn is_call(&self) -> bool {
        let call = match self {
            Self::GicV2(_) | Self::GicV3(_) => gic::CALL.raw_value(),
            Self::Bcm2836(_) => CALL,
        };
        self.number() == call
    }

    /// The interrupt's number. A GICv2 puts an SGI's sender above it.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::GicV2(id) => id.raw_value() & 0x3ff,
            Self::GicV3(id) => id.raw_value(),
            Self::Bcm2836(number) => *number,
        }
    }
}
