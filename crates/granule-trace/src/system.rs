//! The instructions that a trace records by their encoding: writes of system registers, TLBIs, and
//! cache maintenance.
//!
//! All of them share one encoding space of the architecture, op0 to op2. A 16-bit number therefore
//! names any of them, even one without a constant here.

/// A system register or a SYS instruction, by its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct System(pub u16);

/// Packs the fields of an encoding.
const fn encode(op0: u16, op1: u16, crn: u16, crm: u16, op2: u16) -> System {
    System(op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2)
}

macro_rules! named {
    ($($name:ident, $text:literal, $op0:literal $op1:literal $crn:literal $crm:literal $op2:literal;)*) => {
        impl System {
            $(
                #[doc = concat!("`", $text, "`.")]
                pub const $name: Self = encode($op0, $op1, $crn, $crm, $op2);
            )*

            /// Every encoding with a constant here, and the assembler's name for it.
            pub const NAMED: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

named! {
    SCTLR_EL1, "sctlr_el1", 3 0 1 0 0;
    TCR_EL1, "tcr_el1", 3 0 2 0 2;
    TTBR0_EL1, "ttbr0_el1", 3 0 2 0 0;
    TTBR1_EL1, "ttbr1_el1", 3 0 2 0 1;
    MAIR_EL1, "mair_el1", 3 0 10 2 0;
    SCTLR_EL2, "sctlr_el2", 3 4 1 0 0;
    TCR_EL2, "tcr_el2", 3 4 2 0 2;
    TTBR0_EL2, "ttbr0_el2", 3 4 2 0 0;
    MAIR_EL2, "mair_el2", 3 4 10 2 0;
    HCR_EL2, "hcr_el2", 3 4 1 1 0;
    VTCR_EL2, "vtcr_el2", 3 4 2 1 2;
    VTTBR_EL2, "vttbr_el2", 3 4 2 1 0;
    SCTLR_EL3, "sctlr_el3", 3 6 1 0 0;
    TCR_EL3, "tcr_el3", 3 6 2 0 2;
    TTBR0_EL3, "ttbr0_el3", 3 6 2 0 0;
    MAIR_EL3, "mair_el3", 3 6 10 2 0;
    SP_EL0, "sp_el0", 3 0 4 1 0;

    VMALLE1, "vmalle1", 1 0 8 7 0;
    VMALLE1IS, "vmalle1is", 1 0 8 3 0;
    VMALLE1OS, "vmalle1os", 1 0 8 1 0;
    VAE1, "vae1", 1 0 8 7 1;
    VAE1IS, "vae1is", 1 0 8 3 1;
    VAE1OS, "vae1os", 1 0 8 1 1;
    ASIDE1, "aside1", 1 0 8 7 2;
    ASIDE1IS, "aside1is", 1 0 8 3 2;
    ASIDE1OS, "aside1os", 1 0 8 1 2;
    VAAE1, "vaae1", 1 0 8 7 3;
    VAAE1IS, "vaae1is", 1 0 8 3 3;
    VAAE1OS, "vaae1os", 1 0 8 1 3;
    VALE1, "vale1", 1 0 8 7 5;
    VALE1IS, "vale1is", 1 0 8 3 5;
    VALE1OS, "vale1os", 1 0 8 1 5;
    VAALE1, "vaale1", 1 0 8 7 7;
    VAALE1IS, "vaale1is", 1 0 8 3 7;
    VAALE1OS, "vaale1os", 1 0 8 1 7;
    RVAE1, "rvae1", 1 0 8 6 1;
    RVAE1IS, "rvae1is", 1 0 8 2 1;
    RVAE1OS, "rvae1os", 1 0 8 5 1;
    RVAAE1, "rvaae1", 1 0 8 6 3;
    RVAAE1IS, "rvaae1is", 1 0 8 2 3;
    RVAAE1OS, "rvaae1os", 1 0 8 5 3;
    RVALE1, "rvale1", 1 0 8 6 5;
    RVALE1IS, "rvale1is", 1 0 8 2 5;
    RVALE1OS, "rvale1os", 1 0 8 5 5;
    RVAALE1, "rvaale1", 1 0 8 6 7;
    RVAALE1IS, "rvaale1is", 1 0 8 2 7;
    RVAALE1OS, "rvaale1os", 1 0 8 5 7;
    ALLE2, "alle2", 1 4 8 7 0;
    ALLE2IS, "alle2is", 1 4 8 3 0;
    ALLE2OS, "alle2os", 1 4 8 1 0;
    VAE2, "vae2", 1 4 8 7 1;
    VAE2IS, "vae2is", 1 4 8 3 1;
    VAE2OS, "vae2os", 1 4 8 1 1;
    ALLE1, "alle1", 1 4 8 7 4;
    ALLE1IS, "alle1is", 1 4 8 3 4;
    ALLE1OS, "alle1os", 1 4 8 1 4;
    VALE2, "vale2", 1 4 8 7 5;
    VALE2IS, "vale2is", 1 4 8 3 5;
    VALE2OS, "vale2os", 1 4 8 1 5;
    VMALLS12E1, "vmalls12e1", 1 4 8 7 6;
    VMALLS12E1IS, "vmalls12e1is", 1 4 8 3 6;
    VMALLS12E1OS, "vmalls12e1os", 1 4 8 1 6;
    IPAS2E1, "ipas2e1", 1 4 8 4 1;
    IPAS2E1IS, "ipas2e1is", 1 4 8 0 1;
    IPAS2E1OS, "ipas2e1os", 1 4 8 4 0;
    IPAS2LE1, "ipas2le1", 1 4 8 4 5;
    IPAS2LE1IS, "ipas2le1is", 1 4 8 0 5;
    IPAS2LE1OS, "ipas2le1os", 1 4 8 4 4;
    RIPAS2E1, "ripas2e1", 1 4 8 4 2;
    RIPAS2E1IS, "ripas2e1is", 1 4 8 0 2;
    RIPAS2E1OS, "ripas2e1os", 1 4 8 4 3;
    RIPAS2LE1, "ripas2le1", 1 4 8 4 6;
    RIPAS2LE1IS, "ripas2le1is", 1 4 8 0 6;
    RIPAS2LE1OS, "ripas2le1os", 1 4 8 4 7;
    RVAE2, "rvae2", 1 4 8 6 1;
    RVAE2IS, "rvae2is", 1 4 8 2 1;
    RVAE2OS, "rvae2os", 1 4 8 5 1;
    RVALE2, "rvale2", 1 4 8 6 5;
    RVALE2IS, "rvale2is", 1 4 8 2 5;
    RVALE2OS, "rvale2os", 1 4 8 5 5;
    ALLE3, "alle3", 1 6 8 7 0;
    ALLE3IS, "alle3is", 1 6 8 3 0;
    ALLE3OS, "alle3os", 1 6 8 1 0;
    VAE3, "vae3", 1 6 8 7 1;
    VAE3IS, "vae3is", 1 6 8 3 1;
    VAE3OS, "vae3os", 1 6 8 1 1;
    VALE3, "vale3", 1 6 8 7 5;
    VALE3IS, "vale3is", 1 6 8 3 5;
    VALE3OS, "vale3os", 1 6 8 1 5;
    RVAE3, "rvae3", 1 6 8 6 1;
    RVAE3IS, "rvae3is", 1 6 8 2 1;
    RVAE3OS, "rvae3os", 1 6 8 5 1;
    RVALE3, "rvale3", 1 6 8 6 5;
    RVALE3IS, "rvale3is", 1 6 8 2 5;
    RVALE3OS, "rvale3os", 1 6 8 5 5;

    DC_IVAC, "ivac", 1 0 7 6 1;
    DC_CVAC, "cvac", 1 3 7 10 1;
    DC_CVAU, "cvau", 1 3 7 11 1;
    DC_CIVAC, "civac", 1 3 7 14 1;
    IC_IALLU, "iallu", 1 0 7 5 0;
    IC_IALLUIS, "ialluis", 1 0 7 1 0;
}

impl System {
    /// op0: 3 for registers, 1 for instructions.
    #[must_use]
    pub const fn op0(self) -> u16 {
        self.0 >> 14
    }

    /// CRn: for instructions 8 means a TLBI, 7 cache maintenance.
    #[must_use]
    pub const fn crn(self) -> u16 {
        self.0 >> 7 & 0b1111
    }

    /// Whether this is a TLBI.
    #[must_use]
    pub const fn is_tlbi(self) -> bool {
        self.op0() == 1 && self.crn() == 8
    }

    /// op1: the exception level of registers and of TLBIs, 0 for EL1, 4 for EL2 and 6 for EL3.
    #[must_use]
    pub const fn op1(self) -> u16 {
        self.0 >> 11 & 0b111
    }

    /// CRm: for a TLBI, the CPUs that it reaches and whether it takes a range.
    #[must_use]
    pub const fn crm(self) -> u16 {
        self.0 >> 3 & 0b1111
    }

    /// op2: for a TLBI, the entries that it removes.
    #[must_use]
    pub const fn op2(self) -> u16 {
        self.0 & 0b111
    }

    /// Whether this is a register.
    #[must_use]
    pub const fn is_register(self) -> bool {
        self.op0() == 3
    }

    /// Whether this is data cache maintenance by address.
    #[must_use]
    pub const fn is_data_cache(self) -> bool {
        matches!(
            self,
            Self::DC_IVAC | Self::DC_CVAC | Self::DC_CVAU | Self::DC_CIVAC
        )
    }

    /// Whether this invalidates all instruction caches, of this CPU or of all CPUs.
    #[must_use]
    pub const fn is_instruction_cache(self) -> bool {
        matches!(self, Self::IC_IALLU | Self::IC_IALLUIS)
    }

    /// Whether a TLBI takes an operand. One without an operand affects a whole regime.
    #[must_use]
    pub const fn takes_operand(self) -> bool {
        // CRm 0 and 4 are the operations by intermediate physical address.
        matches!(self.crm(), 0 | 4) || !matches!(self.op2(), 0 | 4 | 6)
    }

    /// The encoding with this assembler name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, other)| *other == name)
            .map(|(system, _)| *system)
    }

    /// The assembler's name without the leading `tlbi`, `dc` or `ic`, if a constant exists.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED
            .iter()
            .find(|(system, _)| *system == self)
            .map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_one_to_one() {
        for (i, (a, name)) in System::NAMED.iter().enumerate() {
            assert_eq!((a.name(), System::from_name(name)), (Some(*name), Some(*a)));
            assert_eq!(*a, encode(a.op0(), a.op1(), a.crn(), a.crm(), a.op2()));
            for (b, other) in System::NAMED.iter().skip(i + 1) {
                assert!(a != b && name != other, "{name} {other}");
            }
        }
    }

    #[test]
    fn encodings_are_those_of_the_instructions() {
        // MSR MAIR_EL1, X0 is 0xd518a200: the encoding is bits 20:5 of the instruction, with
        // op0's upper bit (1 for registers) implied.
        for (system, word) in [
            (System::MAIR_EL1, 0xd518_a200_u32),
            (System::SCTLR_EL1, 0xd518_1000),
            (System::SP_EL0, 0xd518_4103),
            (System::TTBR1_EL1, 0xd518_2020),
            (System::SCTLR_EL2, 0xd51c_1000),
            (System::VMALLE1, 0xd508_871f),
            (System::VAALE1IS, 0xd508_83e0),
            (System::ALLE2, 0xd50c_871f),
            (System::TCR_EL3, 0xd51e_2040),
            (System::RVAE1, 0xd508_8620),
            (System::RVAALE1OS, 0xd508_85e0),
            (System::VALE2OS, 0xd50c_81a0),
            (System::IPAS2E1IS, 0xd50c_8020),
            (System::RIPAS2LE1IS, 0xd50c_80c0),
            (System::VMALLS12E1IS, 0xd50c_83df),
            (System::VTTBR_EL2, 0xd51c_2100),
            (System::HCR_EL2, 0xd51c_1100),
            (System::DC_CVAU, 0xd50b_7b20),
            (System::DC_CIVAC, 0xd50b_7e20),
            (System::IC_IALLU, 0xd508_751f),
        ] {
            assert_eq!(u32::from(system.0), word >> 5 & 0xffff, "{system:?}");
        }
    }
}
