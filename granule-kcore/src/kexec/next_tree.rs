//! The device tree for the next kernel: a copy of the machine's own tree, except for `/chosen` and the
//! memory reservations. Pure.
//!
//! One pass over the old tree writes the new one. The structure is copied token by token, and the
//! strings are copied unchanged, with new names behind them. So nothing of the tree has to be stored,
//! and nodes that this kernel does not understand arrive unchanged. The old tree came from firmware or
//! another kernel and is untrusted: the pass ends for any bytes, with a tree or with an error that
//! states the offset. `granule_boot::tree` reads; this file writes.

use super::handoff_note as note;
use core::fmt;
use granule_boot::tree::{self, Name, Node, Token, Tree};
use granule_kexec::PhysRange;

const MAGIC: u32 = 0xd00d_feed;
const HEADER: usize = 40;
/// The version of the written tree, and the oldest version that its readers must know; both are from
/// the specification.
const VERSION: u32 = 17;
const LAST_COMPATIBLE: u32 = 16;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const END: u32 = 9;

const BOOTARGS: &[u8] = b"bootargs";
const INITRD_START: &[u8] = b"linux,initrd-start";
const INITRD_END: &[u8] = b"linux,initrd-end";
const KASLR_SEED: &[u8] = b"kaslr-seed";
const RNG_SEED: &[u8] = b"rng-seed";
/// Properties that a previous kernel wrote for this kernel alone. They name memory that this kernel does
/// not keep. `linux,usable-memory-range` is none of them: the memory outside it is still another kernel's,
/// for example the dump of one that crashed.
const LEFT_BEHIND: [&[u8]; 2] = [b"linux,elfcorehdr", b"linux,ima-kexec-buffer"];

/// Bytes of a new `rng-seed`: the size of the state of a reader's generator.
pub const SEED_BYTES: usize = 32;

/// Random numbers for the next kernel only.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// For `kaslr-seed`. The old tree's seed is mixed in, because firmware's may be better than this
    /// kernel's.
    pub kaslr: u64,
    /// For `rng-seed`, from hardware only: a reader trusts every bit of it as secret. Without hardware
    /// the new tree has none.
    pub rng: Option<[u8; SEED_BYTES]>,
}

/// The changes from the old tree.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    /// The command line, without a NUL.
    pub command_line: &'a [u8],
    /// Destination of the initramfs, if there is one.
    pub initrd: Option<PhysRange>,
    /// The note's memory.
    pub note: PhysRange,
    /// Memory that the next kernel must keep, beside the existing reservations.
    pub kept: &'a [PhysRange],
    /// This kernel's copy of the old tree: its reservation is dropped.
    pub old: PhysRange,
    /// The seeds, new for each kernel.
    pub seeds: Seeds,
}

/// Why the tree for the next kernel cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTreeError {
    /// The machine's own tree cannot be read.
    Malformed(tree::TreeError),
    /// The new tree does not fit into its memory.
    Full {
        /// Bytes of that memory.
        room: usize,
    },
    /// The new tree's length differs from the measured one.
    Length {
        /// Bytes as measured.
        measured: usize,
        /// Bytes as written.
        written: usize,
    },
}

impl fmt::Display for NextTreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(
                f,
                "the machine's device tree is malformed, there is none to give to the next kernel: {error}"
            ),
            Self::Full { room } => write!(
                f,
                "the device tree for the next kernel takes more than {room} bytes"
            ),
            Self::Length { measured, written } => write!(
                f,
                "the device tree for the next kernel has {written} bytes, and {measured} were measured for its place: this is a fault of this kernel's, report it with the device tree"
            ),
        }
    }
}

impl core::error::Error for NextTreeError {}

impl From<tree::TreeError> for NextTreeError {
    fn from(error: tree::TreeError) -> Self {
        Self::Malformed(error)
    }
}

type Done<T = ()> = Result<T, NextTreeError>;

/// An upper bound for the bytes of the new tree.
pub fn most_bytes(old: &[u8], changes: &Changes<'_>) -> Done<usize> {
    let tree = Old::read(old)?;
    // A tree may have much unused room.
    let mut used = tree.tree.structure_bytes() + tree.strings.len();
    tree.reservations(changes, |_| {
        used += 16;
        Ok(())
    })?;
    // New are some properties with their names, a node and the end of the reservations, each aligned.
    Ok(used + changes.command_line.len() + HEADER + 512)
}

