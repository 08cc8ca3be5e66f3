//! The registers of each family, by their numbers, and the bits that a console uses.

use super::{Bits, Model};

/// The PL011 (Arm DDI 0183).
pub(super) const PL011: Model = {
    const LCR_H: usize = 0x2c >> 2;
    const CR: usize = 0x30 >> 2;
    /// CR: UART, transmitter and receiver enabled.
    const ENABLED: Bits = Bits::set(CR, 1 << 0 | 1 << 8 | 1 << 9);
    /// LCR_H: 8 bits, FIFOs on.
    const EIGHT_BITS_FIFO: Bits = Bits::set(LCR_H, 3 << 5 | 1 << 4);
    Model {
        on: &[ENABLED],
        // LCR_H may be written only while the UART is off, so it comes first.
        turn_on: &[EIGHT_BITS_FIFO, ENABLED],
        ..SBSA
    }
};

/// The part of the PL011 that is an SBSA UART (Arm DEN 0029). It has no other registers that a console could use:
/// firmware turns it on.
pub(super) const SBSA: Model = {
    const DR: usize = 0x00 >> 2;
    const FR: usize = 0x18 >> 2;
    /// FR: transmit FIFO full.
    const TXFF: u32 = 1 << 5;
    /// FR: busy sending.
    const BUSY: u32 = 1 << 3;
    Model {
        data: DR,
        ready: Bits::clear(FR, TXFF),
        idle: Bits::clear(FR, BUSY),
        on: &[],
        turn_on: &[],
    }
};

/// The 8250 and its descendants: 16550, DesignWare, Tegra, MediaTek, OMAP, the mini UART of the Raspberry Pi.
/// They send from reset on, without a register that turns the transmitter on.
pub(super) const UART8250: Model = {
    /// The data, where firmware has left the divisor latch closed, as for its own output.
    const THR: usize = 0;
    const LSR: usize = 5;
    /// LSR: a byte may be written.
    const THRE: u32 = 1 << 5;
    /// LSR: all bytes have left.
    const TEMT: u32 = 1 << 6;
    Model {
        data: THR,
        ready: Bits::set(LSR, THRE),
        idle: Bits::set(LSR, TEMT),
        on: &[],
        turn_on: &[],
    }
};

/// Cadence's UART, as in AMD's Zynq UltraScale+ (UG1087, module UART). It comes out of reset with its transmitter
/// off.
pub(super) const CADENCE: Model = {
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
    const ENABLED: Bits = Bits {
        register: CONTROL,
        mask: TXEN | TXDIS,
        value: TXEN,
    };
    Model {
        data: FIFO,
        ready: Bits::clear(STATUS, TFUL),
        idle: Bits {
            register: STATUS,
            mask: TEMPTY | TACTIVE,
            value: TEMPTY,
        },
        on: &[ENABLED],
        turn_on: &[ENABLED],
    }
};

/// The UART of NXP's i.MX 21 and later (i.MX 8M Plus reference manual, chapter UART).
pub(super) const IMX: Model = {
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
    const ENABLED: Bits = Bits::set(UCR1, UARTEN);
    Model {
        data: UTXD,
        ready: Bits::clear(UTS, TXFULL),
        idle: Bits::set(USR2, TXDC),
        on: &[ENABLED, Bits::set(UCR2, TXEN)],
        turn_on: &[ENABLED, Bits::set(UCR2, SRST | TXEN | WS | IRTS)],
    }
};
