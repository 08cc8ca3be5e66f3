//! The device tree for the next kernel: the machine's own, byte for byte, but for what `/chosen` says
//! and which memory is reserved. Pure.
//!
//! Written in one pass over the tree as it is: its structure goes through token by token, its strings
//! as they are with the new names behind them. So nothing has to be held of it, and what this kernel
//! does not understand arrives unchanged. The tree came from firmware or from another kernel: whatever
//! its bytes, this ends, with a tree or with an error that says where.

use super::handoff_note as note;
use core::fmt;
use granule_kexec::Extent;

const MAGIC: u32 = 0xd00d_feed;
const HEADER: usize = 40;
/// The version that is written, and the oldest that readers of it know: those of the specification.
const VERSION: u32 = 17;
const LAST_COMPATIBLE: u32 = 16;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;
const END: u32 = 9;

const BOOTARGS: &[u8] = b"bootargs";
const INITRD_START: &[u8] = b"linux,initrd-start";
const INITRD_END: &[u8] = b"linux,initrd-end";
const KASLR_SEED: &[u8] = b"kaslr-seed";
const RNG_SEED: &[u8] = b"rng-seed";
/// What a kernel that left its memory to another one says of that memory, for that one alone: where it
/// is and what of RAM may be used are not so for the next kernel.
const LEFT_BEHIND: [&[u8]; 3] = [
    b"linux,elfcorehdr",
    b"linux,usable-memory-range",
    b"linux,ima-kexec-buffer",
];

/// Bytes of a new `rng-seed`: as many as a reader's generator has of state.
pub const SEED_BYTES: usize = 32;

/// Random numbers for the next kernel, which are nobody else's.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// For `kaslr-seed`, which the one of the tree as it is is stirred into: what firmware gave may be
    /// better than what this kernel has.
    pub kaslr: u64,
    /// For `rng-seed`, from hardware: whoever reads it takes every bit of it for one that nobody knows,
    /// so without hardware there is to be none.
    pub rng: Option<[u8; SEED_BYTES]>,
}

/// What is to be otherwise than in the tree as it is.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    /// The command line, without a NUL.
    pub command_line: &'a [u8],
    /// Where the initramfs is to be, if there is one.
    pub initrd: Option<Extent>,
    /// Where the note is.
    pub note: Extent,
    /// What else the next kernel is to keep, beside what is reserved already.
    pub kept: &'a [Extent],
    /// Where this kernel has the tree as it is: a reservation for it has no meaning any more.
    pub old: Extent,
    /// What is to be new in each kernel.
    pub seeds: Seeds,
}

/// Why there is no tree for the next kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// The machine's own tree cannot be read.
    Malformed {
        /// Offset of the first byte that cannot be read.
        at: usize,
    },
    /// The new tree does not fit the memory for it.
    Full {
        /// Bytes that there are.
        room: usize,
    },
    /// The new tree is not as long as it was measured before.
    Length {
        /// Bytes as measured.
        measured: usize,
        /// Bytes as written.
        written: usize,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { at } => write!(
                f,
                "the machine's device tree is malformed at byte {at:#x}: there is none to give to the next kernel"
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

impl core::error::Error for TreeError {}

type Done<T = ()> = Result<T, TreeError>;

/// As many bytes as the new tree can have, or more.
pub fn most_bytes(old: &[u8], changes: &Changes<'_>) -> Done<usize> {
    let tree = Old::read(old)?;
    // A tree may have far more room than it uses; before version 17 only that is known of it.
    let structure = match word(old, 20)? {
        VERSION => word(old, 36)? as usize,
        _ => old.len(),
    };
    let mut used = structure.min(old.len()) + tree.strings.len();
    tree.reservations(changes, |_| {
        used += 16;
        Ok(())
    })?;
    // New: properties with their names, a node, the end of the reservations; aligned, each.
    Ok(used + changes.command_line.len() + HEADER + 512)
}

/// Writes the new tree to `into` and says how many bytes it has, which does not depend on where
/// things are.
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
        old.boot_cpu,
        (total - strings) as u32,
        (strings - structure) as u32,
    ];
    let (words, _) = new.into.as_chunks_mut::<4>();
    for (to, word) in words.iter_mut().zip(header) {
        *to = word.to_be_bytes();
    }
    Ok(total)
}

