//! The PL011 (Arm DDI 0183), and the part of it that is an SBSA UART (Arm DEN 0029).

use super::{Bits, Model};

const DR: usize = 0x00 >> 2;
const FR: usize = 0x18 >> 2;
const LCR_H: usize = 0x2c >> 2;
const CR: usize = 0x30 >> 2;

/// FR: transmit FIFO full.
const TXFF: u32 = 1 << 5;
/// FR: busy sending.
const BUSY: u32 = 1 << 3;
/// CR: UART, transmitter and receiver enabled.
const ENABLED: u32 = 1 << 0 | 1 << 8 | 1 << 9;
/// LCR_H: 8 bits, FIFOs on.
const EIGHT_BITS_FIFO: u32 = 3 << 5 | 1 << 4;

pub(super) const PL011: Model = Model {
    on: &[CR_ENABLED],
    // LCR_H may be written only while the UART is off, so it comes first.
    turn_on: &[
        Bits {
            register: LCR_H,
            mask: EIGHT_BITS_FIFO,
            value: EIGHT_BITS_FIFO,
        },
        CR_ENABLED,
    ],
    ..SBSA
};

const CR_ENABLED: Bits = Bits {
    register: CR,
    mask: ENABLED,
    value: ENABLED,
};

/// An SBSA UART has no other registers that a console could use: firmware turns it on.
pub(super) const SBSA: Model = Model {
    data: DR,
    ready: Bits {
        register: FR,
        mask: TXFF,
        value: 0,
    },
    idle: Bits {
        register: FR,
        mask: BUSY,
        value: 0,
    },
    on: &[],
    turn_on: &[],
};
