//! The way of one CPU from one program's tables to another's: the order of register writes,
//! barriers and TLBIs.
//!
//! Between spaces of one shape a write of TTBR0 and an ISB are all. Between shapes TCR changes too,
//! and a TLB may hold its fields (RVNRFW), so the CPU makes no walks from TTBR0 meanwhile and
//! invalidates all of its TLB. This file only orders; a kernel implements [`Registers`] by the
//! instructions, a test by events of a model.

#![allow(unsafe_code, reason = "registers, for values the caller vouches for")]

use crate::arch::registers::{Tcr, Ttbr};

/// The registers and TLB of the running CPU. Each method issues one instruction and nothing else:
/// the order of all is [`enter`]'s and [`enter_anew`]'s. Their callers vouch that the instructions
/// are issued.
pub trait Registers {
    /// Writes TCR_EL1 (TCR_EL2 under VHE).
    ///
    /// # Safety
    ///
    /// As for [`enter_anew`], which is called with the value.
    unsafe fn write_tcr(&mut self, value: Tcr);
    /// Writes TTBR0_EL1 (TTBR0_EL2 under VHE).
    ///
    /// # Safety
    ///
    /// As for [`enter`], which is called with the value.
    unsafe fn write_ttbr0(&mut self, value: Ttbr);
    /// ISB.
    fn isb(&mut self);
    /// TLBI VMALLE1: all entries of this CPU, of both halves and all ASIDs.
    fn tlbi_all_local(&mut self);
    /// DSB NSH.
    fn dsb_nsh(&mut self);
}

/// Moves this CPU to the tables that `ttbr0` names, which are walked by `to`. `from` is the value
/// of TCR now.
///
/// If both values of TCR are the same, this is one write of TTBR0 and one ISB, and what the TLB holds
/// stays. Otherwise it is [`enter_anew`].
///
/// # Safety
///
/// As for [`enter_anew`]. If the values are the same, the TLB holds nothing under the ASID of `ttbr0`
/// but of the tables that it names.
pub unsafe fn enter<R: Registers>(
    registers: &mut R,
    from: Tcr,
    to: Tcr,
    ttbr0: Ttbr,
    repeat: bool,
) {
    // SAFETY: the caller vouches for all values.
    unsafe {
        if from == to {
            registers.write_ttbr0(ttbr0);
            registers.isb();
        } else {
            enter_anew(registers, from, to, ttbr0, repeat);
        }
    }
}

/// As [`enter`], whatever TCR is, and with nothing in the TLB at the end: another shape, or an ASID
/// that had other tables.
///
/// | step | why |
/// | --- | --- |
/// | EPD0 set, ISB | no walk reads tables of one granule by the other |
/// | TTBR0 and TCR written, EPD0 still set, ISB | the TLBI below comes when both are in effect |
/// | TLBI VMALLE1, DSB NSH, ISB | a TLB may hold the fields of TCR from before (RVNRFW), and no lookup under way uses them |
/// | EPD0 cleared, ISB | walks begin, all by the new values |
///
/// Fields of both halves (HA, HD) may change too: the TLBI is for all of the CPU's TLB. The fields
/// of the upper half, DS and IPS must stay. If `to` has EPD0 set, no walks begin at the end.
///
/// `repeat` issues the TLBI and its DSB twice, for an erratum
/// ([`Workaround::RepeatTlbi`](crate::arch::errata::Workaround::RepeatTlbi)).
///
/// # Safety
///
/// `ttbr0` names live tables of the shape that `to` gives the lower half, and no other space has its
/// ASID now. Nothing on this CPU accesses an address of the lower half until the function returns: it
/// runs in the upper half with interrupts masked. The CPU has the features that `to` uses, and each
/// method of `registers` issues its instruction on it.
pub unsafe fn enter_anew<R: Registers>(
    registers: &mut R,
    from: Tcr,
    to: Tcr,
    ttbr0: Ttbr,
    repeat: bool,
) {
    // SAFETY: the caller vouches for both values, and the order is that of the table above.
    unsafe {
        if from.0 & Tcr::EPD0 == 0 {
            registers.write_tcr(Tcr(from.0 | Tcr::EPD0));
            registers.isb();
        }
        registers.write_ttbr0(ttbr0);
        registers.write_tcr(Tcr(to.0 | Tcr::EPD0));
        registers.isb();
        registers.tlbi_all_local();
        registers.dsb_nsh();
        if repeat {
            registers.tlbi_all_local();
            registers.dsb_nsh();
        }
        registers.isb();
        if to.0 & Tcr::EPD0 == 0 {
            registers.write_tcr(to);
            registers.isb();
        }
    }
}
