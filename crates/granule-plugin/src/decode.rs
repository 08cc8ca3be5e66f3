//! Decodes the A64 instructions that concern translation, and the forms of stores.
//!
//! Everything here is a pure function of the instruction's word. The effect of an instruction
//! belongs to `track`.

use granule_trace::{Barrier, BarrierKind, System};

/// An instruction that concerns translation. `rt` is the number of the register that it reads; 31
/// is the zero register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// MSR of a register that [`is_watched`] accepts, or that [`unmodelled`] names.
    Msr {
        /// The system register.
        register: System,
        /// The register with the value.
        rt: u8,
    },
    /// TLBI.
    Tlbi {
        /// The invalidation.
        op: System,
        /// The register with the operand.
        rt: u8,
    },
    /// DSB, DMB or ISB.
    Barrier(Barrier),
    /// DC by virtual address.
    DataCache {
        /// The operation.
        op: System,
        /// The register with the address.
        rt: u8,
    },
    /// DC ZVA and its kin, which store.
    Zero {
        /// The register with the address.
        rt: u8,
    },
    /// DC ISW, which discards lines of the CPU's own caches.
    DropOwn,
    /// IC IALLU and IC IALLUIS.
    InstructionCache(System),
    /// The first instruction of a group of CPY or SET, which store any number of bytes.
    Bulk {
        /// The register with the first address.
        rd: u8,
        /// The register with the number of bytes.
        rn: u8,
        /// Whether it stores zeros: SET of XZR.
        zeros: bool,
    },
    /// ERET, ERETAA and ERETAB.
    Eret,
    /// HVC or SMC, by which a CPU may switch itself off.
    FirmwareCall,
    /// An instruction that changes or invalidates translations in a way that events cannot express.
    Unmodelled(&'static str),
}

/// DSBs that no event can express.
pub(crate) const DSB_NXS: &str = "DSB with nXS";
/// Invalidations that no event can express.
pub(crate) const OTHER_TLBI: &str = "unknown invalidation";
pub(crate) const WIDE_TLBI: &str = "128-bit invalidation";

/// The form of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreForm {
    /// A store-release.
    pub release: bool,
    /// One atomic step with a load: an atomic instruction or a store-exclusive.
    pub exchange: bool,
}

const fn system(op0: u16, op1: u16, crn: u16, crm: u16, op2: u16) -> System {
    System(op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2)
}

/// `SCTLR_EL12`, the EL1 register of a guest for a host at EL2.
pub const SCTLR_EL12: System = system(3, 5, 1, 0, 0);
/// `SPSR_EL1`, the target state of an ERET at EL1.
pub const SPSR_EL1: System = system(3, 0, 4, 0, 0);
/// `SPSR_EL2`, the target state of an ERET at EL2.
pub const SPSR_EL2: System = system(3, 4, 4, 0, 0);
/// `VBAR_EL1`.
pub const VBAR_EL1: System = system(3, 0, 12, 0, 0);
/// `VBAR_EL2`.
pub const VBAR_EL2: System = system(3, 4, 12, 0, 0);
/// `VBAR_EL3`.
pub const VBAR_EL3: System = system(3, 6, 12, 0, 0);
/// `SCR_EL3`, which sets the security state of the levels below EL3.
pub const SCR_EL3: System = system(3, 6, 1, 1, 0);

/// Registers that change translation unless they are zero, and that the model does not have.
const UNMODELLED: &[(System, &str)] = &[
    (system(3, 4, 2, 0, 1), "ttbr1_el2"),
    (SCTLR_EL12, "sctlr_el12"),
    (system(3, 5, 2, 0, 0), "ttbr0_el12"),
    (system(3, 5, 2, 0, 1), "ttbr1_el12"),
    (system(3, 5, 2, 0, 2), "tcr_el12"),
    (system(3, 5, 10, 2, 0), "mair_el12"),
    (system(3, 0, 2, 0, 3), "tcr2_el1"),
    (system(3, 4, 2, 0, 3), "tcr2_el2"),
    (system(3, 4, 2, 6, 0), "vsttbr_el2"),
    (system(3, 4, 2, 6, 2), "vstcr_el2"),
];

