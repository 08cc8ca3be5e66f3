//! The parts of the PL011 UART that a console needs: send a byte, wait until it has left. Used with
//! the MMU off and on. No locks and no formatting.

#[cfg(target_os = "none")]
pub(crate) static DRIVER: super::driver::Driver =
    super::driver::Driver::new("pl011", granule_boot::driver::Requirement::Any);

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

/// A PL011 at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pl011 {
    base: *mut u32,
}

impl Pl011 {
    /// The PL011 whose registers are at `base` in the current address space.
    ///
    /// # Safety
    ///
    /// As long as the value is used, `base` must be the address of 4 KiB of PL011 registers, 4-byte
    /// aligned and mapped as Device memory.
    pub(crate) unsafe fn new(base: u64) -> Self {
        Self {
            base: base as *mut u32,
        }
    }

    /// Enables the UART if the firmware left it off. The line speed stays as it is: the firmware
    /// knows the clock, and an emulated UART has none.
    pub(crate) fn enable(self) {
        if self.read(CR) & CR_ENABLED != CR_ENABLED {
            self.write(LCRH, LCRH_8N1_FIFO);
            self.write(CR, CR_ENABLED);
        }
    }

    /// Sends one byte; a newline goes out as CR LF.
    pub(crate) fn put(self, byte: u8) {
        if byte == b'\n' {
            self.put_raw(b'\r');
        }
        self.put_raw(byte);
    }

    /// Sends all of `text`.
    pub(crate) fn put_all(self, text: &[u8]) {
        for byte in text {
            self.put(*byte);
        }
    }

    /// Waits until the last byte has left.
    pub(crate) fn flush(self) {
        self.wait_while(FR_BUSY);
    }

    fn put_raw(self, byte: u8) {
        self.wait_while(FR_TXFF);
        self.write(DR, u32::from(byte));
    }

    fn wait_while(self, flag: u32) {
        for _ in 0..PATIENCE {
            if self.read(FR) & flag == 0 {
                break;
            }
        }
    }

    fn read(self, offset: usize) -> u32 {
        // SAFETY: a register of the PL011, for which `new`'s caller answers.
        unsafe { self.base.byte_add(offset).read_volatile() }
    }

    fn write(self, offset: usize, value: u32) {
        // SAFETY: as in `read`.
        unsafe { self.base.byte_add(offset).write_volatile(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers in memory: sent bytes are not consumed, and FR keeps its value.
    fn uart(flags: u32) -> [u32; 0x400] {
        let mut registers = [0u32; 0x400];
        registers[FR / 4] = flags;
        registers
    }

    #[test]
    fn a_uart_that_is_off_is_turned_on() {
        let mut registers = uart(0);
        // SAFETY: the array outlives the value.
        let pl011 = unsafe { Pl011::new(registers.as_mut_ptr() as u64) };
        pl011.enable();
        pl011.put(b'A');
        assert_eq!(registers[CR / 4], 0x301);
        assert_eq!(registers[LCRH / 4], 0x70);
        assert_eq!(registers[DR / 4], u32::from(b'A'));
    }

    #[test]
    fn a_full_fifo_that_never_drains_does_not_hang() {
        let mut registers = uart(FR_TXFF | FR_BUSY);
        // SAFETY: the array outlives the value.
        let pl011 = unsafe { Pl011::new(registers.as_mut_ptr() as u64) };
        pl011.put(b'B');
        pl011.flush();
        assert_eq!(registers[DR / 4], u32::from(b'B'));
    }
}
