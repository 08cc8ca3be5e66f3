//! Decodes A64 instruction words for the check of MMU-off code: where control flows next, which words are
//! not allowed there, and which form an address.
//!
//! Nothing here knows symbols, files or rules; these are in `mmu_off`. Encodings follow the Arm ARM's
//! chapter C4 ("A64 instruction set encoding"). Each group is named by the bits that select it there.

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// To the next word.
    Next,
    /// To `0` only (`B`).
    Jump(u64),
    /// To `0` or the next word (`B.cond`, `CBZ`, `TBZ` and their opposites).
    Branch(u64),
    /// To `0`, and back to the next word (`BL`).
    Call(u64),
    /// To the address in a register (`BR`; the pointer-authenticating forms too).
    IndirectJump(u8),
    /// To the address in a register and back (`BLR`).
    IndirectCall(u8),
    /// An end of the flow that this code can follow: `RET`, `ERET`, `BRK`, `HLT`, `UDF`.
    End,
}

/// An instruction that makes or completes an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// `ADR Xd, target`: `d` and the target.
    Whole(u8, u64),
    /// `ADRP Xd, page`: `d` and the page's address.
    Page(u8, u64),
    /// `ADD Xd, Xn, #imm`: `d`, `n` and the number.
    Add(u8, u8, u64),
}

fn bits(word: u32, high: u32, low: u32) -> u32 {
    (word >> low) & ((1u32 << (high - low + 1)) - 1)
}

/// A field of `width` bits read as two's complement, times four, added to `pc`.
fn target(pc: u64, field: u32, width: u32) -> u64 {
    let signed = i64::from(field) << (64 - width) >> (64 - width);
    pc.wrapping_add_signed(signed * 4)
}

/// Where control goes after the word at `pc`.
pub(crate) fn flow(pc: u64, word: u32) -> Flow {
    match word {
        // Unconditional and conditional branches with an immediate.
        w if w >> 26 == 0b000101 => Flow::Jump(target(pc, bits(w, 25, 0), 26)),
        w if w >> 26 == 0b100101 => Flow::Call(target(pc, bits(w, 25, 0), 26)),
        w if w >> 24 == 0x54 => Flow::Branch(target(pc, bits(w, 23, 5), 19)),
        w if w & 0x7e00_0000 == 0x3400_0000 => Flow::Branch(target(pc, bits(w, 23, 5), 19)),
        w if w & 0x7e00_0000 == 0x3600_0000 => Flow::Branch(target(pc, bits(w, 18, 5), 14)),
        // Branch (register): bits 24:21 select the operation. With bit 24 set the word is the form with
        // pointer authentication and a modifier.
        w if w & 0xfe00_0000 == 0xd600_0000 => match bits(w, 24, 21) {
            0b0000 | 0b1000 => Flow::IndirectJump(bits(w, 9, 5) as u8),
            0b0001 | 0b1001 => Flow::IndirectCall(bits(w, 9, 5) as u8),
            _ => Flow::End,
        },
        // Exception generation: SVC, HVC and SMC return, BRK, HLT and DCPS do not.
        w if w >> 24 == 0xd4 => match bits(w, 23, 21) {
            0 => Flow::Next,
            _ => Flow::End,
        },
        w if w & 0xffff_0000 == 0 => Flow::End,
        _ => Flow::Next,
    }
}

/// Why a word must not run with the MMU off, or `None` when it may.
///
/// With the MMU off every data access is Device-nGnRnE: exclusives and atomics have no
/// guaranteed behaviour there and DC ZVA faults. SIMD and FP registers may be trapped
/// (CPACR/CPTR are not set up), and wide accesses fault unless aligned to their size.
pub(crate) fn hazard(word: u32) -> Option<&'static str> {
    let op0 = bits(word, 28, 25);
    match op0 {
        0b0000 if word >> 31 == 1 => Some("SME instruction"),
        0b0000 if word & 0xffff_0000 == 0 => None, // UDF
        0b0000 | 0b0001 | 0b0011 => Some("unallocated instruction word"),
        0b0010 => Some("SVE instruction"),
        0b0111 | 0b1111 => Some("SIMD or floating-point instruction"),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => load_store_hazard(word),
        0b1010 | 0b1011 => system_hazard(word),
        _ => None,
    }
}

