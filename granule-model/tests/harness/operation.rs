//! The library's operations: done by the library, and done to the reference.

use crate::bench::{Bench, capabilities};
use crate::leaves::OfLeaves;
use crate::machine::machine;
use crate::reference::{Reference, Stretch};
use granule::arch::bbm::BbmLevel;
use granule::arch::{
    Attributes, Geometry, OutputFormat, Page, PhysicalAddress, Shareability, VirtualAddress,
};
use granule::table::{
    Cost, FrameRun, Frames, Holes, Leaves, PermissionChange, Piece, TableError, Visit, lock_free,
};

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Map(Piece),
    MapPieces(Vec<Piece>),
    MapFrames {
        from: u64,
        frames: Vec<FrameRun>,
        /// Each frame by itself, and not the runs.
        single: bool,
        attributes: Attributes,
        leaves: Leaves,
    },
    OfLeaves {
        from: u64,
        bytes: u64,
        does: OfLeaves,
    },
    Unmap {
        from: u64,
        bytes: u64,
    },
    Protect {
        from: u64,
        bytes: u64,
        change: PermissionChange,
        holes: Holes,
    },
    SetInvalid {
        from: u64,
        bytes: u64,
    },
    SetValid {
        from: u64,
        bytes: u64,
    },
    Merge {
        from: u64,
        bytes: u64,
        leaves: Leaves,
    },
    Limit {
        from: u64,
        bytes: u64,
        leaves: Leaves,
    },
    LockFreeSetValid {
        from: u64,
        bytes: u64,
        valid: bool,
    },
    Visit {
        from: u64,
        bytes: u64,
    },
    VisitRuns,
}

impl Operation {
    pub(crate) const NAMES: [&str; 15] = [
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
        OfLeaves::NAMES[2],
    ];

