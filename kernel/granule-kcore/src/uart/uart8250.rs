//! The 8250 and its descendants: 16550, DesignWare, Tegra, MediaTek, OMAP, the mini UART of the Raspberry Pi.
//! They send from reset on, without a register that turns the transmitter on.

use super::{Bits, Model};

/// The data, where firmware has left the divisor latch closed, as for its own output.
const THR: usize = 0;
const LSR: usize = 5;

/// LSR: a byte may be written.
const THRE: u32 = 1 << 5;
/// LSR: all bytes have left.
const TEMT: u32 = 1 << 6;

pub(super) const MODEL: Model = Model {
    data: THR,
    ready: Bits {
        register: LSR,
        mask: THRE,
        value: THRE,
    },
    idle: Bits {
        register: LSR,
        mask: TEMT,
        value: TEMT,
    },
    on: &[],
    turn_on: &[],
};
