//! CPUs that update leaves in the middle of an operation (TCR.HA, TCR.HD): they set access flags
//! and make pages dirty. What they note must be found later: in the leaf, or reported by a harvest.

use crate::bench::Bench;
use crate::leaves::OfLeaves;
use crate::machine::Meanwhile;
use crate::operation::{Does, Operation};
use crate::random::Random;
use crate::stage::Staged;
use granule::arch::{Descriptor, Geometry, Kind, Level, Page, PhysicalAddress, Regime};
use granule::table::Harvest;
use granule_model::Model;
use std::cell::RefCell;
use std::rc::Rc;

/// The most notes that are followed at a time.
const MOST: usize = 200;

/// A bit that a CPU set in the leaf of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    offset: u64,
    dirty: bool,
}

impl Note {
    fn is_in(self, geometry: &Geometry, leaf: Descriptor) -> bool {
        if self.dirty {
            is_managed(leaf) && is_writable(geometry, leaf)
        } else {
            leaf.0 & Descriptor::ACCESS_FLAG != 0
        }
    }
}

/// The notes that were not harvested.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    before: Vec<Note>,
    /// Those of the operation under way.
    now: Rc<RefCell<Vec<Note>>>,
    /// The number of all, and of those that a harvest reported.
    pub(crate) made: u64,
    pub(crate) reported: u64,
}

/// Whether hardware manages the dirty state of a leaf.
const fn is_managed(leaf: Descriptor) -> bool {
    leaf.0 & Descriptor::DIRTY_MODIFIER != 0
}

/// Whether stores are allowed: S2AP\[1\] set at stage 2, AP\[2\] clear at stage 1.
fn is_writable(geometry: &Geometry, leaf: Descriptor) -> bool {
    (leaf.0 >> 7 & 1 == 1) == (geometry.regime() == Regime::Stage2)
}

fn is_clean(geometry: &Geometry, leaf: Descriptor) -> bool {
    is_managed(leaf) && !is_writable(geometry, leaf)
}

/// A leaf, present-invalid or not.
struct Leaf {
    address: u64,
    entry: Descriptor,
    level: Level,
}

impl Leaf {
    /// Any leaf of the group that this one may have been in, if hardware may mark it dirty now.
    fn other_member(&self, model: &Model, geometry: &Geometry, random: &mut Random) -> Option<u64> {
        let members = geometry.page_size().contiguous_entries(self.level) as u64;
        let first = self.address & !(members * 8 - 1);
        let address = first + random.below(members) * 8;
        let entry = Descriptor(model.descriptor(address));
        let is_leaf = matches!(entry.kind(geometry, self.level), Kind::Leaf);
        (is_leaf && is_clean(geometry, entry)).then_some(address)
    }
}

fn leaf(model: &Model, geometry: &Geometry, root: PhysicalAddress, offset: u64) -> Option<Leaf> {
    let size = geometry.page_size();
    let (mut table, mut level) = (root, geometry.start_level());
    // At stage 2 several top tables may follow each other, so an index into them may be larger.
    let mut mask = u64::MAX;
    loop {
        let index = (offset >> size.level_shift(level)) & mask;
        mask = size.entries() as u64 - 1;
        let address = table.0 + index * 8;
        let entry = Descriptor(model.descriptor(address));
        match entry.kind(geometry, level) {
            Kind::Invalid => return None,
            Kind::Table => (table, level) = (geometry.address_of(entry, level), level.next()),
            _ => {
                return Some(Leaf {
                    address,
                    entry,
                    level,
                });
            }
        }
    }
}

