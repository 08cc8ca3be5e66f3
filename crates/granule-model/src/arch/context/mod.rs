//! The translation registers of one CPU, decoded into the inputs of a walk.
//!
//! A [`Context`] defines how descriptors of one half of a regime are read, a [`RootKey`] where the
//! walk starts. Nothing here walks.

mod stage2;

use crate::arch::format::{Format, Granule};
use crate::arch::regime::Regime;
use crate::config::Config;
use granule_trace::System;
use std::ops::RangeInclusive;

/// One half of one regime's addresses: EL1&0 has two, the others one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Space(u8);

impl Space {
    pub(crate) const COUNT: usize = 5;

    pub(crate) const fn new(regime: Regime, upper: bool) -> Self {
        Self(match regime {
            Regime::El10 => upper as u8,
            Regime::El2 => 2,
            Regime::El3 => 3,
            Regime::Stage2 => 4,
        })
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn upper(self) -> bool {
        self.0 == 1
    }

    /// Whether a kernel, a hypervisor or firmware has these addresses for itself.
    pub(crate) const fn is_privileged(self) -> bool {
        self.upper() || matches!(self.regime(), Regime::El2 | Regime::El3)
    }

    pub(crate) const fn regime(self) -> Regime {
        match self.0 {
            2 => Regime::El2,
            3 => Regime::El3,
            4 => Regime::Stage2,
            _ => Regime::El10,
        }
    }

    /// The half that an address belongs to.
    pub(crate) const fn of(regime: Regime, address: u64) -> Self {
        Self::new(regime, address & (1 << 55) != 0)
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }
}

/// The translation of one half, without the address of its top table and its ASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Context {
    pub(crate) space: Space,
    pub(crate) format: Format,
    pub(crate) va_bits: u32,
    /// The level of the top table, or tables: stage 2 may concatenate several.
    pub(crate) start_level: i8,
    /// Output addresses with higher bits set fault.
    pub(crate) output_bits: u32,
    /// TBI: bits 63:56 are ignored.
    pub(crate) top_byte_ignored: bool,
    /// HPD: the limits in table entries are ignored.
    pub(crate) no_hierarchy: bool,
    /// HA.
    pub(crate) hardware_access: bool,
    /// HD.
    pub(crate) hardware_dirty: bool,
    /// TCR.SHx, which gives the shareability of leaves with DS.
    pub(crate) shareability: u8,
    /// Walks go through the data caches.
    pub(crate) cached_walks: bool,
    /// SCTLR.WXN.
    pub(crate) write_never_execute: bool,
    pub(crate) mair: u64,
    /// HCR_EL2.FWB, stage 2.
    pub(crate) forced_write_back: bool,
    /// FEAT_XNX, stage 2.
    pub(crate) execute_by_privilege: bool,
}

/// The fields of registers that a TLB may hold (RVNRFW).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Those of TCR: any but A1 and EPD, of which only a clear one may be held.
    tcr: u64,
    mair: u64,
    write_never_execute: bool,
    forced_write_back: bool,
    /// The guest that they hold for: guests may differ in all of these.
    vmid: Option<u16>,
}

impl Fields {
    /// Whether a TLB may hold these in place of `other`, for the same guest or for none.
    pub(crate) fn contradict(&self, other: &Self) -> bool {
        self != other && self.vmid == other.vmid
    }
}

/// The fields of TCR_EL1 of one half: T0SZ, IRGN0, ORGN0, SH0, TG0, TBI0, HPD0, HWU059 to HWU062,
/// TBID0, NFD0, E0PD0, TCMA0, MTX0, or those of the other half.
const fn fields_of_half(upper: bool) -> u64 {
    const LOWER: u64 = 0x3f | 0xff << 8 | 1 << 37 | 1 << 41 | 0xf << 43;
    const UPPER: u64 = 0x3f << 16 | 0xff << 24 | 1 << 38 | 1 << 42 | 0xf << 47;
    // TBID, NFD, E0PD, TCMA, MTX, one bit for each half.
    const PAIRS: u64 = 1 << 51 | 1 << 53 | 1 << 55 | 1 << 57 | 1 << 60;
    if upper {
        UPPER | PAIRS << 1
    } else {
        LOWER | PAIRS
    }
}

