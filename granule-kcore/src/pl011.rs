//! The parts of the PL011 UART that a console needs: send a byte, wait until it has left. Used with
//! the MMU off and on. No locks, no formatting, and no address.

const DR: usize = 0x00;
const FR: usize = 0x18;
const LCRH: usize = 0x2c;
const CR: usize = 0x30;

/// FR: transmit FIFO full.
const FR_TXFF: u32 = 1 << 5;
/// FR: busy sending.
const FR_BUSY: u32 = 1 << 3;
/// CR: UART, transmitter and receiver enabled.
const CR_ENABLED: u32 = 1 << 0 | 1 << 8 | 1 << 9;
/// LCR_H: 8 bits, FIFOs on.
const LCRH_8N1_FIFO: u32 = 3 << 5 | 1 << 4;

/// Most reads of a flag in one wait. A UART that never drains loses output but does not hang the
/// boot.
const PATIENCE: u32 = 1_000_000;

/// The registers of one PL011, by their offsets in bytes.
pub trait Registers: Copy {
    /// Reads a register.
    fn read(self, offset: usize) -> u32;
    /// Writes a register.
    fn write(self, offset: usize, value: u32);
}

/// A PL011.
#[derive(Clone, Copy, Debug)]
pub struct Pl011<R>(pub R);

impl<R: Registers> Pl011<R> {
    /// Enables the UART if the firmware left it off. The line speed stays as it is: the firmware
    /// knows the clock, and an emulated UART has none.
    pub fn enable(self) {
        if self.0.read(CR) & CR_ENABLED != CR_ENABLED {
            self.0.write(LCRH, LCRH_8N1_FIFO);
            self.0.write(CR, CR_ENABLED);
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
        self.wait_while(FR_BUSY);
    }

    fn put_raw(self, byte: u8) {
        self.wait_while(FR_TXFF);
        self.0.write(DR, u32::from(byte));
    }

    fn wait_while(self, flag: u32) {
        for _ in 0..PATIENCE {
            if self.0.read(FR) & flag == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Registers in memory: sent bytes are not consumed, and FR keeps its value.
    type Memory = [Cell<u32>; 0x10];

    impl Registers for &Memory {
        fn read(self, offset: usize) -> u32 {
            self[offset / 4].get()
        }
        fn write(self, offset: usize, value: u32) {
            self[offset / 4].set(value);
        }
    }

    fn with_flags(flags: u32) -> Memory {
        let registers = Memory::default();
        registers[FR / 4].set(flags);
        registers
    }

    #[test]
    fn a_uart_that_is_off_is_turned_on() {
        let registers = with_flags(0);
        let pl011 = Pl011(&registers);
        pl011.enable();
        pl011.put(b'A');
        assert_eq!(registers[CR / 4].get(), 0x301);
        assert_eq!(registers[LCRH / 4].get(), 0x70);
        assert_eq!(registers[DR / 4].get(), u32::from(b'A'));
    }

    #[test]
    fn a_full_fifo_that_never_drains_does_not_hang() {
        let registers = with_flags(FR_TXFF | FR_BUSY);
        let pl011 = Pl011(&registers);
        pl011.put(b'B');
        pl011.flush();
        assert_eq!(registers[DR / 4].get(), u32::from(b'B'));
    }
}
