//! Ends a boot that cannot continue while the MMU is off.
//!
//! The reason always goes into the boot record, and to the console once that is known. If PSCI can
//! power the machine off, the machine ends, because a caller waits for that. Otherwise the CPU
//! waits for ever.

use crate::dev::uart;
use crate::handover::boot_record::{self, Reason};
use crate::handover::{Conduit, TreeInfo};
use granule_boot::uart::Uart;
use granule_kcore::line::Line;

/// PSCI_SYSTEM_OFF.
const SYSTEM_OFF: u64 = 0x8400_0008;

// The known way to print and to power off. Volatile accesses only, by one CPU.
static mut UART: Option<Uart> = None;
static mut PSCI: Conduit = Conduit::Unknown;
static mut PARKING: bool = false;

/// Takes the console and the PSCI conduit from the device tree.
pub(super) fn learn(tree: &TreeInfo) {
    // SAFETY: only this CPU runs, and no reference to the statics exists.
    unsafe {
        (&raw mut UART).write_volatile(tree.uart);
        (&raw mut PSCI).write_volatile(tree.psci);
    }
}

/// Reports `message`, one line of ASCII, and ends.
pub(super) fn park(reason: Reason, message: &[u8]) -> ! {
    boot_record::parked(reason, message);
    // SAFETY: as in `learn`.
    let (console, psci) = unsafe {
        (
            (&raw const UART).read_volatile(),
            (&raw const PSCI).read_volatile(),
        )
    };
    if let Some(console) = console {
        // SAFETY: the device tree or the command line gives such a UART at this address, and the MMU is
        // off: flat addresses, Device memory. `Consoles::check` has seen to the alignment.
        let uart = unsafe { uart::at(&console, console.base) };
        uart.enable();
        uart.put_all(b"\ngranule: refused: ");
        uart.put_all(message);
        uart.put_all(b"\n@granule outcome=refused\n@granule reason=");
        uart.put_all(message);
        uart.put_all(b"\n@granule end\n");
        uart.flush();
        power_off(psci);
    }
    wait()
}

/// Reports an exception and ends. An exception during the report, or while `park` prints to the
/// console, ends in a silent wait: by then the boot record has the reason, or cannot be written.
pub(super) fn exception(esr: u64, elr: u64, far: u64) -> ! {
    // SAFETY: as in `learn`.
    let again = unsafe {
        let again = (&raw const PARKING).read_volatile();
        (&raw mut PARKING).write_volatile(true);
        again
    };
    if again || boot_record::is_parked() {
        wait();
    }
    let mut message = Line::<160>::new();
    message.push(b"exception before the MMU was on: ESR ");
    message.push_hex(esr);
    message.push(b", at ");
    message.push_hex(elr);
    message.push(b", fault address ");
    message.push_hex(far);
    park(Reason::Exception, message.bytes())
}

fn power_off(psci: Conduit) {
    // SAFETY: an SMC or HVC by the SMC calling convention, through the conduit that the device tree
    // names. It may change x0-x17, and does not return if it succeeds.
    unsafe {
        match psci {
            Conduit::Smc => {
                core::arch::asm!("smc #0", inout("x0") SYSTEM_OFF => _, clobber_abi("C"));
            }
            Conduit::Hvc => {
                core::arch::asm!("hvc #0", inout("x0") SYSTEM_OFF => _, clobber_abi("C"));
            }
            Conduit::Unknown | Conduit::OwnHvc => {}
        }
    }
}

fn wait() -> ! {
    loop {
        // SAFETY: waits for an interrupt, which is masked; no other effect.
        unsafe { core::arch::asm!("wfi", options(nomem, nostack)) };
    }
}