impl Notes {
    /// Has CPUs access these offsets now and then, and more often where they did before.
    pub(crate) fn meanwhile<P: Page, S: Staged>(
        &self,
        bench: &Bench<P, S>,
        mut offsets: Vec<u64>,
        mut random: Random,
    ) -> Meanwhile {
        let (geometry, root) = (bench.geometry, bench.tables.root_table());
        let now = Rc::clone(&self.now);
        offsets.extend(self.before.iter().rev().take(4).map(|note| note.offset));
        Box::new(move |model: &mut Model| {
            if random.either() {
                return;
            }
            let offset = random.of(&offsets);
            let Some(leaf) = leaf(model, &geometry, root, offset) else {
                return;
            };
            let (mut address, mut entry) = (leaf.address, leaf.entry);
            let dirty = random.either() && is_clean(&geometry, entry);
            let va = geometry.base().0.wrapping_add(offset);
            if dirty
                && entry.0 & Descriptor::ACCESS_FLAG != 0
                && entry.0 & Descriptor::CONTIGUOUS == 0
                && model.may_mark_another_member(S::REGIME, va)
                && let Some(other) = leaf.other_member(model, &geometry, &mut random)
            {
                (address, entry) = (
                    other,
                    Descriptor(model.descriptor(other) | Descriptor::ACCESS_FLAG),
                );
            }
            if model.update_by_hardware(address, dirty) {
                let mut now = now.borrow_mut();
                if entry.0 & Descriptor::ACCESS_FLAG == 0 {
                    let dirty = false;
                    now.push(Note { offset, dirty });
                }
                if dirty {
                    now.push(Note { offset, dirty });
                }
            }
        })
    }

    /// After an operation: no note is lost.
    pub(crate) fn check<P: Page, S: Staged>(
        &mut self,
        bench: &Bench<P, S>,
        operation: &Operation<S>,
        succeeded: bool,
    ) {
        let geometry = bench.geometry;
        let range = operation.range(&geometry);
        let within = |note: &Note, (from, to): (u64, u64)| from <= note.offset && note.offset < to;
        let reported = |note: &Note| {
            let mut ranges = bench.harvested.iter();
            succeeded && ranges.any(|&range| within(note, range))
        };
        let cleared = |note: &Note| succeeded && clears(operation, *note, &geometry);
        let harvests = |note: &Note| succeeded && harvests(operation, *note);
        let world = bench.world.borrow();
        let root = bench.tables.root_table();
        let found = |note: &Note| {
            let leaf = leaf(&world.model, &geometry, root, note.offset);
            leaf.is_some_and(|leaf| note.is_in(&geometry, leaf.entry))
        };
        let now = core::mem::take(&mut *self.now.borrow_mut());
        self.made += now.len() as u64;
        for note in &self.before {
            let due = harvests(note) && within(note, range);
            assert!(
                !due || reported(note),
                "{note:?} is not reported: {operation:?}"
            );
        }
        self.before.extend(now);
        self.before.retain(|note| {
            if cleared(note) {
                return false;
            }
            let found = found(note);
            let reported = harvests(note) && reported(note);
            self.reported += u64::from(reported);
            assert!(found || reported, "{note:?} is lost: {operation:?}");
            found
        });
        // One note for each place is enough.
        self.before
            .sort_unstable_by_key(|note| (note.offset, note.dirty));
        self.before.dedup();
        self.before.truncate(MOST);
    }
}

fn clears<S: Staged>(operation: &Operation<S>, note: Note, geometry: &Geometry) -> bool {
    let (from, to) = operation.range(geometry);
    if note.offset < from || to <= note.offset {
        return false;
    }
    if let Operation::Cursor(steps) = operation {
        return steps.iter().any(|step| clears(step, note, geometry));
    }
    match operation.does() {
        Some(Does::Unmap(_)) => true,
        // The dirty modifier goes too.
        Some(Does::Protect(change, _)) => note.dirty && S::write_protects(change),
        Some(Does::Leaves(OfLeaves::Modify(change, _))) if note.dirty => {
            change.dirty == Some(false)
        }
        Some(Does::Leaves(OfLeaves::Modify(change, _))) => change.accessed == Some(false),
        _ => false,
    }
}

const fn harvests<S: Staged>(operation: &Operation<S>, note: Note) -> bool {
    match operation.does() {
        Some(Does::Leaves(OfLeaves::Harvest { what, .. })) => {
            note.dirty == matches!(what, Harvest::Dirty)
        }
        _ => false,
    }
}
