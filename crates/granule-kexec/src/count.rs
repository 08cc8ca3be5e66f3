//! Counts the instructions that the relocation code will execute, by running its steps over the
//! finished list.
//!
//! The list is walked record by record, so a barrier per record would be counted as often as it
//! runs. Of a record's bytes only the first round of the loop is executed, and its cache operations
//! are multiplied by the number of rounds. A round contains no barrier. A barrier added there would
//! be counted once per record: too rarely, but still enough to differ from the number that tests
//! expect.

use super::header::ListHeader;
use super::layout::{LINE, MOST_LINE, RECORD_BYTES};
use super::memory::ListMemory;
use super::steps::{self, RelocationCpu};
use core::mem::size_of;
use granule::arch::PhysicalAddress;
use granule_trace::{Barrier, BarrierKind, System};

/// The counted instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionCounts {
    /// DSBs of any kind.
    pub dsb: u64,
    /// TLBIs.
    pub tlbi: u64,
    /// Cache maintenance operations by line, of any kind.
    pub lines: u64,
}

impl InstructionCounts {
    /// Counts for the list whose first page is at `head`, on a CPU whose smallest data
    /// cache line has `line` bytes, a power of two. The list was [verified](fn@super::verify), and
    /// `header` is its header.
    #[must_use]
    pub fn of(
        memory: &impl ListMemory,
        head: PhysicalAddress,
        header: &ListHeader,
        line: u64,
    ) -> Self {
        let mut counting = Counting {
            memory,
            head: head.0,
            distance: header.distance,
            line,
            mmu_off: false,
            rounds: 1,
            counts: Self::default(),
        };
        // Dynamic dispatch keeps one copy of the long steps; a count need not be fast.
        let machine: &mut dyn RelocationCpu = &mut counting;
        steps::leave(machine, head.0.wrapping_add(header.distance));
        counting.counts
    }
}

/// Loads and stores needed to copy so many bytes: register pairs of 16 bytes. They access Normal
/// Cacheable memory with the MMU on, and Device memory on the uncached way. The code also loads its
/// header with seven instructions and each record with two, links and the end included, each time
/// that it walks the list. Cache operations load and store nothing.
#[must_use]
pub const fn copy_accesses(bytes_copied: u64) -> u64 {
    const PAIR: u64 = 16;
    2 * (bytes_copied / PAIR)
}

struct Counting<'a, M> {
    memory: &'a M,
    head: u64,
    distance: u64,
    line: u64,
    mmu_off: bool,
    /// Rounds of the current record: the factor for each cache operation of its first round.
    rounds: u64,
    counts: InstructionCounts,
}

/// Offset of the byte count in a record.
const BYTES: u64 = 2 * size_of::<u64>() as u64;
const _: () = assert!((size_of::<ListHeader>() as u64).is_multiple_of(RECORD_BYTES));

impl<M: ListMemory> RelocationCpu for Counting<'_, M> {
    /// A load outside memory would end the list; a verified list has none.
    fn word(&mut self, address: u64) -> u64 {
        let distance = if self.mmu_off { 0 } else { self.distance };
        let at = address.wrapping_sub(distance);
        let word = self.memory.load(at).unwrap_or_default();
        let in_header = at.wrapping_sub(self.head) < size_of::<ListHeader>() as u64;
        if in_header || at % RECORD_BYTES != BYTES {
            return word;
        }
        // One line, clamped to the steps of the code: it divides a record's bytes.
        let round = self.line.clamp(LINE as u64, MOST_LINE).min(word.max(1));
        self.rounds = word / round;
        round.min(word)
    }
    fn system(&mut self, system: System, operand: u64) {
        let on_lines = [System::DC_CVAC, System::DC_CIVAC, System::DC_IVAC].contains(&system);
        let counts = &mut self.counts;
        if on_lines {
            counts.lines = counts.lines.saturating_add(self.rounds);
        } else if system.is_tlbi() {
            counts.tlbi += 1;
        } else if system == System::SCTLR_EL1 {
            self.mmu_off = operand & 1 == 0;
        }
    }
    fn barrier(&mut self, barrier: Barrier) {
        self.counts.dsb += u64::from(barrier.kind == BarrierKind::Dsb);
    }
    fn move_line(&mut self, _to: u64, _from: u64) {}
    fn line_bytes(&mut self) -> u64 {
        self.line
    }
    fn tcr(&mut self) -> u64 {
        0
    }
}
