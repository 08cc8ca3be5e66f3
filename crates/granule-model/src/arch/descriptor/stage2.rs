//! Stage 2: the attributes of leaves. Written from the architecture's description.

use super::{Attributes, DIRTY_MODIFIER, Rights};
use crate::arch::context::Context;

/// Bit 7 of a leaf, S2AP\[1\]: stores are allowed.
pub(crate) const WRITABLE: u64 = 1 << 7;

/// MemAttr as a byte of MAIR: what it is without the guest's own tables. With FEAT_S2FWB the value
/// that leaves the type to the guest has a byte of its own, because a change between the two is a
/// change of the memory type.
const fn memory_type(raw: u64, forced: bool) -> u8 {
    let attr = (raw >> 2 & 0b1111) as u8;
    if forced {
        return match attr & 0b111 {
            device @ 0..=3 => device << 2,
            0b101 => 0x44,
            0b110 => 0xff,
            0b111 => 0xee,
            _ => 0x40,
        };
    }
    /// Non-cacheable, write-through, write-back; 0 is reserved here.
    const HALF: [u8; 4] = [0x0, 0x4, 0xb, 0xf];
    match attr >> 2 {
        0 => attr << 2,
        outer => HALF[outer as usize] << 4 | HALF[(attr & 0b11) as usize],
    }
}

/// The attributes of a leaf of stage 2. The flags that both stages share are already in `common`.
pub(crate) const fn attributes(raw: u64, context: &Context, common: Attributes) -> Attributes {
    let dirty_managed = context.hardware_dirty && raw & DIRTY_MODIFIER != 0;
    let read = raw & 1 << 6 != 0;
    let write = raw & WRITABLE != 0 || dirty_managed;
    // XN[1:0]; without FEAT_XNX bit 54 alone.
    let (privileged, user) = match (raw >> 53 & 0b11, context.execute_by_privilege) {
        (0b00, _) | (0b01, false) => (true, true),
        (0b01, true) => (false, true),
        (0b11, true) => (true, false),
        _ => (false, false),
    };
    Attributes {
        memory: memory_type(raw, context.forced_write_back),
        privileged: Rights {
            read,
            write,
            execute: privileged && read,
        },
        user: Rights {
            read,
            write,
            execute: user && read,
        },
        // Every entry belongs to a VMID.
        global: false,
        guarded: false,
        ..common
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_types_are_those_of_the_table() {
        for (attr, forced, expected) in [
            (0b0000, false, 0x00),
            (0b0001, false, 0x04),
            (0b0011, false, 0x0c),
            (0b0101, false, 0x44),
            (0b1010, false, 0xbb),
            (0b1111, false, 0xff),
            (0b0111, false, 0x4f),
            (0b0001, true, 0x04),
            (0b0101, true, 0x44),
            (0b0110, true, 0xff),
            (0b1110, true, 0xff),
        ] {
            assert_eq!(memory_type(attr << 2, forced), expected, "{attr:#b}");
        }
    }
}
