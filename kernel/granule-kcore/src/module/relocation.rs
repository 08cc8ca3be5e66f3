//! Relocations of a module: the value of each kind, its range, and the bits of the instruction or word that hold it
//! (ELF for the Arm 64-bit Architecture, 5.7). Nothing about files or memory.
//!
//! The kinds are those that code of the model "small" without position independence has, and the groups of MOVZ and
//! MOVK that load any address. Every other kind is refused by its number.

use elf::abi::{
    R_AARCH64_ABS64, R_AARCH64_ADD_ABS_LO12_NC, R_AARCH64_ADR_PREL_PG_HI21, R_AARCH64_CALL26,
    R_AARCH64_JUMP26, R_AARCH64_LDST8_ABS_LO12_NC, R_AARCH64_LDST16_ABS_LO12_NC,
    R_AARCH64_LDST32_ABS_LO12_NC, R_AARCH64_LDST64_ABS_LO12_NC, R_AARCH64_LDST128_ABS_LO12_NC,
    R_AARCH64_MOVW_UABS_G0, R_AARCH64_MOVW_UABS_G0_NC, R_AARCH64_MOVW_UABS_G1,
    R_AARCH64_MOVW_UABS_G1_NC, R_AARCH64_MOVW_UABS_G2, R_AARCH64_MOVW_UABS_G2_NC,
    R_AARCH64_MOVW_UABS_G3, R_AARCH64_NONE, R_AARCH64_PREL32,
};

/// The bytes that ADRP counts in, whatever the page size: bits of the instruction, not pages of the kernel.
const ADRP_UNIT_SHIFT: u32 = 12;

/// Why a relocation cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationError {
    /// The kind is none of those above.
    Kind,
    /// The value does not fit the field, or is not aligned as the field requires.
    Range,
    /// The field lies outside of its section.
    Outside,
}

/// A field of an instruction: where it begins, how many bits it has, and the bits of the value that do not go there.
struct Field {
    at: u32,
    bits: u32,
    dropped: u32,
}

/// Applies a relocation of `kind` to the first bytes of `bytes`, which will lie at address `place`. `value` is the
/// symbol's address with the addend. Fails with [`RelocationError`]. Nothing was changed then.
pub fn apply(kind: u32, place: u64, value: u64, bytes: &mut [u8]) -> Result<(), RelocationError> {
    let distance = value.wrapping_sub(place) as i64;
    let field = |at, bits, dropped| Field { at, bits, dropped };
    // The number to put into the field, the field, and whether the number is in range.
    let (number, field, fits) = match kind {
        R_AARCH64_NONE => return Ok(()),
        R_AARCH64_ABS64 => {
            let word = bytes.get_mut(..8).ok_or(RelocationError::Outside)?;
            word.copy_from_slice(&value.to_le_bytes());
            return Ok(());
        }
        R_AARCH64_PREL32 => {
            if !(-(1 << 31)..1 << 32).contains(&distance) {
                return Err(RelocationError::Range);
            }
            let word = bytes.get_mut(..4).ok_or(RelocationError::Outside)?;
            word.copy_from_slice(&(distance as u32).to_le_bytes());
            return Ok(());
        }
        R_AARCH64_CALL26 | R_AARCH64_JUMP26 => {
            let fits = (-(1 << 27)..1 << 27).contains(&distance) && distance & 3 == 0;
            (distance as u64, field(0, 26, 2), fits)
        }
        R_AARCH64_ADR_PREL_PG_HI21 => {
            let unit = |address: u64| address >> ADRP_UNIT_SHIFT << ADRP_UNIT_SHIFT;
            let distance = unit(value).wrapping_sub(unit(place)) as i64;
            if !(-(1 << 32)..1 << 32).contains(&distance) {
                return Err(RelocationError::Range);
            }
            let pages = (distance >> ADRP_UNIT_SHIFT) as u64;
            insert(bytes, pages, &field(29, 2, 0))?;
            (pages, field(5, 19, 2), true)
        }
        R_AARCH64_ADD_ABS_LO12_NC | R_AARCH64_LDST8_ABS_LO12_NC => (value, low(0), true),
        R_AARCH64_LDST16_ABS_LO12_NC => (value, low(1), value.is_multiple_of(2)),
        R_AARCH64_LDST32_ABS_LO12_NC => (value, low(2), value.is_multiple_of(4)),
        R_AARCH64_LDST64_ABS_LO12_NC => (value, low(3), value.is_multiple_of(8)),
        R_AARCH64_LDST128_ABS_LO12_NC => (value, low(4), value.is_multiple_of(16)),
        R_AARCH64_MOVW_UABS_G0 => (value, field(5, 16, 0), value >> 16 == 0),
        R_AARCH64_MOVW_UABS_G0_NC => (value, field(5, 16, 0), true),
        R_AARCH64_MOVW_UABS_G1 => (value, field(5, 16, 16), value >> 32 == 0),
        R_AARCH64_MOVW_UABS_G1_NC => (value, field(5, 16, 16), true),
        R_AARCH64_MOVW_UABS_G2 => (value, field(5, 16, 32), value >> 48 == 0),
        R_AARCH64_MOVW_UABS_G2_NC => (value, field(5, 16, 32), true),
        R_AARCH64_MOVW_UABS_G3 => (value, field(5, 16, 48), true),
        _ => return Err(RelocationError::Kind),
    };
    if !fits {
        return Err(RelocationError::Range);
    }
    insert(bytes, number, &field)
}

