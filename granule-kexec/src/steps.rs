//! What the relocation code does, step by step, on any machine.
//!
//! [`leave`] is the assembly of `relocate` once more, through a trait: the order of loads, stores,
//! cache operations, barriers and register writes is the same, which a test holds both to by
//! executing the assembly. So what is shown of this on a model of the MMU and caches, and what a
//! kernel records of it in a trace before it goes, is what the CPU does.
//!
//! Why each step is where it is stands here.

use super::header::Header;
use super::layout::{
    CLEAN, COPY, EL2, END, EPD0, EPD1, LINK, MOST_LINE, RECORD_BYTES, SET_VECTORS,
};
use super::layout::{START, UNCACHED};
use super::plan::Record;
use core::mem::offset_of;
use granule_trace::{Barrier, System};

/// The CPU that executes the steps.
pub trait Machine {
    /// Loads a word of the list, by the address that the code uses: in the linear map, or flat with
    /// the MMU off.
    fn word(&mut self, address: u64) -> u64;

    /// Loads [`LINE`](super::LINE) bytes at `from` and stores them at `to`.
    fn move_line(&mut self, to: u64, from: u64);

    /// Bytes of the smallest line of any data cache (CTR_EL0.DminLine), a power of two.
    fn line_bytes(&mut self) -> u64;

    /// MRS of TCR_EL1.
    fn tcr(&mut self) -> u64;

    /// MSR to a translation register, a TLBI, or an operation on a cache by address.
    fn system(&mut self, system: System, operand: u64);

    /// A barrier.
    fn barrier(&mut self, barrier: Barrier);

    /// MSR DAIFSet: nothing is to interrupt any more.
    fn mask(&mut self);

    /// MSR VBAR_EL1.
    fn vectors(&mut self, address: u64);

    /// A branch to another address, of which instructions are fetched from then on.
    fn branch(&mut self, address: u64);

    /// HVC #0 with x0 and x1, to EL2's vectors as they are, which come back.
    fn set_el2_vectors(&mut self, number: u64, address: u64);

    /// HVC #0 to the vectors set before, which do not come back: from here on it is EL2.
    fn enter_el2(&mut self);

    /// MSR SCTLR_EL2.
    fn sctlr_el2(&mut self, value: u64);
}

/// Where the next kernel begins, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The address jumped to.
    pub address: u64,
    /// x0 to x3.
    pub arguments: [u64; 4],
    /// Whether it was gone to EL2 for it.
    pub el2: bool,
}

/// Everything from the call in the old kernel to the first instruction of the next one. `header` is
/// the virtual address of the list's first page.
pub fn leave(machine: &mut (impl Machine + ?Sized), header: u64) -> Begin {
    machine.mask();
    let code = field(machine, header, offset_of!(Header, code));
    let ttbr0 = field(machine, header, offset_of!(Header, ttbr0));
    let tcr = field(machine, header, offset_of!(Header, tcr));
    // T0SZ changes, which a TLB may hold with entries of the lower half (RVNRFW): the half is
    // switched off, what is held of it goes, and only then it has the new size and tables. The
    // TLBI takes effect for what follows with the ISB.
    let now = machine.tcr();
    machine.system(System::TCR_EL1, now | EPD0);
    machine.barrier(Barrier::ISB);
    machine.system(System::VMALLE1, 0);
    machine.barrier(Barrier::DSB_NSH);
    machine.barrier(Barrier::ISB);
    machine.system(System::TTBR0_EL1, ttbr0);
    // In effect before the half is walked.
    machine.barrier(Barrier::ISB);
    machine.system(System::TCR_EL1, tcr);
    machine.barrier(Barrier::ISB);
    machine.branch(code);
    relocate(machine, header, code)
}

