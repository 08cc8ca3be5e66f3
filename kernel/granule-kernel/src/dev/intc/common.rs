//! Shared by the drivers of all kinds of interrupt controller.

use crate::dev::timer;
use granule_kcore::bcm2836::CORES;
use thiserror::Error;

/// Why a CPU cannot use the interrupt controller.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Error {
    #[error("the GICv3 refuses: {0}")]
    V3(arm_gic::gicv3::GicError),
    #[error("the GICv2 refuses: {0}")]
    V2(arm_gic::gicv2::Error),
    #[error("no redistributor of the GIC has this CPU's affinity")]
    NoRedistributor,
    #[error("the GICv2 has no CPU interface for this CPU")]
    NoInterface,
    #[error("its Aff0 is 16 or more, which no list of SGI targets can name")]
    Affinity,
    #[error("its Aff0 is {CORES} or more, and the interrupt controller serves {CORES} cores")]
    NoCore,
}

/// An interrupt that stays enabled or active after it was cleared.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "interrupt {number} stays {what} although the interrupt controller was programmed otherwise"
)]
pub(crate) struct StillOn {
    number: u32,
    what: &'static str,
}

impl StillOn {
    /// An interrupt that stays enabled.
    pub(crate) const fn enabled(number: u32) -> Self {
        Self::stays(number, "enabled")
    }

    /// An interrupt that keeps a state, named by an adjective.
    pub(super) const fn stays(number: u32, what: &'static str) -> Self {
        Self { number, what }
    }
}

/// The number of the timer's interrupt. The timer is switched off here until it is used, because firmware
/// may have left it on.
pub(super) fn timer() -> Option<u32> {
    let number = timer::interrupt()?;
    timer::off();
    Some(number)
}