fn load_store_hazard(word: u32) -> Option<&'static str> {
    if bits(word, 26, 26) == 1 {
        return Some("SIMD or floating-point load/store");
    }
    match bits(word, 29, 24) {
        // Bits 23 (o2) and 21 (o1) divide the group. Pairs share a pattern with CASP, which has bit 31
        // clear.
        0b00_1000 => Some(match (bits(word, 23, 23), bits(word, 21, 21)) {
            (0, 0) => "load/store exclusive",
            (0, _) if word >> 31 == 1 => "load/store exclusive pair",
            (1, 0) => "load-acquire/store-release",
            _ => "compare-and-swap",
        }),
        0b11_1000 if bits(word, 21, 21) == 1 && bits(word, 11, 10) == 0 => {
            // LDAPR is encoded among the atomics: A=1 R=0 Rs=31 o3=1 opc=100.
            if word & 0x3fff_fc00 == 0x38bf_c000 {
                Some("load-acquire (RCpc)")
            } else {
                Some("LSE atomic")
            }
        }
        0b01_1001 => Some(match (bits(word, 21, 21), bits(word, 11, 10)) {
            (0, 0b00) => "load-acquire/store-release (RCpc)",
            (0, 0b01) => "memory copy or set instruction (MOPS)",
            _ => "memory tagging, ordered pair or 128-bit atomic",
        }),
        _ => None,
    }
}

fn system_hazard(word: u32) -> Option<&'static str> {
    match word & 0xffff_ffe0 {
        0xd50b_7420 => Some("DC ZVA"),
        0xd50b_7460 | 0xd50b_7480 => Some("DC GVA/GZVA"),
        _ if word & 0xffdf_ffc0 == 0xd51b_4400 => Some("access to FPCR or FPSR"),
        _ => None,
    }
}

/// The part of an address that the word at `pc` computes, if it does.
pub(crate) fn address(pc: u64, word: u32) -> Option<Address> {
    let rd = bits(word, 4, 0) as u8;
    if word & 0x1f00_0000 == 0x1000_0000 {
        let field = bits(word, 23, 5) << 2 | bits(word, 30, 29);
        let signed = i64::from(field) << 43 >> 43;
        return Some(match word >> 31 {
            0 => Address::Whole(rd, pc.wrapping_add_signed(signed)),
            _ => Address::Page(rd, (pc & !0xfff).wrapping_add_signed(signed << 12)),
        });
    }
    if word & 0xff80_0000 == 0x9100_0000 {
        let imm = u64::from(bits(word, 21, 10)) << (12 * bits(word, 22, 22));
        return Some(Address::Add(rd, bits(word, 9, 5) as u8, imm));
    }
    None
}

/// The address that the word at `pc` loads from, if the word contains it (`LDR` literal).
pub(crate) fn literal(pc: u64, word: u32) -> Option<u64> {
    (word & 0x3b00_0000 == 0x1800_0000).then(|| target(pc, bits(word, 23, 5), 19))
}

/// Whether the word is `ADD Xrd, Xn, Xm{, shift}`, the last step of computing a jump table's target.
pub(crate) fn adds_registers_into(word: u32, rd: u8) -> bool {
    word & 0xff20_0000 == 0x8b00_0000 && bits(word, 4, 0) as u8 == rd
}

/// Whether the word writes a vector base register (VBAR_EL1, VBAR_EL2 or VBAR_EL12).
pub(crate) fn writes_vector_base(word: u32) -> bool {
    matches!(word & 0xffff_ffe0, 0xd518_c000 | 0xd51c_c000 | 0xd51d_c000)
}

/// Whether the word writes SCTLR of EL1, EL2 or EL3.
pub(crate) fn writes_sctlr(word: u32) -> bool {
    matches!(word & 0xffff_ffe0, 0xd518_1000 | 0xd51c_1000 | 0xd51e_1000)
}

