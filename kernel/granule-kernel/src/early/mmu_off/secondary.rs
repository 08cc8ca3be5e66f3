//! The code of a secondary CPU with its MMU off: it reports its features, and checks whether it is
//! compatible with the boot CPU's tables.
//!
//! The image is relocated for its virtual addresses, so no code here may follow a pointer in the
//! image: no statics by reference, no strings, no tables of functions.

use crate::arch::cpu;
use crate::handover::mailbox::{Command, ENTERED, FITS, PARKED, Report};
use granule::arch::CpuFeatures;
use granule::hw;
use granule_kcore::cpus::compare::{Mismatch, Reason, compare};

/// Returns if the CPU may turn its MMU on. An incompatible CPU parks permanently, with the reason
/// in its report.
#[unsafe(no_mangle)]
extern "C" fn mmu_off_secondary(command: &Command, entry_el: u64, run_el: u64) {
    #[cfg(feature = "test-image")]
    fail_as_asked(command);
    let report = command.report as *mut Report;
    let registers = command.disguise.apply(CpuFeatures {
        midr: cpu::midr_el1(),
        mmfr0: cpu::id_aa64mmfr0_el1(),
        mmfr1: cpu::id_aa64mmfr1_el1(),
        mmfr2: cpu::id_aa64mmfr2_el1(),
        isar0: cpu::id_aa64isar0_el1(),
    });
    let mut contents = Report {
        state: ENTERED,
        reason: 0,
        needs: 0,
        has: 0,
        entry_el,
        run_el,
        registers: [
            registers.midr,
            registers.mmfr0,
            registers.mmfr1,
            registers.mmfr2,
            registers.isar0,
        ],
    };
    write_report(report, &contents, ENTERED);
    let fits = match &command.needs {
        Some(needs) => compare(needs, &registers, run_el as u32),
        None => Err(Mismatch {
            reason: Reason::Exception,
            needs: 0,
            has: 0,
        }),
    };
    match fits {
        Ok(()) => write_report(report, &contents, FITS),
        Err(Mismatch { reason, needs, has }) => {
            contents.reason = reason as u64;
            contents.needs = needs;
            contents.has = has;
            write_report(report, &contents, PARKED);
            wait();
        }
    }
}

/// Stops silently or takes an exception, if the disguise requires it.
#[cfg(feature = "test-image")]
fn fail_as_asked(command: &Command) {
    if command.disguise.absent != 0 {
        wait();
    }
    if command.disguise.fault != 0 {
        // SAFETY: an undefined instruction, which enters `secondary_vectors`.
        unsafe { core::arch::asm!("udf #0", options(nomem, nostack)) };
    }
}

/// Writes the report, its state last.
fn write_report(report: *mut Report, contents: &Report, state: u64) {
    // SAFETY: the command names this CPU's report, which no other CPU writes. The MMU is off, so
    // the physical address is the pointer.
    unsafe {
        (&raw mut (*report).reason).write_volatile(contents.reason);
        (&raw mut (*report).needs).write_volatile(contents.needs);
        (&raw mut (*report).has).write_volatile(contents.has);
        (&raw mut (*report).entry_el).write_volatile(contents.entry_el);
        (&raw mut (*report).run_el).write_volatile(contents.run_el);
        let [midr, mmfr0, mmfr1, mmfr2, isar0] = contents.registers;
        let registers = (&raw mut (*report).registers).cast::<u64>();
        registers.write_volatile(midr);
        registers.add(1).write_volatile(mmfr0);
        registers.add(2).write_volatile(mmfr1);
        registers.add(3).write_volatile(mmfr2);
        registers.add(4).write_volatile(isar0);
        hw::dsb_sy();
        (&raw mut (*report).state).write_volatile(state);
        hw::dsb_sy();
    }
}

fn wait() -> ! {
    loop {
        // SAFETY: waits for an interrupt, which is masked; no other effect.
        unsafe { core::arch::asm!("wfi", options(nomem, nostack)) };
    }
}
