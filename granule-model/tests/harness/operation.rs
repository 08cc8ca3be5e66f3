//! The library's operations: drawn at random, done by the library, and done to the reference.

use crate::bench::Bench;
use crate::random::Random;
use crate::reference::{Reference, Stretch};
use crate::shape::units;
use granule::arch::{
    Attributes, Geometry, Level, MemoryType, OutputFormat, Page, Permissions, PhysicalAddress,
    Shareability, VirtualAddress,
};
use granule::table::{Holes, Leaves, PermissionChange, Piece, TableError};

/// Entries that one operation is asked to make at most, beyond what blocks make of it.
const MOST_ENTRIES: u64 = 700;

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Map(Piece),
    MapPieces(Vec<Piece>),
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
    Hide {
        from: u64,
        bytes: u64,
    },
    Show {
        from: u64,
        bytes: u64,
    },
    Merge {
        from: u64,
        bytes: u64,
        leaves: Leaves,
    },
    Visit {
        from: u64,
        bytes: u64,
    },
    VisitRuns,
}

impl Operation {
    pub(crate) const NAMES: [&str; 9] = [
        "map",
        "map_pieces",
        "unmap",
        "protect",
        "hide",
        "show",
        "merge",
        "visit",
        "visit_runs",
    ];

    pub(crate) const fn name(&self) -> &'static str {
        Self::NAMES[match self {
            Self::Map(_) => 0,
            Self::MapPieces(_) => 1,
            Self::Unmap { .. } => 2,
            Self::Protect { .. } => 3,
            Self::Hide { .. } => 4,
            Self::Show { .. } => 5,
            Self::Merge { .. } => 6,
            Self::Visit { .. } => 7,
            Self::VisitRuns => 8,
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
            Self::Unmap { from, bytes }
            | Self::Protect { from, bytes, .. }
            | Self::Hide { from, bytes }
            | Self::Show { from, bytes }
            | Self::Merge { from, bytes, .. }
            | Self::Visit { from, bytes } => (*from, from + bytes),
            Self::VisitRuns => (0, geometry.span()),
        }
    }

