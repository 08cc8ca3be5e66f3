//! The library's operations: done by the library, and done to the reference.

use crate::bench::{Bench, capabilities};
use crate::cursor;
use crate::leaves::OfLeaves;
use crate::machine::machine;
use crate::reference::{Reference, Stretch};
use crate::stage::Staged;
use granule::arch::{Geometry, Kind, Page, PhysicalAddress, VirtualAddress};
use granule::table::{
    EmptyTables, FrameRun, Frames, Holes, Leaves, Piece, Stage1, TableError, Visit, lock_free,
};
use granule_testing::walk::Arch;

#[derive(Clone, Debug)]
pub(crate) enum Operation<S: Staged = Stage1> {
    Map(Piece<S::Input, S::Attributes>),
    MapPieces(Vec<Piece<S::Input, S::Attributes>>),
    MapFrames {
        from: u64,
        frames: Vec<FrameRun>,
        /// Each frame by itself, and not the runs.
        single: bool,
        attributes: S::Attributes,
        leaves: Leaves,
    },
    /// Operations of one page each, with one cursor.
    Cursor(Vec<Operation<S>>),
    /// Something is done to a range.
    On {
        from: u64,
        bytes: u64,
        does: Does<S>,
    },
    VisitRuns,
}

/// The operations on a range.
#[derive(Clone, Debug)]
pub(crate) enum Does<S: Staged = Stage1> {
    Leaves(OfLeaves<S>),
    Unmap(EmptyTables),
    Protect(S::PermissionChange, Holes),
    SetInvalid,
    SetValid,
    Merge(Leaves),
    Limit(Leaves),
    LockFreeSetValid(bool),
    Visit,
}

impl Operation {
    pub(crate) const NAMES: [&str; 16] = [
        "map",
        "map_pieces",
        "unmap",
        "protect",
        "set_invalid",
        "set_valid",
        "merge",
        "limit_leaves",
        "lock-free set_valid",
        "visit",
        "visit_runs",
        "map_frames",
        OfLeaves::NAMES[0],
        OfLeaves::NAMES[1],
        "unmap_keeping_tables",
        "cursor",
    ];
}

impl<S: Staged> Operation<S> {
    pub(crate) const fn on((from, bytes): (u64, u64), does: Does<S>) -> Self {
        Self::On { from, bytes, does }
    }

    /// The operation on a range, if it is one.
    pub(crate) const fn does(&self) -> Option<&Does<S>> {
        match self {
            Self::On { does, .. } => Some(does),
            _ => None,
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        Operation::NAMES[match self {
            Self::Map(_) => 0,
            Self::MapPieces(_) => 1,
            Self::VisitRuns => 10,
            Self::MapFrames { .. } => 11,
            Self::Cursor(_) => 15,
            Self::On { does, .. } => match does {
                Does::Leaves(does) => return does.name(),
                Does::Unmap(EmptyTables::Free) => 2,
                Does::Unmap(EmptyTables::Keep) => 14,
                Does::Protect(..) => 3,
                Does::SetInvalid => 4,
                Does::SetValid => 5,
                Does::Merge(_) => 6,
                Does::Limit(_) => 7,
                Does::LockFreeSetValid(_) => 8,
                Does::Visit => 9,
            },
        }]
    }

    /// The offsets concerned, first and end.
    pub(crate) fn range(&self, geometry: &Geometry) -> (u64, u64) {
        let base = geometry.base().0;
        match self {
            Self::Map(piece) => {
                let from = S::address(piece.start).0.wrapping_sub(base);
                (from, from + piece.bytes)
            }
            Self::MapPieces(pieces) => match (pieces.first(), pieces.last()) {
                (Some(first), Some(last)) => (
                    S::address(first.start).0.wrapping_sub(base),
                    S::address(last.start).0.wrapping_sub(base) + last.bytes,
                ),
                _ => (0, 0),
            },
            Self::MapFrames { from, frames, .. } => {
                let pages: u64 = frames.iter().map(|run| run.count).sum();
                (*from, from + pages * geometry.page_size().bytes())
            }
            Self::Cursor(steps) => {
                let ranges = || steps.iter().map(|step| step.range(geometry));
                let from = ranges().map(|(from, _)| from).min();
                let to = ranges().map(|(_, to)| to).max();
                (from.unwrap_or(0), to.unwrap_or(0))
            }
            Self::On { from, bytes, .. } => (*from, from + bytes),
            Self::VisitRuns => (0, geometry.span()),
        }
    }

    /// Does it to the reference.
    pub(crate) fn apply(&self, geometry: &Geometry, reference: &mut Reference<S>) {
        let (from, to) = self.range(geometry);
        let arch = Arch::of(geometry);
        let stretch = |output: PhysicalAddress, bytes, attributes| Stretch {
            present_invalid: false,
            bytes,
            output: output.0,
            attributes: S::as_decoded(attributes, &arch),
        };
        let mut map = |piece: &Piece<S::Input, S::Attributes>| {
            let start = S::address(piece.start).0.wrapping_sub(geometry.base().0);
            reference.map(start, stretch(piece.output, piece.bytes, piece.attributes));
        };
        match self {
            Self::Map(piece) => map(piece),
            Self::MapPieces(pieces) => pieces.iter().for_each(map),
            Self::MapFrames {
                frames, attributes, ..
            } => {
                let mut at = from;
                for run in frames {
                    let bytes = run.count * geometry.page_size().bytes();
                    reference.map(at, stretch(run.first, bytes, *attributes));
                    at += bytes;
                }
            }
            // Each step may fail by itself, and performing them finds out.
            Self::Cursor(_) | Self::VisitRuns => {}
            Self::On { does, .. } => match does {
                Does::Leaves(does) => does.apply(geometry, reference, (from, to)),
                Does::Unmap(_) => reference.unmap(from, to),
                Does::Protect(change, _) => {
                    reference.change(geometry, (from, to), |one| S::changed(one, change, &arch))
                }
                Does::SetInvalid => reference.set_invalid(from, to, true),
                Does::SetValid => reference.set_invalid(from, to, false),
                Does::LockFreeSetValid(valid) => reference.set_invalid(from, to, !valid),
                Does::Merge(_) | Does::Limit(_) | Does::Visit => {}
            },
        }
    }

    /// Reads from the tables what the reference does not contain.
    pub(crate) fn look<P: Page>(&mut self, bench: &Bench<P, S>) {
        let range = self.range(&bench.geometry);
        if let Self::On {
            does: Does::Leaves(does),
            ..
        } = self
        {
            does.look(bench, range);
        }
    }

    /// Does it with the library.
    pub(crate) fn perform<P: Page>(
        &self,
        bench: &mut Bench<P, S>,
        reference: &Reference<S>,
    ) -> Result<(), TableError> {
        let base = bench.geometry.base().0;
        let address = |from: u64| S::at(base.wrapping_add(from));
        let tables = &mut bench.tables;
        match self {
            Self::Map(piece) => tables.map(
                piece.start,
                piece.output,
                piece.bytes,
                piece.attributes,
                piece.leaves,
            ),
            Self::MapPieces(pieces) => tables.map_pieces(pieces),
            Self::MapFrames {
                from,
                frames,
                single,
                attributes,
                leaves,
            } => {
                let each = |run: &FrameRun| {
                    let first = run.first.0;
                    let address = move |n| PhysicalAddress(first + n * P::SIZE.bytes());
                    (0..run.count).map(address)
                };
                let singles: Vec<PhysicalAddress> = frames.iter().flat_map(each).collect();
                let frames = if *single {
                    Frames::Single(&singles)
                } else {
                    Frames::Runs(frames)
                };
                tables.map_frames(address(*from), frames, *attributes, *leaves)
            }
            Self::Cursor(steps) => cursor::perform(steps, bench, reference),
            Self::On { from, bytes, does } => does.perform((*from, *bytes), bench, reference),
            Self::VisitRuns => {
                let mut bytes = 0;
                tables.visit_runs(|entry| {
                    if entry.kind == Kind::Leaf {
                        let run = entry.bytes * entry.count as u64;
                        bytes += run;
                        let offset = S::address(entry.start).0.wrapping_sub(base);
                        let output = reference.at(offset).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0), "{}", entry.start);
                        let last = offset + run - 1;
                        let output = reference.at(last).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0 + run - 1), "{}", entry.start);
                    }
                    Visit::EVERYTHING
                });
                assert_eq!(bytes, reference.bytes(), "bytes visited");
                Ok(())
            }
        }
    }
}