/// The fields of TCR_EL1 of both halves: IPS, AS, HA, HD, DS.
const FIELDS_OF_BOTH: u64 = 0b111 << 32 | 1 << 36 | 1 << 39 | 1 << 40 | 1 << 59;

impl Context {
    /// Whether an output address has bits beyond the size, which fault.
    pub(crate) const fn is_too_large(&self, address: u64) -> bool {
        self.output_bits < 52 && address >> self.output_bits != 0
    }

    /// The entries of the top table.
    pub(crate) const fn top_entries(&self) -> u64 {
        1 << (self.va_bits - self.format.granule.level_shift(self.start_level))
    }

    /// The lowest address of the half.
    pub(crate) const fn base(&self) -> u64 {
        if self.space.upper() {
            u64::MAX << self.va_bits
        } else {
            0
        }
    }

    /// The address without an ignored top byte, or `None` if the address is outside of the half.
    pub(crate) const fn canonical(&self, address: u64) -> Option<u64> {
        let address = if self.top_byte_ignored {
            ((address << 8) as i64 >> 8) as u64
        } else {
            address
        };
        let high = address & (u64::MAX << self.va_bits);
        if high == self.base() {
            Some(address)
        } else {
            None
        }
    }
}

/// The root of a walk: a top table in a context, for an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RootKey {
    pub(crate) context: Context,
    pub(crate) base: u64,
    /// `None` where no ASID is known: the upper half, EL2 and EL3. A VMID at stage 2.
    pub(crate) asid: Option<u16>,
}

impl RootKey {
    /// The last address that the tree translates.
    pub(crate) const fn last(&self) -> u64 {
        self.context
            .base()
            .wrapping_add((1u64 << self.context.va_bits) - 1)
    }
}

/// The translation registers of one regime of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    /// HCR_EL2 at stage 2: VM is the same bit as M.
    pub(crate) sctlr: u64,
    /// VTCR_EL2 at stage 2.
    pub(crate) tcr: u64,
    /// VTTBR_EL2 at stage 2.
    pub(crate) ttbr: [u64; 2],
    pub(crate) mair: u64,
}

/// The regime that a translation register belongs to.
pub(crate) const fn regime_of(register: System) -> Option<Regime> {
    Some(match register {
        System::SCTLR_EL1
        | System::TCR_EL1
        | System::TTBR0_EL1
        | System::TTBR1_EL1
        | System::MAIR_EL1 => Regime::El10,
        System::SCTLR_EL2 | System::TCR_EL2 | System::TTBR0_EL2 | System::MAIR_EL2 => Regime::El2,
        System::SCTLR_EL3 | System::TCR_EL3 | System::TTBR0_EL3 | System::MAIR_EL3 => Regime::El3,
        System::HCR_EL2 | System::VTCR_EL2 | System::VTTBR_EL2 => Regime::Stage2,
        _ => return None,
    })
}

pub(super) const fn field(value: u64, low: u32, width: u32) -> u64 {
    (value >> low) & ((1 << width) - 1)
}

/// The bits of output address that IPS or PS names.
pub(super) const fn output_bits(size: u64) -> u32 {
    match size {
        0 => 32,
        1 => 36,
        2 => 40,
        3 => 42,
        4 => 44,
        5 => 48,
        _ => 52,
    }
}

impl Registers {
    /// Writes a register; a register of no translation regime is ignored.
    pub(crate) const fn set(&mut self, register: System, value: u64) {
        match register {
            System::SCTLR_EL1 | System::SCTLR_EL2 | System::SCTLR_EL3 => self.sctlr = value,
            System::HCR_EL2 => self.sctlr = value & stage2::HCR,
            System::TCR_EL1 | System::TCR_EL2 | System::TCR_EL3 | System::VTCR_EL2 => {
                self.tcr = value;
            }
            System::TTBR0_EL1 | System::TTBR0_EL2 | System::TTBR0_EL3 | System::VTTBR_EL2 => {
                self.ttbr[0] = value;
            }
            System::TTBR1_EL1 => self.ttbr[1] = value,
            System::MAIR_EL1 | System::MAIR_EL2 | System::MAIR_EL3 => self.mair = value,
            _ => {}
        }
    }

