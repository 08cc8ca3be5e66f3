//! The console with the MMU on: formatted text to the UART of the boot console.
//!
//! `print!` and `println!` as in std. Before `init`, output goes nowhere.

use crate::pl011::Pl011;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

struct Console {
    locked: AtomicBool,
    uart: UnsafeCell<Option<Pl011>>,
}

// SAFETY: `uart` is reached only by who holds `locked`, or by the panicking CPU,
// which nothing can take turns with any more.
unsafe impl Sync for Console {}

static CONSOLE: Console = Console {
    locked: AtomicBool::new(false),
    uart: UnsafeCell::new(None),
};

/// How long a printer waits for the lock. Its holder may have been stopped by an
/// exception: output that is mixed up is better than none.
const PATIENCE: u32 = 10_000_000;

/// Takes `uart` for the console.
pub(crate) fn init(uart: Pl011) {
    uart.enable();
    // SAFETY: called once, at boot, by the only CPU that runs.
    unsafe { *CONSOLE.uart.get() = Some(uart) };
}

struct Writer(Pl011);

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.put_all(text.as_bytes());
        Ok(())
    }
}

/// Prints `text`, whole, against other CPUs.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    for _ in 0..PATIENCE {
        if !CONSOLE.locked.swap(true, Ordering::Acquire) {
            break;
        }
        core::hint::spin_loop();
    }
    // SAFETY: read only; written once before there was anything to print.
    if let Some(uart) = unsafe { *CONSOLE.uart.get() } {
        // The writer never fails; a failing Display loses the rest of its text.
        let _ = Writer(uart).write_fmt(text);
    }
    CONSOLE.locked.store(false, Ordering::Release);
}

/// Waits until everything printed has left the UART.
pub(crate) fn flush() {
    // SAFETY: as in `write`.
    if let Some(uart) = unsafe { *CONSOLE.uart.get() } {
        uart.flush();
    }
}

/// Gives the lock up for its holder, who will not come back.
pub(crate) fn break_lock() {
    CONSOLE.locked.store(false, Ordering::Release);
}

macro_rules! print {
    ($($argument:tt)*) => { $crate::console::write(format_args!($($argument)*)) };
}

macro_rules! println {
    () => { $crate::console::write(format_args!("\n")) };
    ($($argument:tt)*) => {{
        $crate::console::write(format_args!("{}\n", format_args!($($argument)*)))
    }};
}

pub(crate) use {print, println};
