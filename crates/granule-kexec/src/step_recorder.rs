//! Records the steps of the relocation code as trace events.
//!
//! The running code touches only its page, the list and the copied bytes, so it cannot record
//! anything. A kernel that traces its translation changes therefore lets a [`Recorder`] go through
//! the steps before it leaves. The recorder reads the list and changes nothing. Operations on
//! consecutive lines become one event.

use super::layout::LINE;
use super::memory::ListMemory;
use super::steps::RelocationCpu;
use granule_trace::{Barrier, Event, System};

/// Goes through the steps and emits an event for each, in order: register writes, TLBIs, cache
/// operations, barriers, and stores that matter to an observer behind the caches.
#[derive(Debug)]
pub struct Recorder<'a, M, T, F> {
    memory: &'a M,
    distance: u64,
    tcr: u64,
    line: u64,
    /// Whether stores to a physical address are emitted.
    is_emitted: T,
    emit: F,
    mmu_off: bool,
    /// Stores not emitted yet: physical address and bytes.
    stores: (u64, u64),
    /// Cache operations on lines not emitted yet; they are emitted after the stores.
    lines: (System, u64, u64),
}

impl<'a, M: ListMemory, T: Fn(u64) -> bool, F: FnMut(Event)> Recorder<'a, M, T, F> {
    /// A recorder for a CPU whose TCR is `tcr`, whose smallest data cache line has `line` bytes, a
    /// power of two, and whose linear map has the header's `distance`. `is_emitted` decides whether
    /// stores to a physical address are emitted: those that are [cleaned](super::Clean), or on the
    /// uncached way all that are copied.
    pub const fn new(
        memory: &'a M,
        distance: u64,
        tcr: u64,
        line: u64,
        is_emitted: T,
        emit: F,
    ) -> Self {
        Self {
            memory,
            distance,
            tcr,
            line,
            is_emitted,
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

impl<M: ListMemory, T: Fn(u64) -> bool, F: FnMut(Event)> RelocationCpu for Recorder<'_, M, T, F> {
    /// A load outside memory would end the list; a verified list has none.
    fn word(&mut self, address: u64) -> u64 {
        let at = self.physical(address);
        self.memory.load(at).unwrap_or_default()
    }

    fn move_line(&mut self, to: u64, _from: u64) {
        let at = self.physical(to);
        if !(self.is_emitted)(at) {
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
        // A trace names memory and stores by physical addresses.
        let at = self.physical(operand);
        let (of, start, bytes) = self.lines;
        if bytes != 0 && (of != system || start.wrapping_add(bytes) != at) {
            self.flush();
        }
        if self.lines.2 == 0 {
            self.lines = (system, at, 0);
        }
        // A clean that directly follows a store covers one stored line, even where the cache line
        // is longer.
        self.lines.2 += self.line.min(LINE as u64);
    }

    fn barrier(&mut self, barrier: Barrier) {
        self.event(Event::Barrier(barrier));
    }

    fn branch(&mut self, _address: u64) {
        self.flush();
    }
    fn enter_el2(&mut self) {
        self.flush();
    }
    fn sctlr_el2(&mut self, value: u64) {
        self.event(Event::System(System::SCTLR_EL2, value));
    }
}
