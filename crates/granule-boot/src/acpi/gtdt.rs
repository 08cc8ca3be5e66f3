//! The GTDT: the interrupts of each CPU's timers.

use super::super::bytes::le32;
use super::root::{AcpiError, Fault, error};

/// Offsets of the interrupts of the secure, non-secure, virtual and EL2 timers, each a number and flags.
const TIMERS_AT: [usize; 4] = [48, 56, 64, 72];

/// The interrupt of a timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timer {
    /// Its number (GSIV); 0 for none.
    pub number: u32,
    /// Whether it is edge-triggered, not level-triggered.
    pub is_edge: bool,
    /// Whether it is active low, not high.
    pub is_low: bool,
}

/// The interrupts of the secure, non-secure, virtual and EL2 timers, in this order.
///
/// # Errors
///
/// Fails if the table is too short.
pub fn timers(table: &[u8]) -> Result<[Timer; 4], AcpiError> {
    let short = error(*b"GTDT", Fault::Length);
    let mut timers = [Timer::default(); 4];
    for (timer, at) in timers.iter_mut().zip(TIMERS_AT) {
        let flags = le32(table, at.saturating_add(4)).ok_or(short)?;
        *timer = Timer {
            number: le32(table, at).ok_or(short)?,
            is_edge: flags & 1 != 0,
            is_low: flags & 2 != 0,
        };
    }
    Ok(timers)
}
