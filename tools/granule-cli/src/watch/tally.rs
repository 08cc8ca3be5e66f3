//! The events that were seen, counted by kind.

use granule_model::{BarrierKind, Event, System, Visibility};
use granule_plugin::stream::{Seen, Totals};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::json::value;

/// The events and counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) events: Events,
    /// Events that the plugin could not record, in words.
    pub(super) missing: Vec<String>,
    /// The plugin's own counts, if it came to its end.
    pub(super) totals: Option<Totals>,
}

/// Events, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Events {
    /// Changes of descriptors.
    table_stores: u64,
    /// Descriptors that were there when memory became a table.
    table_contents: u64,
    /// Memory that became a table.
    pub(super) tables: u64,
    /// Tables that became other memory.
    tables_freed: u64,
    /// Writes to registers of translation.
    registers: u64,
    /// TLBIs.
    tlbi: u64,
    /// DSBs.
    dsb: u64,
    /// DMBs.
    dmb: u64,
    /// ISBs.
    isb: u64,
    /// Maintenance operations on caches.
    cache: u64,
    /// Exceptions and returns from them.
    exceptions: u64,
    /// Updates of descriptors by hardware.
    hardware_updates: u64,
    /// Frames that were used again.
    frames_reused: u64,
    /// CPUs that were switched off or reset.
    cpus_off: u64,
}

impl Tally {
    /// Counts a record of the plugin.
    pub(super) fn add(&mut self, seen: &Seen) {
        let events = &mut self.events;
        let count = match seen {
            Seen::Event(event) => match event {
                Event::Store {
                    count: 1,
                    visibility,
                    ..
                } if *visibility != Visibility::Earlier => &mut events.table_stores,
                Event::Store { count, .. } => {
                    events.table_contents += u64::from(*count);
                    return;
                }
                Event::Obtained { .. } => &mut events.tables,
                Event::Freed { .. } => &mut events.tables_freed,
                Event::System(System::SP_EL0, _) => return,
                Event::System(system, _) if system.is_register() => &mut events.registers,
                Event::System(system, _) if system.is_tlbi() => &mut events.tlbi,
                Event::Barrier(barrier) => match barrier.kind {
                    BarrierKind::Dsb => &mut events.dsb,
                    BarrierKind::Dmb => &mut events.dmb,
                    _ => &mut events.isb,
                },
                Event::Reset => &mut events.cpus_off,
                Event::User => &mut events.exceptions,
                Event::Found { .. } => &mut events.hardware_updates,
                Event::Reused { .. } => &mut events.frames_reused,
                Event::Missing(what) => {
                    self.missing.push(what.as_str().to_owned());
                    return;
                }
                _ => &mut events.cache,
            },
            Seen::Exception => &mut events.exceptions,
            Seen::End(totals) => {
                self.totals = Some(*totals);
                return;
            }
        };
        *count += 1;
    }

    /// Returns the counts above 0, with their names.
    pub(super) fn rows(&self) -> Vec<(String, u64)> {
        let Value::Object(rows) = value(&self.events) else {
            return Vec::new();
        };
        let rows = rows.into_iter();
        rows.filter_map(|(name, count)| Some((name, count.as_u64().filter(|count| *count > 0)?)))
            .collect()
    }
}

#[cfg(test)]
impl Events {
    /// One table.
    pub(super) fn of_a_table() -> Self {
        Self {
            tables: 1,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_model::Barrier;
    use granule_trace::Text;

    #[test]
    fn each_kind_is_counted_and_what_is_missing_kept() {
        let mut tally = Tally::default();
        let store = |count, visibility| Event::Store {
            address: 0x1000,
            count,
            descriptor: 0,
            step: 0,
            visibility,
        };
        for event in [
            store(1, Visibility::Live),
            store(512, Visibility::Earlier),
            Event::System(System::TCR_EL1, 0),
            Event::System(System::VMALLE1, 0),
            Event::Barrier(Barrier::ISB),
        ] {
            tally.add(&Seen::Event(event));
        }
        tally.add(&Seen::Exception);
        assert_eq!(tally.totals, None);
        tally.add(&Seen::End(Totals::default()));
        assert_eq!(tally.totals, Some(Totals::default()));
        tally.add(&Seen::Event(Event::Missing(Text::new(b"x"))));
        let some = tally.rows();
        let some: Vec<_> = some
            .iter()
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        let expected = [
            ("table_stores", 1),
            ("table_contents", 512),
            ("registers", 1),
            ("tlbi", 1),
            ("isb", 1),
            ("exceptions", 1),
        ];
        assert_eq!(some, expected);
        assert_eq!(tally.missing, ["x"]);
    }
}
