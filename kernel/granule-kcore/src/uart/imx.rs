//! The UART of NXP's i.MX 21 and later (i.MX 8M Plus reference manual, chapter UART).

use super::{Bits, Model};

const UTXD: usize = 0x40 >> 2;
const UCR1: usize = 0x80 >> 2;
const UCR2: usize = 0x84 >> 2;
const USR2: usize = 0x98 >> 2;
const UTS: usize = 0xb4 >> 2;

/// UCR1: the UART is on.
const UARTEN: u32 = 1 << 0;
/// UCR2: transmitter on, 8 bits, RTS ignored; and no reset, which a 0 would begin.
const SRST: u32 = 1 << 0;
const TXEN: u32 = 1 << 2;
const WS: u32 = 1 << 5;
const IRTS: u32 = 1 << 14;
/// USR2: all bytes have left.
const TXDC: u32 = 1 << 3;
/// UTS: transmit FIFO full.
const TXFULL: u32 = 1 << 4;

pub(super) const MODEL: Model = Model {
    data: UTXD,
    ready: Bits {
        register: UTS,
        mask: TXFULL,
        value: 0,
    },
    idle: Bits {
        register: USR2,
        mask: TXDC,
        value: TXDC,
    },
    on: &[
        ENABLED,
        Bits {
            register: UCR2,
            mask: TXEN,
            value: TXEN,
        },
    ],
    turn_on: &[
        ENABLED,
        Bits {
            register: UCR2,
            mask: SRST | TXEN | WS | IRTS,
            value: SRST | TXEN | WS | IRTS,
        },
    ],
};

const ENABLED: Bits = Bits {
    register: UCR1,
    mask: UARTEN,
    value: UARTEN,
};
