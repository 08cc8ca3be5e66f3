//! The hazards: the translations that an access, a walk or a reuse of memory may use, and whether
//! another machine forbids them.

use std::collections::HashSet;

use granule_trace::{Event, System};

use super::entry::Entry;
use super::machine::Machine;

/// A moment at which something is used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    /// Addresses of a half, by the programs of an ASID, or by the CPUs as they are.
    Range {
        upper: bool,
        asid: Option<u16>,
        first: u64,
        last: u64,
        /// The CPU that relies on what it did itself.
        by: Option<u32>,
        /// The CPU whose TLB is looked in; `None`: any.
        on: Option<u32>,
    },
    /// Entries that translate addresses of a half are stored anew. Nothing is accessed, so that what is held of
    /// them beside the tables is in the way only where a change has to go by way of an invalid entry.
    Change {
        upper: bool,
        asid: Option<u16>,
        first: u64,
        last: u64,
    },
    /// Memory that a mapping led to is taken for something else.
    Reuse { start: u64, bytes: u64 },
    /// Memory of tables is given back, and may be anything from here on.
    Free { start: u64, bytes: u64 },
    /// Everything.
    All,
}

/// Addresses that are translated in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    upper: bool,
    asid: Option<u16>,
    first: u64,
    last: u64,
    /// The physical address less the virtual one.
    delta: u64,
    attributes: u64,
    /// Written to without a note, where hardware manages the dirty state.
    dirty: bool,
}

/// The attributes that two translations of one address may not differ in, AttrIndx and SH; permissions may.
const TYPE: u64 = 0b111 << 2 | 0b11 << 8;
/// The permissions: writable (bit 7 turned round, and kept in bit 0), EL0, PXN and UXN.
const WRITABLE: u64 = 1;
const EL0: u64 = 1 << 6;
const NEVER: u64 = 0b11 << 53;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Hazard {
    /// An address is translated so.
    Way(Way),
    /// The kernel's addresses lead to memory that is another's.
    Leads { va: u64, output: u64 },
    /// A walk goes on in memory that is not a table any more.
    Walk(u64),
    /// A walk finds what was in a table before it was filled.
    Garbage(u64),
    /// A walk does not find a new entry.
    Unseen(u64),
    /// A CPU faults on an entry that it made valid.
    Unfetched(u64),
}

impl Way {
    fn of(entry: &Entry, asid: Option<u16>, first: u64, last: u64) -> Option<Self> {
        if entry.va > last || entry.last() < first {
            return None;
        }
        let managed = entry.raw >> 51 & 1 != 0;
        let read_only = entry.raw >> 7 & 1 != 0;
        let kept = TYPE | EL0 | 1 << 50 | NEVER;
        Some(Self {
            upper: entry.upper,
            asid: entry.asid.or(asid),
            first: entry.va.max(first),
            last: entry.last().min(last),
            delta: entry.output().wrapping_sub(entry.va),
            attributes: entry.raw & kept | u64::from(!read_only || managed),
            dirty: managed && !read_only,
        })
    }

    /// Reduces to what two translations of one address must share.
    const fn without_permissions(self) -> Self {
        Self {
            attributes: self.attributes & TYPE,
            dirty: false,
            ..self
        }
    }

    /// Whether the other permits this one where both are. `spurious`: so does one that permits more.
    fn is_permitted_by(&self, other: &Self, spurious: bool) -> bool {
        let all = WRITABLE | EL0 | NEVER;
        let grants = |way: &Self| (way.attributes ^ NEVER) & all;
        let permissions =
            grants(self) == grants(other) || spurious && grants(self) & !grants(other) == 0;
        self.delta == other.delta
            && self.attributes & !all == other.attributes & !all
            && permissions
            && (!self.dirty || other.dirty)
    }
}