/// Returns whether a trace has an event for writes of this register, or the tracker needs them.
#[must_use]
pub const fn is_watched(register: System) -> bool {
    matches!(
        register,
        System::SCTLR_EL1
            | System::TCR_EL1
            | System::TTBR0_EL1
            | System::TTBR1_EL1
            | System::MAIR_EL1
            | System::SCTLR_EL2
            | System::TCR_EL2
            | System::TTBR0_EL2
            | System::MAIR_EL2
            | System::HCR_EL2
            | System::VTCR_EL2
            | System::VTTBR_EL2
            | System::SCTLR_EL3
            | System::TCR_EL3
            | System::TTBR0_EL3
            | System::MAIR_EL3
            | System::SP_EL0
            | SPSR_EL1
            | SPSR_EL2
            | VBAR_EL1
            | VBAR_EL2
            | VBAR_EL3
            | SCR_EL3
    )
}

/// Returns the name of a register that changes translation unless it is zero, and that no event
/// has.
#[must_use]
pub fn unmodelled(register: System) -> Option<&'static str> {
    let mut known = UNMODELLED.iter();
    known.find_map(|(other, name)| (*other == register).then_some(*name))
}

/// Returns whether an SPSR names EL0, in AArch64 or AArch32.
#[must_use]
pub const fn is_user(spsr: u64) -> bool {
    spsr & 0b1111 == 0
}

/// Returns whether an SPSR of EL2 names EL1 or EL0; EL2 itself is AArch64.
#[must_use]
pub const fn is_below_el2(spsr: u64) -> bool {
    spsr & 0b1_0000 != 0 || spsr & 0b1100 < 0b1000
}

/// Decodes a word, if its instruction concerns translation.
#[must_use]
pub fn decode(word: u32) -> Option<Instruction> {
    let rt = (word & 31) as u8;
    match word {
        0xd69f_03e0 | 0xd69f_0bff | 0xd69f_0fff => return Some(Instruction::Eret),
        _ => (),
    }
    if word & 0xffe0_001f == 0xd400_0002 || word & 0xffe0_001f == 0xd400_0003 {
        return Some(Instruction::FirmwareCall);
    }
    if word & 0xffff_f01f == 0xd503_301f {
        // It completes fewer invalidations than a DSB does.
        if word >> 5 & 7 == 1 && word >> 8 & 3 == 2 {
            return Some(Instruction::Unmodelled(DSB_NXS));
        }
        return barrier(word).map(Instruction::Barrier);
    }
    // CPY and SET: bits 23:22 are the step (3: SET, whose step is in bits 15:14).
    if word & 0xfb20_0c00 == 0x1900_0400 {
        let step = word >> 22 & 3;
        let is_first = step == 0 || step == 3 && word >> 14 & 3 == 0;
        let rn = (word >> 5 & 31) as u8;
        let zeros = step == 3 && word >> 16 & 31 == 31;
        return is_first.then_some(Instruction::Bulk { rd: rt, rn, zeros });
    }
    let encoding = System((word >> 5) as u16);
    match word >> 19 {
        // MSR (register): op0 is 2 or 3.
        0x1aa2 | 0x1aa3 => {
            let register = encoding;
            let is_relevant = is_watched(register) || unmodelled(register).is_some();
            is_relevant.then_some(Instruction::Msr { register, rt })
        }
        // SYS: op0 is 1.
        0x1aa1 => system_instruction(encoding, rt),
        // SYSP and MSRR: pairs of registers, for 128-bit descriptors.
        0x1aa9 if encoding.crn() == 8 || encoding.crn() == 9 => {
            Some(Instruction::Unmodelled(WIDE_TLBI))
        }
        0x1aab if encoding.crn() == 2 => Some(Instruction::Unmodelled("128-bit registers")),
        _ => None,
    }
}

