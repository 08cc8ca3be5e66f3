//! Turns the records of the plugin into the events of a trace.
//!
//! The judge and the recording take the same events from here, so that both have the same verdict.

use granule_plugin::stream::Seen;
use granule_trace::{Barrier, Event};

/// The instruction that each CPU's last event came from.
#[derive(Debug)]
pub(super) struct TraceEvents(Vec<Option<u64>>);

impl TraceEvents {
    pub(super) fn new(cpus: u32) -> Self {
        Self((0..cpus).map(|_| None).collect())
    }

    /// Returns the events, in order: the instruction, if it is another one than that of the CPU's last
    /// event, and its effect.
    pub(super) fn of(&mut self, cpu: u32, pc: u64, seen: &Seen) -> impl Iterator<Item = Event> {
        let event = match *seen {
            Seen::Event(event) => Some(event),
            // It synchronises the context as an ISB does.
            Seen::Exception => Some(Event::Barrier(Barrier::ISB)),
            Seen::End(_) => None,
        };
        let last = self.0.get_mut(cpu as usize);
        let moves = event.is_some() && last.is_some_and(|last| last.replace(pc) != Some(pc));
        moves.then_some(Event::At(pc)).into_iter().chain(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_is_an_event_where_it_changes() {
        let mut made = TraceEvents::new(2);
        let isb = Event::Barrier(Barrier::ISB);
        let mut events = |cpu, pc| made.of(cpu, pc, &Seen::Exception).collect::<Vec<_>>();
        assert_eq!(events(0, 0), [Event::At(0), isb]);
        assert_eq!(events(1, 4), [Event::At(4), isb]);
        assert_eq!(events(0, 0), [isb]);
        assert_eq!(events(0, 8), [Event::At(8), isb]);
        // There is no such CPU: the judge refuses the event.
        assert_eq!(events(7, 8), [isb]);
        let end = Seen::End(granule_plugin::stream::Totals::default());
        assert_eq!(made.of(0, 0, &end).next(), None);
    }
}