    /// SCTLR.M.
    pub(crate) const fn mmu_on(&self) -> bool {
        self.sctlr & 1 != 0
    }

    /// Data accesses may be cached: SCTLR.M and SCTLR.C.
    pub(crate) const fn data_cached(&self) -> bool {
        self.sctlr & 0b101 == 0b101
    }

    /// TCR.DS, wherever the regime has it.
    pub(crate) const fn ds(&self, regime: Regime) -> bool {
        match regime {
            Regime::El10 => field(self.tcr, 59, 1) != 0,
            Regime::El2 | Regime::El3 | Regime::Stage2 => field(self.tcr, 32, 1) != 0,
        }
    }

    /// The granule field of a half; `None` for a reserved encoding.
    pub(crate) const fn granule(&self, space: Space) -> Option<Granule> {
        if space.upper() {
            match field(self.tcr, 30, 2) {
                0b01 => Some(Granule::K16),
                0b10 => Some(Granule::K4),
                0b11 => Some(Granule::K64),
                _ => None,
            }
        } else {
            match field(self.tcr, 14, 2) {
                0b00 => Some(Granule::K4),
                0b01 => Some(Granule::K64),
                0b10 => Some(Granule::K16),
                _ => None,
            }
        }
    }

    /// The fields that give a half its shape: TGx and TxSZ, even if their values are reserved.
    pub(crate) const fn shape(&self, space: Space) -> (u64, u32) {
        let granule = field(self.tcr, if space.upper() { 30 } else { 14 }, 2);
        (granule, self.size(space))
    }

    /// The raw output size field.
    pub(crate) const fn output_size(&self, regime: Regime) -> u64 {
        match regime {
            Regime::El10 => field(self.tcr, 32, 3),
            Regime::El2 | Regime::El3 | Regime::Stage2 => field(self.tcr, 16, 3),
        }
    }

    /// The fields that a walk of a half may leave in the TLB.
    pub(crate) fn fields(&self, space: Space) -> Fields {
        let regime = space.regime();
        Fields {
            tcr: match regime {
                Regime::El10 => self.tcr & (FIELDS_OF_BOTH | fields_of_half(space.upper())),
                _ => self.tcr,
            },
            mair: self.mair,
            write_never_execute: regime != Regime::Stage2 && self.sctlr & (1 << 19) != 0,
            forced_write_back: regime == Regime::Stage2 && field(self.sctlr, 46, 1) != 0,
            vmid: (regime == Regime::Stage2).then(|| self.vmid()),
        }
    }

    /// Whether walks of a half are disabled (EPD).
    pub(crate) const fn walks_disabled(&self, space: Space) -> bool {
        let bit = if space.upper() { 23 } else { 7 };
        matches!(space.regime(), Regime::El10) && field(self.tcr, bit, 1) != 0
    }

    /// The ASID of the entries of a half; `None` where none is known. Trees of the upper half are
    /// walked under the ASID of whichever program runs, see [`asid_in_force`](Self::asid_in_force).
    pub(crate) fn asid(&self, space: Space) -> Option<u16> {
        (space.regime() == Regime::El10 && !space.upper()).then(|| self.asid_in_force())
    }

    /// The ASID in force in EL1&0: TTBR1's with TCR.A1, else TTBR0's.
    pub(crate) const fn asid_in_force(&self) -> u16 {
        let [ttbr0, ttbr1] = self.ttbr;
        let from_ttbr1 = field(self.tcr, 22, 1) != 0;
        let asid = (if from_ttbr1 { ttbr1 } else { ttbr0 } >> 48) as u16;
        // AS=0: 8 bits.
        if field(self.tcr, 36, 1) != 0 {
            asid
        } else {
            asid & 0xff
        }
    }

