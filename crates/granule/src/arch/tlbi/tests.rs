//! Operands bit by bit, and the encodings of constant operations.

use super::*;

/// The instruction that `hw` issues: the encoding of the constant operation, and the operand.
fn issued(op: TlbiOp, regime: Regime) -> (u16, u64) {
    macro_rules! issue {
        ($op:expr, $regime:expr) => {
            issue!($op, $regime, 0)
        };
        ($op:expr, $regime:expr, $operand:expr) => {{
            const ENCODING: u16 = $op.instruction($regime).0;
            (ENCODING, $operand)
        }};
    }
    for_constant_op!(op, regime, issue)
}

#[test]
fn every_operation_is_issued_with_its_own_encoding() {
    let operand = 0x1234_5678_9abc_def0;
    let by_address = [
        (TlbiScope::LastLevel, false),
        (TlbiScope::LastLevel, true),
        (TlbiScope::AllLevels, false),
        (TlbiScope::AllLevels, true),
    ];
    for regime in [Regime::El1And0, Regime::El2, Regime::El3, Regime::Stage2] {
        let agrees = |op: TlbiOp| {
            let expected = op.instruction(regime);
            assert_eq!(issued(op, regime), expected, "{op:?} {regime:?}");
        };
        agrees(TlbiOp::All);
        agrees(TlbiOp::AllVmids);
        agrees(TlbiOp::Asid { operand });
        for (scope, all_asids) in by_address {
            agrees(TlbiOp::Address {
                operand,
                scope,
                all_asids,
            });
            agrees(TlbiOp::Range {
                operand,
                scope,
                all_asids,
            });
        }
    }
}

#[test]
fn address_operands() {
    // 43:0 are address bits 55:12 whatever the granule; 47:44 TTL; 63:48 ASID.
    for size in PageSize::ALL {
        let address = VirtualAddress(0xffff_8765_4321_0000);
        let operand = address_operand(size, address, 0xbeef, None);
        assert_eq!(operand, 0xbeef << 48 | 0xff8_7654_3210, "{size}");
    }
    // TTL: granule 01, 10 or 11, then the level.
    for (size, level, ttl) in [
        (PageSize::K4, Level::L0, 0b0100),
        (PageSize::K4, Level::L1, 0b0101),
        (PageSize::K4, Level::L2, 0b0110),
        (PageSize::K4, Level::L3, 0b0111),
        (PageSize::K16, Level::L1, 0b1001),
        (PageSize::K16, Level::L2, 0b1010),
        (PageSize::K16, Level::L3, 0b1011),
        (PageSize::K64, Level::L1, 0b1101),
        (PageSize::K64, Level::L2, 0b1110),
        (PageSize::K64, Level::L3, 0b1111),
    ] {
        let operand = address_operand(size, VirtualAddress(0), 0, Some(level));
        assert_eq!(operand, ttl << 44, "{size} level {level}");
    }
    // Level -1 has no leaves and no hint.
    assert_eq!(
        address_operand(PageSize::K4, VirtualAddress(0), 0, Some(Level::Minus1)),
        0
    );
    assert_eq!(asid_operand(0x1234), 0x1234 << 48);
}

#[test]
fn range_lengths() {
    // (NUM + 1) * 2^(5 * SCALE + 1).
    for (num, scale, granules) in [
        (0, 0, 2),
        (31, 0, 64),
        (0, 1, 64),
        (31, 1, 2048),
        (0, 2, 2048),
        (31, 2, 65536),
        (0, 3, 65536),
        (31, 3, 2_097_152),
    ] {
        assert_eq!(range_granules(num, scale), granules);
    }
}
