//! The steps of the relocation code, in Rust, for any machine that implements [`RelocationCpu`].
//!
//! [`leave`] performs the same loads, stores, cache operations, barriers and register writes as the
//! assembly of `relocate`, in the same order. A test executes the assembly and compares the two. So
//! a result shown here on a model of the MMU and caches, or recorded in a trace before the kernel
//! leaves, holds for the CPU too.
//!
//! The comments here give the reason for each step.

use super::header::ListHeader;
use super::layout::{
    EL2, END, EPD0, EPD1, LINK, MOST_LINE, RECORD_BYTES, SET_VECTORS, START, UNCACHED,
};
use super::plan::ListRecord;
use core::mem::offset_of;
use granule_trace::{Barrier, System};

/// The CPU that executes the steps. An observer leaves out what it does not look at.
pub trait RelocationCpu {
    /// Loads a word of the list. The address is the one that the code uses: in the linear map, or
    /// physical once the MMU is off.
    fn word(&mut self, address: u64) -> u64;

    /// Loads [`LINE`](super::LINE) bytes at `from` and stores them at `to`.
    fn move_line(&mut self, to: u64, from: u64);

    /// Bytes of the smallest line of any data cache (CTR_EL0.DminLine), a power of two.
    fn line_bytes(&mut self) -> u64;

    /// MRS of TCR_EL1.
    fn tcr(&mut self) -> u64;

    /// MSR to a translation register, a TLBI, or a cache operation by address.
    fn system(&mut self, system: System, operand: u64);

    /// A barrier.
    fn barrier(&mut self, barrier: Barrier);

    /// MSR DAIFSet: masks interrupts, SErrors and debug exceptions.
    fn mask(&mut self) {}

    /// MSR VBAR_EL1.
    fn vectors(&mut self, _address: u64) {}

    /// A branch to another page, from which instructions are fetched afterwards.
    fn branch(&mut self, _address: u64) {}

    /// HVC #0 with x0 and x1, handled by the present vectors of EL2, which return.
    fn set_el2_vectors(&mut self, _number: u64, _address: u64) {}

    /// HVC #0 handled by the vectors set before, which do not return: execution continues at EL2.
    fn enter_el2(&mut self) {}

    /// MSR SCTLR_EL2.
    fn sctlr_el2(&mut self, _value: u64) {}
}

/// The entry into the next kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Address of its first instruction.
    pub address: u64,
    /// The values of x0 to x3.
    pub arguments: [u64; 4],
    /// Whether the CPU switched to EL2 for it.
    pub el2: bool,
}

/// Executes everything from the call in the old kernel to the first instruction of the next one.
/// `header` is the virtual address of the list's first page.
pub fn leave(machine: &mut (impl RelocationCpu + ?Sized), header: u64) -> Begin {
    machine.mask();
    let code = field(machine, header, offset_of!(ListHeader, code));
    let ttbr0 = field(machine, header, offset_of!(ListHeader, ttbr0));
    let tcr = field(machine, header, offset_of!(ListHeader, tcr));
    // T0SZ changes, and a TLB may hold it (RVNRFW). So the lower half is switched off, the new size
    // and tables are put in effect, and all is invalidated before walks begin again: the order of
    // `granule::space::switch`. The last ISB before walks makes the TLBI effective for them.
    let now = machine.tcr();
    machine.system(System::TCR_EL1, now | EPD0);
    machine.barrier(Barrier::ISB);
    machine.system(System::TTBR0_EL1, ttbr0);
    machine.system(System::TCR_EL1, tcr | EPD0);
    machine.barrier(Barrier::ISB);
    machine.system(System::VMALLE1, 0);
    machine.barrier(Barrier::DSB_NSH);
    machine.barrier(Barrier::ISB);
    machine.system(System::TCR_EL1, tcr);
    machine.barrier(Barrier::ISB);
    machine.branch(code);
    relocate(machine, header, code)
}

