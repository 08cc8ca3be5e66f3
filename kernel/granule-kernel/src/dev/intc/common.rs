//! Shared by the drivers of all kinds of interrupt controller.

use crate::dev::timer;
use core::fmt;

/// Why a CPU cannot use the interrupt controller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Error {
    /// The `arm-gic` crate refused.
    V3(arm_gic::gicv3::GicError),
    /// An interrupt cannot be enabled.
    V2(arm_gic::gicv2::Error),
    /// No redistributor has this CPU's affinity.
    NoRedistributor,
    /// GICv2's distributor names no CPU interface for this CPU.
    NoInterface,
    /// Aff0 is larger than one SGI list can name.
    Affinity,
    /// Aff0 is larger than the number of cores that the controller serves.
    NoCore,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V3(error) => write!(f, "the GICv3 refuses: {error}"),
            Self::V2(error) => write!(f, "the GICv2 refuses: {error}"),
            Self::NoRedistributor => {
                f.write_str("no redistributor of the GIC has this CPU's affinity")
            }
            Self::NoInterface => f.write_str("the GICv2 has no CPU interface for this CPU"),
            Self::Affinity => {
                f.write_str("its Aff0 is 16 or more, which no list of SGI targets can name")
            }
            Self::NoCore => write!(
                f,
                "its Aff0 is {0} or more, and the interrupt controller serves {0} cores",
                granule_kcore::bcm2836::CORES
            ),
        }
    }
}

/// An interrupt that stays enabled or active after it was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl fmt::Display for StillOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "interrupt {} stays {} although the interrupt controller was programmed otherwise",
            self.number, self.what
        )
    }
}

/// The number of the timer's interrupt. The timer is switched off here until it is used, because firmware
/// may have left it on.
pub(super) fn timer() -> Option<u32> {
    let number = timer::interrupt()?;
    timer::off();
    Some(number)
}
