//! The translation registers of a CPU, and the top tables that they name.

use super::geometry::{self, TablePlace};
use crate::decode::{SCR_EL3, VBAR_EL1, VBAR_EL2, VBAR_EL3};
use granule_trace::System;

/// The lower and the upper half of EL1&0, EL2, EL3 and stage 2.
pub(super) const SLOTS: usize = 5;

/// SCTLR.M.
const MMU: u64 = 1 << 0;
/// SCTLR.C.
const CACHES: u64 = 1 << 2;
/// HCR_EL2.VM.
const STAGE_2: u64 = 1 << 0;
/// HCR_EL2.TGE.
const TGE: u64 = 1 << 27;
/// HCR_EL2.E2H.
const E2H: u64 = 1 << 34;
/// SCR_EL3.NS, EEL2 and NSE: the security state of the levels below EL3, and its use of EL2.
const STATE: u64 = 1 << 0 | 1 << 18 | 1 << 62;

/// The registers of one regime.
#[derive(Clone, Copy, Debug, Default)]
struct Regime {
    sctlr: u64,
    tcr: u64,
    ttbr0: u64,
    ttbr1: u64,
}

/// The translation registers of a CPU. Reset clears all bits that matter for translation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    el1: Regime,
    el2: Regime,
    el3: Regime,
    hcr: u64,
    vtcr: u64,
    vttbr: u64,
    scr: u64,
    /// VBAR of the exception levels 1 to 3.
    pub(super) vectors: [Option<u64>; 3],
}

impl Registers {
    /// Writes a register. Returns whether a trace has an event for it.
    pub(super) fn set(&mut self, register: System, value: u64) -> bool {
        let to = match register {
            System::SCTLR_EL1 => &mut self.el1.sctlr,
            System::TCR_EL1 => &mut self.el1.tcr,
            System::TTBR0_EL1 => &mut self.el1.ttbr0,
            System::TTBR1_EL1 => &mut self.el1.ttbr1,
            System::SCTLR_EL2 => &mut self.el2.sctlr,
            System::TCR_EL2 => &mut self.el2.tcr,
            System::TTBR0_EL2 => &mut self.el2.ttbr0,
            System::SCTLR_EL3 => &mut self.el3.sctlr,
            System::TCR_EL3 => &mut self.el3.tcr,
            System::TTBR0_EL3 => &mut self.el3.ttbr0,
            System::HCR_EL2 => &mut self.hcr,
            System::VTCR_EL2 => &mut self.vtcr,
            System::VTTBR_EL2 => &mut self.vttbr,
            VBAR_EL1 | VBAR_EL2 | VBAR_EL3 => {
                let el = match register {
                    VBAR_EL1 => 0,
                    VBAR_EL2 => 1,
                    _ => 2,
                };
                self.vectors[el] = Some(value);
                return false;
            }
            SCR_EL3 => {
                self.scr = value;
                return false;
            }
            // MAIR has no address of a table.
            _ => return true,
        };
        *to = value;
        true
    }

    /// Returns the top tables at which walks may begin now.
    pub(super) const fn roots(&self) -> [Option<TablePlace>; SLOTS] {
        let mut roots = [None; SLOTS];
        if self.el1.sctlr & MMU != 0 {
            roots[0] = geometry::el1(self.el1.tcr, self.el1.ttbr0, false);
            roots[1] = geometry::el1(self.el1.tcr, self.el1.ttbr1, true);
        }
        if self.el2.sctlr & MMU != 0 && self.hcr & E2H == 0 {
            roots[2] = geometry::el2(self.el2.tcr, self.el2.ttbr0);
        }
        if self.el3.sctlr & MMU != 0 {
            roots[3] = geometry::el2(self.el3.tcr, self.el3.ttbr0);
        }
        if self.hcr & STAGE_2 != 0 {
            roots[4] = geometry::stage2(self.vtcr, self.vttbr);
        }
        roots
    }

