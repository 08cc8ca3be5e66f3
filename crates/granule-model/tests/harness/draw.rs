//! Operations drawn at random: kinds, ranges that meet what is mapped, sizes of leaves, attributes.

use crate::leaves::OfLeaves;
use crate::operation::{Does, Operation};
use crate::random::Random;
use crate::reference::Reference;
use crate::shape::{Shape, units};
use crate::stage::Staged;
use granule::arch::{Geometry, Level, PhysicalAddress};
use granule::table::{EmptyTables, FrameRun, Holes, Leaves, Piece, Stage1};
use std::marker::PhantomData;

/// The most entries that one operation is to make, beyond what blocks make of it.
const MOST_ENTRIES: u64 = 700;
/// Entries that limiting leaves makes of blocks at most.
const MOST_LIMITED: u64 = 1 << 13;

/// Draws operations for one shape.
pub(crate) struct Draw<S: Staged = Stage1> {
    geometry: Geometry,
    stage: PhantomData<S>,
    global: bool,
    /// Hardware updates leaves.
    hardware: bool,
    units: Vec<u64>,
}

impl<S: Staged> Draw<S> {
    pub(crate) fn new(geometry: Geometry, shape: &Shape) -> Self {
        Self {
            geometry,
            stage: PhantomData,
            global: shape.asid.is_none(),
            hardware: shape.hardware,
            units: units(&geometry),
        }
    }

    const fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    pub(crate) fn operation(&self, random: &mut Random, reference: &Reference<S>) -> Operation<S> {
        if reference.len() > 24 {
            // Makes room: all of one end of the space, or all there is.
            let span = self.geometry.span();
            let range = random.of(&[(0, span / 2), (span / 2, span / 2), (0, span)]);
            return Operation::on(range, Does::Unmap(EmptyTables::Free));
        }
        match random.below(51) {
            0..8 => {
                let place = self.place(random);
                Operation::Map(self.piece(random, place))
            }
            8..10 => Operation::MapPieces(self.pieces(random)),
            10..14 => {
                let range = self.target(random, reference);
                let empty = random.of(&[EmptyTables::Free, EmptyTables::Free, EmptyTables::Keep]);
                Operation::on(range, Does::Unmap(empty))
            }
            14..19 => {
                let range = self.target(random, reference);
                let change = S::change(random);
                let holes = random.of(&[Holes::Refuse, Holes::Skip]);
                Operation::on(range, Does::Protect(change, holes))
            }
            19..22 => {
                // Whole blocks stay blocks when they are present-invalid; parts split them.
                let range = if random.either() {
                    self.inside(random, reference)
                } else {
                    self.target(random, reference)
                };
                Operation::on(range, Does::SetInvalid)
            }
            22..25 => Operation::on(self.hidden(random, reference), Does::SetValid),
            25..29 | 47..49 => {
                let range = if random.once_in(4) {
                    self.target(random, reference)
                } else {
                    (0, self.geometry.span())
                };
                let leaves = if random.either() {
                    Leaves::LARGEST
                } else {
                    self.leaves(random)
                };
                Operation::on(range, Does::Merge(leaves))
            }
            29..31 => self.limit(random, reference),
            31 if S::LOCK_FREE => {
                let range = self.target(random, reference);
                Operation::on(range, Does::LockFreeSetValid(false))
            }
            32 if S::LOCK_FREE => {
                let range = self.hidden(random, reference);
                Operation::on(range, Does::LockFreeSetValid(true))
            }
            33..35 => self.frames(random),
            35..43 => {
                let range = match random.below(3) {
                    0 => self.inside(random, reference),
                    _ => self.target(random, reference),
                };
                let does = OfLeaves::draw(random, self.hardware);
                Operation::on(range, Does::Leaves(does))
            }
            43..47 => Operation::Cursor(self.steps(random, reference)),
            _ if random.either() => Operation::VisitRuns,
            _ => Operation::on(self.target(random, reference), Does::Visit),
        }
    }

    /// Mostly what is present-invalid.
    fn hidden(&self, random: &mut Random, reference: &Reference<S>) -> (u64, u64) {
        let present_invalid = reference.present_invalid(random.below(8) as usize);
        present_invalid.unwrap_or_else(|| self.target(random, reference))
    }