/// Writes the new tree to `into` and returns its length in bytes, which does not depend on any
/// address.
pub fn write(old: &[u8], changes: &Changes<'_>, into: &mut [u8]) -> Done<usize> {
    let old = Old::read(old)?;
    let mut new = New { into, at: 0 };
    new.put(&[0; HEADER])?;
    let reservations = new.at;
    old.reservations(changes, |extent| {
        new.put(&extent.start.to_be_bytes())?;
        new.put(&extent.bytes.to_be_bytes())
    })?;
    new.put(&[0; 16])?;
    let structure = new.at;
    old.structure(&mut Rewriter {
        new: &mut new,
        old: &old,
        changes,
        was: old.was(changes)?,
    })?;
    let strings = new.at;
    new.put(old.strings)?;
    for name in NAMES.into_iter().filter(|name| old.has_no(name)) {
        new.put(name)?;
        new.put(&[0])?;
    }
    let total = new.at;
    let header = [
        MAGIC,
        total as u32,
        structure as u32,
        strings as u32,
        reservations as u32,
        VERSION,
        LAST_COMPATIBLE,
        old.tree.boot_cpu(),
        (total - strings) as u32,
        (strings - structure) as u32,
    ];
    let (words, _) = new.into.as_chunks_mut::<4>();
    for (to, word) in words.iter_mut().zip(header) {
        *to = word.to_be_bytes();
    }
    Ok(total)
}

/// Checks that a tree has the length for which its place was chosen.
pub const fn same_length(measured: usize, written: usize) -> Done {
    if measured == written {
        Ok(())
    } else {
        Err(NextTreeError::Length { measured, written })
    }
}

/// The names that the new tree needs. Names missing from the old strings are appended in this order.
const NAMES: [&[u8]; 6] = [
    BOOTARGS,
    INITRD_START,
    INITRD_END,
    KASLR_SEED,
    RNG_SEED,
    note::PROPERTY.as_bytes(),
];

/// The old tree.
struct Old<'a> {
    tree: Tree<'a>,
    strings: &'a [u8],
}

impl<'a> Old<'a> {
    fn read(bytes: &'a [u8]) -> Done<Self> {
        let tree = Tree::new(bytes)?;
        let strings = tree.strings();
        Ok(Self { tree, strings })
    }

    /// The parts of the tree that concern this kernel alone.
    fn was(&self, changes: &Changes<'_>) -> Done<Was> {
        let mut was = Was {
            tree: changes.old,
            ..Was::default()
        };
        self.structure(&mut was)?;
        Ok(was)
    }

    /// Calls `each` with the new reservations: the old ones without those for this kernel alone, then
    /// the kept memory. The note always adds one reservation, wherever it is: its place is unknown
    /// when the tree is measured, so the length must not depend on it. The note lies in memory that
    /// was free, so never in an older reservation.
    fn reservations(&self, changes: &Changes<'_>, mut each: impl FnMut(PhysRange) -> Done) -> Done {
        let was = self.was(changes)?;
        for range in self.tree.reservations()? {
            let range = PhysRange::new(range.start, range.bytes);
            if !was.has(&range) && !changes.kept.contains(&range) {
                each(range)?;
            }
        }
        let kept = changes.kept.iter().chain([&changes.note]);
        kept.copied().try_for_each(each)
    }

    /// Walks the structure. The `/chosen` that changes is the one that `Node::child` finds: the first, with
    /// or without a unit address.
    fn structure(&self, visit: &mut impl Visit) -> Done {
        let mut walk = self.tree.walk();
        let (mut inside, mut seen) = (false, false);
        while let Some(token) = walk.next()? {
            // Of the node that begins or has the property, or around the one that ended.
            let depth = walk.depth();
            match token {
                Token::Begin { name } => {
                    let is_chosen = || Node::just_begun(&walk, name).is_named(b"chosen");
                    let chosen = depth == 2 && !seen && is_chosen();
                    inside |= chosen;
                    seen |= chosen;
                    visit.begin(name, chosen)?;
                }
                Token::Property { name, value } => {
                    visit.property(depth == 2 && inside, name, value)?;
                }
                _ => {
                    visit.end(depth == 0 && !seen)?;
                    inside &= depth != 1;
                }
            }
        }
        visit.finish()
    }

    /// Offset of a name in the old strings.
    fn place_of(&self, name: &[u8]) -> Option<usize> {
        let whole = |at: &[u8]| {
            at.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(&[0]))
        };
        let mut names = self.strings.windows(name.len() + 1);
        names.position(whole)
    }

    fn has_no(&self, name: &[u8]) -> bool {
        self.place_of(name).is_none()
    }

    /// Offset of one of [`NAMES`] in the new strings.
    fn new_place_of(&self, name: &[u8]) -> usize {
        self.place_of(name).unwrap_or_else(|| {
            let before = NAMES.iter().take_while(|it| **it != name);
            let behind = before.filter(|it| self.has_no(it));
            self.strings.len() + behind.map(|it| it.len() + 1).sum::<usize>()
        })
    }
}

