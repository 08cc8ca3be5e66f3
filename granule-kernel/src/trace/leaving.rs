//! What the CPU that leaves does once it cannot record any more: told before it does it.
//!
//! The relocation code reaches nothing but its page, the list and what it copies. What it does is
//! known before, step by step (`granule_kexec::steps`), and this CPU is the only one that runs.

use super::recorder;
use granule::arch::PhysicalAddress;
use granule_kexec::{Extent, Header, ListMemory, Ranges, Recorder, UNCACHED, steps, verify};
use granule_trace::Event;

/// Places that are cleaned, at most: with more, all stores are told.
const MOST_PLACES: usize = 16;

/// Tells all that `relocate::leave` does with the list that begins at `head`, where the linear map
/// shows it. `tcr` is TCR now, `line` the bytes of the smallest line of any data cache.
pub(crate) fn leaves(
    header: &Header,
    head: PhysicalAddress,
    memory: &impl ListMemory,
    tcr: u64,
    line: u64,
) {
    recorder::tell(|trace| {
        if !trace.records() {
            return;
        }
        // What is not cleaned nobody reads past the caches, and a trace need not know of it.
        let mut slots = [Extent::default(); MOST_PLACES];
        let mut cleaned = Ranges::new(&mut slots);
        let mut all = header.flags & UNCACHED != 0;
        // It was verified: all records come, and nothing else is told of it.
        let _ = verify(memory, head, |record| {
            if record.cleans() {
                let extent = Extent::new(record.destination, record.bytes);
                all |= cleaned.insert(extent).is_err();
            }
        });
        let told = |at: u64| {
            let line = Extent::new(at, granule_kexec::LINE as u64);
            all || cleaned.all().iter().any(|place| place.holds(&line))
        };
        let emit = |event: Event| trace.push(event);
        let mut steps = Recorder::new(memory, header.distance, tcr, line, told, emit);
        // The steps are long, and nobody waits for a trace: one of them, and calls.
        let steps: &mut dyn steps::Machine = &mut steps;
        steps::leave(steps, head.0.wrapping_add(header.distance));
    });
}
