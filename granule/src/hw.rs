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
use crate::arch::tlbi::{TlbCapabilities, TlbiOp, TlbiScope, for_constant_op};
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

/// Issues one TLBI: the SYS instruction of a constant operation in a constant regime. Written as
/// SYS, because the assembler knows the range forms only with FEAT_TLBIRANGE enabled for the whole
/// build.
macro_rules! tlbi {
    ($op:expr, $regime:expr) => {
        tlbi!(@ $op, $regime, "sys #{op1}, c{crn}, c{crm}, #{op2}",)
    };
    ($op:expr, $regime:expr, $operand:expr) => {
        tlbi!(
            @ $op, $regime, "sys #{op1}, c{crn}, c{crm}, #{op2}, {operand}",
            operand = in(reg) $operand,
        )
    };
    (@ $op:expr, $regime:expr, $text:literal, $($operand:tt)*) => {{
        const ENCODING: u16 = $op.instruction($regime).0;
        // SAFETY: removing cached translations changes no memory; the CPU fetches them again from
        // the tables.
        unsafe {
            asm!(
                $text,
                $($operand)*
                op1 = const ENCODING >> 11 & 0b111,
                crn = const ENCODING >> 7 & 0b1111,
                crm = const ENCODING >> 3 & 0b1111,
                op2 = const ENCODING & 0b111,
                options(nostack, preserves_flags)
            )
        }
    }};
}

/// TLBIs and barriers of the running CPU, for the regime that each call names.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    capabilities: TlbCapabilities,
}

impl Hardware {
    /// The hardware of CPUs with these capabilities.
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

    fn tlbi(&mut self, regime: Regime, op: TlbiOp) {
        for_constant_op!(op, regime, tlbi);
    }
}
