//! Records the actions of the leaving CPU in advance, because it can no longer record while it
//! leaves.
//!
//! The relocation code accesses only its page, the list and the memory that it copies. Its actions
//! are known in advance, step by step (`granule_kexec::steps`), and no other CPU runs.

use super::recorder;
use granule::arch::PhysicalAddress;
use granule_kexec::{ListHeader, ListMemory, PhysRange, Ranges, Recorder, UNCACHED, steps, verify};
use granule_trace::Event;

/// Most places that are cleaned. If there are more, all stores are recorded.
const MOST_PLACES: usize = 16;

/// Records every action of `relocate::leave` on the list that begins at `head`, as the linear map
/// shows it. `tcr` is the present TCR; `line` is the smallest line of any data cache, in bytes.
pub(crate) fn leaves(
    header: &ListHeader,
    head: PhysicalAddress,
    memory: &impl ListMemory,
    tcr: u64,
    line: u64,
) {
    recorder::in_order(|trace| {
        if !trace.records() {
            return;
        }
        // Memory that is not cleaned is not read past the caches, so the trace does not need it.
        let mut slots = [PhysRange::default(); MOST_PLACES];
        let mut cleaned = Ranges::new(&mut slots);
        let mut all = header.flags & UNCACHED != 0;
        // The list was verified before, so every record arrives, and the result is not needed.
        let _ = verify(memory, head, |record| {
            if record.cleans() {
                let extent = PhysRange::new(record.destination, record.bytes);
                all |= cleaned.insert(extent).is_err();
            }
        });
        let is_emitted = |at: u64| {
            let line = PhysRange::new(at, granule_kexec::LINE as u64);
            all || cleaned.all().iter().any(|place| place.holds(&line))
        };
        let emit = |event: Event| trace.push(event);
        let mut steps = Recorder::new(memory, header.distance, tcr, line, is_emitted, emit);
        // The steps are long code, and the speed of a trace does not matter: one copy, called
        // indirectly.
        let steps: &mut dyn steps::RelocationCpu = &mut steps;
        steps::leave(steps, head.0.wrapping_add(header.distance));
    });
}
