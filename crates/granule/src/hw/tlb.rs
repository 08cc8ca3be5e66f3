//! TLBIs of the running CPU.
//!
//! [`Hardware`] implements [`TlbOps`] for page tables that this machine uses. Its TLBIs are
//! broadcast. [`invalidate_local`] is for this CPU alone, before its MMU is on or after a TLB
//! conflict abort.

#![allow(unsafe_code, reason = "TLBI instructions")]

use super::barriers::{dsb_ish, dsb_ishst, isb};
use crate::arch::Regime;
use crate::arch::tlbi::{TlbCapabilities, TlbiOp, TlbiScope, for_constant_op};
use crate::table::TlbOps;
use core::arch::asm;

/// Removes all of this CPU's TLB entries of `regime`, of every address space, after earlier stores
/// are visible to its walker. Other CPUs keep theirs.
///
/// The instruction removes the entries of the regime even if several match one address, which a
/// TLBI by address need not do (RBLRKC, IJCCRT, RGRVDR). At EL2 with E2H and TGE set
/// [`Regime::El1And0`] means EL2&0. [`Regime::Stage2`] is both stages of the guest in VTTBR_EL2.
#[inline(always)]
pub fn invalidate_local(regime: Regime) {
    macro_rules! all {
        ($tlbi:literal) => {
            // SAFETY: removed entries are fetched again from the tables. DSB NSHST makes earlier
            // stores visible to the walker; DSB NSH completes a local TLBI.
            unsafe {
                asm!(
                    "dsb nshst",
                    concat!("tlbi ", $tlbi),
                    "dsb nsh",
                    "isb",
                    options(nostack, preserves_flags)
                )
            }
        };
    }
    match regime {
        Regime::El1And0 => all!("vmalle1"),
        Regime::El2 => all!("alle2"),
        Regime::El3 => all!("alle3"),
        Regime::Stage2 => all!("vmalls12e1"),
    }
}

/// Issues one TLBI: the SYS instruction of a constant operation in a constant regime. Written as
/// SYS, because the assembler accepts the range forms only with FEAT_TLBIRANGE enabled for the whole
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

    /// The usual operations, on leaves of EL1&0, are issued in line.
    #[inline(always)]
    fn tlbi(&mut self, regime: Regime, op: TlbiOp) {
        const LEAF: TlbiScope = TlbiScope::LastLevel;
        match (regime, op) {
            (
                Regime::El1And0,
                TlbiOp::Address {
                    operand,
                    scope: LEAF,
                    all_asids,
                },
            ) => for_constant_op!(@by Address, operand, LEAF, all_asids, Regime::El1And0, tlbi),
            (
                Regime::El1And0,
                TlbiOp::Range {
                    operand,
                    scope: LEAF,
                    all_asids,
                },
            ) => for_constant_op!(@by Range, operand, LEAF, all_asids, Regime::El1And0, tlbi),
            _ => issue(regime, op),
        }
    }
}

/// Issues any operation.
#[inline(never)]
fn issue(regime: Regime, op: TlbiOp) {
    for_constant_op!(op, regime, tlbi);
}