impl Machine {
    /// Returns what an event uses, seen after it (before it, if memory is given back).
    pub(super) fn uses(&self, cpu: u32, event: &Event) -> Vec<Use> {
        match *event {
            Event::AssumeVisible { start, bytes, asid } => vec![Use::Range {
                upper: start >> 55 & 1 != 0,
                asid,
                first: start,
                last: start.saturating_add(bytes - 1),
                by: asid.is_none().then_some(cpu),
                on: None,
            }],
            Event::Settled => vec![Use::All],
            Event::Freed { start, bytes } => vec![Use::Free { start, bytes }],
            Event::Reused { start, bytes } => vec![Use::Reuse { start, bytes }],
            // A program runs under this ASID, or does so next. In an empty tree none runs: a kernel goes through
            // one from one program to the next.
            Event::System(System::TTBR0_EL1, _) | Event::User => {
                let tree = self.cpus[cpu as usize].trees[0];
                let tree = tree.filter(|tree| !self.entries_of(*tree).is_empty());
                let tree = tree.and_then(|tree| self.trees[tree]);
                let range = |asid| Use::Range {
                    upper: false,
                    asid: Some(asid),
                    first: 0,
                    last: u64::MAX >> 16,
                    by: None,
                    on: Some(cpu),
                };
                tree.and_then(|tree| tree.root.asid)
                    .map(range)
                    .into_iter()
                    .collect()
            }
            Event::Store { address, count, .. } | Event::Update { address, count, .. } => {
                let last = address + 8 * (u64::from(count) - 1);
                let (from, to) = (self.entries_at(address), self.entries_at(last));
                let meets = |(tree, entry): &(usize, Entry)| {
                    let end = to.iter().find(|(other, _)| other == tree);
                    Some(Use::Change {
                        upper: entry.upper,
                        asid: self.trees[*tree]?.root.asid,
                        first: entry.va,
                        last: end.map_or(entry.last(), |(_, end)| end.last()),
                    })
                };
                from.iter().filter_map(meets).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The ways in which a cached entry translates some of a range.
    fn ways_of(&self, entry: &Entry, asid: Option<u16>, range: (u64, u64)) -> Vec<Way> {
        let (first, last) = range;
        if entry.va > last || entry.last() < first {
            return Vec::new();
        }
        if entry.leaf {
            return Way::of(entry, asid, first, last).into_iter().collect();
        }
        let leaves = self.leaves_below(entry);
        let way = |leaf| Way::of(leaf, asid, first, last);
        leaves.iter().filter_map(way).collect()
    }

    /// Whether somebody who looks with this ASID finds an entry.
    fn finds(&self, upper: bool, asid: Option<u16>, entry: &Entry) -> bool {
        let same = match (asid, entry.asid) {
            (Some(asid), Some(other)) => asid == other,
            _ => true,
        };
        entry.upper == upper && same
    }

    /// Returns the translations of the tables.
    fn in_tables(&self, upper: bool, asid: Option<u16>, range: (u64, u64)) -> Vec<Way> {
        let mut ways = Vec::new();
        for (index, tree) in self.trees.iter().enumerate() {
            let Some(tree) = tree else { continue };
            let same = tree.root.upper == upper && (asid.is_none() || tree.root.asid == asid);
            if same && self.is_looked_in(tree) {
                for entry in self.entries_between(index, range.0, range.1) {
                    if entry.leaf {
                        ways.extend(Way::of(&entry, asid, range.0, range.1));
                    }
                }
            }
        }
        ways
    }

    /// Returns the translations of TLBs and instructions under way beside those of the tables.
    fn beside_tables(
        &self,
        upper: bool,
        asid: Option<u16>,
        range: (u64, u64),
        by: Option<u32>,
        on: Option<u32>,
    ) -> Vec<Way> {
        let mut ways = Vec::new();
        let held = |cpus: u64| {
            let cpus = on.map_or(cpus, |cpu| cpus & 1 << cpu);
            let half = usize::from(upper);
            let walks = |(index, cpu): (usize, &super::machine::Cpu)| {
                cpus >> index & 1 != 0 && (!upper || cpu.trees[half].is_some())
            };
            self.cpus.iter().enumerate().any(walks)
        };
        for stale in &self.stale {
            if held(stale.cpus) && self.finds(upper, asid, &stale.entry) {
                ways.extend(self.ways_of(&stale.entry, asid, range));
            }
        }
        let by = by.map(|cpu| &self.cpus[cpu as usize]);
        for entry in by.map_or(&[][..], |cpu| &cpu.draining) {
            if self.finds(upper, asid, entry) {
                ways.extend(self.ways_of(entry, asid, range));
            }
        }
        for tree in by.map_or(&[][..], |cpu| &cpu.left) {
            for entry in self.entries_between(*tree, range.0, range.1) {
                if entry.leaf && self.finds(upper, asid, &entry) {
                    ways.extend(Way::of(&entry, asid, range.0, range.1));
                }
            }
        }
        ways
    }

    /// The hazards of a use. `tables`: also what the tables themselves give.
    pub(super) fn hazards(&self, what: &Use, tables: bool) -> Vec<Hazard> {
        let mut found: Vec<Hazard> = self.garbage.iter().copied().map(Hazard::Garbage).collect();
        match *what {
            Use::Free { start, bytes } => {
                let pointers = self.stale.iter().filter(|one| !one.entry.leaf);
                let pages = pointers.map(|one| one.entry.output());
                let given_back = pages.filter(|page| page.wrapping_sub(start) < bytes);
                found.extend(given_back.map(Hazard::Walk));
            }
            Use::Reuse { start, bytes } => {
                let leads = |entry: &Entry| {
                    let size = 1 << entry.shift;
                    let output = entry.output();
                    entry.leaf && output < start + bytes && start < output + size
                };
                let stale = self.stale.iter().map(|one| one.entry);
                let allowed = |entry: &Entry| self.lazy && entry.upper;
                let kernels =
                    stale.filter(|entry| entry.asid.is_none() && !allowed(entry) && leads(entry));
                found.extend(kernels.map(|entry| Hazard::Leads {
                    va: entry.va,
                    output: entry.output(),
                }));
            }
            Use::Change {
                upper,
                asid,
                first,
                last,
            } => {
                let range = Use::Range {
                    upper,
                    asid,
                    first,
                    last,
                    by: None,
                    on: None,
                };
                let all = self.hazards(&range, tables).into_iter();
                return all
                    .map(|hazard| match hazard {
                        Hazard::Way(way) => Hazard::Way(way.without_permissions()),
                        other => other,
                    })
                    .collect();
            }
            Use::Range {
                upper,
                asid,
                first,
                last,
                by,
                on,
            } => {
                let range = (first, last);
                let mut ways = self.beside_tables(upper, asid, range, by, on);
                if tables {
                    ways.extend(self.in_tables(upper, asid, range));
                }
                found.extend(ways.into_iter().map(Hazard::Way));
                let there = |entry: &Entry| {
                    self.finds(upper, asid, entry) && entry.va <= last && entry.last() >= first
                };
                // A CPU that does not find a new entry takes a fault.
                let cpus = if self.spurious { &[][..] } else { &self.cpus };
                for (index, cpu) in cpus.iter().enumerate() {
                    let new = cpu.unseen.iter().filter(|new| there(&new.entry));
                    found.extend(new.map(|new| Hazard::Unseen(new.location)));
                    if by == Some(index as u32) {
                        let new = cpu.unfetched.iter().filter(|new| there(&new.entry));
                        found.extend(new.map(|new| Hazard::Unfetched(new.location)));
                    }
                }
            }
            Use::All => {
                for upper in [false, true] {
                    let ways = self.beside_tables(upper, None, (0, u64::MAX), None, None);
                    found.extend(ways.into_iter().map(Hazard::Way));
                }
                for cpu in self.cpus.iter().filter(|_| !self.spurious) {
                    found.extend(cpu.unseen.iter().map(|new| Hazard::Unseen(new.location)));
                }
            }
        }
        found
    }

    /// Whether this machine has a hazard too, or the translation is one of its own.
    pub(super) fn has(&self, hazard: &Hazard, what: &Use) -> bool {
        let Hazard::Way(way) = hazard else {
            return self.hazards(what, false).contains(hazard);
        };
        let (by, on) = match *what {
            Use::Range { by, on, .. } => (by, on),
            _ => (None, None),
        };
        let range = (way.first, way.last);
        let mut mine = self.in_tables(way.upper, way.asid, range);
        mine.extend(self.beside_tables(way.upper, way.asid, range, by, on));
        if matches!(what, Use::Change { .. }) {
            mine = mine.into_iter().map(Way::without_permissions).collect();
        }
        mine.retain(|one| way.is_permitted_by(one, self.spurious));
        mine.sort_by_key(|one| one.first);
        let mut next = way.first;
        for one in mine {
            if one.first > next {
                return false;
            }
            if one.last >= way.last {
                return true;
            }
            next = next.max(one.last + 1);
        }
        false
    }
}

/// Whether a use in `events`, which follow `left_out`, may do what the whole trace forbids if that event is
/// missing. `before`: the machine just before it. `ends`: the trace ends with these events, and then
/// every CPU relies on everything.
#[must_use]
pub fn matters(
    before: &Machine,
    left_out: &(u32, Event),
    events: &[(u32, Event)],
    ends: bool,
) -> bool {
    let mut whole = before.clone();
    let mut without = before.clone();
    let (cpu, event) = left_out;
    whole.apply(*cpu, event);
    without.skip();
    let stores = matches!(event, Event::Store { .. } | Event::Update { .. });
    for (at, (cpu, event)) in events.iter().enumerate() {
        let freed = matches!(event, Event::Freed { .. });
        if !freed {
            whole.apply(*cpu, event);
            without.apply(*cpu, event);
        }
        for what in without.uses(*cpu, event) {
            let hazards = without.hazards(&what, stores);
            if hazards.is_empty() {
                continue;
            }
            // Most are the same in both.
            let own: HashSet<Hazard> = whole.hazards(&what, stores).into_iter().collect();
            let mut others = hazards.iter().filter(|hazard| !own.contains(hazard));
            if others.any(|hazard| !whole.has(hazard, &what)) {
                return true;
            }
        }
        if freed {
            whole.apply(*cpu, event);
            without.apply(*cpu, event);
        }
        if !stores && at % 16 == 0 && whole.has_met(&without) {
            return false;
        }
    }
    let hazards = without.hazards(&Use::All, false);
    ends && hazards.iter().any(|hazard| !whole.has(hazard, &Use::All))
}

#[cfg(test)]
mod tests {
    use granule_trace::Barrier;

    use super::*;

    /// T0SZ and T1SZ for 48 bits, EPD1, 16-bit ASIDs.
    const TCR: u64 = 16 | 16 << 16 | 1 << 23 | 1 << 36;
    const ASID: u64 = 7 << 48;
    const TABLE: u64 = 0x1000;
    const PAGES: u64 = 0x4000;

    fn system(system: System, value: u64) -> Event {
        Event::System(system, value)
    }

    /// Returns the events that make a CPU walk the program's tree.
    fn enters(cpu: u32) -> [(u32, Event); 5] {
        [
            system(System::TCR_EL1, TCR),
            system(System::SCTLR_EL1, 1),
            system(System::TTBR0_EL1, ASID | TABLE),
            Event::Barrier(Barrier::ISB),
            Event::User,
        ]
        .map(|event| (cpu, event))
    }

    #[test]
    fn a_stale_entry_matters_where_a_cpu_that_may_hold_it_runs_the_program() {
        let mut machine = Machine::new(2);
        let tables = (TABLE..PAGES).step_by(0x1000).map(|at| (at, at + 0x1003));
        let pages = [(PAGES, 0x10_0443), (PAGES + 8, 0x10_1443)];
        for (address, descriptor) in tables.chain(pages) {
            let found = Event::found(address, descriptor);
            machine.apply(0, &found);
        }
        for (cpu, event) in enters(0) {
            machine.apply(cpu, &event);
        }
        let unmaps = Event::store(PAGES, 0);
        machine.apply(0, &unmaps);
        machine.apply(0, &Event::Barrier(Barrier::DSB_ISHST));
        let tlbi = (0, system(System::VAE1IS, ASID));
        let completed = [Barrier::DSB_ISH, Barrier::ISB].map(|one| (0, Event::Barrier(one)));
        let runs_on = |cpu| [&completed[..], &enters(cpu)].concat();
        assert!(matters(&machine, &tlbi, &runs_on(0), false));
        assert!(!matters(&machine, &tlbi, &runs_on(1), false));
        // It runs on the other, and comes back.
        let back = [runs_on(1), runs_on(0)].concat();
        assert!(matters(&machine, &tlbi, &back, false));
    }
}