    pub(crate) const fn name(&self) -> &'static str {
        Self::NAMES[match self {
            Self::Map(_) => 0,
            Self::MapPieces(_) => 1,
            Self::Unmap { .. } => 2,
            Self::Protect { .. } => 3,
            Self::SetInvalid { .. } => 4,
            Self::SetValid { .. } => 5,
            Self::Merge { .. } => 6,
            Self::Limit { .. } => 7,
            Self::LockFreeSetValid { .. } => 8,
            Self::Visit { .. } => 9,
            Self::VisitRuns => 10,
            Self::MapFrames { .. } => 11,
            Self::OfLeaves { does, .. } => return does.name(),
        }]
    }

    /// The offsets concerned, first and end.
    pub(crate) fn range(&self, geometry: &Geometry) -> (u64, u64) {
        let base = geometry.base().0;
        match self {
            Self::Map(piece) => {
                let from = piece.start.0.wrapping_sub(base);
                (from, from + piece.bytes)
            }
            Self::MapPieces(pieces) => match (pieces.first(), pieces.last()) {
                (Some(first), Some(last)) => (
                    first.start.0.wrapping_sub(base),
                    last.start.0.wrapping_sub(base) + last.bytes,
                ),
                _ => (0, 0),
            },
            Self::MapFrames { from, frames, .. } => {
                let pages: u64 = frames.iter().map(|run| run.count).sum();
                (*from, from + pages * geometry.page_size().bytes())
            }
            Self::Unmap { from, bytes }
            | Self::OfLeaves { from, bytes, .. }
            | Self::Protect { from, bytes, .. }
            | Self::SetInvalid { from, bytes }
            | Self::SetValid { from, bytes }
            | Self::Merge { from, bytes, .. }
            | Self::Limit { from, bytes, .. }
            | Self::LockFreeSetValid { from, bytes, .. }
            | Self::Visit { from, bytes } => (*from, from + bytes),
            Self::VisitRuns => (0, geometry.span()),
        }
    }

    /// Does it to the reference.
    pub(crate) fn apply(&self, geometry: &Geometry, reference: &mut Reference) {
        let (from, to) = self.range(geometry);
        let mut map = |piece: &Piece| {
            let stretch = Stretch {
                present_invalid: false,
                bytes: piece.bytes,
                output: piece.output.0,
                attributes: as_kept(geometry, piece.attributes),
            };
            reference.map(piece.start.0.wrapping_sub(geometry.base().0), stretch);
        };
        match self {
            Self::Map(piece) => map(piece),
            Self::MapPieces(pieces) => pieces.iter().for_each(map),
            Self::MapFrames {
                frames, attributes, ..
            } => {
                let mut at = from;
                for run in frames {
                    let stretch = Stretch {
                        present_invalid: false,
                        bytes: run.count * geometry.page_size().bytes(),
                        output: run.first.0,
                        attributes: as_kept(geometry, *attributes),
                    };
                    reference.map(at, stretch);
                    at += stretch.bytes;
                }
            }
            Self::OfLeaves { does, .. } => does.apply(geometry, reference, (from, to)),
            Self::Unmap { .. } => reference.unmap(from, to),
            Self::Protect { change, .. } => reference.protect(from, to, change),
            Self::SetInvalid { .. } => reference.set_invalid(from, to, true),
            Self::SetValid { .. } => reference.set_invalid(from, to, false),
            Self::LockFreeSetValid { valid, .. } => reference.set_invalid(from, to, !valid),
            Self::Merge { .. } | Self::Limit { .. } | Self::Visit { .. } | Self::VisitRuns => {}
        }
    }

    /// Finds out what the tables know and the reference does not.
    pub(crate) fn look<P: Page>(&mut self, bench: &Bench<P>) {
        let range = self.range(&bench.geometry);
        if let Self::OfLeaves { does, .. } = self {
            does.look(bench, range);
        }
    }

    /// What the library says that it would do, if it can say.
    pub(crate) fn dry_run<P: Page>(&self, bench: &Bench<P>) -> Option<Result<Cost, TableError>> {
        let base = bench.geometry.base().0;
        let address = |from: u64| VirtualAddress(base.wrapping_add(from));
        let dry = bench.tables.dry_run();
        Some(match self {
            Self::Map(piece) => dry.map(
                piece.start,
                piece.output,
                piece.bytes,
                piece.attributes,
                piece.leaves,
            ),
            Self::MapPieces(pieces) => dry.map_pieces(pieces),
            Self::MapFrames {
                from,
                frames,
                attributes,
                leaves,
                ..
            } => dry.map_frames(address(*from), Frames::Runs(frames), *attributes, *leaves),
            &Self::Unmap { from, bytes } => dry.unmap(address(from), bytes),
            Self::Protect {
                from,
                bytes,
                change,
                holes,
            } => dry.protect(address(*from), *bytes, *change, *holes),
            &Self::SetInvalid { from, bytes } => dry.set_invalid(address(from), bytes),
            &Self::SetValid { from, bytes } => dry.set_valid(address(from), bytes),
            &Self::Limit {
                from,
                bytes,
                leaves,
            } => dry.limit_leaves(address(from), bytes, leaves),
            Self::OfLeaves { from, bytes, does } => {
                return does.dry_run(bench, (*from, from + bytes));
            }
            _ => return None,
        })
    }

    /// Does it with the library.
    pub(crate) fn perform<P: Page>(
        &self,
        bench: &mut Bench<P>,
        reference: &Reference,
    ) -> Result<(), TableError> {
        let base = bench.geometry.base().0;
        let address = |from: u64| VirtualAddress(base.wrapping_add(from));
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
            Self::OfLeaves { from, bytes, does } => {
                does.perform(bench, reference, (*from, from + bytes))
            }
            &Self::Unmap { from, bytes } => tables.unmap(address(from), bytes),
            Self::Protect {
                from,
                bytes,
                change,
                holes,
            } => tables.protect(address(*from), *bytes, *change, *holes),
            &Self::SetInvalid { from, bytes } => tables.set_invalid(address(from), bytes),
            &Self::SetValid { from, bytes } => tables.set_valid(address(from), bytes),
            &Self::Merge {
                from,
                bytes,
                leaves,
            } => tables.merge(address(from), bytes, leaves).map(|_| ()),
            &Self::Limit {
                from,
                bytes,
                leaves,
            } => {
                let before = bench.world.borrow().tables;
                let added = tables.limit_leaves(address(from), bytes, leaves)?;
                assert_eq!(bench.world.borrow().tables, before + added as u64);
                tables.visit(address(from), bytes, |entry| {
                    let grouped = entry.descriptor.is_contiguous() && !leaves.contiguous;
                    let large = entry.level < leaves.top || grouped;
                    let leaf = entry.kind == granule::arch::Kind::Leaf;
                    assert!(!(leaf && large), "{entry:?} is larger than {leaves:?}");
                    Visit::EVERYTHING
                })?;
                Ok(())
            }
            &Self::LockFreeSetValid { from, bytes, valid } => {
                let can = capabilities(&bench.shape);
                let machine = machine(&bench.world, P::SIZE, can);
                let (root, at) = (tables.root_table(), address(from));
                // SAFETY: the bench's own tree, in the model's memory, which nothing else is
                // changing; nothing uses present-invalid pages but to see it fault.
                unsafe {
                    lock_free::set_valid::<P, _>(root, bench.geometry, machine, at, bytes, valid)
                }
            }
            &Self::Visit { from, bytes } => {
                let mut last = None;
                tables.visit(address(from), bytes, |entry| {
                    if entry.kind == granule::arch::Kind::Leaf {
                        assert!(last < Some(entry.start), "{} comes late", entry.start);
                        last = Some(entry.start);
                        let offset = entry.start.0.wrapping_sub(base);
                        let output = reference.at(offset).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0), "{}", entry.start);
                    }
                    Visit::EVERYTHING
                })?;
                Ok(())
            }
            Self::VisitRuns => {
                let mut bytes = 0;
                tables.visit_runs(|entry| {
                    if entry.kind == granule::arch::Kind::Leaf {
                        let run = entry.bytes * entry.count as u64;
                        bytes += run;
                        let offset = entry.start.0.wrapping_sub(base);
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

    /// Whether the reference agrees that it fails, and why: an operation that is refused for
    /// no reason would pass every other check.
    pub(crate) fn check_result(
        &self,
        geometry: &Geometry,
        bbm_level: u8,
        reference: &Reference,
        result: Result<(), TableError>,
    ) {
        let (from, to) = self.range(geometry);
        let offset = |address: VirtualAddress| address.0.wrapping_sub(geometry.base().0);
        let taken = || match self {
            Self::Map(_) | Self::MapFrames { .. } => reference.first_mapped(from, to),
            Self::MapPieces(pieces) => pieces.iter().find_map(|piece| {
                let from = offset(piece.start);
                reference.first_mapped(from, from + piece.bytes)
            }),
            _ => None,
        };
        // A protect that changes nothing looks at nothing.
        let hole = || match self {
            Self::Protect {
                holes: Holes::Refuse,
                change,
                ..
            } if *change != PermissionChange::default() => reference.first_hole(from, to),
            Self::SetInvalid { .. } | Self::SetValid { .. } | Self::LockFreeSetValid { .. } => {
                reference.first_hole(from, to)
            }
            Self::OfLeaves { does, .. } if does.refuses_holes(geometry) => {
                reference.first_hole(from, to)
            }
            _ => None,
        };
        match result {
            Ok(()) => {
                assert_eq!(taken(), None, "mapped over what is there");
                assert_eq!(hole(), None, "holes passed over");
            }
            Err(TableError::AlreadyMapped { address }) => {
                assert_eq!(taken(), Some(offset(address)));
            }
            Err(TableError::NotMapped { address }) => {
                assert_eq!(hole(), Some(offset(address)));
            }
            Err(TableError::InsideLeaf {
                edge,
                leaf,
                leaf_bytes,
                takes,
            }) => {
                let reason = match self {
                    // Splits nothing, whatever the CPUs allow.
                    Self::LockFreeSetValid { .. } => takes > BbmLevel::Level0,
                    _ => u32::from(bbm_level) < takes.number(),
                };
                assert!(reason, "refused for no reason");
                let (edge, leaf) = (offset(edge), offset(leaf));
                let in_range = match self {
                    // Whole leaves become smaller, or would have to, wherever the range ends.
                    Self::Limit { .. } | Self::LockFreeSetValid { .. } => {
                        leaf < to && from < leaf + leaf_bytes
                    }
                    _ => edge == from || edge == to,
                };
                assert!(in_range, "an edge of the range");
                assert!(leaf < edge && edge < leaf + leaf_bytes, "inside the leaf");
                let first = reference.output(leaf);
                let last = reference.output(leaf + leaf_bytes - 1);
                let last = last.map(|output| output + 1 - leaf_bytes);
                assert!(first.is_some() && first == last, "there is such a leaf");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a descriptor keeps of attributes: the rest has no place in it.
pub(crate) fn as_kept(geometry: &Geometry, mut attributes: Attributes) -> Attributes {
    attributes.permissions.software &= 0b1111;
    if geometry.format() == OutputFormat::Lpa2 {
        attributes.shareability = Shareability::Inner;
    }
    attributes
}
