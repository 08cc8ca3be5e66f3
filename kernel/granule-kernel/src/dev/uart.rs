//! The registers of the console's UART in the current address space, and the driver of each family in the list
//! of drivers. What is written to the registers is decided in [`granule_kcore::uart`].

#![allow(unsafe_code, reason = "the UART's registers")]

use super::driver::Driver;
use granule_boot::driver::Requirement;
use granule_boot::uart::{Family, Uart, Width};
use granule_kcore::uart::{Port, Registers};

pub(super) static PL011: Driver = Driver::new("pl011", Requirement::Any);
pub(super) static SBSA: Driver = Driver::new("sbsa-uart", Requirement::Any);
pub(super) static UART8250: Driver = Driver::new("uart8250", Requirement::Any);
pub(super) static CADENCE: Driver = Driver::new("cadence-uart", Requirement::Any);
pub(super) static IMX: Driver = Driver::new("imx-uart", Requirement::Any);

pub(crate) fn driver(family: Family) -> &'static Driver {
    match family {
        Family::Pl011 => &PL011,
        Family::Sbsa => &SBSA,
        Family::Uart8250 => &UART8250,
        Family::Cadence => &CADENCE,
        Family::Imx => &IMX,
    }
}

/// The address of the registers, and the width of accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    base: *mut u8,
    width: Width,
}

/// The UART that `uart` describes, with its registers at `base` in the current address space.
///
/// # Safety
///
/// As long as the value is used, `base` must be the address of all registers of the family in the layout that
/// `uart` states ([`Uart::page`]), aligned to its width and mapped as Device memory.
pub(crate) unsafe fn at(uart: &Uart, base: u64) -> Port<Mapped> {
    let registers = Mapped {
        base: base as *mut u8,
        width: uart.layout.width,
    };
    Port::new(uart, registers)
}

impl Registers for Mapped {
    fn read(self, offset: usize) -> u32 {
        // SAFETY: a register of the UART, aligned to its width, for which `at`'s caller answers.
        unsafe {
            let register = self.base.byte_add(offset);
            match self.width {
                Width::Bits8 => u32::from(register.read_volatile()),
                Width::Bits16 => u32::from(register.cast::<u16>().read_volatile()),
                Width::Bits32 => register.cast::<u32>().read_volatile(),
            }
        }
    }

    fn write(self, offset: usize, value: u32) {
        // SAFETY: as in `read`. A register of a narrow layout has no more bits than are written.
        unsafe {
            let register = self.base.byte_add(offset);
            match self.width {
                Width::Bits8 => register.write_volatile(value as u8),
                Width::Bits16 => register.cast::<u16>().write_volatile(value as u16),
                Width::Bits32 => register.cast::<u32>().write_volatile(value),
            }
        }
    }
}