fn system_instruction(op: System, rt: u8) -> Option<Instruction> {
    match op.crn() {
        8 | 9 => {
            // CRn 9 is the same with nXS: it invalidates the same entries, and waits for less.
            let op = System(op.0 & !(1 << 7));
            // An operation without a name is one for granules of realms, or by PA.
            if op.name().is_none() {
                return Some(Instruction::Unmodelled(OTHER_TLBI));
            }
            Some(Instruction::Tlbi { op, rt })
        }
        7 => match (op.op1(), op.crm(), op.op2()) {
            (3, 4, 1 | 3 | 4) => Some(Instruction::Zero { rt }),
            // CVAP and CVADP clean further than CVAC.
            (3, 10 | 12 | 13, 1) => Some(Instruction::DataCache {
                op: System::DC_CVAC,
                rt,
            }),
            _ if op.is_data_cache() => Some(Instruction::DataCache { op, rt }),
            _ if op.is_instruction_cache() => Some(Instruction::InstructionCache(op)),
            // By set and way, only the CPU's own caches are cleaned (CRm 10 and 14) or invalidated.
            // Cleaning is not visible to other observers, which include table walks.
            (0, 6, 2) => Some(Instruction::DropOwn),
            _ => None,
        },
        _ => None,
    }
}

fn barrier(word: u32) -> Option<Barrier> {
    let option = (word >> 8 & 15) as u8;
    let (kind, option) = match word >> 5 & 7 {
        // CRm 0 and 4 are SSBB and PSSBB.
        4 if option & 3 != 0 => (BarrierKind::Dsb, option),
        5 if option & 3 != 0 => (BarrierKind::Dmb, option),
        6 => (BarrierKind::Isb, 15),
        _ => return None,
    };
    Some(Barrier { kind, option })
}

