//! The interrupt controller, through the `arm-gic` crate: the parts needed for calls between CPUs and each
//! CPU's timer.
//!
//! `granule_kcore::devicetree::gic` finds the controller; [`v2`] and [`v3`] each drive one version; the rest
//! of the kernel calls the functions here. The kernel uses one software-generated interrupt (SGI).

mod common;
pub(crate) mod quiesce;
mod v2;
mod v3;

pub(crate) use common::Error;
pub(crate) use driver::{
    Mapped, V2_DRIVER, V3_DRIVER, acknowledge, end, init, init_cpu, quiesce_cpu, quiesce_rest,
    restore, send, send_to,
};

mod driver {
    use super::common::{CALL, Error};
    use super::quiesce::StillOn;
    use super::{v2, v3};
    use crate::dev::driver::Driver;
    use crate::percpu::PerCpu;
    use arm_gic::IntId;
    use arrayvec::ArrayVec;
    use core::ops::Range;
    use core::sync::atomic::{AtomicU32, Ordering};
    use granule_boot::driver::Requirement;
    use granule_kcore::cpus::set::CpuSet;

    pub(crate) static V2_DRIVER: Driver = Driver::new("gic-v2", Requirement::Any);
    pub(crate) static V3_DRIVER: Driver = Driver::new("gic-v3", Requirement::Any);

    /// A GIC with mapped registers, by virtual addresses.
    #[derive(Clone, Debug)]
    #[expect(clippy::large_enum_variant, reason = "the boot has one, on its stack")]
    pub(crate) enum Mapped {
        /// Distributor and CPU interface.
        V2 {
            distributor: u64,
            cpu_interface: u64,
        },
        /// Distributor, and the regions of redistributors.
        V3 {
            distributor: u64,
            redistributors: ArrayVec<Range<u64>, { granule_kcore::devicetree::gic::MOST_REGIONS }>,
        },
    }

    /// The GIC's version; 0 before it is set up.
    static VERSION: AtomicU32 = AtomicU32::new(0);

    /// Sets up the distributor and this CPU, which is the boot CPU.
    ///
    /// # Safety
    ///
    /// The registers must be mapped as Device memory at these addresses for good. The function must be called
    /// only once, before any other function here.
    pub(crate) unsafe fn init(mapped: &Mapped, cpu: &PerCpu) -> Result<(), Error> {
        match mapped {
            Mapped::V2 {
                distributor,
                cpu_interface,
            } => {
                // SAFETY: the caller answers for the mapping.
                unsafe { v2::take(*distributor, *cpu_interface) };
                VERSION.store(2, Ordering::Relaxed);
            }
            Mapped::V3 {
                distributor,
                redistributors,
            } => {
                // SAFETY: the caller answers for the mapping.
                unsafe { v3::take(*distributor, redistributors) };
                VERSION.store(3, Ordering::Relaxed);
            }
        }
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::init_cpu(),
            _ => v3::init_cpu(cpu, true),
        }
    }

    /// Sets up this CPU's part. CPUs must call this one after the other.
    pub(crate) fn init_cpu(cpu: &PerCpu) -> Result<(), Error> {
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::init_cpu(),
            _ => v3::init_cpu(cpu, false),
        }
    }

    /// Stops all interrupts of this CPU: its interface is off, and none of its private interrupts is enabled,
    /// pending or active. Interrupts must be masked.
    pub(crate) fn quiesce_cpu(cpu: &PerCpu) -> Result<(), StillOn> {
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::quiesce_cpu(),
            3 => v3::quiesce_cpu(cpu),
            _ => Ok(()),
        }
    }

    /// Stops all shared interrupts. The last CPU calls this.
    pub(crate) fn quiesce_rest() -> Result<(), StillOn> {
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::quiesce_rest(),
            3 => v3::quiesce_rest(),
            _ => Ok(()),
        }
    }

    /// Restores the state after [`init`]. The boot CPU calls this.
    pub(crate) fn restore(cpu: &PerCpu) -> Result<(), Error> {
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::init_cpu(),
            3 => v3::init_cpu(cpu, true),
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

    fn send_each(cpus: impl Iterator<Item = usize>) {
        // Sending is not a memory access, so only a barrier orders it after the stores that it announces.
        granule::hw::dsb_ishst();
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::send(cpus),
            3 => v3::send(cpus),
            _ => {}
        }
        granule::hw::isb();
    }

    /// Acknowledges the pending interrupt with the highest priority; `None` if it went away.
    pub(crate) fn acknowledge() -> Option<Taken> {
        let id = match VERSION.load(Ordering::Relaxed) {
            2 => v2::acknowledge(),
            3 => v3::acknowledge(),
            _ => None,
        }?;
        // Data that the interrupt announces must be read after the acknowledgement.
        granule::hw::dsb_sy();
        granule::hw::isb();
        Some(Taken(id))
    }

    /// Ends the handling of an interrupt.
    pub(crate) fn end(taken: Taken) {
        match VERSION.load(Ordering::Relaxed) {
            2 => v2::end(taken.0),
            _ => v3::end(taken.0),
        }
        granule::hw::isb();
    }

    /// An interrupt that was acknowledged.
    #[derive(Debug)]
    pub(crate) struct Taken(IntId);

    impl Taken {
        /// Whether the interrupt is a call from another CPU.
        pub(crate) fn is_call(&self) -> bool {
            self.number() == CALL.raw_value()
        }

        /// The interrupt's number. A GICv2 puts an SGI's sender above it.
        pub(crate) fn number(&self) -> u32 {
            if VERSION.load(Ordering::Relaxed) == 2 {
                self.0.raw_value() & 0x3ff
            } else {
                self.0.raw_value()
            }
        }
    }
}
