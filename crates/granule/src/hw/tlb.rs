//! TLBIs of the running CPU.
//!
//! [`issue`] issues what page tables that this machine uses need. Its TLBIs are broadcast.
//! [`invalidate_local`] is for this CPU alone, before its MMU is on or after a TLB
//! conflict abort.

#![allow(unsafe_code, reason = "TLBI instructions")]

use super::barriers::{dsb_ish, dsb_ishst, isb};
use crate::arch::Regime;
use crate::arch::tlbi::{TlbiOp, TlbiScope, for_constant_op};
use crate::table::Maintenance;
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

/// Issues an instruction that page tables request. The usual TLBIs, of leaves of EL1&0, are issued in
/// line.
#[inline(always)]
pub fn issue(instruction: Maintenance) {
    const LEAF: TlbiScope = TlbiScope::LastLevel;
    match instruction {
        Maintenance::DsbIshst => dsb_ishst(),
        Maintenance::DsbIsh => dsb_ish(),
        Maintenance::Isb => isb(),
        Maintenance::Tlbi(
            Regime::El1And0,
            TlbiOp::Address {
                operand,
                scope: LEAF,
                all_asids,
            },
        ) => for_constant_op!(@by Address, operand, LEAF, all_asids, Regime::El1And0, tlbi),
        Maintenance::Tlbi(
            Regime::El1And0,
            TlbiOp::Range {
                operand,
                scope: LEAF,
                all_asids,
            },
        ) => for_constant_op!(@by Range, operand, LEAF, all_asids, Regime::El1And0, tlbi),
        Maintenance::Tlbi(regime, op) => issue_any(regime, op),
    }
}

/// Issues any operation.
#[inline(never)]
fn issue_any(regime: Regime, op: TlbiOp) {
    for_constant_op!(op, regime, tlbi);
}
