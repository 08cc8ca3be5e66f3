//! Messages between the boot CPU and a CPU that it starts: plain data in memory, because one of the two has
//! its MMU off.
//!
//! Only the boot CPU writes commands. It cleans them to the point of coherency before it starts the CPU,
//! which reads them with its caches bypassed. Reports are written with the caches bypassed; the boot CPU
//! never writes them, and drops its lines before each read. So no dirty line can ever cover either, even
//! where two CPUs share a line (arm-rules section 9).

use crate::handover::MmuConfig;
use core::cell::UnsafeCell;
use granule::arch::IdRegisters;
use granule::hw::cache;
use granule_kcore::cpus::MOST_CPUS;
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

    pub(crate) const fn apply(self, registers: IdRegisters) -> IdRegisters {
        registers
    }
}

/// The command for a starting CPU. PSCI passes its physical address in x0.
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
    /// What the tables require of the CPU. `None` only before the command is written.
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
    pub(crate) fn registers(&self) -> IdRegisters {
        let [midr, mmfr0, mmfr1, mmfr2, isar0] = self.registers;
        IdRegisters::new()
            .midr(midr)
            .mmfr0(mmfr0)
            .mmfr1(mmfr1)
            .mmfr2(mmfr2)
            .isar0(isar0)
    }
}

/// Aligned so that no cache line (at most 2 KiB, CTR_EL0.CWG) holds anything else.
#[repr(C, align(2048))]
struct Boxes<T>([UnsafeCell<T>; MOST_CPUS]);

// SAFETY: the boot CPU writes commands before their reader runs. One CPU writes each report, and the boot CPU
// reads it as bytes that may still change.
unsafe impl<T> Sync for Boxes<T> {}

const NO_COMMAND: Command = Command {
    report: 0,
    stack_bottom: 0,
    stack_top: 0,
    stack_top_virtual: 0,
    entry: 0,
    argument: 0,
    mmu: MmuConfig {
        mair: 0,
        tcr: 0,
        ttbr0: 0,
        ttbr1: 0,
        virt_offset: 0,
    },
    needs: None,
    disguise: Disguise::NONE,
};

static COMMANDS: Boxes<Command> = Boxes([const { UnsafeCell::new(NO_COMMAND) }; MOST_CPUS]);

static REPORTS: Boxes<Report> = Boxes(
    [const {
        UnsafeCell::new(Report {
            state: NOT_ENTERED,
            reason: 0,
            needs: 0,
            has: 0,
            entry_el: 0,
            run_el: 0,
            registers: [0; 5],
        })
    }; MOST_CPUS],
);

/// Writes `command` for CPU `number` and returns the command's virtual address.
pub(crate) fn leave(number: usize, command: &Command) -> Option<u64> {
    let Boxes(commands) = &COMMANDS;
    let slot = commands.get(number)?.get();
    // SAFETY: only the boot CPU writes here, and the CPU that reads has not started yet.
    unsafe { slot.write(*command) };
    let start = slot as u64;
    cache::clean(start..start + size_of::<Command>() as u64);
    // This CPU's cached lines of the report must not be written back over the other CPU's stores.
    drop_lines(report_address(number)?);
    Some(start)
}

/// The command of CPU `number`, which calls this itself.
pub(crate) fn command(number: usize) -> Option<Command> {
    let Boxes(commands) = &COMMANDS;
    let slot = commands.get(number)?.get();
    // SAFETY: written before the CPU was started, and not since.
    Some(unsafe { slot.read() })
}

/// The virtual address of CPU `number`'s command.
pub(crate) fn command_address(number: usize) -> Option<u64> {
    let Boxes(commands) = &COMMANDS;
    Some(commands.get(number)?.get() as u64)
}

/// The virtual address of CPU `number`'s report.
pub(crate) fn report_address(number: usize) -> Option<u64> {
    let Boxes(reports) = &REPORTS;
    Some(reports.get(number)?.get() as u64)
}

/// The present state of CPU `number`'s report.
pub(crate) fn look(number: usize) -> Option<Report> {
    let address = report_address(number)?;
    drop_lines(address);
    let report = address as *const Report;
    // SAFETY: a report of the array. The state is read first, and the other fields are used only if the state
    // says that they are complete.
    unsafe {
        let state = (&raw const (*report).state).read_volatile();
        if state == NOT_ENTERED || state == ENTERED {
            return Some(Report {
                state,
                ..Report::default()
            });
        }
        drop_lines(address);
        Some(report.read_volatile())
    }
}

fn drop_lines(report: u64) {
    // This CPU never writes the report, so cleaning writes nothing back.
    cache::clean_and_invalidate(report..report + size_of::<Report>() as u64);
}