/// The part that runs in the relocation code's own page.
fn relocate(machine: &mut (impl RelocationCpu + ?Sized), header: u64, code: u64) -> Begin {
    let flags = field(machine, header, offset_of!(ListHeader, flags));
    let first = field(machine, header, offset_of!(ListHeader, first));
    let distance = field(machine, header, offset_of!(ListHeader, distance));
    let sctlr = field(machine, header, offset_of!(ListHeader, sctlr));
    let ttbr1 = field(machine, header, offset_of!(ListHeader, ttbr1));
    let tcr = field(machine, header, offset_of!(ListHeader, tcr));
    let entry = field(machine, header, offset_of!(ListHeader, entry));
    let tree = field(machine, header, offset_of!(ListHeader, tree));
    let sctlr_el2 = field(machine, header, offset_of!(ListHeader, sctlr_el2));
    // The old kernel's vectors are about to be overwritten. The vectors of this page stop the CPU
    // and are never overwritten.
    let vectors = code.wrapping_sub(START);
    machine.vectors(vectors);
    // The linear map switches from the old tables to the new ones with walks disabled in between: a
    // TLB must never hold entries of both, as their output addresses and sizes differ (RWHZWS).
    machine.system(System::TCR_EL1, tcr | EPD1);
    machine.barrier(Barrier::ISB);
    machine.system(System::VMALLE1, 0);
    machine.barrier(Barrier::DSB_NSH);
    machine.barrier(Barrier::ISB);
    machine.system(System::TTBR1_EL1, ttbr1);
    machine.barrier(Barrier::ISB);
    machine.system(System::TCR_EL1, tcr);
    machine.barrier(Barrier::ISB);
    let el2 = flags & EL2 != 0;
    if el2 {
        // The vectors of EL2 lie in the old kernel as well.
        machine.set_el2_vectors(SET_VECTORS, vectors);
    }
    let line = machine.line_bytes().min(MOST_LINE);
    if flags & UNCACHED == 0 {
        walk(machine, first, distance, &mut |machine, record| {
            move_cached(machine, record, line);
        });
        finish(machine);
        machine.system(System::SCTLR_EL1, sctlr);
        machine.barrier(Barrier::ISB);
    } else {
        // Data that will be read past the caches must be in memory. No dirty line may be written
        // back later over data that is stored past the caches.
        walk(machine, first, distance, &mut |machine, record| {
            let (to, from, bytes) = (record.destination, record.source, record.bytes);
            if record.copies() {
                lines(machine, System::DC_CIVAC, from, bytes, line);
            }
            lines(machine, System::DC_CIVAC, to, bytes, line);
        });
        finish(machine);
        machine.system(System::SCTLR_EL1, sctlr);
        machine.barrier(Barrier::ISB);
        walk(machine, first, 0, &mut |machine, record| {
            if record.copies() {
                copy(machine, record);
            }
        });
        machine.barrier(Barrier::DMB_SY);
        // Lines may have been fetched again until the MMU was off.
        walk(machine, first, 0, &mut |machine, record| {
            let (to, bytes) = (record.destination, record.bytes);
            if record.copies() {
                lines(machine, System::DC_IVAC, to, bytes, line);
            }
        });
        finish(machine);
    }
    // The next kernel must not see TLB entries of these tables.
    machine.system(System::VMALLE1, 0);
    machine.barrier(Barrier::DSB_NSH);
    machine.barrier(Barrier::ISB);
    if el2 {
        machine.enter_el2();
        machine.sctlr_el2(sctlr_el2);
        machine.barrier(Barrier::ISB);
    }
    machine.branch(entry);
    Begin {
        address: entry,
        arguments: [tree, 0, 0, 0],
        el2,
    }
}

// The functions below are not inlined: speed does not matter here, and one copy of each keeps the
// image small.

/// One DSB for all lines: it waits for every earlier cache operation and store. The instruction
/// caches are invalidated after it, because they could otherwise fetch stale bytes again.
#[inline(never)]
fn finish(machine: &mut (impl RelocationCpu + ?Sized)) {
    machine.barrier(Barrier::DSB_SY);
    machine.system(System::IC_IALLU, 0);
    machine.barrier(Barrier::DSB_NSH);
    machine.barrier(Barrier::ISB);
}

#[inline(never)]
fn field(machine: &mut (impl RelocationCpu + ?Sized), header: u64, offset: usize) -> u64 {
    machine.word(header.wrapping_add(offset as u64))
}

/// Walks all records and translates their addresses to those that the code uses.
#[inline(never)]
fn walk<M: RelocationCpu + ?Sized>(
    machine: &mut M,
    first: u64,
    distance: u64,
    each: &mut dyn FnMut(&mut M, &ListRecord),
) {
    let mut at = first.wrapping_add(distance);
    loop {
        let mut word = |index: u64| machine.word(at.wrapping_add(8 * index));
        let (destination, source, bytes, kind) = (word(0), word(1), word(2), word(3));
        at = at.wrapping_add(RECORD_BYTES);
        if kind & LINK != 0 {
            at = destination.wrapping_add(distance);
            continue;
        }
        if kind == END {
            return;
        }
        let record = ListRecord {
            destination: destination.wrapping_add(distance),
            source: source.wrapping_add(distance),
            bytes,
            kind,
        };
        each(machine, &record);
    }
}

/// Moves and cleans with the MMU and caches on.
fn move_cached(machine: &mut (impl RelocationCpu + ?Sized), record: &ListRecord, line: u64) {
    let (to, from, bytes) = (record.destination, record.source, record.bytes);
    if record.copies() && record.cleans() && line >= LINE {
        // Each line is cleaned right after it is stored, while it is still in the nearest cache. A
        // line longer than this step is cleaned more than once, the last time after all of it was
        // stored.
        for done in (0..bytes).step_by(LINE as usize) {
            machine.move_line(to.wrapping_add(done), from.wrapping_add(done));
            machine.system(System::DC_CVAC, to.wrapping_add(done));
        }
        return;
    }
    if record.copies() {
        copy(machine, record);
    }
    if record.cleans() || !record.copies() {
        lines(machine, System::DC_CVAC, to, bytes, line);
    }
}

const LINE: u64 = super::layout::LINE as u64;

#[inline(never)]
fn copy(machine: &mut (impl RelocationCpu + ?Sized), record: &ListRecord) {
    for done in (0..record.bytes).step_by(LINE as usize) {
        let (to, from) = (record.destination, record.source);
        machine.move_line(to.wrapping_add(done), from.wrapping_add(done));
    }
}

#[inline(never)]
fn lines(
    machine: &mut (impl RelocationCpu + ?Sized),
    system: System,
    start: u64,
    bytes: u64,
    line: u64,
) {
    let mut done = 0;
    while done < bytes {
        machine.system(system, start.wrapping_add(done));
        done += line;
    }
}
