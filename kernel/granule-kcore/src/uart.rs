//! The parts of a UART that a console needs: turn the transmitter on, send a byte, wait until it has left.
//! Used with the MMU off and on. No locks, no formatting, and no address.
//!
//! `families` has the registers of each family of UARTs. The code of a console is here, once for all
//! families: each has a register for data, and flags that show when it may be written and when all
//! bytes have left.
//!
//! Firmware has set the speed of the line. A transmitter that is off is turned on.

mod families;
#[cfg(test)]
mod tests;

use granule_boot::uart::{Family, Layout, Uart};

/// Most reads of a flag in one wait: a UART that never drains does not hang the boot.
const PATIENCE: u32 = 1_000_000;

/// The registers of one UART, by their offsets in bytes. Each access has the width of the UART's layout.
pub trait Registers: Copy {
    /// Reads a register.
    fn read(self, offset: usize) -> u32;
    /// Writes a register.
    fn write(self, offset: usize, value: u32);
}

/// A value of some bits of a register.
struct Bits {
    register: usize,
    mask: u32,
    value: u32,
}

impl Bits {
    /// All of `mask` set.
    const fn set(register: usize, mask: u32) -> Self {
        Self {
            register,
            mask,
            value: mask,
        }
    }

    /// All of `mask` clear.
    const fn clear(register: usize, mask: u32) -> Self {
        Self {
            register,
            mask,
            value: 0,
        }
    }
}

/// The registers of a family that a console uses. Registers are counted, not addressed.
struct Model {
    /// A byte that is written here is sent.
    data: usize,
    /// When `data` may be written.
    ready: Bits,
    /// When all bytes have left.
    idle: Bits,
    /// The bits that hold while the transmitter is on. Firmware that used the UART has left it on;
    /// an emulator that starts a kernel without firmware has not.
    on: &'static [Bits],
    /// The bits that are written to turn it on, in this order. Other bits of the registers stay.
    turn_on: &'static [Bits],
}

impl Model {
    const fn of(family: Family) -> &'static Self {
        match family {
            Family::Pl011 => &families::PL011,
            Family::Sbsa => &families::SBSA,
            Family::Uart8250 => &families::UART8250,
            Family::Cadence => &families::CADENCE,
            Family::Imx => &families::IMX,
        }
    }
}

/// A UART to send with.
#[derive(Clone, Copy, Debug)]
pub struct Port<R> {
    registers: R,
    family: Family,
    layout: Layout,
}

impl<R: Registers> Port<R> {
    /// The UART of this description, with its registers wherever they are reached.
    pub const fn new(uart: &Uart, registers: R) -> Self {
        Self {
            registers,
            family: uart.family,
            layout: uart.layout,
        }
    }

    /// Turns the transmitter on if the firmware left it off. The line speed stays as it is: the firmware
    /// has set it for the clock, and an emulated UART has none.
    pub fn enable(self) {
        let model = Model::of(self.family);
        if model.on.iter().all(|bits| self.holds(bits)) {
            return;
        }
        for bits in model.turn_on {
            let others = self.read(bits.register) & !bits.mask;
            self.write(bits.register, others | bits.value);
        }
    }

    /// Sends one byte; a newline goes out as CR LF.
    pub fn put(self, byte: u8) {
        if byte == b'\n' {
            self.put_raw(b'\r');
        }
        self.put_raw(byte);
    }

    /// Sends all of `text`.
    pub fn put_all(self, text: &[u8]) {
        for byte in text {
            self.put(*byte);
        }
    }

    /// Waits until the last byte has left.
    pub fn flush(self) {
        self.wait_until(&Model::of(self.family).idle);
    }

    fn put_raw(self, byte: u8) {
        let model = Model::of(self.family);
        self.wait_until(&model.ready);
        self.write(model.data, u32::from(byte));
    }

    fn wait_until(self, bits: &Bits) {
        for _ in 0..PATIENCE {
            if self.holds(bits) {
                break;
            }
        }
    }

    fn holds(self, bits: &Bits) -> bool {
        self.read(bits.register) & bits.mask == bits.value
    }

    fn read(self, register: usize) -> u32 {
        self.registers.read(register << self.layout.shift)
    }

    fn write(self, register: usize, value: u32) {
        self.registers.write(register << self.layout.shift, value);
    }
}
