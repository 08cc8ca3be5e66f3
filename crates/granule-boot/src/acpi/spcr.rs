//! The SPCR: the console.

use super::super::bytes::le64;

/// Offsets: type of the interface, address space, width of a register in bits, size of an access, address.
const KIND_AT: usize = 36;
const SPACE_AT: usize = 40;
const WIDTH_AT: usize = 41;
const ACCESS_AT: usize = 43;
const ADDRESS_AT: usize = 44;

/// The kinds of consoles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsoleKind {
    /// A PL011.
    Pl011,
    /// The generic UART of the Server Base System Architecture.
    Sbsa,
    /// A 16550.
    Ns16550,
    /// The mini UART of BCM2835.
    Bcm2835,
}

/// A console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Console {
    /// Its kind.
    pub kind: ConsoleKind,
    /// The address of its registers.
    pub address: u64,
    /// Bytes from one register to the next, as a power of two.
    pub shift: u32,
    /// Bytes of an access.
    pub width: u32,
}

impl Console {
    /// The console in the table; `None` if it is of another kind, or no memory-mapped one.
    #[must_use]
    pub fn read(table: &[u8]) -> Option<Self> {
        let byte = |at: usize| table.get(at).copied();
        let kind = match byte(KIND_AT)? {
            0x3 => ConsoleKind::Pl011,
            0xd | 0xe => ConsoleKind::Sbsa,
            0x0 | 0x1 | 0x12 => ConsoleKind::Ns16550,
            0x10 => ConsoleKind::Bcm2835,
            _ => return None,
        };
        let address = le64(table, ADDRESS_AT)?;
        // 0 is memory.
        if byte(SPACE_AT)? != 0 || address == 0 {
            return None;
        }
        let of_bits = |bits: u8| match bits {
            16 => 1,
            32 => 2,
            64 => 3,
            _ => 0_u32,
        };
        let register = of_bits(byte(WIDTH_AT)?);
        // 1 to 4 are 1, 2, 4 and 8 bytes; 0 leaves it to the width of a register.
        let access = match byte(ACCESS_AT)? {
            code @ 1..=4 => u32::from(code).saturating_sub(1),
            _ => register,
        };
        Some(Self {
            kind,
            address,
            shift: register.max(access),
            width: 1_u32.wrapping_shl(access),
        })
    }
}
