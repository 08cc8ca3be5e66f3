//! The instructions that a trace records by their encoding: writes of system registers, TLBIs,
//! and operations on caches.
//!
//! All are one encoding space of the architecture, op0 to op2, so a number of 16 bits names any
//! of them, also one that nothing here has a constant for.

/// A system register, or a SYS instruction, by its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct System(pub u16);

/// The number of an encoding.
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

            /// Every encoding that has a constant here, with the name the assembler has for it.
            pub const NAMED: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

named! {
    SCTLR_EL1, "sctlr_el1", 3 0 1 0 0;
    SCTLR_EL2, "sctlr_el2", 3 4 1 0 0;
    TTBR0_EL1, "ttbr0_el1", 3 0 2 0 0;
    TTBR1_EL1, "ttbr1_el1", 3 0 2 0 1;
    TCR_EL1, "tcr_el1", 3 0 2 0 2;
    MAIR_EL1, "mair_el1", 3 0 10 2 0;

    VMALLE1, "vmalle1", 1 0 8 7 0;
    VMALLE1IS, "vmalle1is", 1 0 8 3 0;
    VAE1IS, "vae1is", 1 0 8 3 1;
    ASIDE1IS, "aside1is", 1 0 8 3 2;
    VAAE1IS, "vaae1is", 1 0 8 3 3;
    VALE1IS, "vale1is", 1 0 8 3 5;
    VAALE1IS, "vaale1is", 1 0 8 3 7;
    RVAE1IS, "rvae1is", 1 0 8 2 1;
    RVAAE1IS, "rvaae1is", 1 0 8 2 3;
    RVALE1IS, "rvale1is", 1 0 8 2 5;
    RVAALE1IS, "rvaale1is", 1 0 8 2 7;
    ALLE1, "alle1", 1 4 8 7 4;
    ALLE2, "alle2", 1 4 8 7 0;
    ALLE2IS, "alle2is", 1 4 8 3 0;
    VAE2IS, "vae2is", 1 4 8 3 1;
    VALE2IS, "vale2is", 1 4 8 3 5;
    RVAE2IS, "rvae2is", 1 4 8 2 1;
    RVALE2IS, "rvale2is", 1 4 8 2 5;
    ALLE3IS, "alle3is", 1 6 8 3 0;
    VAE3IS, "vae3is", 1 6 8 3 1;
    VALE3IS, "vale3is", 1 6 8 3 5;
    RVAE3IS, "rvae3is", 1 6 8 2 1;
    RVALE3IS, "rvale3is", 1 6 8 2 5;

    DC_IVAC, "ivac", 1 0 7 6 1;
    DC_CVAC, "cvac", 1 3 7 10 1;
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

    /// CRn: among the instructions 8 for TLBIs, 7 for caches.
    #[must_use]
    pub const fn crn(self) -> u16 {
        self.0 >> 7 & 0b1111
    }

    /// Whether it is a TLBI.
    #[must_use]
    pub const fn is_tlbi(self) -> bool {
        self.op0() == 1 && self.crn() == 8
    }

    /// The assembler's name, without the `tlbi`, `dc` or `ic` before it, if there is a constant.
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
            assert_eq!(a.name(), Some(*name));
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
            (System::TTBR1_EL1, 0xd518_2020),
            (System::SCTLR_EL2, 0xd51c_1000),
            (System::VMALLE1, 0xd508_871f),
            (System::VAALE1IS, 0xd508_83e0),
            (System::ALLE2, 0xd50c_871f),
            (System::DC_CIVAC, 0xd50b_7e20),
            (System::IC_IALLU, 0xd508_751f),
        ] {
            assert_eq!(u32::from(system.0), word >> 5 & 0xffff, "{system:?}");
        }
    }
}