    /// Does it to the reference.
    pub(crate) fn apply(&self, geometry: &Geometry, reference: &mut Reference) {
        let (from, to) = self.range(geometry);
        let mut map = |piece: &Piece| {
            let stretch = Stretch {
                hidden: false,
                bytes: piece.bytes,
                output: piece.output.0,
                attributes: as_kept(geometry, piece.attributes),
            };
            reference.map(piece.start.0.wrapping_sub(geometry.base().0), stretch);
        };
        match self {
            Self::Map(piece) => map(piece),
            Self::MapPieces(pieces) => pieces.iter().for_each(map),
            Self::Unmap { .. } => reference.unmap(from, to),
            Self::Protect { change, .. } => reference.protect(from, to, change),
            Self::Hide { .. } => reference.hide(from, to, true),
            Self::Show { .. } => reference.hide(from, to, false),
            Self::Merge { .. } | Self::Visit { .. } | Self::VisitRuns => {}
        }
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
            &Self::Unmap { from, bytes } => tables.unmap(address(from), bytes),
            Self::Protect {
                from,
                bytes,
                change,
                holes,
            } => tables.protect(address(*from), *bytes, *change, *holes),
            &Self::Hide { from, bytes } => tables.hide(address(from), bytes),
            &Self::Show { from, bytes } => tables.show(address(from), bytes),
            &Self::Merge {
                from,
                bytes,
                leaves,
            } => tables.merge(address(from), bytes, leaves).map(|_| ()),
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
                    true
                })
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
        reference: &Reference,
        result: Result<(), TableError>,
    ) {
        let (from, to) = self.range(geometry);
        let offset = |address: VirtualAddress| address.0.wrapping_sub(geometry.base().0);
        let taken = || match self {
            Self::Map(_) => reference.first_mapped(from, to),
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
            Self::Hide { .. } | Self::Show { .. } => reference.first_hole(from, to),
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
                assert!(
                    u32::from(bbm_level) < takes.number(),
                    "refused for no reason"
                );
                let (edge, leaf) = (offset(edge), offset(leaf));
                assert!(edge == from || edge == to, "an edge of the range");
                assert!(leaf < edge && edge < leaf + leaf_bytes, "inside the leaf");
                let first = reference.at(leaf).map(|(output, _)| output);
                let last = reference.at(leaf + leaf_bytes - 1);
                let last = last.map(|(output, _)| output + 1 - leaf_bytes);
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

/// Draws operations for one shape.
pub(crate) struct Draw {
    geometry: Geometry,
    global: bool,
    units: Vec<u64>,
}

impl Draw {
    pub(crate) fn new(geometry: Geometry, global: bool) -> Self {
        Self {
            geometry,
            global,
            units: units(&geometry),
        }
    }

    const fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    pub(crate) fn operation(&self, random: &mut Random, reference: &Reference) -> Operation {
        if reference.len() > 24 {
            // Makes room: all of one end of the space, or all there is.
            let span = self.geometry.span();
            let (from, bytes) = random.of(&[(0, span / 2), (span / 2, span / 2), (0, span)]);
            return Operation::Unmap { from, bytes };
        }
        match random.below(30) {
            0..8 => {
                let place = self.place(random);
                Operation::Map(self.piece(random, place))
            }
            8..10 => Operation::MapPieces(self.pieces(random)),
            10..14 => {
                let (from, bytes) = self.target(random, reference);
                Operation::Unmap { from, bytes }
            }
            14..19 => {
                let (from, bytes) = self.target(random, reference);
                Operation::Protect {
                    from,
                    bytes,
                    change: change(random),
                    holes: random.of(&[Holes::Refuse, Holes::Skip]),
                }
            }
            19..22 => {
                // Whole blocks stay blocks when they are hidden; parts split them.
                let (from, bytes) = if random.either() {
                    self.inside(random, reference)
                } else {
                    self.target(random, reference)
                };
                Operation::Hide { from, bytes }
            }
            22..25 => {
                let hidden = reference.hidden(random.below(8) as usize);
                let (from, bytes) = hidden.unwrap_or_else(|| self.target(random, reference));
                Operation::Show { from, bytes }
            }
            25..29 => {
                let (from, bytes) = if random.once_in(4) {
                    self.target(random, reference)
                } else {
                    (0, self.geometry.span())
                };
                Operation::Merge {
                    from,
                    bytes,
                    leaves: self.leaves(random),
                }
            }
            _ if random.either() => Operation::VisitRuns,
            _ => {
                let (from, bytes) = self.target(random, reference);
                Operation::Visit { from, bytes }
            }
        }
    }

    /// A place near one of the ends or the middle of the space, and bytes.
    fn place(&self, random: &mut Random) -> (u64, u64) {
        let (span, page) = (self.geometry.span(), self.page());
        let unit = random.of(&self.units);
        let mut at = unit * random.below(5);
        if random.once_in(4) {
            at += page * random.below(40);
        }
        let mut bytes = unit * (1 + random.below(3));
        if random.once_in(4) {
            bytes += page * random.below(40);
        }
        let at = match random.below(3) {
            0 => at,
            1 => span / 2 + at,
            _ => span - unit.min(span) - at.min(span - unit),
        };
        let at = at % span / page * page;
        (at, bytes.min(span - at))
    }

    /// Mostly what is mapped, in part or with what is round it.
    fn target(&self, random: &mut Random, reference: &Reference) -> (u64, u64) {
        if reference.len() == 0 || random.once_in(4) {
            return self.place(random);
        }
        let which = random.below(reference.len() as u64) as usize;
        let Some((at, stretch)) = reference.nth(which) else {
            return self.place(random);
        };
        let unit = random.of(&self.units);
        match random.below(4) {
            // A part that begins or ends where it does.
            0 if unit < stretch.bytes => (at, unit),
            1 if unit < stretch.bytes => (at + stretch.bytes - unit, unit),
            // All of the larger unit round it.
            2 => {
                let from = at / unit * unit;
                let to = (at + stretch.bytes).next_multiple_of(unit);
                (from, to.min(self.geometry.span()) - from)
            }
            _ => (at, stretch.bytes),
        }
    }

    /// Some pages inside what is mapped, more often of what is large.
    fn inside(&self, random: &mut Random, reference: &Reference) -> (u64, u64) {
        let count = reference.len() as u64;
        let picked = (0..3).filter_map(|_| reference.nth(random.below(count.max(1)) as usize));
        let Some((at, stretch)) = picked.max_by_key(|(_, stretch)| stretch.bytes) else {
            return self.place(random);
        };
        let pages = stretch.bytes / self.page();
        let first = random.below(pages);
        let bytes = (1 + random.below(20)).min(pages - first) * self.page();
        (at + first * self.page(), bytes)
    }

    fn leaves(&self, random: &mut Random) -> Leaves {
        match random.below(4) {
            0 | 1 => Leaves::LARGEST,
            2 => Leaves::PAGES,
            _ => Leaves {
                top: random.of(&Level::ALL),
                contiguous: random.either(),
            },
        }
    }

    fn piece(&self, random: &mut Random, (at, bytes): (u64, u64)) -> Piece {
        let leaves = self.leaves(random);
        // Output and input agree in the bits below this.
        let agree = random
            .of(&self.units)
            .min(1 << (self.geometry.pa_bits() - 3));
        let base = agree.max(1 << 33);
        let top = 1_u64 << self.geometry.pa_bits();
        let most = (top / base).saturating_sub(3).max(1);
        let which = match random.below(4) {
            0 => most,
            1 => 1 + random.below(most),
            _ => 1 + random.below(most.min(4)),
        };
        let output = base * which + at % agree;
        // Tables stand below 2^33, and nothing else does.
        let mut bytes = bytes.min(top - output);
        let largest = (self.geometry.start_level().number()..=3)
            .filter_map(|number| {
                Level::ALL
                    .into_iter()
                    .find(|level| level.number() == number)
            })
            .find(|&level| {
                let entry = self.geometry.page_size().entry_bytes(level);
                level >= leaves.top
                    && self.geometry.leaf_allowed(level)
                    && output.wrapping_sub(at).is_multiple_of(entry)
            });
        let entry = largest.map_or(self.page(), |level| {
            self.geometry.page_size().entry_bytes(level)
        });
        if bytes / entry > MOST_ENTRIES {
            bytes = MOST_ENTRIES * self.page();
        }
        Piece {
            start: VirtualAddress(self.geometry.base().0.wrapping_add(at)),
            output: PhysicalAddress(output),
            bytes,
            attributes: self.attributes(random),
            leaves,
        }
    }

    fn pieces(&self, random: &mut Random) -> Vec<Piece> {
        let (mut at, _) = self.place(random);
        let mut pieces = Vec::new();
        for _ in 0..1 + random.below(4) {
            let unit = random.of(&self.units);
            at += match random.below(3) {
                0 => 0,
                1 => self.page() * random.below(40),
                _ => unit * random.below(3),
            };
            let left = self.geometry.span().saturating_sub(at);
            let bytes = (unit * (1 + random.below(2))).min(left);
            if bytes == 0 {
                break;
            }
            let piece = self.piece(random, (at, bytes));
            at += piece.bytes;
            pieces.push(piece);
        }
        pieces
    }

    fn attributes(&self, random: &mut Random) -> Attributes {
        let memory = match random.below(10) {
            0 => MemoryType::Device,
            1 => MemoryType::NormalNonCacheable,
            2 => MemoryType::DeviceStrict,
            3 => MemoryType::NormalTagged,
            4 => MemoryType::Index(5 + random.below(3) as u8),
            _ => MemoryType::Normal,
        };
        let shareability = if random.once_in(4) {
            random.of(&[Shareability::None, Shareability::Outer])
        } else {
            Shareability::Inner
        };
        Attributes {
            memory,
            shareability,
            permissions: Permissions {
                writable: random.either(),
                user: random.either(),
                privileged_execute: random.either(),
                user_execute: random.either(),
                guarded: random.either(),
                dirty_modifier: random.once_in(4),
                software: random.below(256) as u8,
            },
            accessed: !random.once_in(16),
            global: self.global,
        }
    }
}

fn change(random: &mut Random) -> PermissionChange {
    if random.once_in(3) {
        // The same for all, so that what was split agrees again.
        return PermissionChange {
            writable: Some(random.either()),
            user: Some(false),
            privileged_execute: Some(false),
            user_execute: Some(false),
            guarded: Some(false),
            software: Some(0),
        };
    }
    PermissionChange {
        writable: random.maybe(),
        user: random.maybe(),
        privileged_execute: random.maybe(),
        user_execute: random.maybe(),
        guarded: random.maybe(),
        software: random.once_in(4).then(|| random.below(256) as u8),
    }
}