/// Whether a tree is as long as it was when its place was looked for.
pub const fn same_length(measured: usize, written: usize) -> Done {
    if measured == written {
        Ok(())
    } else {
        Err(TreeError::Length { measured, written })
    }
}

/// The names that are needed: those that the strings do not have stand behind them, in this order.
const NAMES: [&[u8]; 6] = [
    BOOTARGS,
    INITRD_START,
    INITRD_END,
    KASLR_SEED,
    RNG_SEED,
    note::PROPERTY.as_bytes(),
];

/// The tree as it is.
struct Old<'a> {
    bytes: &'a [u8],
    structure: usize,
    strings: &'a [u8],
    reservations: usize,
    boot_cpu: u32,
}

impl<'a> Old<'a> {
    fn read(bytes: &'a [u8]) -> Done<Self> {
        let field = |index: usize| word(bytes, 4 * index);
        let wrong = |at| TreeError::Malformed { at };
        let size = field(1)? as usize;
        if field(0)? != MAGIC || field(6)? > VERSION || field(5)? < LAST_COMPATIBLE {
            return Err(wrong(0));
        }
        let bytes = bytes.get(..size).ok_or(wrong(4))?;
        let strings = field(3)? as usize;
        let end = strings.checked_add(field(8)? as usize);
        let strings = end
            .and_then(|end| bytes.get(strings..end))
            .ok_or(wrong(12))?;
        Ok(Self {
            bytes,
            structure: field(2)? as usize,
            strings,
            reservations: field(4)? as usize,
            boot_cpu: field(7)?,
        })
    }

    /// What the tree says to this kernel alone.
    fn was(&self, changes: &Changes<'_>) -> Done<Was> {
        let mut was = Was {
            tree: changes.old,
            ..Was::default()
        };
        self.structure(&mut was)?;
        Ok(was)
    }

    /// What is to be reserved: what was, but for what only this kernel had there, and what is kept.
    /// The note is always one more, wherever it is: as its place is not known when the tree is
    /// measured, nothing may depend on it. It lies in memory that was free, so never where something
    /// was reserved.
    fn reservations(&self, changes: &Changes<'_>, mut each: impl FnMut(Extent) -> Done) -> Done {
        let was = self.was(changes)?;
        let mut at = self.reservations;
        loop {
            let extent = Extent::new(double(self.bytes, at)?, double(self.bytes, at + 8)?);
            if extent == Extent::default() {
                break;
            }
            at += 16;
            if !was.has(&extent) && !changes.kept.contains(&extent) {
                each(extent)?;
            }
        }
        let kept = changes.kept.iter().chain([&changes.note]);
        kept.copied().try_for_each(each)
    }

    /// Goes through the structure. Every property is in a node, nodes are closed in order, and one is the
    /// root of all: without it there is no place for `/chosen`.
    fn structure(&self, visit: &mut impl Visit) -> Done {
        let mut at = self.structure;
        let mut depth = 0_usize;
        let (mut rooted, mut inside, mut seen) = (false, false, false);
        loop {
            let wrong = TreeError::Malformed { at };
            let token = word(self.bytes, at)?;
            at += 4;
            match token {
                BEGIN_NODE if depth > 0 || !rooted => {
                    rooted = true;
                    let rest = self.bytes.get(at..).ok_or(wrong)?;
                    let length = rest.iter().position(|byte| *byte == 0).ok_or(wrong)?;
                    let name = rest.get(..length).ok_or(wrong)?;
                    depth += 1;
                    let chosen = depth == 2 && name == b"chosen" && !seen;
                    inside |= chosen;
                    seen |= chosen;
                    visit.begin(name, chosen)?;
                    at = (at + length + 1).next_multiple_of(4);
                }
                END_NODE => {
                    visit.end(depth == 1 && !seen)?;
                    inside &= depth != 2;
                    depth = depth.checked_sub(1).ok_or(wrong)?;
                }
                PROPERTY => {
                    let (length, name) = (word(self.bytes, at)?, word(self.bytes, at + 4)?);
                    at += 8;
                    let end = at.checked_add(length as usize).ok_or(wrong)?;
                    let value = self.bytes.get(at..end).ok_or(wrong)?;
                    if depth == 0 {
                        return Err(wrong);
                    }
                    let in_chosen = (depth == 2 && inside).then(|| self.name(name));
                    visit.property(in_chosen, name, value)?;
                    at = end.next_multiple_of(4);
                }
                NOP => {}
                END if depth == 0 && rooted => return visit.finish(),
                _ => return Err(wrong),
            }
        }
    }

