//! What was seen, counted by kind.

use granule_model::{BarrierKind, Event, Visibility};
use granule_plugin::stream::{Seen, Totals};

/// What was seen, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Changes of descriptors, and descriptors that were there when memory became a table.
    pub(super) stores: u64,
    pub(super) contents: u64,
    pub(super) obtained: u64,
    pub(super) freed: u64,
    pub(super) registers: u64,
    pub(super) tlbi: u64,
    pub(super) dsb: u64,
    pub(super) dmb: u64,
    pub(super) isb: u64,
    pub(super) cache: u64,
    pub(super) exceptions: u64,
    pub(super) hardware_updates: u64,
    pub(super) reused: u64,
    pub(super) resets: u64,
    /// What was not told.
    pub(super) missing: Vec<String>,
    /// The plugin's own counts, if it came to its end.
    pub(super) totals: Option<Totals>,
}

impl Tally {
    /// Something was seen.
    pub(super) fn add(&mut self, seen: &Seen) {
        let count = match seen {
            Seen::Event(event) => match event {
                Event::Store {
                    count: 1,
                    visibility,
                    ..
                } if *visibility != Visibility::Earlier => &mut self.stores,
                Event::Store { count, .. } => {
                    self.contents += u64::from(*count);
                    return;
                }
                Event::Obtained { .. } => &mut self.obtained,
                Event::Freed { .. } => &mut self.freed,
                Event::System(system, _) if system.is_register() => &mut self.registers,
                Event::System(system, _) if system.is_tlbi() => &mut self.tlbi,
                Event::Barrier(barrier) => match barrier.kind {
                    BarrierKind::Dsb => &mut self.dsb,
                    BarrierKind::Dmb => &mut self.dmb,
                    _ => &mut self.isb,
                },
                Event::Reset => &mut self.resets,
                Event::User => &mut self.exceptions,
                Event::Found { .. } => &mut self.hardware_updates,
                Event::Reused { .. } => &mut self.reused,
                Event::Missing(what) => {
                    self.missing.push(what.as_str().to_owned());
                    return;
                }
                _ => &mut self.cache,
            },
            Seen::Exception => &mut self.exceptions,
            Seen::End(totals) => {
                self.totals = Some(*totals);
                return;
            }
        };
        *count += 1;
    }

    /// The counts with their names.
    pub(super) const fn rows(&self) -> [(&'static str, u64); 14] {
        [
            ("table_stores", self.stores),
            ("table_contents", self.contents),
            ("tables", self.obtained),
            ("tables_freed", self.freed),
            ("registers", self.registers),
            ("tlbi", self.tlbi),
            ("dsb", self.dsb),
            ("dmb", self.dmb),
            ("isb", self.isb),
            ("cache", self.cache),
            ("exceptions", self.exceptions),
            ("hardware_updates", self.hardware_updates),
            ("frames_reused", self.reused),
            ("cpus_off", self.resets),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_model::{Barrier, System};
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
        let some = tally.rows().into_iter().filter(|(_, count)| *count > 0);
        let expected = [
            ("table_stores", 1),
            ("table_contents", 512),
            ("registers", 1),
            ("tlbi", 1),
            ("isb", 1),
            ("exceptions", 1),
        ];
        assert_eq!(some.collect::<Vec<_>>(), expected);
        assert_eq!(tally.missing, ["x"]);
    }
}
