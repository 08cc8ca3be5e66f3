//! The FADT's word on PSCI.

use super::super::bytes::le16;
use super::root::{AcpiError, Fault, Tables, error};
use crate::efi::Physical;

/// Offset of ARM_BOOT_ARCH.
const BOOT_ARCH_AT: usize = 129;
/// Firmware has PSCI.
const COMPLIANT: u16 = 1;
/// PSCI is called by HVC.
const USE_HVC: u16 = 2;

/// The call by which firmware starts CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Psci {
    /// It has no PSCI.
    None,
    /// By SMC.
    Smc,
    /// By HVC.
    Hvc,
}

impl<P: Physical> Tables<'_, P> {
    /// Returns the call by which firmware starts CPUs.
    ///
    /// # Errors
    ///
    /// Fails if the FADT is missing or malformed.
    pub fn psci(&self) -> Result<Psci, AcpiError> {
        let table = self.find(*b"FACP")?;
        let flags = le16(table, BOOT_ARCH_AT).ok_or(error(*b"FACP", Fault::Length))?;
        Ok(match (flags & COMPLIANT != 0, flags & USE_HVC != 0) {
            (false, _) => Psci::None,
            (true, false) => Psci::Smc,
            (true, true) => Psci::Hvc,
        })
    }
}
