//! The operations on the other fields of leaves, beside output and permissions: memory type,
//! shareability, access flag and dirty state; done by the library, and done to the reference.

use crate::bench::Bench;
use crate::random::Random;
use crate::reference::Reference;
use crate::stage::Staged;
use granule::arch::{Kind, Page, Shareability};
use granule::table::{Harvest, Holes, Stage1, TableError, Visit};
use granule_model::{Barrier, Event};

/// A change of attributes: of those that are named.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeChange<M> {
    pub(crate) memory: Option<M>,
    pub(crate) shareability: Option<Shareability>,
    pub(crate) accessed: Option<bool>,
    /// Of leaves whose dirty state hardware manages.
    pub(crate) dirty: Option<bool>,
}

impl<M: Copy> AttributeChange<M> {
    /// No change.
    pub(crate) const NONE: Self = Self {
        memory: None,
        shareability: None,
        accessed: None,
        dirty: None,
    };

    fn apply<S: Staged<Memory = M>>(&self, attributes: &mut S::Attributes) {
        let parts = S::parts(attributes);
        *parts.memory = self.memory.unwrap_or(*parts.memory);
        *parts.shareability = self.shareability.unwrap_or(*parts.shareability);
        *parts.accessed = self.accessed.unwrap_or(*parts.accessed);
        if *parts.dirty_modifier {
            *parts.writable = self.dirty.unwrap_or(*parts.writable);
        }
    }
}

/// An operation on leaves, of a range that [`Operation`](crate::operation::Operation) has.
#[derive(Clone, Debug)]
pub(crate) enum OfLeaves<S: Staged = Stage1> {
    Modify(AttributeChange<S::Memory>, Holes),
    Harvest {
        what: Harvest,
        /// The offsets of the leaves that the range meets, as the tables have them.
        whole: (u64, u64),
    },
}

/// Whether a leaf's access flag is set, or whether it is dirty.
fn is_noted<S: Staged>(what: Harvest, attributes: S::Attributes) -> bool {
    match what {
        Harvest::Accessed { .. } => S::accessed(&attributes),
        _ => S::dirty_state(&attributes) == Some(true),
    }
}

impl OfLeaves {
    pub(crate) const NAMES: [&str; 2] = ["modify", "harvest"];
}

impl<S: Staged> OfLeaves<S> {
    pub(crate) const fn name(&self) -> &'static str {
        OfLeaves::NAMES[match self {
            Self::Modify(..) => 0,
            Self::Harvest { .. } => 1,
        }]
    }

    /// Any of them. Without updates by hardware an access flag that is harvested without a TLBI
    /// makes some accesses fault and others not, so that is left out there.
    pub(crate) fn draw(random: &mut Random, hardware: bool) -> Self {
        let holes = random.of(&[Holes::Refuse, Holes::Skip]);
        match random.below(8) {
            0..6 => Self::Modify(change::<S>(random), holes),
            6 => Self::harvest(Harvest::Dirty),
            _ => Self::harvest(Harvest::Accessed {
                invalidate: !hardware || random.either(),
            }),
        }
    }

    pub(crate) const fn harvest(what: Harvest) -> Self {
        let whole = (0, 0);
        Self::Harvest { what, whole }
    }

    /// Finds the leaves that an end of the range cuts. A harvest takes them whole.
    pub(crate) fn look<P: Page>(&mut self, bench: &Bench<P, S>, (from, to): (u64, u64)) {
        let Self::Harvest { whole, .. } = self else {
            return;
        };
        *whole = (from, to);
        let base = bench.geometry.base().0;
        let at = S::at(base.wrapping_add(from));
        let visited = bench.tables.visit(at, to - from, |entry| {
            if matches!(entry.kind, Kind::Leaf | Kind::PresentInvalid) {
                let group = if entry.descriptor.is_contiguous() {
                    P::SIZE.contiguous_entries(entry.level) as u64
                } else {
                    1
                };
                let bytes = entry.bytes * group;
                let start = S::address(entry.start).0.wrapping_sub(base) & !(bytes - 1);
                *whole = (whole.0.min(start), whole.1.max(start + bytes));
            }
            Visit::EVERYTHING
        });
        assert!(visited.is_ok(), "{visited:?}");
    }

    /// Does it to the reference.
    pub(crate) fn apply(
        &self,
        geometry: &granule::arch::Geometry,
        reference: &mut Reference<S>,
        range: (u64, u64),
    ) {
        match *self {
            Self::Modify(change, _) => reference.change(geometry, range, |mut attributes| {
                change.apply::<S>(&mut attributes);
                attributes
            }),
            Self::Harvest { what, whole } => reference.change(geometry, whole, |mut attributes| {
                if is_noted::<S>(what, attributes) {
                    let parts = S::parts(&mut attributes);
                    match what {
                        Harvest::Accessed { .. } => *parts.accessed = false,
                        _ => *parts.writable = false,
                    }
                }
                attributes
            }),
        }
    }

    /// Does it with the library.
    pub(crate) fn perform<P: Page>(
        &self,
        bench: &mut Bench<P, S>,
        reference: &Reference<S>,
        (from, to): (u64, u64),
    ) -> Result<(), TableError> {
        let base = bench.geometry.base().0;
        let (at, bytes) = (S::at(base.wrapping_add(from)), to - from);
        let tables = &mut bench.tables;
        match *self {
            Self::Modify(change, holes) => {
                tables.modify(at, bytes, holes, |one| change.apply::<S>(one))
            }
            Self::Harvest { what, whole } => {
                let mut found: Vec<(u64, u64)> = Vec::new();
                tables.harvest(at, bytes, what, |start, bytes| {
                    let start = S::address(start).0.wrapping_sub(base);
                    assert!(
                        found.last().is_none_or(|last| last.1 < start),
                        "one run each"
                    );
                    found.push((start, start + bytes));
                })?;
                if !reference.hardware {
                    let noted = reference.parts_where(whole, |one| is_noted::<S>(what, one));
                    assert_eq!(found, noted, "what is reported");
                }
                bench.harvested = found;
                if what == (Harvest::Accessed { invalidate: false }) {
                    // No barrier either: nobody relies on an estimate before the next one of this
                    // CPU.
                    bench.event(Event::Barrier(Barrier::DSB_ISHST));
                }
                Ok(())
            }
        }
    }

    /// Whether a hole in the range is an error.
    pub(crate) fn refuses_holes(&self) -> bool {
        matches!(self, Self::Modify(_, Holes::Refuse))
    }
}

fn change<S: Staged>(random: &mut Random) -> AttributeChange<S::Memory> {
    let mut change = AttributeChange::NONE;
    if random.once_in(3) {
        // In place.
        if random.either() {
            change.accessed = Some(random.either());
        } else {
            change.dirty = Some(random.either());
        }
        return change;
    }
    change.memory = random.either().then(|| S::memory(random));
    if random.either() {
        change.shareability = Some(random.of(&[
            Shareability::Inner,
            Shareability::Inner,
            Shareability::Outer,
            Shareability::None,
        ]));
    }
    change.accessed = random.maybe();
    change.dirty = random.maybe();
    change
}
