//! QEMU's machine `virt`, as far as the examples use it: the console, the command line, and the end.
//!
//! A program links it by `kernel.ld`, which lies beside this crate, and branches to `unexpected_exception`, with the
//! syndrome in x0 and the address in x1, at an exception that it does not handle.

#![no_std]

pub use granule_trace::recorder::{Counted, Counters};

use core::arch::asm;
use core::fmt::{self, Write};
use granule::arch::PageSize;

/// The address of the PL011.
pub const UART: u64 = 0x0900_0000;
/// The start of RAM.
pub const RAM: u64 = 0x4000_0000;

/// The console.
#[derive(Debug)]
pub struct Uart;

impl Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the data register of the PL011, which is mapped wherever an example runs.
            unsafe { (UART as *mut u32).write_volatile(byte.into()) };
        }
        Ok(())
    }
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => {{
        let _ = core::fmt::Write::write_fmt(&mut $crate::Uart, format_args!("{}\n", format_args!($($arguments)*)));
    }};
}

/// The text after `key` on the command line; empty if the key is not there.
pub fn word(key: &[u8]) -> &'static [u8] {
    // SAFETY: QEMU puts the device tree at the start of RAM; the second word has its length.
    let tree = unsafe {
        let bytes = u32::from_be(((RAM + 4) as *const u32).read_volatile());
        core::slice::from_raw_parts(RAM as *const u8, bytes as usize)
    };
    let mut words = (0..tree.len()).filter_map(|at| tree[at..].strip_prefix(key));
    words.next().unwrap_or_default()
}

/// The page sizes in the order in which to try them: the one after `page=` on the command line, then all by size.
pub fn page_sizes() -> impl Iterator<Item = PageSize> {
    let word = word(b"page=");
    let asked = PageSize::ALL.into_iter().filter(move |size| word.starts_with(size.name().as_bytes()));
    asked.chain(PageSize::ALL)
}

/// The value, or `None` after the error is printed.
pub fn reported<T, E: fmt::Display>(result: Result<T, E>) -> Option<T> {
    result.map_err(|error| println!("error: {error}")).ok()
}

/// Prints whether all was done, and turns the machine off.
pub fn finish(done: Option<()>) -> ! {
    println!("{}", if done.is_some() { "done" } else { "failed" });
    power_off()
}

#[unsafe(no_mangle)]
extern "C" fn unexpected_exception(esr: u64, elr: u64) -> ! {
    panic!("exception at {elr:#x}, ESR {esr:#x}")
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    println!("{info}");
    power_off()
}

/// Turns the machine off: at EL1 and EL2 by PSCI, where firmware answers; below it, by semihosting.
pub fn power_off() -> ! {
    let level: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, CurrentEL", out(reg) level, options(nomem, nostack)) };
    let system_off = 0x8400_0008_u64;
    match level >> 2 {
        // SAFETY: SYSTEM_OFF does not return.
        1 => unsafe { asm!("hvc #0", in("x0") system_off, options(noreturn)) },
        // SAFETY: as above.
        2 => unsafe { asm!("smc #0", in("x0") system_off, options(noreturn)) },
        _ => exit(),
    }
}

/// Ends QEMU by semihosting.
pub fn exit() -> ! {
    let block = [0x2_0026_u64, 0];
    // SAFETY: SYS_EXIT reads the two words and does not return.
    unsafe { asm!("hlt #0xf000", in("x0") 0x18, in("x1") &block, options(noreturn)) }
}