/// Decodes the form of a store instruction.
#[must_use]
pub const fn store_form(word: u32) -> StoreForm {
    let (release, exchange) = if word & 0x3fe0_8000 == 0x0880_8000 {
        // STLR.
        (true, false)
    } else if word & 0x3fc0_0000 == 0x0800_0000 {
        // Store-exclusive, one or a pair; bit 15 makes it a release. With bit 31 clear and bit 21
        // set it is CASP.
        (word & 1 << 15 != 0, true)
    } else if word & 0x3fa0_7c00 == 0x08a0_7c00 || word & 0xbfa0_7c00 == 0x0820_7c00 {
        // CAS and CASP.
        (word & 1 << 15 != 0, true)
    } else if word & 0x3f20_0c00 == 0x3820_0000 {
        // LDADD, LDCLR, LDSET, SWP and the like; bit 22 makes them a release.
        (word & 1 << 22 != 0, true)
    } else {
        // STLUR, or an ordinary store.
        (word & 0x3fe0_0c00 == 0x1900_0000, false)
    };
    StoreForm { release, exchange }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn bulk(rd: u8, rn: u8, zeros: bool) -> Instruction {
        Instruction::Bulk { rd, rn, zeros }
    }

    #[test]
    fn words_of_an_assembler_are_decoded() {
        use Instruction as I;
        let msr = |register| Some(I::Msr { register, rt: 3 });
        let tlbi = |op, rt| Some(I::Tlbi { op, rt });
        for (word, expected) in [
            (0xd518_2023_u32, msr(System::TTBR1_EL1)),
            (0xd518_2003, msr(System::TTBR0_EL1)),
            (0xd51c_1103, msr(System::HCR_EL2)),
            (0xd51e_1003, msr(System::SCTLR_EL3)),
            (0xd518_c003, msr(VBAR_EL1)),
            (0xd51d_2023, msr(system(3, 5, 2, 0, 1))),
            // msr tpidr_el0, x3: not part of translation. mrs x3, ttbr1_el1: a read.
            (0xd51b_d043, None),
            (0xd538_2023, None),
            (0xd508_831f, tlbi(System::VMALLE1IS, 31)),
            (0xd508_83e2, tlbi(System::VAALE1IS, 2)),
            // tlbi vaale1isnxs, x2.
            (0xd508_93e2, tlbi(System::VAALE1IS, 2)),
            (0xd50b_7421, Some(I::Zero { rt: 1 })),
            (
                0xd50b_7e25,
                Some(I::DataCache {
                    op: System::DC_CIVAC,
                    rt: 5,
                }),
            ),
            (
                0xd508_7625,
                Some(I::DataCache {
                    op: System::DC_IVAC,
                    rt: 5,
                }),
            ),
            (0xd508_711f, Some(I::InstructionCache(System::IC_IALLUIS))),
            // dc isw, x0; dc csw, x0; dc cisw, x0.
            (0xd508_7640, Some(I::DropOwn)),
            (0xd508_7a40, None),
            (0xd508_7e40, None),
            // ic ivau, x5: does not invalidate translations.
            (0xd50b_7525, None),
            (0xd503_3b9f, Some(I::Barrier(Barrier::DSB_ISH))),
            (0xd503_3a9f, Some(I::Barrier(Barrier::DSB_ISHST))),
            (0xd503_3fdf, Some(I::Barrier(Barrier::ISB))),
            (0xd503_3abf, Some(I::Barrier(Barrier::DMB_ISHST))),
            // dsb ishnxs.
            (0xd503_3a3f, Some(I::Unmodelled("DSB with nXS"))),
            // ssbb, pssbb, clrex, sb, nop.
            (0xd503_309f, None),
            (0xd503_349f, None),
            (0xd503_3f5f, None),
            (0xd503_30ff, None),
            (0xd503_201f, None),
            (0xd69f_03e0, Some(I::Eret)),
            (0xd400_0002, Some(I::FirmwareCall)),
            (0xd400_0003, Some(I::FirmwareCall)),
            // svc #0.
            (0xd400_0001, None),
            // setp [x0]!, x1!, x2; setm; cpyfp [x0]!, [x1]!, x2!; cpye.
            (0x19c2_0420, Some(bulk(0, 1, false))),
            (0x19df_0420, Some(bulk(0, 1, true))),
            (0x19c2_4420, None),
            (0x1901_0440, Some(bulk(0, 2, false))),
            (0x191f_0440, Some(bulk(0, 2, false))),
            (0x1d81_0440, None),
            // str x0, [x1].
            (0xf900_0020, None),
        ] {
            assert_eq!(decode(word), expected, "{word:#x}");
        }
    }

    #[test]
    fn registers_are_watched_or_unmodelled_and_never_both() {
        assert_eq!(unmodelled(system(3, 5, 2, 0, 1)), Some("ttbr1_el12"));
        for (register, name) in UNMODELLED {
            assert!(
                !is_watched(*register) && register.name().is_none(),
                "{name}"
            );
            assert!(name.len() <= 24, "{name}");
        }
        for (register, name) in System::NAMED.iter().filter(|(it, _)| it.is_register()) {
            assert!(is_watched(*register), "{name}");
        }
    }

    #[test]
    fn the_level_that_an_exception_returns_to_is_decoded() {
        // EL0t, usr, EL1t, EL1h, svc, EL2t, EL2h.
        for (spsr, user, below) in [
            (0x3c0_u64, true, true),
            (0x10, true, true),
            (0x4, false, true),
            (0x3c5, false, true),
            (0x13, false, true),
            (0x8, false, false),
            (0x3c9, false, false),
        ] {
            assert_eq!(
                (is_user(spsr), is_below_el2(spsr)),
                (user, below),
                "{spsr:#x}"
            );
        }
    }

    #[test]
    fn forms_of_stores_are_decoded() {
        for (word, release, exchange) in [
            // str x0, [x1]; stp x0, x1, [x2]; str x0, [x1, x2].
            (0xf900_0020_u32, false, false),
            (0xa900_0440, false, false),
            (0xf822_6820, false, false),
            // stlr x0, [x1]; stlur x0, [x1].
            (0xc89f_fc20, true, false),
            (0xd900_0020, true, false),
            // stxr w2, x0, [x1]; stlxr w2, x0, [x1]; stxp w3, x0, x2, [x1].
            (0xc802_7c20, false, true),
            (0xc802_fc20, true, true),
            (0xc823_0820, false, true),
            // cas x0, x2, [x1]; casal x0, x2, [x1]; casp x0, x1, x2, x3, [x4].
            (0xc8a0_7c22, false, true),
            (0xc8e0_fc22, true, true),
            (0x4820_7c82, false, true),
            // swpal x0, x2, [x1]; ldset x0, x2, [x1]; ldclrl x0, x2, [x1].
            (0xf8e0_8022, true, true),
            (0xf820_3022, false, true),
            (0xf860_1022, true, true),
        ] {
            assert_eq!(
                store_form(word),
                StoreForm { release, exchange },
                "{word:#x}"
            );
        }
    }
}