/// What runs in the page of its own.
fn relocate(machine: &mut (impl Machine + ?Sized), header: u64, code: u64) -> Begin {
    let flags = field(machine, header, offset_of!(Header, flags));
    let first = field(machine, header, offset_of!(Header, first));
    let distance = field(machine, header, offset_of!(Header, distance));
    let sctlr = field(machine, header, offset_of!(Header, sctlr));
    let ttbr1 = field(machine, header, offset_of!(Header, ttbr1));
    let tcr = field(machine, header, offset_of!(Header, tcr));
    let entry = field(machine, header, offset_of!(Header, entry));
    let tree = field(machine, header, offset_of!(Header, tree));
    let sctlr_el2 = field(machine, header, offset_of!(Header, sctlr_el2));
    // The old kernel's vectors are about to be overwritten. These stop, and stay where they are.
    let vectors = code.wrapping_sub(START);
    machine.vectors(vectors);
    // From the old linear map to the new one, by way of none: entries of both must never meet in
    // a TLB (RWHZWS, output addresses and sizes differ).
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
        // EL2's vectors are part of the old kernel too.
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
        // What will be read past the caches must be in memory, and no line may be written back
        // over what will be written past them.
        walk(machine, first, distance, &mut |machine, record| {
            if record.kind & COPY != 0 {
                lines(machine, System::DC_CIVAC, record.source, record.bytes, line);
            }
            lines(
                machine,
                System::DC_CIVAC,
                record.destination,
                record.bytes,
                line,
            );
        });
        finish(machine);
        machine.system(System::SCTLR_EL1, sctlr);
        machine.barrier(Barrier::ISB);
        walk(machine, first, 0, &mut |machine, record| {
            if record.kind & COPY != 0 {
                copy(machine, record);
            }
        });
        machine.barrier(Barrier::DMB_SY);
        // Until the MMU was off lines may have been fetched again.
        walk(machine, first, 0, &mut |machine, record| {
            if record.kind & COPY != 0 {
                lines(
                    machine,
                    System::DC_IVAC,
                    record.destination,
                    record.bytes,
                    line,
                );
            }
        });
        finish(machine);
    }
    // Nothing of these tables is for the next kernel.
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

// From here on each stands once: nothing waits for the steps, and an image has them in it.

/// One DSB for all lines: it waits for every cache operation and store before it. Instruction
/// caches are invalidated behind it, or they might fetch again what was there before.
#[inline(never)]
fn finish(machine: &mut (impl Machine + ?Sized)) {
    machine.barrier(Barrier::DSB_SY);
    machine.system(System::IC_IALLU, 0);
    machine.barrier(Barrier::DSB_NSH);
    machine.barrier(Barrier::ISB);
}

#[inline(never)]
fn field(machine: &mut (impl Machine + ?Sized), header: u64, offset: usize) -> u64 {
    machine.word(header.wrapping_add(offset as u64))
}

/// All records, with addresses as the code uses them.
#[inline(never)]
fn walk<M: Machine + ?Sized>(
    machine: &mut M,
    first: u64,
    distance: u64,
    each: &mut dyn FnMut(&mut M, &Record),
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
        let record = Record {
            destination: destination.wrapping_add(distance),
            source: source.wrapping_add(distance),
            bytes,
            kind,
        };
        each(machine, &record);
    }
}

/// With the MMU and caches on.
fn move_cached(machine: &mut (impl Machine + ?Sized), record: &Record, line: u64) {
    if record.kind & COPY == 0 {
        lines(
            machine,
            System::DC_CVAC,
            record.destination,
            record.bytes,
            line,
        );
    } else if record.kind & CLEAN == 0 {
        copy(machine, record);
    } else if line < LINE {
        copy(machine, record);
        lines(
            machine,
            System::DC_CVAC,
            record.destination,
            record.bytes,
            line,
        );
    } else {
        // Each line right after it is stored, while it is at hand. A longer one is cleaned
        // more than once, the last time when all of it is stored.
        let mut done = 0;
        while done < record.bytes {
            let to = record.destination.wrapping_add(done);
            machine.move_line(to, record.source.wrapping_add(done));
            machine.system(System::DC_CVAC, to);
            done += LINE;
        }
    }
}

const LINE: u64 = super::layout::LINE as u64;

#[inline(never)]
fn copy(machine: &mut (impl Machine + ?Sized), record: &Record) {
    let mut done = 0;
    while done < record.bytes {
        machine.move_line(
            record.destination.wrapping_add(done),
            record.source.wrapping_add(done),
        );
        done += LINE;
    }
}

#[inline(never)]
fn lines(machine: &mut (impl Machine + ?Sized), system: System, start: u64, bytes: u64, line: u64) {
    let mut done = 0;
    while done < bytes {
        machine.system(system, start.wrapping_add(done));
        done += line;
    }
}