impl<S: Staged> Does<S> {
    fn perform<P: Page>(
        &self,
        (from, bytes): (u64, u64),
        bench: &mut Bench<P, S>,
        reference: &Reference<S>,
    ) -> Result<(), TableError> {
        let base = bench.geometry.base().0;
        let at = S::at(base.wrapping_add(from));
        let tables = &mut bench.tables;
        match *self {
            Self::Leaves(ref does) => does.perform(bench, reference, (from, from + bytes)),
            Self::Unmap(EmptyTables::Free) => tables.unmap(at, bytes),
            Self::Unmap(EmptyTables::Keep) => {
                let before = bench.world.borrow().tables;
                let unmapped = tables.unmap_keeping_tables(at, bytes);
                // A block that is split adds tables.
                let kept = bench.world.borrow().tables >= before;
                assert!(kept, "tables that are to be kept were freed");
                unmapped
            }
            Self::Protect(change, holes) => tables.protect(at, bytes, change, holes),
            Self::SetInvalid => tables.set_invalid(at, bytes),
            Self::SetValid => tables.set_valid(at, bytes),
            Self::Merge(leaves) => tables.merge(at, bytes, leaves).map(|_| ()),
            Self::Limit(leaves) => {
                let before = bench.world.borrow().tables;
                let added = tables.limit_leaves(at, bytes, leaves)?;
                assert_eq!(bench.world.borrow().tables, before + added as u64);
                tables.visit(at, bytes, |entry| {
                    let grouped = entry.descriptor.is_contiguous() && !leaves.contiguous;
                    let large = entry.level < leaves.top || grouped;
                    let leaf = entry.kind == Kind::Leaf;
                    assert!(!(leaf && large), "{entry:?} is larger than {leaves:?}");
                    Visit::EVERYTHING
                })?;
                Ok(())
            }
            Self::LockFreeSetValid(valid) => {
                let can = capabilities(&bench.shape);
                let machine = machine(&bench.world, P::SIZE, can);
                let root = tables.root_table();
                let at = VirtualAddress(base.wrapping_add(from));
                assert!(S::LOCK_FREE, "stage 2 has no operation without the lock");
                // SAFETY: the bench's own tree, in the model's memory, which nothing else is
                // changing; nothing uses present-invalid pages but to see it fault.
                unsafe {
                    lock_free::set_valid::<P, _>(root, bench.geometry, machine, at, bytes, valid)
                }
            }
            Self::Visit => {
                let mut last = None;
                tables.visit(at, bytes, |entry| {
                    if entry.kind == Kind::Leaf {
                        assert!(last < Some(entry.start), "{} comes late", entry.start);
                        last = Some(entry.start);
                        let offset = S::address(entry.start).0.wrapping_sub(base);
                        let output = reference.at(offset).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0), "{}", entry.start);
                    }
                    Visit::EVERYTHING
                })?;
                Ok(())
            }
        }
    }
}