    /// The sizes of TxSZ that a granule allows.
    fn sizes(&self, space: Space, granule: Granule, machine: &Config) -> RangeInclusive<u32> {
        let ds = self.ds(space.regime()) && granule != Granule::K64 && machine.lpa2;
        let least = if ds || (granule == Granule::K64 && machine.lva) {
            12
        } else {
            16
        };
        let most = match (machine.small_tables, granule) {
            (false, _) => 39,
            (true, Granule::K64) => 47,
            (true, _) => 48,
        };
        least..=most
    }

    /// TxSZ of a half.
    const fn size(&self, space: Space) -> u32 {
        field(self.tcr, if space.upper() { 16 } else { 0 }, 6) as u32
    }

    /// The reason why a half that is translated has no root: TCR selects what does not exist.
    pub(crate) fn refusal(&self, space: Space, machine: &Config) -> Option<String> {
        if !self.mmu_on() || self.walks_disabled(space) || self.root(space, machine).is_some() {
            return None;
        }
        let regime = space.regime();
        // EL2 and EL3 have one half, whose fields have the number 0 too.
        let half = u8::from(space.upper());
        let Some(granule) = self.granule(space) else {
            let code = field(self.tcr, if space.upper() { 30 } else { 14 }, 2);
            return Some(format!("TG{half} is {code:#04b}, which names no granule"));
        };
        if regime == Regime::Stage2 {
            let vtcr = self.tcr;
            return Some(format!(
                "VTCR_EL2 is {vtcr:#x}, whose T0SZ and SL0 give no first level that the machine has"
            ));
        }
        let sizes = self.sizes(space, granule, machine);
        Some(format!(
            "T{half}SZ is {}, expected {} to {}",
            self.size(space),
            sizes.start(),
            sizes.end()
        ))
    }

    /// The root of a half, or `None`: the MMU is off, walks are disabled, or TCR selects a feature
    /// that the machine does not have.
    pub(crate) fn root(&self, space: Space, machine: &Config) -> Option<RootKey> {
        let regime = space.regime();
        if regime == Regime::Stage2 {
            return stage2::root(self, machine);
        }
        let two = regime == Regime::El10;
        let upper = space.upper();
        if !self.mmu_on() || self.walks_disabled(space) {
            return None;
        }
        let granule = self.granule(space)?;
        let ds = self.ds(regime) && granule != Granule::K64 && machine.lpa2;
        let format = Format {
            granule,
            ds,
            lpa: granule == Granule::K64 && machine.pa_bits >= 52,
        };
        let low = if upper { 16 } else { 0 };
        let size = self.size(space);
        if !self.sizes(space, granule, machine).contains(&size) {
            return None;
        }
        let va_bits = 64 - size;
        let output = output_bits(self.output_size(regime));
        let bit = |el1: u32, other: u32| field(self.tcr, if two { el1 } else { other }, 1) != 0;
        let hardware_access = machine.hardware_update && bit(39, 21);
        let context = Context {
            space,
            format,
            va_bits,
            start_level: granule.start_level(va_bits),
            output_bits: output.min(machine.pa_bits).min(format.address_bits()),
            top_byte_ignored: bit(if upper { 38 } else { 37 }, 20),
            no_hierarchy: bit(if upper { 42 } else { 41 }, 24),
            hardware_access,
            hardware_dirty: hardware_access && bit(40, 22),
            shareability: field(self.tcr, low + 12, 2) as u8,
            cached_walks: self.sctlr & (1 << 2) != 0 && field(self.tcr, low + 8, 4) != 0,
            write_never_execute: self.sctlr & (1 << 19) != 0,
            mair: self.mair,
            forced_write_back: false,
            execute_by_privilege: false,
        };
        let ttbr = self.ttbr[usize::from(upper)];
        let wide = ds || (granule == Granule::K64 && output >= 52);
        let base = if wide {
            // The low bits hold the high address bits, so the table is aligned to 64 bytes at
            // least.
            (ttbr & 0x0000_ffff_ffff_ffc0) | field(ttbr, 2, 4) << 48
        } else {
            ttbr & 0x0000_ffff_ffff_fffe
        };
        let base = base & !(context.top_entries() * 8 - 1);
        Some(RootKey {
            context,
            base,
            asid: self.asid(space),
        })
    }
}
