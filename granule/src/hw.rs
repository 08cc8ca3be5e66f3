//! TLBIs and barriers of the running CPU: all assembly of the library.
//!
//! [`Hardware`] implements [`TlbOps`] for page tables that this machine uses. No other module
//! of the library imports this one: page tables issue instructions only through the trait, so a
//! test, a model or a recorder can replace the hardware.
//!
//! A function here is one instruction and decides nothing. `table::flush` and the kernel decide the
//! order of barriers and TLBIs. At EL0 the TLBIs trap, so this module is for code without an
//! operating system below it.

use crate::arch::Regime;
use crate::arch::tlbi::{TlbCapabilities, TlbiOp, TlbiScope};
use crate::table::TlbOps;
use core::arch::asm;

/// Defines a function that issues one instruction without operand.
macro_rules! bare {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            // SAFETY: a barrier only orders the accesses around it. Without the `nomem` option the
            // compiler moves no memory access across it either.
            unsafe { asm!($text, options(nostack, preserves_flags)) }
        }
    };
}

bare!(
    /// DSB ISHST: all CPUs and their walkers see the stores before it.
    dsb_ishst, "dsb ishst"
);
bare!(
    /// DSB ISH: completes TLBIs and accesses before it for all CPUs.
    dsb_ish, "dsb ish"
);
bare!(
    /// DSB NSH: completes local TLBIs.
    dsb_nsh, "dsb nsh"
);
bare!(
    /// DSB SY: completes cache maintenance to the point of coherency.
    dsb_sy, "dsb sy"
);
bare!(
    /// ISB: later instructions are fetched and translated again.
    isb, "isb"
);

/// Issues one TLBI of the broadcast forms.
macro_rules! tlbi {
    ($text:literal) => {
        // SAFETY: removing cached translations changes no memory; the CPU fetches them again from
        // the tables.
        unsafe { asm!($text, options(nostack, preserves_flags)) }
    };
    ($text:literal, $operand:expr) => {
        // SAFETY: as above.
        unsafe { asm!($text, in(reg) $operand, options(nostack, preserves_flags)) }
    };
}

/// TLBIs and barriers of the running CPU, for one regime.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    capabilities: TlbCapabilities,
}

impl Hardware {
    /// The hardware for the tables that `capabilities` describes; the regime is that of its
    /// geometry.
    #[must_use]
    pub const fn new(capabilities: TlbCapabilities) -> Self {
        Self { capabilities }
    }
}

impl TlbOps for Hardware {
    fn capabilities(&self) -> &TlbCapabilities {
        &self.capabilities
    }

    #[inline(always)]
    fn dsb_ishst(&mut self) {
        dsb_ishst();
    }

    #[inline(always)]
    fn dsb_ish(&mut self) {
        dsb_ish();
    }

    #[inline(always)]
    fn isb(&mut self) {
        isb();
    }

    fn tlbi(&mut self, op: TlbiOp) {
        // The range forms are written as SYS, because the assembler knows their names only with
        // FEAT_TLBIRANGE enabled for the whole build.
        match self.capabilities.geometry.regime() {
            Regime::El1And0 => match op {
                TlbiOp::All => tlbi!("tlbi vmalle1is"),
                TlbiOp::Asid { operand } => tlbi!("tlbi aside1is, {}", operand),
                TlbiOp::Address {
                    operand,
                    scope,
                    all_asids,
                } => match (scope, all_asids) {
                    (TlbiScope::AllLevels, true) => tlbi!("tlbi vaae1is, {}", operand),
                    (TlbiScope::LastLevel, true) => tlbi!("tlbi vaale1is, {}", operand),
                    (TlbiScope::AllLevels, false) => tlbi!("tlbi vae1is, {}", operand),
                    (TlbiScope::LastLevel, false) => tlbi!("tlbi vale1is, {}", operand),
                },
                TlbiOp::Range {
                    operand,
                    scope,
                    all_asids,
                } => match (scope, all_asids) {
                    (TlbiScope::AllLevels, true) => tlbi!("sys #0, c8, c2, #3, {}", operand),
                    (TlbiScope::LastLevel, true) => tlbi!("sys #0, c8, c2, #7, {}", operand),
                    (TlbiScope::AllLevels, false) => tlbi!("sys #0, c8, c2, #1, {}", operand),
                    (TlbiScope::LastLevel, false) => tlbi!("sys #0, c8, c2, #5, {}", operand),
                },
            },
            Regime::El2 => match op {
                TlbiOp::All | TlbiOp::Asid { .. } => tlbi!("tlbi alle2is"),
                TlbiOp::Address {
                    operand,
                    scope: TlbiScope::AllLevels,
                    ..
                } => {
                    tlbi!("tlbi vae2is, {}", operand);
                }
                TlbiOp::Address {
                    operand,
                    scope: TlbiScope::LastLevel,
                    ..
                } => {
                    tlbi!("tlbi vale2is, {}", operand);
                }
                TlbiOp::Range {
                    operand,
                    scope: TlbiScope::AllLevels,
                    ..
                } => {
                    tlbi!("sys #4, c8, c2, #1, {}", operand);
                }
                TlbiOp::Range {
                    operand,
                    scope: TlbiScope::LastLevel,
                    ..
                } => {
                    tlbi!("sys #4, c8, c2, #5, {}", operand);
                }
            },
            Regime::El3 => match op {
                TlbiOp::All | TlbiOp::Asid { .. } => tlbi!("tlbi alle3is"),
                TlbiOp::Address {
                    operand,
                    scope: TlbiScope::AllLevels,
                    ..
                } => {
                    tlbi!("tlbi vae3is, {}", operand);
                }
                TlbiOp::Address {
                    operand,
                    scope: TlbiScope::LastLevel,
                    ..
                } => {
                    tlbi!("tlbi vale3is, {}", operand);
                }
                TlbiOp::Range {
                    operand,
                    scope: TlbiScope::AllLevels,
                    ..
                } => {
                    tlbi!("sys #6, c8, c2, #1, {}", operand);
                }
                TlbiOp::Range {
                    operand,
                    scope: TlbiScope::LastLevel,
                    ..
                } => {
                    tlbi!("sys #6, c8, c2, #5, {}", operand);
                }
            },
        }
    }
}