/// The offset of a load, a store or an ADD: the low 12 bits of the address in units of `1 << scale` bytes.
const fn low(scale: u32) -> Field {
    Field {
        at: 10,
        bits: 12 - scale,
        dropped: scale,
    }
}

/// Replaces a field of the instruction.
fn insert(bytes: &mut [u8], number: u64, field: &Field) -> Result<(), RelocationError> {
    let word = bytes.first_chunk_mut().ok_or(RelocationError::Outside)?;
    let mask = ((1u32 << field.bits) - 1) << field.at;
    // An offset in units of a load's size has fewer bits, and its field begins at the same place.
    let put = ((number >> field.dropped) as u32) << field.at & mask;
    *word = (u32::from_le_bytes(*word) & !mask | put).to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use RelocationError::{Kind, Outside, Range};

    const PLACE: u64 = 0xffff_ffff_8200_1ff4;

    /// The instruction after the relocation.
    fn relocated(kind: u32, word: u32, value: u64) -> Result<u32, RelocationError> {
        let mut bytes = word.to_le_bytes();
        apply(kind, PLACE, value, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Instructions as an assembler encodes them.
    #[test]
    fn instructions_get_the_bits_of_their_encoding() {
        for (kind, word, value, expected) in [
            // bl .+4; bl .-4; bl to both ends of the range; b .+8, over an addend that was there.
            (283, 0x9400_0000, PLACE + 4, Ok(0x9400_0001)),
            (283, 0x9400_0000, PLACE - 4, Ok(0x97ff_ffff)),
            (283, 0x9400_0000, PLACE + (128 << 20) - 4, Ok(0x95ff_ffff)),
            (283, 0x9400_0000, PLACE - (128 << 20), Ok(0x9600_0000)),
            (282, 0x1400_0003, PLACE + 8, Ok(0x1400_0002)),
            (283, 0x9400_0000, PLACE + (128 << 20), Err(Range)),
            (283, 0x9400_0000, PLACE - (128 << 20) - 4, Err(Range)),
            (283, 0x9400_0000, PLACE + 2, Err(Range)),
            // adrp x0 to the next 4K, to the same, to the one before; 4 GiB away.
            (275, 0x9000_0000, 0xffff_ffff_8200_2000, Ok(0xb000_0000)),
            (275, 0x9000_0000, 0xffff_ffff_8200_1000, Ok(0x9000_0000)),
            (275, 0x9000_0000, 0xffff_ffff_8200_0fff, Ok(0xf0ff_ffe0)),
            (275, 0x9000_0005, 0xffff_ffff_8200_5000, Ok(0x9000_0025)),
            (275, 0x9000_0000, PLACE - (1 << 32), Ok(0x9080_0000)),
            (275, 0x9000_0000, PLACE - (1 << 32) - 0x1000, Err(Range)),
            // add x0, x0, #0xff4; ldrb, ldrh, ldr w, ldr x, ldr q with the same.
            (277, 0x9100_0000, PLACE, Ok(0x913f_d000)),
            (278, 0x3940_0000, PLACE, Ok(0x397f_d000)),
            (284, 0x7940_0000, PLACE, Ok(0x795f_e800)),
            (285, 0xb940_0000, PLACE, Ok(0xb94f_f400)),
            (286, 0xf940_0000, PLACE + 4, Ok(0xf947_fc00)),
            (299, 0x3dc0_0000, PLACE - 4, Ok(0x3dc3_fc00)),
            (284, 0x7940_0000, PLACE + 1, Err(Range)),
            (285, 0xb940_0000, PLACE + 2, Err(Range)),
            (286, 0xf940_0000, PLACE, Err(Range)),
            (299, 0x3dc0_0000, PLACE + 4, Err(Range)),
            // movz x0, #0xffff, lsl 48; movk of the other three; those that check.
            (269, 0xd2e0_0000, PLACE, Ok(0xd2ff_ffe0)),
            (268, 0xf2c0_0000, PLACE, Ok(0xf2df_ffe0)),
            (266, 0xf2a0_0000, PLACE, Ok(0xf2b0_4000)),
            (264, 0xf280_0000, PLACE, Ok(0xf283_fe80)),
            (263, 0xd280_0000, 0xffff, Ok(0xd29f_ffe0)),
            (263, 0xd280_0000, 0x1_0000, Err(Range)),
            (265, 0xd2a0_0000, 0xffff_0000, Ok(0xd2bf_ffe0)),
            (265, 0xd2a0_0000, 0x1_0000_0000, Err(Range)),
            (267, 0xd2c0_0000, 0xffff_0000_0000, Ok(0xd2df_ffe0)),
            (267, 0xd2c0_0000, PLACE, Err(Range)),
            (0, 7, PLACE, Ok(7)),
        ] {
            assert_eq!(
                relocated(kind, word, value),
                expected,
                "{kind} of {value:#x}"
            );
        }
    }

    #[test]
    fn words_are_absolute_or_a_distance() {
        let mut word = [0x55; 8];
        assert_eq!(apply(257, PLACE, 0x0123_4567_89ab_cdef, &mut word), Ok(()));
        assert_eq!(u64::from_le_bytes(word), 0x0123_4567_89ab_cdef);
        assert_eq!(apply(261, PLACE, PLACE - 8, &mut word), Ok(()));
        assert_eq!(u64::from_le_bytes(word), 0x0123_4567_ffff_fff8);
        for value in [PLACE - (1 << 33), PLACE - (1 << 31) - 1] {
            assert_eq!(apply(261, PLACE, value, &mut word), Err(Range));
        }
        assert_eq!(apply(257, PLACE, 0, &mut word[..7]), Err(Outside));
        assert_eq!(apply(261, PLACE, PLACE, &mut word[..3]), Err(Outside));
        assert_eq!(apply(283, PLACE, PLACE, &mut word[..3]), Err(Outside));
    }

    #[test]
    fn every_other_kind_is_refused() {
        let known = [
            0, 257, 261, 263, 264, 265, 266, 267, 268, 269, 275, 277, 278, 282, 283, 284, 285, 286,
            299,
        ];
        for kind in (0..2000).chain([u32::MAX]) {
            let is_known = known.contains(&kind);
            assert_eq!(relocated(kind, 0, 0) == Err(Kind), !is_known, "{kind}");
        }
    }
}