/// The callbacks of a walk over a structure.
trait Visit {
    fn begin(&mut self, name: &[u8], chosen: bool) -> Done;
    /// A property, and whether its node is `/chosen`.
    fn property(&mut self, in_chosen: bool, name: Name<'_>, value: &[u8]) -> Done;
    /// The end of a node; `without_chosen` is set for a root that had no `/chosen`.
    fn end(&mut self, without_chosen: bool) -> Done;
    fn finish(&mut self) -> Done;
}

/// Data that only this kernel needs: the tree, initramfs and note that it was given, whose
/// reservations are dropped, and its seed.
#[derive(Default)]
struct Was {
    tree: PhysRange,
    initrd_start: u64,
    initrd_end: u64,
    note: Option<u64>,
    kaslr_seed: u64,
}

impl Was {
    fn has(&self, extent: &PhysRange) -> bool {
        let bytes = self.initrd_end.saturating_sub(self.initrd_start);
        let initrd = PhysRange::new(self.initrd_start, bytes);
        *extent == self.tree || *extent == initrd || self.note == Some(extent.start)
    }
}

impl Visit for Was {
    fn begin(&mut self, _: &[u8], _: bool) -> Done {
        Ok(())
    }
    fn property(&mut self, in_chosen: bool, name: Name<'_>, value: &[u8]) -> Done {
        if !in_chosen {
            return Ok(());
        }
        let number = match *value {
            [a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
            _ => value.first_chunk().map_or(0, |it| u64::from_be_bytes(*it)),
        };
        match name.bytes() {
            INITRD_START => self.initrd_start = number,
            INITRD_END => self.initrd_end = number,
            KASLR_SEED => self.kaslr_seed = number,
            name if name == note::PROPERTY.as_bytes() => self.note = Some(number),
            _ => {}
        }
        Ok(())
    }
    fn end(&mut self, _: bool) -> Done {
        Ok(())
    }
    fn finish(&mut self) -> Done {
        Ok(())
    }
}

/// Writes the new structure.
struct Rewriter<'n, 'b, 'o, 'c> {
    new: &'n mut New<'b>,
    old: &'o Old<'o>,
    changes: &'c Changes<'c>,
    was: Was,
}

impl Rewriter<'_, '_, '_, '_> {
    fn own(&mut self, name: &[u8], value: &[&[u8]]) -> Done {
        let length: usize = value.iter().map(|it| it.len()).sum();
        self.new.token(PROPERTY)?;
        self.new.token(length as u32)?;
        self.new.token(self.old.new_place_of(name) as u32)?;
        for piece in value {
            self.new.put(piece)?;
        }
        self.new.align()
    }

    /// Writes the properties that `/chosen` begins with.
    fn chosen(&mut self) -> Done {
        let changes = self.changes;
        self.own(BOOTARGS, &[changes.command_line, &[0]])?;
        if let Some(initrd) = changes.initrd {
            let end = initrd.start.saturating_add(initrd.bytes);
            self.own(INITRD_START, &[&initrd.start.to_be_bytes()])?;
            self.own(INITRD_END, &[&end.to_be_bytes()])?;
        }
        let kaslr = self.was.kaslr_seed ^ changes.seeds.kaslr;
        self.own(KASLR_SEED, &[&kaslr.to_be_bytes()])?;
        if let Some(seed) = &changes.seeds.rng {
            self.own(RNG_SEED, &[seed])?;
        }
        let note = &changes.note.start.to_be_bytes();
        self.own(note::PROPERTY.as_bytes(), &[note])
    }
}

impl Visit for Rewriter<'_, '_, '_, '_> {
    fn begin(&mut self, name: &[u8], chosen: bool) -> Done {
        self.new.token(BEGIN_NODE)?;
        self.new.put(name)?;
        self.new.put(&[0])?;
        self.new.align()?;
        if chosen { self.chosen() } else { Ok(()) }
    }

    fn property(&mut self, in_chosen: bool, name: Name<'_>, value: &[u8]) -> Done {
        let text = name.bytes();
        if in_chosen && (NAMES.contains(&text) || LEFT_BEHIND.contains(&text)) {
            return Ok(());
        }
        self.new.token(PROPERTY)?;
        self.new.token(value.len() as u32)?;
        self.new.token(name.offset())?;
        self.new.put(value)?;
        self.new.align()
    }

    fn end(&mut self, without_chosen: bool) -> Done {
        if without_chosen {
            self.begin(b"chosen", true)?;
            self.new.token(END_NODE)?;
        }
        self.new.token(END_NODE)
    }

    fn finish(&mut self) -> Done {
        self.new.token(END)
    }
}

struct New<'a> {
    into: &'a mut [u8],
    at: usize,
}

impl New<'_> {
    fn put(&mut self, bytes: &[u8]) -> Done {
        let room = self.into.len();
        let end = self.at.saturating_add(bytes.len());
        let to = self.into.get_mut(self.at..end);
        let to = to.ok_or(NextTreeError::Full { room })?;
        for (to, from) in to.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.at = end;
        Ok(())
    }

    fn token(&mut self, word: u32) -> Done {
        self.put(&word.to_be_bytes())
    }

    fn align(&mut self) -> Done {
        let missing = self.at.next_multiple_of(4) - self.at;
        self.put([0; 3].get(..missing).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
