//! Shared by both versions of the interrupt controller.

use crate::dev::timer;
use arm_gic::IntId;
use core::fmt;

/// The SGI for calls between CPUs.
pub(super) const CALL: IntId = IntId::sgi(0);

/// Why a CPU cannot use the GIC.
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
        }
    }
}

/// The timer's private interrupt. The timer is switched off here until it is used, because firmware
/// may have left it on.
pub(super) fn timer() -> Option<IntId> {
    let number = timer::interrupt()?;
    timer::off();
    Some(IntId::ppi(number.checked_sub(FIRST_PPI)?))
}

/// The number of the first private peripheral interrupt.
const FIRST_PPI: u32 = 16;
