//! Checks whether an operation was refused as the reference requires. An operation that is refused
//! for no reason would pass every other check.

use crate::operation::{Does, Operation};
use crate::reference::Reference;
use crate::stage::Staged;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Geometry, VirtualAddress};
use granule::table::{Holes, TableError};
use granule_testing::walk::Arch;

impl<S: Staged> Operation<S> {
    /// Whether the reference agrees that it fails, and why.
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
            Self::Map(_) | Self::MapFrames { .. } => reference.first_mapped(from, to),
            Self::MapPieces(pieces) => pieces.iter().find_map(|piece| {
                let from = offset(S::address(piece.start));
                reference.first_mapped(from, from + piece.bytes)
            }),
            _ => None,
        };
        // A protect that changes nothing looks at nothing.
        let hole = || match self.does() {
            Some(Does::Protect(change, Holes::Refuse))
                if !S::changes_nothing(change, &Arch::of(geometry)) =>
            {
                reference.first_hole(from, to)
            }
            Some(Does::SetInvalid | Does::SetValid | Does::LockFreeSetValid(_)) => {
                reference.first_hole(from, to)
            }
            Some(Does::Leaves(does)) if does.refuses_holes() => reference.first_hole(from, to),
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
                let reason = match self.does() {
                    // Splits nothing, whatever the CPUs allow.
                    Some(Does::LockFreeSetValid(_)) => takes > BbmLevel::Level0,
                    _ => u32::from(bbm_level) < takes as u32,
                };
                assert!(reason, "refused for no reason");
                let (edge, leaf) = (offset(edge), offset(leaf));
                let in_range = match self.does() {
                    // Whole leaves become smaller, or would have to, wherever the range ends.
                    Some(Does::Limit(_) | Does::LockFreeSetValid(_)) => {
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
