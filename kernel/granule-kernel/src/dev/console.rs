//! The console with the MMU on: formatted text to the UART of the boot console.
//!
//! `print!` and `println!` as in std. Before `init`, output goes nowhere.

#![allow(unsafe_code, reason = "exclusive use of the console")]

use crate::arch::cpu;
use crate::dev::uart::Mapped;
use crate::lock::RawMaskedLock;
use crate::percpu::{self, stop};
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};
use granule_kcore::console_output::Guard;
use granule_kcore::uart::Port;

struct Console {
    lock: RawMaskedLock,
    uart: UnsafeCell<Option<Port<Mapped>>>,
    /// Filters what programs write.
    guard: UnsafeCell<Guard>,
}

// SAFETY: only the CPU that holds `lock` accesses `uart` and `guard`, or the panicking CPU, after which no
// other CPU prints.
unsafe impl Sync for Console {}

static CONSOLE: Console = Console {
    lock: RawMaskedLock::new(),
    uart: UnsafeCell::new(None),
    guard: UnsafeCell::new(Guard::NEW),
};

/// The CPU that panics and owns the console from then on; `NOBODY` otherwise.
static PANICKING: AtomicUsize = AtomicUsize::new(NOBODY);
const NOBODY: usize = usize::MAX;

pub(crate) fn init(uart: Port<Mapped>) {
    uart.enable();
    // SAFETY: called once, at boot, while only one CPU runs.
    unsafe { *CONSOLE.uart.get() = Some(uart) };
}

struct Writer(Port<Mapped>);

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.put_all(text.as_bytes());
        Ok(())
    }
}

/// Prints all of `text` without output of other CPUs in between. Interrupts are masked, because their
/// handlers may print too.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    with(|uart, guard| {
        if guard.is_in_line() {
            uart.put(b'\n');
        }
        *guard = Guard::NEW;
        // The writer never fails. If a `Display` fails, the rest of its text is lost.
        let _ = Writer(uart).write_fmt(text);
    });
}

/// Sends what a program writes. Only lines that could be mistaken for the kernel's own are changed.
pub(crate) fn write_user(bytes: &[u8]) {
    with(|uart, guard| {
        for byte in bytes {
            if guard.next(*byte) {
                uart.put(b' ');
            }
            uart.put(*byte);
        }
    });
}

fn with(work: impl FnOnce(Port<Mapped>, &mut Guard)) {
    let before = CONSOLE.lock.acquire_or_give_up().unwrap_or_else(|stuck| {
        // SAFETY: an exception may have stopped the holder for good. If the holder does return, output is
        // mixed up, which is better than none.
        unsafe { CONSOLE.lock.seize() };
        stuck.before
    });
    let owner = PANICKING.load(Ordering::Relaxed);
    if owner != NOBODY && owner != percpu::this().number() {
        // SAFETY: this function took the lock above.
        unsafe { CONSOLE.lock.release(before) };
        let _ = cpu::mask_interrupts();
        stop::wait();
    }
    // SAFETY: read only; written once, before anything could print.
    if let Some(uart) = unsafe { *CONSOLE.uart.get() } {
        // SAFETY: this CPU holds the lock, or is the only one left, in a panic.
        work(uart, unsafe { &mut *CONSOLE.guard.get() });
    }
    // SAFETY: this function took the lock above.
    unsafe { CONSOLE.lock.release(before) };
}

/// Waits until the UART has sent everything.
pub(crate) fn flush() {
    // SAFETY: as in `write`.
    if let Some(uart) = unsafe { *CONSOLE.uart.get() } {
        uart.flush();
    }
}

/// Gives the console to this panicking CPU for good. Any other CPU that prints from then on stops. If another
/// CPU panics already, it keeps the console. Returns whether this one has it.
pub(crate) fn take_over() -> bool {
    let this = percpu::this().number();
    match PANICKING.compare_exchange(NOBODY, this, Ordering::Relaxed, Ordering::Relaxed) {
        // The lock's holder is this CPU, which will not return to it, or another one, which gets time to end
        // its line.
        Ok(_) => {
            let start = cpu::cntvct_el0();
            while CONSOLE.lock.holder().is_some()
                && cpu::cntvct_el0().wrapping_sub(start) < cpu::cntfrq_el0() / 10
            {
                cpu::relax();
            }
        }
        Err(owner) if owner == this => {}
        Err(_) => return false,
    }
    // SAFETY: a holder that is still active is tolerated, as in `with`; the interrupt mask stays as it is.
    unsafe {
        CONSOLE.lock.seize();
        CONSOLE.lock.release(cpu::interrupts());
    }
    true
}

macro_rules! print {
    ($($argument:tt)*) => { $crate::dev::console::write(format_args!($($argument)*)) };
}

macro_rules! println {
    () => { $crate::dev::console::write(format_args!("\n")) };
    ($($argument:tt)*) => {{
        $crate::dev::console::write(format_args!("{}\n", format_args!($($argument)*)))
    }};
}

pub(crate) use {print, println};
