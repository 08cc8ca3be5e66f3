//! The console with the MMU on: formatted text to the UART of the boot console.
//!
//! `print!` and `println!` as in std. Before `init`, output goes nowhere.

use crate::cpu;
use crate::pl011::Pl011;
use crate::smp::percpu;
use crate::user::output::Guard;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Console {
    locked: AtomicBool,
    uart: UnsafeCell<Option<Pl011>>,
    /// What programs write.
    guard: UnsafeCell<Guard>,
}

// SAFETY: `uart` and `guard` are reached only by who holds `locked`, or by the panicking CPU,
// which nothing can take turns with any more.
unsafe impl Sync for Console {}

static CONSOLE: Console = Console {
    locked: AtomicBool::new(false),
    uart: UnsafeCell::new(None),
    guard: UnsafeCell::new(Guard::NEW),
};

/// The CPU that panics, to which the console belongs from then on; `NOBODY` as a rule.
static PANICKING: AtomicUsize = AtomicUsize::new(NOBODY);
const NOBODY: usize = usize::MAX;

/// Seconds that a printer waits for the lock. Its holder may have been stopped by an exception:
/// output that is mixed up is better than none.
const PATIENCE_S: u64 = 10;

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

/// Prints `text`, whole, against other CPUs. Interrupts wait: what they run may print, too.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    with(|uart, guard| {
        if guard.is_in_line() {
            uart.put(b'\n');
        }
        *guard = Guard::NEW;
        // The writer never fails; a failing Display loses the rest of its text.
        let _ = Writer(uart).write_fmt(text);
    });
}

/// Sends what a program writes, as it is but for lines that could be taken for the kernel's own.
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

fn with(work: impl FnOnce(Pl011, &mut Guard)) {
    let masked = cpu::mask_interrupts();
    let start = cpu::cntvct_el0();
    let patience = PATIENCE_S * cpu::cntfrq_el0();
    while CONSOLE.locked.swap(true, Ordering::Acquire) {
        if cpu::cntvct_el0().wrapping_sub(start) > patience {
            break;
        }
        cpu::relax();
    }
    let owner = PANICKING.load(Ordering::Relaxed);
    if owner != NOBODY && owner != percpu::this().number() {
        CONSOLE.locked.store(false, Ordering::Release);
        cpu::halt();
    }
    // SAFETY: read only; written once before there was anything to print.
    if let Some(uart) = unsafe { *CONSOLE.uart.get() } {
        // SAFETY: this CPU has the lock, or panics alone.
        work(uart, unsafe { &mut *CONSOLE.guard.get() });
    }
    CONSOLE.locked.store(false, Ordering::Release);
    cpu::restore_interrupts(masked);
}

/// Waits until everything printed has left the UART.
pub(crate) fn flush() {
    // SAFETY: as in `write`.
    if let Some(uart) = unsafe { *CONSOLE.uart.get() } {
        uart.flush();
    }
}

/// Gives the console to this CPU, which panics, for good: any other CPU that prints stops. If
/// another one panics already, this one stops.
pub(crate) fn take_over() {
    let this = percpu::this().number();
    match PANICKING.compare_exchange(NOBODY, this, Ordering::Relaxed, Ordering::Relaxed) {
        // The holder of the lock is this CPU, which will not come back to it, or another one, which
        // gets the time to end its line.
        Ok(_) => {
            let start = cpu::cntvct_el0();
            while CONSOLE.locked.load(Ordering::Relaxed)
                && cpu::cntvct_el0().wrapping_sub(start) < cpu::cntfrq_el0() / 10
            {
                cpu::relax();
            }
        }
        Err(owner) if owner == this => {}
        Err(_) => cpu::halt(),
    }
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