    /// Smaller leaves for a range; as small as requested unless that made too many of them.
    fn limit(&self, random: &mut Random, reference: &Reference<S>) -> Operation<S> {
        let (from, bytes) = if random.either() {
            self.inside(random, reference)
        } else {
            self.target(random, reference)
        };
        let mut leaves = self.leaves(random);
        leaves.top = leaves.top.max(self.geometry.start_level());
        // Leaves that reach out of the range are split whole.
        let sizes = self.geometry.leaf_sizes().map(|leaf| leaf.bytes);
        let largest = sizes.max().unwrap_or(self.page());
        let to = (from + bytes).next_multiple_of(largest);
        let mapped = reference.bytes_between(from / largest * largest, to);
        let entries = |level| mapped / self.geometry.page_size().entry_bytes(level);
        while entries(leaves.top) > MOST_LIMITED {
            let larger = Level::ALL.into_iter().rfind(|level| *level < leaves.top);
            let Some(larger) = larger else { break };
            leaves.top = larger;
        }
        Operation::on((from, bytes), Does::Limit(leaves))
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
    fn target(&self, random: &mut Random, reference: &Reference<S>) -> (u64, u64) {
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
    fn inside(&self, random: &mut Random, reference: &Reference<S>) -> (u64, u64) {
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

    /// A few runs of frames, some of which follow each other, as long as blocks or short.
    fn frames(&self, random: &mut Random) -> Operation<S> {
        let page = self.page();
        let (from, bytes) = self.place(random);
        let mut left = bytes / page;
        let attributes = self.attributes(random);
        let mut frames: Vec<FrameRun> = Vec::new();
        for _ in 0..1 + random.below(5) {
            let count = match random.below(4) {
                0 => random.of(&self.units) / page,
                1 => 0,
                _ => 1 + random.below(40),
            };
            let count = count.min(left).min(MOST_ENTRIES);
            left -= count;
            // Tables stand below 2^33, and nothing else does.
            let at = from % (1 << 33) / page * page;
            let output = (1 << 33) * (1 + random.below(6)) + at + page * random.below(3);
            let first = match frames.last() {
                Some(last) if random.either() => PhysicalAddress(last.first.0 + last.count * page),
                _ => PhysicalAddress(output),
            };
            frames.push(FrameRun { first, count });
        }
        Operation::MapFrames {
            from,
            frames,
            single: random.either(),
            attributes,
            leaves: self.leaves(random),
        }
    }

    /// Operations of a page each, mostly of pages that follow each other, and mostly alike.
    fn steps(&self, random: &mut Random, reference: &Reference<S>) -> Vec<Operation<S>> {
        let page = self.page();
        let last = self.geometry.span() - page;
        let (at, bytes) = match random.below(3) {
            0 => self.place(random),
            1 => self.inside(random, reference),
            _ => self.target(random, reference),
        };
        // At the beginning, or where one range ends and others begin.
        let mut at = if random.either() {
            at
        } else {
            (at + bytes).saturating_sub(page * random.below(4))
        };
        let first = at.min(last);
        let like = self.piece(random, (first, page));
        let mostly = random.below(4);
        let mut steps = Vec::new();
        for _ in 0..1 + random.below(12) {
            at = at.min(last);
            let which = if random.once_in(4) {
                random.below(3)
            } else {
                mostly
            };
            steps.push(match which {
                0 => {
                    let empty = random.of(&[EmptyTables::Free, EmptyTables::Keep]);
                    Operation::on((at, page), Does::Unmap(empty))
                }
                1 => {
                    let change = S::change(random);
                    let holes = random.of(&[Holes::Refuse, Holes::Skip]);
                    Operation::on((at, page), Does::Protect(change, holes))
                }
                _ => {
                    let piece = if random.once_in(8) {
                        self.piece(random, (at, page))
                    } else {
                        like
                    };
                    // Outputs follow each other as the pages do.
                    let output = piece.output.0 + at.saturating_sub(first);
                    Operation::Map(Piece {
                        start: S::at(self.geometry.base().0.wrapping_add(at)),
                        output: PhysicalAddress(output),
                        bytes: page,
                        leaves: Leaves::PAGES,
                        ..piece
                    })
                }
            });
            at = match random.below(8) {
                0 => at,
                1 => at.saturating_sub(page * random.below(3)),
                2 => at + page * random.below(8),
                _ => at + page,
            };
        }
        steps
    }

    fn attributes(&self, random: &mut Random) -> S::Attributes {
        let mut attributes = S::attributes(random, self.global);
        if self.hardware {
            // There is more that it may update.
            let parts = S::parts(&mut attributes);
            *parts.accessed = !random.once_in(3);
            *parts.dirty_modifier |= random.either();
        }
        attributes
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

    fn piece(
        &self,
        random: &mut Random,
        (at, bytes): (u64, u64),
    ) -> Piece<S::Input, S::Attributes> {
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
                    && self.geometry.leaf_sizes().any(|size| size.level == level)
                    && output.wrapping_sub(at).is_multiple_of(entry)
            });
        let entry = largest.map_or(self.page(), |level| {
            self.geometry.page_size().entry_bytes(level)
        });
        if bytes / entry > MOST_ENTRIES {
            bytes = MOST_ENTRIES * self.page();
        }
        Piece {
            start: S::at(self.geometry.base().0.wrapping_add(at)),
            output: PhysicalAddress(output),
            bytes,
            attributes: self.attributes(random),
            leaves,
        }
    }

    fn pieces(&self, random: &mut Random) -> Vec<Piece<S::Input, S::Attributes>> {
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
}
