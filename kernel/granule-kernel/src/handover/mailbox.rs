//! Messages between the boot CPU and a CPU that it starts: plain data in memory, because one of the two has
//! its MMU off.
//!
//! Only the boot CPU writes commands. It cleans them to the point of coherency before it starts the CPU,
//! which reads them with its caches bypassed. Reports are written with the caches bypassed; the boot CPU
//! never writes them, and drops its lines before each read. So no dirty line can ever cover either, even
//! where two CPUs share a line (arm-rules section 9).

#![allow(unsafe_code, reason = "memory that CPUs with the MMU off access")]

use crate::handover::MmuConfig;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::CpuFeatures;
use granule::hw::cache;
use granule_kcore::cpus::compare::{Mismatch, Needs, Reason};

/// Values that a CPU reports in place of its own ID fields. In the test image they come from
/// `arm64.fake_cpu=`. They are data, since a CPU with its MMU off cannot call a hook.
#[cfg(feature = "test-image")]
pub(crate) use granule_kcore::cpus::fake::Changes as Disguise;

/// Nothing to replace: a CPU reports its own ID fields.
#[cfg(not(feature = "test-image"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disguise;

#[cfg(not(feature = "test-image"))]
impl Disguise {
    pub(crate) const NONE: Self = Self;

    pub(crate) const fn apply(self, registers: CpuFeatures) -> CpuFeatures {
        registers
    }
}

/// The command for a starting CPU, which finds it through the [`Doorbell`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Command {
    /// Physical address of the CPU's report.
    pub(crate) report: u64,
    /// The stack: its physical ends, and the virtual top.
    pub(crate) stack_bottom: u64,
    pub(crate) stack_top: u64,
    pub(crate) stack_top_virtual: u64,
    /// Virtual address of the first kernel function, and its argument.
    pub(crate) entry: u64,
    pub(crate) argument: u64,
    /// The boot CPU's values.
    pub(crate) mmu: MmuConfig,
    /// The features that the tables require of the CPU. `None` only before the command is written.
    pub(crate) needs: Option<Needs>,
    /// ID fields that the CPU reports in place of its own.
    pub(crate) disguise: Disguise,
}

/// The CPU has not reported.
pub(crate) const NOT_ENTERED: u64 = 0;
/// The CPU reads its command.
pub(crate) const ENTERED: u64 = 1;
/// The CPU is compatible with the tables, and turns its MMU on next.
pub(crate) const FITS: u64 = 2;
/// The CPU is incompatible and parks permanently.
pub(crate) const PARKED: u64 = 3;

/// A starting CPU's report.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Report {
    /// One of the states above; written last.
    pub(crate) state: u64,
    /// A [`Reason`]'s number, and its detail.
    pub(crate) reason: u64,
    pub(crate) needs: u64,
    pub(crate) has: u64,
    /// Exception levels at entry and of the kernel.
    pub(crate) entry_el: u64,
    pub(crate) run_el: u64,
    /// MIDR, MMFR0 to MMFR2, ISAR0, after replacement by the disguise.
    pub(crate) registers: [u64; 5],
}

impl Report {
    /// Why the CPU is parked, if it is.
    pub(crate) fn mismatch(&self) -> Option<Mismatch> {
        if self.state != PARKED {
            return None;
        }
        Some(Mismatch {
            reason: Reason::from_number(self.reason as u32)?,
            needs: self.needs,
            has: self.has,
        })
    }

    /// The ID registers that the CPU compared.
    pub(crate) fn features(&self) -> CpuFeatures {
        let [midr, mmfr0, mmfr1, mmfr2, isar0] = self.registers;
        CpuFeatures {
            midr,
            mmfr0,
            mmfr1,
            mmfr2,
            isar0,
        }
    }
}

/// A value in memory that holds no other data: no cache line is larger (2 KiB at most, CTR_EL0.CWG).
#[repr(C, align(2048))]
struct Alone<T>(T);

/// The command and the report of a CPU, in memory that is allocated for it. Zero bytes at first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mailbox {
    command: Alone<UnsafeCell<MaybeUninit<Command>>>,
    report: Alone<UnsafeCell<Report>>,
}

impl<T> core::fmt::Debug for Alone<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Alone")
    }
}

// SAFETY: the boot CPU writes commands before their reader runs. One CPU writes each report, and the boot CPU
// reads it as bytes that may still change.
unsafe impl Sync for Mailbox {}

/// The CPU that is being started, and its command: where all CPUs come in, each waits until it is named here.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Doorbell {
    /// [`RUNG`] and the CPU's affinity fields; 0 if no CPU is being started.
    pub(crate) who: AtomicU64,
    /// Physical address of its command.
    pub(crate) command: AtomicU64,
}

/// The bit of [`Doorbell::who`] that is set if a CPU is named. In MPIDR_EL1 it is always set.
pub(crate) const RUNG: u64 = 1 << 31;

/// Read with the MMU off, by any CPU and at any time: `head::secondary` names it.
#[unsafe(no_mangle)]
static DOORBELL: Alone<Doorbell> = Alone(Doorbell {
    who: AtomicU64::new(0),
    command: AtomicU64::new(0),
});

/// Names the CPU with these affinity fields, whose command is at this physical address, to all CPUs that wait to
/// be named. Returns the doorbell's address.
pub(crate) fn ring(affinity: u64, command: u64) -> u64 {
    let Alone(doorbell) = &DOORBELL;
    let address = &raw const *doorbell as u64;
    let line = address..address + size_of::<Doorbell>() as u64;
    // No CPU may see its own name beside another's command.
    doorbell.who.store(0, Ordering::Relaxed);
    cache::clean(line.clone());
    doorbell.command.store(command, Ordering::Relaxed);
    cache::clean(line.clone());
    doorbell.who.store(affinity | RUNG, Ordering::Relaxed);
    cache::clean(line);
    address
}

impl Mailbox {
    /// Writes `command`, and returns its virtual address.
    pub(crate) fn leave(&self, command: &Command) -> u64 {
        let slot = self.command.0.get();
        // SAFETY: only the boot CPU writes here, and the CPU that reads has not started yet.
        unsafe { (*slot).write(*command) };
        let start = self.command_address();
        cache::clean(start..start + size_of::<Command>() as u64);
        // This CPU's cached lines of the report must not be written back over the other CPU's stores.
        drop_lines(self.report_address());
        start
    }

    /// The command. Only the CPU calls this that the command is for: it was started by the command.
    pub(crate) fn command(&self) -> Command {
        // SAFETY: written before the CPU was started, and not since.
        unsafe { (*self.command.0.get()).assume_init() }
    }

    pub(crate) fn command_address(&self) -> u64 {
        self.command.0.get() as u64
    }

    pub(crate) fn report_address(&self) -> u64 {
        self.report.0.get() as u64
    }

    /// The present state of the report.
    pub(crate) fn look(&self) -> Report {
        let address = self.report_address();
        drop_lines(address);
        let report = address as *const Report;
        // SAFETY: the report. The state is read first, and the other fields are used only if the
        // state shows that they are complete.
        unsafe {
            let state = (&raw const (*report).state).read_volatile();
            if state == NOT_ENTERED || state == ENTERED {
                return Report {
                    state,
                    ..Report::default()
                };
            }
            drop_lines(address);
            report.read_volatile()
        }
    }
}

fn drop_lines(report: u64) {
    // This CPU never writes the report, so cleaning writes nothing back.
    cache::clean_and_invalidate(report..report + size_of::<Report>() as u64);
}
