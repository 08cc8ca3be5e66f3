//! One call of a runtime service: the lock, firmware's memory, the registers of FP and SIMD, the stack, and a call
//! that does not come back.

#![allow(
    unsafe_code,
    reason = "calls of firmware, and the registers of FP and SIMD"
)]

use super::tables::Roots;
use crate::arch::cpu;
use crate::cpu::ipi;
use crate::dev::console::println;
use crate::exception::guarded::{self, Fault};
use crate::lock::UnmaskedLock;
use crate::percpu::stacks::STACK_BYTES;
use crate::sched::{registers, switch};
use core::fmt;
use uefi_raw::Status;

/// The runtime services that are used: their virtual addresses during a call. `None`: the firmware does not have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    pub(super) get_variable: Option<u64>,
    pub(super) next_variable: Option<u64>,
    pub(super) set_variable: Option<u64>,
    pub(super) reset_system: Option<u64>,
}

/// What is needed for calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runtime {
    pub(super) roots: Roots,
    pub(super) functions: Functions,
}

/// The runtime services; `None` before they are on, and after one of them faulted. A service may take seconds, so a
/// holder does not count as stuck.
static RUNTIME: UnmaskedLock<Option<Runtime>> = UnmaskedLock::new(None);

/// Stack that a service may use (UEFI specification: 8 KiB), and room for an exception beside it.
const ROOM: u64 = 12 << 10;
/// The bits of a stack pointer inside its stack. Each kernel stack begins at a multiple of this
/// size, the largest that a stack has.
const INSIDE: u64 = STACK_BYTES - 1;

/// Why a service gave no result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Error {
    /// Runtime services are off.
    Off,
    /// The caller's stack has no room.
    Stack,
    /// The service did not come back. All are off from here on.
    Faulted,
    /// The status of the service.
    Status(Status),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("EFI runtime services are off"),
            Self::Stack => f.write_str("no room on the stack for an EFI runtime service"),
            Self::Faulted => f.write_str("the EFI runtime service faulted"),
            Self::Status(status) => write!(f, "EFI status {:#x}", status.0),
        }
    }
}

/// Turns the services on.
pub(super) fn turn_on(runtime: Runtime) {
    RUNTIME.with(|state| *state = Some(runtime));
}

/// Calls the service that `which` chooses. Its name is for a line if it faults.
///
/// # Safety
///
/// The arguments must be what the service takes: pointers to memory of the kernel that nothing else uses.
pub(super) unsafe fn call(
    name: &str,
    which: impl FnOnce(&Functions) -> Option<u64>,
    arguments: [u64; 5],
) -> Result<(), Error> {
    let done = RUNTIME.with(|state| {
        let Some(runtime) = state else {
            return Ok(Err(Error::Off));
        };
        if cpu::sp() & INSIDE < ROOM {
            return Ok(Err(Error::Stack));
        }
        let Some(function) = which(&runtime.functions) else {
            return Ok(Ok(Status::UNSUPPORTED));
        };
        let call = || {
            // SAFETY: the boot saw that the function is mapped as code there. It was the firmware's to say what
            // it is; the caller vouches for the arguments. Interrupts are masked, below.
            unsafe { guarded::call(function, &arguments) }
        };
        let masked = cpu::mask_interrupts();
        let ended = with_fp(|| ipi::away(|| runtime.roots.with(call)));
        cpu::restore_interrupts(masked);
        match ended {
            Ok(status) => Ok(Ok(Status(status as usize))),
            Err(fault) => {
                *state = None;
                Err(fault)
            }
        }
    });
    match done {
        Ok(Ok(Status::SUCCESS)) => Ok(()),
        Ok(Ok(status)) => Err(Error::Status(status)),
        Ok(Err(error)) => Err(error),
        Err(fault) => {
            tell(name, fault);
            Err(Error::Faulted)
        }
    }
}

fn tell(name: &str, fault: Fault) {
    println!("granule: EFI runtime services: {name} faulted: {fault}; they stay off from here on");
}

