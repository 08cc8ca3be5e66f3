//! Stage 2: the root of a walk from HCR_EL2, VTCR_EL2 and VTTBR_EL2.
//!
//! A guest's intermediate physical addresses count as addresses of a regime of their own, with the
//! VMID in place of an ASID. Written from the architecture's description; nothing here walks.

use super::{Context, Registers, RootKey, Space, field, output_bits};
use crate::arch::format::{Format, Granule};
use crate::arch::regime::Regime;
use crate::config::Config;

/// The bits of HCR_EL2 that count here: VM, TGE, E2H and FWB.
pub(crate) const HCR: u64 = 1 | 1 << 27 | 1 << 34 | 1 << 46;
/// HCR_EL2.TGE and E2H: the TLBIs of EL1&0 affect EL2's own programs, and no guest.
const HOST: u64 = 1 << 27 | 1 << 34;

impl Registers {
    /// VTTBR_EL2.VMID, of stage 2's registers. VTCR_EL2.VS selects 8 or 16 bits.
    pub(crate) const fn vmid(&self) -> u16 {
        let vmid = (self.ttbr[0] >> 48) as u16;
        if field(self.tcr, 19, 1) != 0 {
            vmid
        } else {
            vmid & 0xff
        }
    }

    /// Whether TLBIs of EL1&0 reach no guest, of stage 2's registers.
    pub(crate) const fn in_host(&self) -> bool {
        self.sctlr & HOST == HOST
    }
}

/// The level where a walk starts, by SL0 and SL2; `None` for a reserved value. The conditions are
/// those of the pseudocode's `AArch64.S2InvalidSL`.
fn start_level(vtcr: u64, granule: Granule, ds: bool, machine: &Config) -> Option<i8> {
    let sl0 = field(vtcr, 6, 2);
    let sl2 = field(vtcr, 33, 1) != 0 && ds;
    let pa_bits = machine.pa_bits;
    Some(match (granule, sl2, sl0) {
        (Granule::K4, true, 0) if pa_bits >= 52 => -1,
        (Granule::K4, false, 0) => 2,
        (Granule::K4, false, 1) => 1,
        (Granule::K4, false, 2) if pa_bits >= 44 => 0,
        (Granule::K4, false, 3) if machine.small_tables => 3,
        (Granule::K16, _, 0) | (Granule::K64, _, 0) => 3,
        (Granule::K16, _, 1) | (Granule::K64, _, 1) => 2,
        (Granule::K16, _, 2) if pa_bits >= 42 => 1,
        (Granule::K16, _, 3) if ds => 0,
        (Granule::K64, _, 2) if pa_bits >= 44 => 1,
        _ => return None,
    })
}

/// The root of a guest's tables, or `None`: stage 2 is off, or VTCR_EL2 selects what the machine
/// does not have.
pub(crate) fn root(registers: &Registers, machine: &Config) -> Option<RootKey> {
    let space = Space::new(Regime::Stage2, false);
    if !registers.mmu_on() {
        return None;
    }
    let vtcr = registers.tcr;
    let granule = registers.granule(space)?;
    let ds = registers.ds(Regime::Stage2) && granule != Granule::K64 && machine.lpa2;
    let format = Format {
        granule,
        ds,
        lpa: granule == Granule::K64 && machine.pa_bits >= 52,
    };
    let va_bits = 64 - field(vtcr, 0, 6) as u32;
    let most = machine.pa_bits.min(format.address_bits());
    let least = match (machine.small_tables, granule) {
        (false, _) => 25,
        (true, Granule::K64) => 17,
        (true, _) => 16,
    };
    if va_bits < least || va_bits > most {
        return None;
    }
    let start_level = start_level(vtcr, granule, ds, machine)?;
    // AArch64.S2InconsistentSL: the start level resolves at least one bit, and at most those of 16
    // concatenated tables.
    let below = granule.level_shift(start_level);
    if va_bits <= below || va_bits > below + granule.table_bits() + 4 {
        return None;
    }
    let output = output_bits(registers.output_size(Regime::Stage2));
    let hardware_access = machine.hardware_update && field(vtcr, 21, 1) != 0;
    let context = Context {
        space,
        format,
        va_bits,
        start_level,
        output_bits: output.min(machine.pa_bits).min(format.address_bits()),
        top_byte_ignored: false,
        // Table descriptors of stage 2 have no limits.
        no_hierarchy: true,
        hardware_access,
        hardware_dirty: hardware_access && field(vtcr, 22, 1) != 0,
        shareability: field(vtcr, 12, 2) as u8,
        cached_walks: field(vtcr, 8, 4) != 0,
        write_never_execute: false,
        mair: 0,
        forced_write_back: field(registers.sctlr, 46, 1) != 0,
        execute_by_privilege: machine.execute_by_privilege,
    };
    let vttbr = registers.ttbr[0];
    let base = if ds || (granule == Granule::K64 && output >= 52) {
        (vttbr & 0x0000_ffff_ffff_ffc0) | field(vttbr, 2, 4) << 48
    } else {
        vttbr & 0x0000_ffff_ffff_fffe
    };
    Some(RootKey {
        context,
        base: base & !(context.top_entries() * 8 - 1),
        asid: Some(registers.vmid()),
    })
}