    /// Names a half that is walked, but whose size or granule is invalid.
    pub(super) const fn unchecked_half(&self) -> Option<&'static str> {
        let roots = self.roots();
        let on = self.el1.sctlr & MMU != 0;
        if on && self.el1.tcr >> 7 & 1 == 0 && roots[0].is_none() {
            return Some("the lower half: TCR");
        }
        if on && self.el1.tcr >> 23 & 1 == 0 && roots[1].is_none() {
            return Some("the upper half: TCR");
        }
        if self.el2.sctlr & MMU != 0 && self.hcr & E2H != 0 {
            return Some("EL2&0 by its EL2 names");
        }
        None
    }

    /// Returns the current ASID of EL1&0: TCR.A1 selects the TTBR, TCR.AS the size.
    pub(super) const fn asid(&self) -> u16 {
        let ttbr = if self.el1.tcr >> 22 & 1 != 0 {
            self.el1.ttbr1
        } else {
            self.el1.ttbr0
        };
        let asid = (ttbr >> 48) as u16;
        if self.el1.tcr >> 36 & 1 != 0 {
            asid
        } else {
            asid & 0xff
        }
    }

    /// Returns the number of address bits in the upper half of EL1&0, by TCR.T1SZ.
    pub(super) const fn upper_bits(&self) -> u32 {
        let bits = 64 - (self.el1.tcr >> 16 & 63) as u32;
        if bits < 16 { 16 } else { bits }
    }

    /// Returns whether an exception level runs under stage 2, so that the addresses in its tables
    /// are not physical.
    pub(super) const fn is_guest(&self, el: u8) -> bool {
        el < 2 && self.hcr & STAGE_2 != 0 && self.hcr & TGE == 0
    }

    /// Returns whether a value of SCR_EL3 changes the security state while a level below EL3
    /// translates. EL3 switches the registers of EL1 and EL2 then, and TLB entries are of one
    /// state.
    pub(super) const fn changes_state(&self, scr: u64) -> bool {
        let is_on = (self.el1.sctlr | self.el2.sctlr) & MMU != 0 || self.hcr & STAGE_2 != 0;
        is_on && (self.scr ^ scr) & STATE != 0
    }

    /// Returns whether a register is of EL1&0 while stage 2 is on, so that EL2 without VHE writes
    /// the guest's value.
    pub(super) const fn is_of_guest(&self, register: System) -> bool {
        let is_el1 = matches!(
            register,
            System::SCTLR_EL1
                | System::TCR_EL1
                | System::MAIR_EL1
                | System::TTBR0_EL1
                | System::TTBR1_EL1
        );
        is_el1 && self.hcr & (STAGE_2 | TGE | E2H) == STAGE_2
    }

    /// Returns whether the EL1 names access this exception level's registers, and its programs are
    /// not guests.
    pub(super) const fn is_kernel(&self, el: u8) -> bool {
        (el == 1 && !self.is_guest(1)) || (el == 2 && self.hcr & E2H != 0)
    }

    /// Returns whether stores bypass the data cache at every exception level.
    pub(super) const fn is_uncached(&self) -> bool {
        let on = MMU | CACHES;
        self.el1.sctlr & on != on && self.el2.sctlr & on != on && self.el3.sctlr & on != on
    }

    /// Returns whether hardware may set the access flag or the dirty state.
    pub(super) const fn hardware_updates(&self) -> bool {
        self.el1.tcr >> 39 & 3 != 0 || (self.el2.tcr | self.el3.tcr | self.vtcr) >> 21 & 3 != 0
    }

    /// Returns the slot of the top table that translates an address at an exception level, or
    /// `None` if the address is physical. It fails if the translation cannot be followed.
    pub(super) fn slot(&self, el: u8, va: u64) -> Result<Option<usize>, ()> {
        let regime = match el {
            3 => (self.el3.sctlr, 3),
            2 if self.hcr & E2H == 0 => (self.el2.sctlr, 2),
            _ if self.is_guest(el) => return Err(()),
            _ => (self.el1.sctlr, (va >> 55 & 1) as usize),
        };
        Ok((regime.0 & MMU != 0).then_some(regime.1))
    }
}