/// Calls `work` with FP and SIMD for the kernel's level, and keeps what a program has in the registers.
// The program's registers are a large frame, which is not part of the caller's.
#[inline(never)]
fn with_fp<R>(work: impl FnOnce() -> R) -> R {
    if !registers::has_fp() {
        registers::let_fp(true);
        let result = work();
        registers::let_fp(false);
        return result;
    }
    let mut state = switch::FpState::ZERO;
    // SAFETY: the registers are accessible.
    unsafe { switch::save_fp(&raw mut state) };
    let result = work();
    // SAFETY: as above.
    unsafe { switch::load_fp(&raw const state) };
    result
}

#[cfg(feature = "test-image")]
pub(crate) use test::{fault, has_begun, ruins, slow};

/// Services that are broken or slow.
#[cfg(feature = "test-image")]
mod test {
    use super::{Error, INSIDE, ROOM, RUNTIME, call};
    use crate::arch::cpu;
    use crate::exception::guarded;
    use core::sync::atomic::{AtomicBool, Ordering};

    /// In the lower half, above all memory that machines have.
    const NOWHERE: u64 = 0x6000_0000_0000;
    /// In the place of the stacks by its bits, and no stack: nothing is mapped there.
    const NO_STACK: u64 = 0xffff_ffff_fffe_8000;

    /// Calls an address where nothing is mapped, as a broken service would.
    pub(crate) fn fault() -> Result<(), Error> {
        // SAFETY: nothing runs there.
        unsafe { call("nothing", |_| Some(NOWHERE), [0; 5]) }
    }

    /// Calls code that ruins the registers and goes to where nothing is, by several stack pointers, and code that
    /// returns. Panics unless each call ends as it should, with the registers of before. Returns how many faulted.
    pub(crate) fn ruins() -> Result<usize, Error> {
        assert!(cpu::translate(NO_STACK).is_err(), "{NO_STACK:#x} is mapped");
        let own = cpu::sp();
        let guard = (own & !INSIDE) - 64;
        let cases = [
            (0, 0),
            (0, NOWHERE),
            (0, NOWHERE | 2),
            (0, NOWHERE | 1 << 63),
            (guard, NOWHERE),
            (own - ROOM / 4 - 8, NOWHERE),
            (NOWHERE, NOWHERE),
            (NO_STACK, NOWHERE),
        ];
        RUNTIME.with(|state| {
            let Some(runtime) = state else {
                return Err(Error::Off);
            };
            let mut faults = 0;
            for (sp, target) in cases {
                // SAFETY: interrupts are masked. Nothing is mapped at the targets.
                let (changed, fault) = runtime
                    .roots
                    .masked(|| unsafe { guarded::ruin(sp, target) });
                assert_eq!(changed, 0, "{sp:#x}, {target:#x}: {fault:?}");
                assert_eq!(fault.is_some(), target != 0, "{sp:#x}, {target:#x}");
                faults += usize::from(fault.is_some());
            }
            // SAFETY: interrupts are masked, and nothing is there.
            let read = runtime.roots.masked(|| unsafe { guarded::read(NOWHERE) });
            assert!(read.is_err(), "{read:?}");
            Ok(faults)
        })
    }

    static BEGUN: AtomicBool = AtomicBool::new(false);

    extern "C" fn waits(ticks: u64) -> u64 {
        let start = cpu::counter_now();
        BEGUN.store(true, Ordering::Release);
        while cpu::counter_now().wrapping_sub(start) < ticks {
            cpu::relax();
        }
        0
    }

    /// Calls a service that takes so many seconds.
    pub(crate) fn slow(seconds: u64) -> Result<(), Error> {
        let ticks = seconds * cpu::cntfrq_el0();
        let service = waits as extern "C" fn(u64) -> u64;
        // SAFETY: the service is this file's own, and takes a number.
        unsafe {
            call(
                "slow",
                |_| Some(service as usize as u64),
                [ticks, 0, 0, 0, 0],
            )
        }
    }

    /// Whether the slow service has begun.
    pub(crate) fn has_begun() -> bool {
        BEGUN.load(Ordering::Acquire)
    }
}
