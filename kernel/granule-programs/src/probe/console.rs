//! Lines on a PL011, without formatting: text, decimal and hexadecimal numbers.

#![allow(unsafe_code, reason = "the UART's registers")]

/// Registers: data, flags, line control, control.
const DR: usize = 0x00;
const FR: usize = 0x18;
const LCRH: usize = 0x2c;
const CR: usize = 0x30;

/// FR: busy sending, transmit FIFO full.
const FR_BUSY: u32 = 1 << 3;
const FR_TXFF: u32 = 1 << 5;
/// CR: UART and transmitter on. LCR_H: 8 bits, FIFOs on.
const CR_ON: u32 = 1 << 0 | 1 << 8;
const LCRH_8N1_FIFO: u32 = 3 << 5 | 1 << 4;

/// Most reads of a flag in one wait: a UART that never drains loses lines but hangs nothing.
const PATIENCE: u32 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Console(*mut u32);

impl Console {
    /// Enables the PL011 at an address.
    ///
    /// # Safety
    ///
    /// The registers of a PL011 must be at `base`, a multiple of 4, and nothing else may use them.
    pub(crate) unsafe fn new(base: u64) -> Self {
        let console = Self(base as *mut u32);
        if console.read(CR) & CR_ON != CR_ON {
            console.write(LCRH, LCRH_8N1_FIFO);
            console.write(CR, CR_ON);
        }
        console
    }

    /// Prints a number: `@granule KEY=N`.
    pub(crate) fn number(self, key: &[u8], value: u64) {
        self.key(key);
        self.decimal(value);
        self.end();
    }

    /// Prints a register or an address: `@granule KEY=0x…`.
    pub(crate) fn hexadecimal(self, key: &[u8], value: u64) {
        self.key(key);
        self.in_hexadecimal(value);
        self.end();
    }

    /// Prints text: `@granule KEY=TEXT`.
    pub(crate) fn text(self, key: &[u8], value: &[u8]) {
        self.key(key);
        self.all(value);
        self.end();
    }

    /// Prints the line that ends the output.
    pub(crate) fn last(self) {
        self.all(b"@granule end");
        self.end();
        self.wait_while(FR_BUSY);
    }

    pub(crate) fn key(self, key: &[u8]) {
        self.all(b"@granule ");
        self.all(key);
        self.put(b'=');
    }

    pub(crate) fn end(self) {
        self.put(b'\r');
        self.put(b'\n');
    }

    pub(crate) fn all(self, text: &[u8]) {
        for byte in text {
            self.put(*byte);
        }
    }

    fn decimal(self, value: u64) {
        // Starts at the largest power of ten that does not exceed the value, so no buffer is
        // needed.
        let mut power: u64 = 1;
        while value / 10 >= power {
            power = power.wrapping_mul(10);
        }
        let mut rest = value;
        while power > 0 {
            self.put(b'0'.wrapping_add((rest / power) as u8));
            rest %= power;
            power /= 10;
        }
    }

    pub(crate) fn in_hexadecimal(self, value: u64) {
        self.all(b"0x");
        let digits = 16 - (value | 1).leading_zeros() / 4;
        for digit in (0..digits).rev() {
            let nibble = (value >> (4 * digit)) as u8 & 0xf;
            let letter = if nibble < 10 { b'0' } else { b'a' - 10 };
            self.put(letter.wrapping_add(nibble));
        }
    }

    fn put(self, byte: u8) {
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
        unsafe { self.0.byte_add(offset).read_volatile() }
    }

    fn write(self, offset: usize, value: u32) {
        // SAFETY: as in `read`.
        unsafe { self.0.byte_add(offset).write_volatile(value) }
    }
}