/// Whether the word accesses memory: loads and stores, literals and prefetches included.
pub(crate) fn accesses_memory(word: u32) -> bool {
    matches!(bits(word, 28, 25), 0b0100 | 0b0110 | 0b1100 | 0b1110)
}

/// Whether the word has `register` as its result, or loads or stores it: the first operand of data processing, of
/// loads and stores and of MRS, and the second of pairs. Registers of SIMD are others.
pub(crate) fn has_as_operand(word: u32, register: u32) -> bool {
    let first = bits(word, 4, 0) == register;
    match bits(word, 28, 25) {
        0b1000 | 0b1001 | 0b0101 | 0b1101 => first,
        0b0100 | 0b0110 | 0b1100 | 0b1110 if bits(word, 26, 26) == 0 => {
            let is_pair = word & 0x3a00_0000 == 0x2800_0000;
            first || is_pair && bits(word, 14, 10) == register
        }
        0b1010 | 0b1011 => word >> 21 == 0x6a9 && first,
        _ => false,
    }
}

/// Identifies a word that waits, orders, or writes state that translation or a cache depends on. The number
/// is `op0:op1:CRn:CRm:op2`, bits 20 to 5, of a barrier, a TLBI, a cache operation by address or on all
/// lines, or a write of SCTLR, TTBR, TCR or MAIR.
pub(crate) fn maintenance(word: u32) -> Option<u16> {
    let number = bits(word, 20, 5) as u16;
    let (crn, crm, op2) = (bits(word, 15, 12), bits(word, 11, 8), bits(word, 7, 5));
    let counts = match word >> 19 {
        // op0 0: among hints and PSTATE, barriers have CRn 3.
        0x1aa0 => bits(word, 18, 16) == 3 && crn == 3 && (4..=6).contains(&op2),
        // op0 1, SYS: CRn 7 has the cache operations (not AT, CRm 8 and 9); CRn 8 and 9 are TLBIs.
        0x1aa1 => (crn == 7 && !(8..=9).contains(&crm)) || matches!(crn, 8 | 9),
        // op0 3, MSR: CRn 1 has SCTLR at CRm 0, op2 0; CRn 2 has TTBRs and TCRs; CRn 10 has MAIR and PIRs.
        0x1aa3 => match crn {
            1 => crm == 0 && op2 == 0,
            2 => crm == 0,
            10 => true,
            _ => false,
        },
        _ => false,
    };
    counts.then_some(number)
}

