//! Cadence's UART, as in AMD's Zynq UltraScale+ (UG1087, module UART).

use super::{Bits, Model};

const CONTROL: usize = 0x00 >> 2;
const STATUS: usize = 0x2c >> 2;
const FIFO: usize = 0x30 >> 2;

/// CONTROL: transmitter disabled, which wins over enabled.
const TXDIS: u32 = 1 << 5;
/// CONTROL: transmitter enabled.
const TXEN: u32 = 1 << 4;
/// STATUS: transmit FIFO empty, full; sending.
const TEMPTY: u32 = 1 << 3;
const TFUL: u32 = 1 << 4;
const TACTIVE: u32 = 1 << 11;

pub(super) const MODEL: Model = Model {
    data: FIFO,
    ready: Bits {
        register: STATUS,
        mask: TFUL,
        value: 0,
    },
    idle: Bits {
        register: STATUS,
        mask: TEMPTY | TACTIVE,
        value: TEMPTY,
    },
    on: &[ENABLED],
    turn_on: &[ENABLED],
};

/// The UART comes out of reset with its transmitter off.
const ENABLED: Bits = Bits {
    register: CONTROL,
    mask: TXEN | TXDIS,
    value: TXEN,
};
