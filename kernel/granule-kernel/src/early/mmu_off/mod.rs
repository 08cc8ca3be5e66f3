//! Rust code that runs with the MMU off, from the entry code's call to the values that turn the MMU
//! on.
//!
//! All memory is Device memory (RPPDBS, RWFZPW): an unaligned access faults, exclusives and atomics
//! need not work, DC ZVA faults. The target forbids SIMD and unaligned accesses. This module and
//! everything that it calls use no atomics, no formatting and no code that can panic; a check of
//! the linked code enforces that. Errors are reported through [`park`].

#![allow(unsafe_code, reason = "flat memory: tree, tables, boot record")]

mod firmware;
mod left_on;
mod park;
mod peek;
mod secondary;
mod tables;

use crate::arch::cpu;
use crate::handover::{EntryInfo, Handover, LeftOn, MmuConfig, boot_record};
use crate::trace::early::Early;
use granule_boot::tree::Tree;

/// The data that this code leaves for the kernel. The entry code and `mmu_off_main` write it with
/// the MMU off; from then on it is only read.
#[unsafe(no_mangle)]
static mut HANDOVER: Handover = Handover {
    entry: EntryInfo {
        dtb: 0,
        load: 0,
        entry_el: 0,
        run_el: 0,
        vhe: 0,
        counter: 0,
        midr: 0,
        mmfr: [0; 4],
        pfr0: 0,
        isar0: 0,
        dfr0: 0,
        ctr: 0,
    },
    tree: crate::handover::TreeInfo {
        bytes: 0,
        uart: None,
        bootargs_offset: 0,
        bootargs_bytes: 0,
        seed_offset: 0,
        seed: 0,
        psci: crate::handover::Conduit::Unknown,
    },
    consoles: granule_boot::peek::Consoles::NONE,
    expanded: None,
    given_digest: None,
    left_on: LeftOn {
        lpis: 0,
        lpis_stay: 0,
        smmus: 0,
    },
    mmu: MmuConfig {
        mair: 0,
        tcr: 0,
        ttbr0: 0,
        ttbr1: 0,
        virt_offset: 0,
    },
    choice: None,
    kaslr: granule_boot::kaslr::Kaslr::NoSeed,
    roots: None,
    pool_next: 0,
    trace: granule_kcore::trace::area::Area { start: 0, bytes: 0 },
};

/// Runs everything between the entry code and the MMU, in order: records that the image was
/// entered, notes the CPU, reads the device tree, chooses the page size, builds the boot tables.
///
/// Called by `entry` once, on the boot stack, with `handover` = `HANDOVER` at its physical address.
#[unsafe(no_mangle)]
extern "C" fn mmu_off_main(handover: &mut Handover) -> *const MmuConfig {
    boot_record::entered();
    note_cpu(&mut handover.entry);
    let given = peek::bytes(&handover.entry);
    let read = firmware::expand(&mut handover.entry, given);
    let seen = peek::look(&handover.entry, read.bytes);
    let (tree, choice, trace) = (seen.info, seen.choice, seen.area);
    let entry = &handover.entry;
    handover.left_on = match Tree::new(read.bytes) {
        Ok(tree) => left_on::stop(&tree, 1 << entry.features().pa_bits()),
        Err(_) => LeftOn::default(),
    };
    // SAFETY: the area is empty, or RAM that the starter of the kernel named and that overlaps
    // nothing in use here, which `look` checked.
    let early = unsafe {
        Early::begin(
            trace,
            choice.page.size.bytes(),
            entry.features().bbm_level() as u8,
        )
    };
    early.entered(entry, tree.bytes);
    let tables = tables::build(entry, &tree, &choice, seen.kaslr, trace, early);
    handover.tree = tree;
    handover.consoles = seen.consoles;
    handover.expanded = read.expanded;
    handover.given_digest = read.given_digest;
    handover.choice = Some(choice);
    handover.kaslr = seen.kaslr;
    handover.mmu = tables.mmu;
    handover.roots = Some(tables.roots);
    handover.pool_next = tables.pool_next;
    handover.trace = trace;
    boot_record::mmu_on();
    early.leaves(&handover.entry, &handover.mmu);
    early.end();
    &raw const handover.mmu
}

fn note_cpu(entry: &mut EntryInfo) {
    entry.midr = cpu::midr_el1();
    entry.mmfr = [
        cpu::id_aa64mmfr0_el1(),
        cpu::id_aa64mmfr1_el1(),
        cpu::id_aa64mmfr2_el1(),
        cpu::id_aa64mmfr3_el1(),
    ];
    entry.pfr0 = cpu::id_aa64pfr0_el1();
    entry.isar0 = cpu::id_aa64isar0_el1();
    entry.dfr0 = cpu::id_aa64dfr0_el1();
    entry.ctr = cpu::ctr_el0();
}

/// Reports an exception with the MMU off. Called by the early vectors.
#[unsafe(no_mangle)]
extern "C" fn mmu_off_exception(esr: u64, elr: u64, far: u64) -> ! {
    park::exception(esr, elr, far)
}
