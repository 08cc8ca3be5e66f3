//! The running CPU's ID registers and exception level.

#![allow(unsafe_code, reason = "reads of ID registers")]

use crate::arch::CpuFeatures;
use core::arch::asm;

/// Reads one register that exists at every exception level above EL0.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reads a register that has no effect on memory. At EL0 the instruction traps.
        unsafe {
            asm!(
                concat!("mrs {}, ", $register),
                out(reg) value,
                options(nomem, nostack, preserves_flags)
            );
        }
        value
    }};
}

/// The features of this CPU, from its ID registers. Callable with the MMU off.
///
/// CPUs of one system may differ. Tables that several CPUs walk must be made for what all of them
/// have.
#[must_use]
pub fn cpu_features() -> CpuFeatures {
    CpuFeatures {
        midr: read!("midr_el1"),
        mmfr0: read!("id_aa64mmfr0_el1"),
        mmfr1: read!("id_aa64mmfr1_el1"),
        mmfr2: read!("id_aa64mmfr2_el1"),
        isar0: read!("id_aa64isar0_el1"),
    }
}

/// The exception level of this CPU: 1, 2 or 3.
#[must_use]
pub fn exception_level() -> u64 {
    read!("CurrentEL") >> 2 & 0b11
}

/// CTR_EL0.
pub(super) fn cache_type() -> u64 {
    read!("ctr_el0")
}
