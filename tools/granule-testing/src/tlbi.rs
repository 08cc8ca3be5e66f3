//! TLBI operands, decoded by the architecture's layout and not by the library's code.

use super::walk::Arch;
use granule::arch::tlbi::{TlbCapabilities, TlbiOp, TlbiScope};

/// A level hint and nothing else.
pub const HINTS: TlbCapabilities = TlbCapabilities {
    level_hint: true,
    ..TlbCapabilities::BASIC
};

/// The entries that a TLBI removes, decoded from its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The first and the last address, as address bits 55:0.
    pub first: u64,
    pub last: u64,
    /// Only leaves of this level are removed, if the operand has a hint.
    pub level: Option<i32>,
    /// Table entries are removed too.
    pub tables: bool,
    pub asid: Option<u16>,
}

pub const ADDRESS: u64 = (1 << 56) - 1;

/// Decodes an operation by the architecture's layout of its operand. At stage 2 an operand holds an
/// intermediate physical address, and nothing above its level hint.
pub fn decode(arch: &Arch, op: TlbiOp) -> Covered {
    if let (true, TlbiOp::Address { operand, .. }) = (arch.stage2, op) {
        assert_eq!(
            operand >> 48 | operand >> 40 & 0b1111,
            0,
            "RES0 bits of {operand:#x}"
        );
    }
    if let (true, TlbiOp::Range { operand, .. }) = (arch.stage2, op) {
        assert_eq!(operand >> 48, 0, "RES0 bits of {operand:#x}");
    }
    let granule = match arch.g {
        12 => 0b01,
        14 => 0b10,
        _ => 0b11,
    };
    let all = Covered {
        first: 0,
        last: ADDRESS,
        level: None,
        tables: true,
        asid: None,
    };
    match op {
        TlbiOp::All => all,
        TlbiOp::Asid { operand } => {
            assert_eq!(operand & ((1 << 48) - 1), 0);
            let asid = Some((operand >> 48) as u16);
            Covered { asid, ..all }
        }
        TlbiOp::Address {
            operand,
            scope,
            all_asids,
        } => {
            let address = (operand & 0xfff_ffff_ffff) << 12;
            let ttl = operand >> 44 & 0b1111;
            let level = (ttl != 0).then(|| {
                assert_eq!(ttl >> 2, granule, "a level hint for another granule");
                (ttl & 0b11) as i32
            });
            Covered {
                first: address,
                last: address | 0xfff,
                level,
                tables: scope == TlbiScope::AllLevels,
                asid: (!all_asids).then_some((operand >> 48) as u16),
            }
        }
        TlbiOp::Range {
            operand,
            scope,
            all_asids,
        } => {
            let base_shift = if arch.ds { 16 } else { arch.g };
            let num = operand >> 39 & 0b1_1111;
            let scale = operand >> 44 & 0b11;
            assert_eq!(operand >> 46 & 0b11, granule, "a range of another granule");
            let hint = (operand >> 37 & 0b11) as i32;
            // The base has 37 bits; the address bits above equal its top bit.
            let base = ((operand << 27) as i64 >> 27) as u64;
            let first = base << base_shift;
            let bytes = (num + 1) << (5 * scale + 1) << arch.g;
            let last = first.wrapping_add(bytes - 1);
            assert!(
                first & ADDRESS <= last & ADDRESS,
                "a range operation wraps past the top of the addresses"
            );
            if hint != 0 {
                assert_eq!(
                    first % arch.entry_bytes(hint),
                    0,
                    "the base is not aligned to the hinted level: UNPREDICTABLE"
                );
            }
            Covered {
                first: first & ADDRESS,
                last: last & ADDRESS,
                level: (hint != 0).then_some(hint),
                tables: scope == TlbiScope::AllLevels,
                asid: (!all_asids).then_some((operand >> 48) as u16),
            }
        }
        other => panic!("an operation that this test does not know: {other:?}"),
    }
}