/// Whether the word loads 2, 4 or 8 bytes into general registers at once. Without strict alignment a
/// compiler does that for an unaligned value.
pub(crate) fn loads_more_than_a_byte(word: u32) -> bool {
    let group = word & 0x3b00_0000;
    let single = group == 0x3900_0000 || group == 0x3800_0000;
    single && bits(word, 31, 30) != 0 && bits(word, 23, 22) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words from an assembler (LLVM 22), with the hazard that the check must report for each.
    const FORBIDDEN: &[(u32, &str, &str)] = &[
        (0xc85f7c20, "ldxr x0, [x1]", "exclusive"),
        (0xc8007c41, "stxr w0, x1, [x2]", "exclusive"),
        (0x885ffc20, "ldaxr w0, [x1]", "exclusive"),
        (0x8803fc20, "stlxr w3, w0, [x1]", "exclusive"),
        (0xc87f0440, "ldxp x0, x1, [x2]", "exclusive pair"),
        (0xc8dffc20, "ldar x0, [x1]", "acquire"),
        (0x889ffc20, "stlr w0, [x1]", "release"),
        (0xc8a07c41, "cas x0, x1, [x2]", "compare-and-swap"),
        (0x88e0fc41, "casal w0, w1, [x2]", "compare-and-swap"),
        (0x48207c82, "casp x0, x1, x2, x3, [x4]", "compare-and-swap"),
        (0xf8200041, "ldadd x0, x1, [x2]", "LSE"),
        (0xb8e08041, "swpal w0, w1, [x2]", "LSE"),
        (0xf820303f, "stset x0, [x1]", "LSE"),
        (0xf8bfc020, "ldapr x0, [x1]", "RCpc"),
        (0xf8e01041, "ldclral x0, x1, [x2]", "LSE"),
        (0x99000020, "stlur w0, [x1]", "RCpc"),
        (0x19000420, "cpyfp", "MOPS"),
        (0x3dc00020, "ldr q0, [x1]", "load/store"),
        (0x6dbf27e8, "stp d8, d9, [sp, #-16]!", "load/store"),
        (0xbc626820, "ldr s0, [x1, x2]", "load/store"),
        (0x9e670000, "fmov d0, x0", "SIMD"),
        (0x4f00e400, "movi v0.16b, #0", "SIMD"),
        (0x4ea18400, "add v0.4s, v0.4s, v1.4s", "SIMD"),
        (0x0e013c00, "umov w0, v0.b[0]", "SIMD"),
        (0x2518e3e0, "ptrue p0.b", "SVE"),
        (0xd50b7420, "dc zva, x0", "DC ZVA"),
        (0xd50b743f, "dc zva, xzr", "DC ZVA"),
        (0xd53b4400, "mrs x0, fpcr", "FPCR"),
        (0xd51b4421, "msr fpsr, x1", "FPSR"),
    ];

    const ALLOWED: &[(u32, &str)] = &[
        (0xd50b7e20, "dc civac, x0"),
        (0xd5087623, "dc ivac, x3"),
        (0xf9400020, "ldr x0, [x1]"),
        (0xa8c17bfd, "ldp x29, x30, [sp], #16"),
        (0xa9bf7bfd, "stp x29, x30, [sp, #-16]!"),
        (0x38626820, "ldrb w0, [x1, x2]"),
        (0xf85f8020, "ldur x0, [x1, #-8]"),
        (0xa8400440, "ldnp x0, x1, [x2]"),
        (0xf9800000, "prfm pldl1keep, [x0]"),
        (0xb8a27820, "ldrsw x0, [x1, x2, lsl #2]"),
        (0xf8400820, "ldtr x0, [x1]"),
        (0xd5033fbf, "dmb sy"),
        (0xd5033f5f, "clrex"),
        (0xd53800a0, "mrs x0, mpidr_el1"),
        (0x1ac24020, "crc32b w0, w1, w2"),
        (0x9b020c20, "madd x0, x1, x2, x3"),
        (0x9bc27c20, "umulh x0, x1, x2"),
        (0x9a820020, "csel x0, x1, x2, eq"),
        (0x14000002, "b .+8"),
        (0xd65f03c0, "ret"),
        (0xd4000002, "hvc #0"),
        (0x00000000, "udf #0"),
        (0x100091a1, "adr x1, .+0x1234"),
        (0xd518c000, "msr vbar_el1, x0"),
    ];

    #[test]
    fn forbidden_words_are_hazards_and_plain_ones_are_not() {
        for &(word, text, expected) in FORBIDDEN {
            let found = hazard(word).unwrap_or("nothing");
            assert!(
                found.contains(expected),
                "{text} ({word:08x}): {found}, not {expected}"
            );
        }
        for &(word, text) in ALLOWED {
            assert_eq!(hazard(word), None, "{text} ({word:08x})");
        }
    }

    #[test]
    fn maintenance_is_known_by_its_number() {
        use granule_trace::System;
        for (word, text, expected) in [
            (0xd5033fdf, "isb", Some(0x19fe)),
            (0xd503379f, "dsb nsh", Some(0x19bc)),
            (0xd5033fbf, "dmb sy", Some(0x19fd)),
            (0xd508871f, "tlbi vmalle1", Some(System::VMALLE1.0)),
            (0xd50c871f, "tlbi alle2", Some(System::ALLE2.0)),
            (0xd508751f, "ic iallu", Some(System::IC_IALLU.0)),
            (0xd50b7e20, "dc civac, x0", Some(System::DC_CIVAC.0)),
            (0xd5087623, "dc ivac, x3", Some(System::DC_IVAC.0)),
            (0xd5181001, "msr sctlr_el1, x1", Some(System::SCTLR_EL1.0)),
            (0xd51c1001, "msr sctlr_el2, x1", Some(System::SCTLR_EL2.0)),
            (0xd5182022, "msr ttbr1_el1, x2", Some(System::TTBR1_EL1.0)),
            (0xd5182042, "msr tcr_el1, x2", Some(System::TCR_EL1.0)),
            (0xd518a201, "msr mair_el1, x1", Some(System::MAIR_EL1.0)),
            (0xd5381000, "mrs x0, sctlr_el1", None),
            (0xd518c000, "msr vbar_el1, x0", None),
            (0xd518105f, "msr cpacr_el1, xzr", None),
            (0xd503201f, "nop", None),
            (0xd503207f, "wfi", None),
            (0xd5033f5f, "clrex", None),
            (0xd50343df, "msr daifset, #3", None),
            (0xd5087800, "at s1e1r, x0", None),
            (0xf9400020, "ldr x0, [x1]", None),
        ] {
            assert_eq!(maintenance(word), expected, "{text}");
        }
    }

    #[test]
    fn flow_of_branches() {
        let pc = 0x1_0000;
        for (word, expected) in [
            (0x14000002, Flow::Jump(pc + 8)),
            (0x97ffffff, Flow::Call(pc - 4)),
            (0x54000081, Flow::Branch(pc + 16)),
            (0xb4000060, Flow::Branch(pc + 12)),
            (0x35ffffc3, Flow::Branch(pc - 8)),
            (0xb60800a0, Flow::Branch(pc + 20)),
            (0x371fff81, Flow::Branch(pc - 16)),
            (0xd61f0060, Flow::IndirectJump(3)),
            (0xd63f0100, Flow::IndirectCall(8)),
            (0xd61f08bf, Flow::IndirectJump(5)),
            (0xd73f08c7, Flow::IndirectCall(6)),
            (0xd65f03c0, Flow::End),
            (0xd65f0bff, Flow::End),
            (0xd69f03e0, Flow::End),
            (0xd4000001, Flow::Next),
            (0xd4000002, Flow::Next),
            (0xd4000003, Flow::Next),
            (0xd4200020, Flow::End),
            (0xd45e0000, Flow::End),
            (0x00000000, Flow::End),
            (0xf9400020, Flow::Next),
        ] {
            assert_eq!(flow(pc, word), expected, "{word:08x}");
        }
    }

    #[test]
    fn addresses() {
        let pc = 0x4_0010;
        for (word, expected) in [
            (0x100091a1, Some(Address::Whole(1, pc + 0x1234))),
            (0x10ffffe2, Some(Address::Whole(2, pc - 4))),
            // adrp x0, .+0x2000 ; adrp x3, .-0x1000
            (0xd0000000, Some(Address::Page(0, 0x4_2000))),
            (0xf0ffffe3, Some(Address::Page(3, 0x3_f000))),
            (0x91048c83, Some(Address::Add(3, 4, 0x123))),
            (0x91400483, Some(Address::Add(3, 4, 0x1000))),
            (0xf9400020, None),
        ] {
            assert_eq!(address(pc, word), expected, "{word:08x}");
        }
        // ldr x1, .+16 ; ldr w3, .-4 ; ldrsw x2, .+8 ; ldr x0, [x1]
        assert_eq!(literal(pc, 0x5800_0081), Some(pc + 16));
        assert_eq!(literal(pc, 0x18ff_ffe3), Some(pc - 4));
        assert_eq!(literal(pc, 0x9800_0042), Some(pc + 8));
        assert_eq!(literal(pc, 0xf9400020), None);
        assert!(adds_registers_into(0x8b0b094a, 10));
        assert!(!adds_registers_into(0x8b0b094a, 11));
        assert!(writes_vector_base(0xd518c000));
        assert!(writes_vector_base(0xd51cc007));
        assert!(!writes_vector_base(0xd53800a0));
        assert!(loads_more_than_a_byte(0xf9400020));
        assert!(loads_more_than_a_byte(0xf85f8020));
        assert!(!loads_more_than_a_byte(0x38626820));
        assert!(!loads_more_than_a_byte(0xf9000020)); // str x0, [x1]
    }
}