    /// Where a name stands among the strings.
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

    /// Where a name of [`NAMES`] stands among the new strings.
    fn new_place_of(&self, name: &[u8]) -> usize {
        self.place_of(name).unwrap_or_else(|| {
            let before = NAMES.iter().take_while(|it| **it != name);
            let behind = before.filter(|it| self.has_no(it));
            self.strings.len() + behind.map(|it| it.len() + 1).sum::<usize>()
        })
    }

    /// A name among the strings; empty for one that is not there.
    fn name(&self, at: u32) -> &'a [u8] {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == 0);
        rest.get(..length.unwrap_or(0)).unwrap_or_default()
    }
}

/// What is done on the way through a structure.
trait Visit {
    fn begin(&mut self, name: &[u8], chosen: bool) -> Done;
    /// A property, with its name if its node is `/chosen`.
    fn property(&mut self, in_chosen: Option<&[u8]>, name: u32, value: &[u8]) -> Done;
    /// The end of a node; whether it is the root's and there was no `/chosen`.
    fn end(&mut self, without_chosen: bool) -> Done;
    fn finish(&mut self) -> Done;
}

/// What only this kernel needs: the tree and initramfs that it was given and the note that was for it,
/// whose reservations go, and its seed.
#[derive(Default)]
struct Was {
    tree: Extent,
    initrd_start: u64,
    initrd_end: u64,
    note: Option<u64>,
    kaslr_seed: u64,
}

impl Was {
    fn has(&self, extent: &Extent) -> bool {
        let bytes = self.initrd_end.saturating_sub(self.initrd_start);
        let initrd = Extent::new(self.initrd_start, bytes);
        *extent == self.tree || *extent == initrd || self.note == Some(extent.start)
    }
}

impl Visit for Was {
    fn begin(&mut self, _: &[u8], _: bool) -> Done {
        Ok(())
    }
    fn property(&mut self, in_chosen: Option<&[u8]>, _: u32, value: &[u8]) -> Done {
        let number = match *value {
            [a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
            _ => value.first_chunk().map_or(0, |it| u64::from_be_bytes(*it)),
        };
        match in_chosen {
            Some(INITRD_START) => self.initrd_start = number,
            Some(INITRD_END) => self.initrd_end = number,
            Some(KASLR_SEED) => self.kaslr_seed = number,
            Some(name) if name == note::PROPERTY.as_bytes() => self.note = Some(number),
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

/// Writes the structure anew.
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

    /// What `/chosen` begins with.
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

    fn property(&mut self, in_chosen: Option<&[u8]>, name: u32, value: &[u8]) -> Done {
        if in_chosen.is_some_and(|name| NAMES.contains(&name) || LEFT_BEHIND.contains(&name)) {
            return Ok(());
        }
        // A name that is not there would be one of the new ones.
        if name as usize >= self.old.strings.len() {
            let at = self.old.structure;
            return Err(TreeError::Malformed { at });
        }
        self.new.token(PROPERTY)?;
        self.new.token(value.len() as u32)?;
        self.new.token(name)?;
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
        let to = to.ok_or(TreeError::Full { room })?;
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

fn word(bytes: &[u8], at: usize) -> Done<u32> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    word.map(|it| u32::from_be_bytes(*it))
        .ok_or(TreeError::Malformed { at })
}

fn double(bytes: &[u8], at: usize) -> Done<u64> {
    Ok(u64::from(word(bytes, at)?) << 32 | u64::from(word(bytes, at + 4)?))
}

#[cfg(test)]
mod tests;
