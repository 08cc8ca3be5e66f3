//! The steps of the relocation code as a trace has them.
//!
//! Nothing can be recorded once the code runs: its page, the list and the copy are all it touches. So
//! a kernel that records what it does to its translation lets a [`Recorder`] go through the steps
//! before it leaves, which reads the list and changes nothing. Lines that follow each other are one
//! event.

use super::header::ListMemory;
use super::layout::LINE;
use super::steps::Machine;
use granule_trace::{Barrier, Event, System};

/// Goes through the steps and tells what they do, in order: register writes, TLBIs, operations on
/// caches, barriers, and stores that matter to someone who looks past the caches.
#[derive(Debug)]
pub struct Recorder<'a, M, T, F> {
    memory: &'a M,
    distance: u64,
    tcr: u64,
    line: u64,
    /// Whether a store to a physical address is told.
    told: T,
    emit: F,
    mmu_off: bool,
    /// Stores that are not told yet: physical address and bytes.
    stores: (u64, u64),
    /// Operations on lines that are not told yet, which come behind the stores.
    lines: (System, u64, u64),
}

impl<'a, M: ListMemory, T: Fn(u64) -> bool, F: FnMut(Event)> Recorder<'a, M, T, F> {
    /// For a CPU whose TCR is `tcr`, whose smallest data cache line has `line` bytes, a power of two,
    /// and whose linear map has the header's `distance`. `told` says of a physical address whether
    /// stores there matter: to what is [cleaned](super::Clean), or for the uncached way all that is
    /// copied.
    pub const fn new(memory: &'a M, distance: u64, tcr: u64, line: u64, told: T, emit: F) -> Self {
        Self {
            memory,
            distance,
            tcr,
            line,
            told,
            emit,
            mmu_off: false,
            stores: (0, 0),
            lines: (System::DC_CVAC, 0, 0),
        }
    }

    const fn physical(&self, address: u64) -> u64 {
        if self.mmu_off {
            address
        } else {
            address.wrapping_sub(self.distance)
        }
    }

    fn flush(&mut self) {
        let (start, bytes) = core::mem::take(&mut self.stores);
        if bytes != 0 {
            (self.emit)(Event::Data { start, bytes });
        }
        let (instruction, start, bytes) = self.lines;
        if bytes != 0 {
            self.lines.2 = 0;
            (self.emit)(Event::Lines {
                instruction,
                start,
                bytes,
            });
        }
    }

    fn event(&mut self, event: Event) {
        self.flush();
        (self.emit)(event);
    }
}

impl<M: ListMemory, T: Fn(u64) -> bool, F: FnMut(Event)> Machine for Recorder<'_, M, T, F> {
    /// Where there is no memory the list ends: it was verified, so that does not happen.
    fn word(&mut self, address: u64) -> u64 {
        let at = self.physical(address);
        self.memory.load(at).unwrap_or_default()
    }

    fn move_line(&mut self, to: u64, _from: u64) {
        let at = self.physical(to);
        if !(self.told)(at) {
            return;
        }
        let (start, bytes) = self.stores;
        if bytes != 0 && start.wrapping_add(bytes) != at {
            self.flush();
        }
        if self.stores.1 == 0 {
            self.stores.0 = at;
        }
        self.stores.1 += LINE as u64;
    }

    fn line_bytes(&mut self) -> u64 {
        self.line
    }

    fn tcr(&mut self) -> u64 {
        self.tcr
    }

    fn system(&mut self, system: System, operand: u64) {
        if ![System::DC_CVAC, System::DC_CIVAC, System::DC_IVAC].contains(&system) {
            self.event(Event::System(system, operand));
            if system == System::SCTLR_EL1 {
                self.mmu_off = operand & 1 == 0;
            }
            return;
        }
        // A trace knows memory, and what is stored there, by physical addresses.
        let at = self.physical(operand);
        let (of, start, bytes) = self.lines;
        if bytes != 0 && (of != system || start.wrapping_add(bytes) != at) {
            self.flush();
        }
        if self.lines.2 == 0 {
            self.lines = (system, at, 0);
        }
        // What is right behind its stores comes every line that is stored, however long it is.
        self.lines.2 += self.line.min(LINE as u64);
    }

    fn barrier(&mut self, barrier: Barrier) {
        self.event(Event::Barrier(barrier));
    }

    fn mask(&mut self) {}
    fn vectors(&mut self, _address: u64) {}
    fn branch(&mut self, _address: u64) {
        self.flush();
    }
    fn set_el2_vectors(&mut self, _number: u64, _address: u64) {}
    fn enter_el2(&mut self) {
        self.flush();
    }
    fn sctlr_el2(&mut self, value: u64) {
        self.event(Event::System(System::SCTLR_EL2, value));
    }
}
