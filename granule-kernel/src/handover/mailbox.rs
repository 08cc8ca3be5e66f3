//! What the boot CPU leaves for a CPU that it starts, and what that CPU leaves for the boot CPU:
//! plain data in memory, one side with its MMU off.
//!
//! Commands are written by the boot CPU only and cleaned to the point of coherency before the CPU is
//! started, which reads them past the caches. Reports are written past the caches; the boot CPU
//! never writes them, and drops its lines before each look. So no dirty line can ever cover either,
//! even where two CPUs share a line (arm-rules section 9).

use crate::arch::cache;
use crate::handover::MmuConfig;
use core::cell::UnsafeCell;
use granule::arch::IdRegisters;
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::compare::{Mismatch, Needs, Reason};

/// What a CPU reports in the place of its own ID fields: in the test image what
/// `arm64.fake_cpu=` says, as data, since a CPU with its MMU off can follow no hook.
#[cfg(feature = "test-image")]
pub(crate) use granule_kcore::cpus::fake::Changes as Disguise;

/// Nothing: a CPU reports what it is.
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

/// For a CPU that comes up. Its physical address is what PSCI hands over in x0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Command {
    /// Physical address of the CPU's report.
    pub(crate) report: u64,
    /// The stack: its physical ends, and the virtual top.
    pub(crate) stack_bottom: u64,
    pub(crate) stack_top: u64,
    pub(crate) stack_top_virtual: u64,
    /// Virtual address of the first function of the kernel, and its argument.
    pub(crate) entry: u64,
    pub(crate) argument: u64,
    /// The boot CPU's.
    pub(crate) mmu: MmuConfig,
    /// What the tables ask for. `None` only before the command is written.
    pub(crate) needs: Option<Needs>,
    /// What the CPU is to report in the place of what it is.
    pub(crate) disguise: Disguise,
}

/// Nothing was heard of it.
pub(crate) const NOT_ENTERED: u64 = 0;
/// It reads its command.
pub(crate) const ENTERED: u64 = 1;
/// It can live with the tables, and turns its MMU on next.
pub(crate) const FITS: u64 = 2;
/// It cannot, and waits for ever.
pub(crate) const PARKED: u64 = 3;

/// From a CPU that comes up.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Report {
    /// One of the states above; written last.
    pub(crate) state: u64,
    /// A [`Reason`]'s number, and what it is about.
    pub(crate) reason: u64,
    pub(crate) needs: u64,
    pub(crate) has: u64,
    /// Exception levels at entry and of the kernel.
    pub(crate) entry_el: u64,
    pub(crate) run_el: u64,
    /// MIDR, MMFR0 to MMFR2, ISAR0; as faked.
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
        IdRegisters {
            midr,
            mmfr0,
            mmfr1,
            mmfr2,
            isar0,
        }
    }
}

/// Aligned so that no line of any cache (at most 2 KiB, CTR_EL0.CWG) holds anything else.
#[repr(C, align(2048))]
struct Boxes<T>([UnsafeCell<T>; MOST_CPUS]);

// SAFETY: commands are written by the boot CPU before their reader runs, reports by one CPU each
// and read as bytes that may still change.
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

/// Leaves `command` for CPU `number`; the command's virtual address.
pub(crate) fn leave(number: usize, command: &Command) -> Option<u64> {
    let Boxes(commands) = &COMMANDS;
    let slot = commands.get(number)?.get();
    // SAFETY: only the boot CPU writes here, and the CPU that reads is not started yet.
    unsafe { slot.write(*command) };
    let start = slot as u64;
    cache::clean_to_poc(start..start + size_of::<Command>() as u64);
    // Whatever this CPU has of the report must not be written back over what the other writes.
    drop_lines(report_address(number)?);
    Some(start)
}

/// What was left for CPU `number`, which asks for itself.
pub(crate) fn command(number: usize) -> Option<Command> {
    let Boxes(commands) = &COMMANDS;
    let slot = commands.get(number)?.get();
    // SAFETY: written before the CPU was started, and not since.
    Some(unsafe { slot.read() })
}

/// The virtual address of what was left for CPU `number`.
pub(crate) fn command_address(number: usize) -> Option<u64> {
    let Boxes(commands) = &COMMANDS;
    Some(commands.get(number)?.get() as u64)
}

/// The virtual address of CPU `number`'s report.
pub(crate) fn report_address(number: usize) -> Option<u64> {
    let Boxes(reports) = &REPORTS;
    Some(reports.get(number)?.get() as u64)
}

/// What CPU `number` has reported by now.
pub(crate) fn look(number: usize) -> Option<Report> {
    let address = report_address(number)?;
    drop_lines(address);
    let report = address as *const Report;
    // SAFETY: a report of the array. The fields other than the state are taken only if the state
    // says that they are complete, and the state is the first to be read.
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
    // This CPU never writes it, so cleaning writes nothing back.
    cache::clean_and_invalidate_to_poc(report..report + size_of::<Report>() as u64);
}
