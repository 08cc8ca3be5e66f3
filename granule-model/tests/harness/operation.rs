//! The library's operations: done by the library, and done to the reference.

use crate::bench::{Bench, capabilities};
use crate::machine::machine;
use crate::reference::{Reference, Stretch};
use crate::stage::Staged;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Geometry, Page, VirtualAddress};
use granule::table::{Holes, Leaves, Piece, Stage1, TableError, lock_free};

#[derive(Clone, Debug)]
pub(crate) enum Operation<S: Staged = Stage1> {
    Map(Piece<S::Input, S::Attributes>),
    MapPieces(Vec<Piece<S::Input, S::Attributes>>),
    Unmap {
        from: u64,
        bytes: u64,
    },
    Protect {
        from: u64,
        bytes: u64,
        change: S::PermissionChange,
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
    pub(crate) const NAMES: [&str; 11] = [
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
    ];
}

impl<S: Staged> Operation<S> {
    pub(crate) const fn name(&self) -> &'static str {
        Operation::NAMES[match self {
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
            Self::Unmap { from, bytes }
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
    pub(crate) fn apply(&self, geometry: &Geometry, reference: &mut Reference<S>) {
        let (from, to) = self.range(geometry);
        let mut map = |piece: &Piece<S::Input, S::Attributes>| {
            let stretch = Stretch {
                present_invalid: false,
                bytes: piece.bytes,
                output: piece.output.0,
                attributes: S::as_kept(geometry, piece.attributes),
            };
            let start = S::address(piece.start).0;
            reference.map(start.wrapping_sub(geometry.base().0), stretch);
        };
        match self {
            Self::Map(piece) => map(piece),
            Self::MapPieces(pieces) => pieces.iter().for_each(map),
            Self::Unmap { .. } => reference.unmap(from, to),
            Self::Protect { change, .. } => {
                reference.protect(geometry, (from, to), change);
            }
            Self::SetInvalid { .. } => reference.set_invalid(from, to, true),
            Self::SetValid { .. } => reference.set_invalid(from, to, false),
            Self::LockFreeSetValid { valid, .. } => reference.set_invalid(from, to, !valid),
            Self::Merge { .. } | Self::Limit { .. } | Self::Visit { .. } | Self::VisitRuns => {}
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
                    true
                })
            }
            &Self::LockFreeSetValid { from, bytes, valid } => {
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
            &Self::Visit { from, bytes } => {
                let mut last = None;
                tables.visit(address(from), bytes, |entry| {
                    if entry.kind == granule::arch::Kind::Leaf {
                        assert!(last < Some(entry.start), "{} comes late", entry.start);
                        last = Some(entry.start);
                        let offset = S::address(entry.start).0.wrapping_sub(base);
                        let output = reference.at(offset).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0), "{}", entry.start);
                    }
                    true
                })
            }
            Self::VisitRuns => {
                let mut bytes = 0;
                tables.visit_runs(|entry| {
                    if entry.kind == granule::arch::Kind::Leaf {
                        let run = entry.bytes * entry.count as u64;
                        bytes += run;
                        let offset = S::address(entry.start).0.wrapping_sub(base);
                        let output = reference.at(offset).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0), "{}", entry.start);
                        let last = offset + run - 1;
                        let output = reference.at(last).map(|(output, _)| output);
                        assert_eq!(output, Some(entry.output.0 + run - 1), "{}", entry.start);
                    }
                    true
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
        reference: &Reference<S>,
        result: Result<(), TableError>,
    ) {
        let (from, to) = self.range(geometry);
        let offset = |address: VirtualAddress| address.0.wrapping_sub(geometry.base().0);
        let taken = || match self {
            Self::Map(_) => reference.first_mapped(from, to),
            Self::MapPieces(pieces) => pieces.iter().find_map(|piece| {
                let from = offset(S::address(piece.start));
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
            } if !S::changes_nothing(change) => reference.first_hole(from, to),
            Self::SetInvalid { .. } | Self::SetValid { .. } | Self::LockFreeSetValid { .. } => {
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
