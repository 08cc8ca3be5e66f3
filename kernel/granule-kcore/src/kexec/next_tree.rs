//! The device tree for the next kernel: a copy of the machine's own tree, except for `/chosen` and the
//! memory reservations. Pure.
//!
//! `granule_boot::tree` reads the old tree and writes the new one in one pass; this file defines
//! the changes. Nodes that this kernel added to firmware's tree, from the tables of EFI and ACPI,
//! are left out: the next kernel reads those tables itself, by the properties of `/chosen` that
//! name them. The old tree came from firmware or another kernel and is untrusted: the pass ends for
//! any bytes, with a tree or with an error that states the offset.
//!
//! The new tree keeps the properties that leave memory to this kernel (`linux,usable-memory-range`,
//! `linux,usable-memory`): the memory outside is still another kernel's, for example the dump of a kernel
//! that crashed. It loses `linux,elfcorehdr` and `linux,ima-kexec-buffer`, because nothing here keeps the
//! memory that they name. A crash kernel's tree has a range and a header of its own. `kaslr-seed` is fresh,
//! from this kernel's generator and its own seed, and absent if it has neither; `rng-seed`, which its reader
//! counts as secret, comes from the generator, or is absent if nothing has seeded that.

use super::handoff_note as note;
use crate::devicetree::child;
use arrayvec::ArrayVec;
use core::fmt;
use granule_boot::chosen::{INITRD_END, INITRD_START, USABLE_MEMORY_RANGE};
use granule_boot::expand::{FROM_ACPI, FROM_EFI};
use granule_boot::peek::KASLR_SEED;
use granule_boot::tree::{self, Edit, EditPlace, Name, Node, Tree, WriteError, Writer};
use granule_kexec::PhysRange;

const BOOTARGS: &[u8] = b"bootargs";
/// The property of `/chosen` with random bytes that nobody else knows.
pub const RNG_SEED: &[u8] = b"rng-seed";
/// Properties that a previous kernel wrote for this kernel alone.
const LEFT_BEHIND: [&[u8]; 2] = [CORE_HEADER, b"linux,ima-kexec-buffer"];
/// The property of `/chosen` with the range of the header of a dead kernel's core.
const CORE_HEADER: &[u8] = b"linux,elfcorehdr";

/// Bytes of a new `rng-seed`: the size of the state of a reader's generator.
pub const SEED_BYTES: usize = 32;

/// Random numbers for the next kernel only.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// For `kaslr-seed`.
    pub kaslr: Option<u64>,
    /// For `rng-seed`, if the generator is seeded.
    pub rng: Option<[u8; SEED_BYTES]>,
}

/// The memory of a crash kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crash {
    /// All that it may use.
    pub usable: PhysRange,
    /// The header of the dead kernel's core, in that memory.
    pub header: PhysRange,
}

/// The changes from the old tree.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    /// The command line, without a NUL.
    pub command_line: &'a [u8],
    /// Destination of the initramfs, if there is one.
    pub initrd: Option<PhysRange>,
    /// The note's memory, if there is a note.
    pub note: Option<PhysRange>,
    /// The memory of a crash kernel, if the next kernel is one.
    pub crash: Option<Crash>,
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
    /// The machine's own tree cannot be read, or the new one not be written.
    Tree(WriteError),
    /// The new tree's length in bytes differs from the measured one.
    Length {
        /// As measured.
        measured: usize,
        /// As written.
        written: usize,
    },
    /// The root's cells cannot hold the address or the length of a crash kernel's memory.
    Cells(PhysRange),
}

impl fmt::Display for NextTreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(WriteError::Malformed(error)) => write!(
                f,
                "the machine's device tree is malformed, there is none to give to the next kernel: {error}"
            ),
            Self::Tree(WriteError::Full { room }) => write!(
                f,
                "the device tree for the next kernel takes more than {room} bytes"
            ),
            Self::Tree(error) => write!(f, "the device tree for the next kernel: {error}"),
            Self::Length { measured, written } => write!(
                f,
                "the device tree for the next kernel has {written} bytes, and {measured} were \
                 measured for its place: this is a fault of this kernel's, report it with the \
                 device tree"
            ),
            Self::Cells(range) => write!(
                f,
                "the device tree's #address-cells and #size-cells cannot hold the crash kernel's memory {range}"
            ),
        }
    }
}

impl core::error::Error for NextTreeError {}

impl From<tree::TreeError> for NextTreeError {
    fn from(error: tree::TreeError) -> Self {
        Self::Tree(error.into())
    }
}

impl From<WriteError> for NextTreeError {
    fn from(error: WriteError) -> Self {
        Self::Tree(error)
    }
}

type Done<T = ()> = Result<T, NextTreeError>;

/// An upper bound for the bytes of the new tree.
pub fn most_bytes(old: &[u8], changes: &Changes<'_>) -> Done<usize> {
    let tree = Tree::new(old)?;
    if let Some(damage) = tree.damage() {
        return Err(damage.into());
    }
    let was = Was::of(&tree, changes);
    // A tree may have much unused room.
    let used = tree.structure_bytes() + tree.strings().len();
    let reservations = reservations(&tree, &was, changes)?.count();
    // New are some properties with their names, a node, the header and an end of reservations.
    Ok(used
        + 16 * reservations
        + changes.command_line.len()
        + 552
        + changes.crash.map_or(0, |_| 88))
}

/// Writes the new tree to `into` and returns its bytes, which depend on no address.
pub fn write(old: &[u8], changes: &Changes<'_>, into: &mut [u8]) -> Done<usize> {
    let tree = Tree::new(old)?;
    let was = Was::of(&tree, changes);
    let chosen = child(&tree, b"chosen");
    let mut edit = NextKernel {
        changes,
        crash: changes
            .crash
            .map(|crash| crash.properties(&tree))
            .transpose()?,
        has_console_of_acpi: chosen.is_some_and(|node| node.property(FROM_ACPI).is_some()),
    };
    let reservations = reservations(&tree, &was, changes)?;
    Ok(tree::rewrite(&tree, reservations, &mut edit, into)?)
}

/// Checks that a tree has the length for which its place was chosen.
pub const fn same_length(measured: usize, written: usize) -> Done {
    if measured == written {
        Ok(())
    } else {
        Err(NextTreeError::Length { measured, written })
    }
}

/// The properties of `/chosen` that this file writes.
const NAMES: [&[u8]; 6] = [
    BOOTARGS,
    INITRD_START,
    INITRD_END,
    KASLR_SEED,
    RNG_SEED,
    note::PROPERTY.as_bytes(),
];

/// The new reservations: the old ones without those for this kernel alone, then the kept memory. The note
/// always adds one reservation, wherever it is: its place is unknown when the tree is measured, so the
/// length must not depend on it. The note lies in memory that was free, so never in an older reservation.
fn reservations<'a>(
    tree: &Tree<'a>,
    was: &'a Was,
    changes: &'a Changes<'a>,
) -> Done<impl Iterator<Item = tree::Range>> {
    let old = tree.reservations()?.filter(move |range| {
        let range = PhysRange::new(range.start, range.bytes);
        !was.has(&range) && !changes.kept.contains(&range)
    });
    let header = changes.crash.as_ref().map(|crash| &crash.header);
    let kept = changes.kept.iter().chain(&changes.note).chain(header);
    Ok(old.chain(kept.map(|range| tree::Range {
        start: range.start,
        bytes: range.bytes,
    })))
}

/// Ranges that only this kernel needs: their reservations are dropped.
#[derive(Default)]
struct Was {
    tree: PhysRange,
    initrd: PhysRange,
    note: Option<u64>,
}

impl Was {
    fn of(tree: &Tree<'_>, changes: &Changes<'_>) -> Self {
        let chosen = child(tree, b"chosen");
        let number = |name| chosen.and_then(|chosen| chosen.number(name));
        let start = number(INITRD_START).unwrap_or_default();
        let end = number(INITRD_END).unwrap_or_default();
        Self {
            tree: changes.old,
            initrd: PhysRange::new(start, end.saturating_sub(start)),
            note: number(note::PROPERTY.as_bytes()),
        }
    }

    fn has(&self, range: &PhysRange) -> bool {
        *range == self.tree || *range == self.initrd || self.note == Some(range.start)
    }
}

/// A range in the root's cells.
type RangeCells = ArrayVec<u32, 4>;

impl Crash {
    /// The properties of `/chosen` for it. The tree's root has the cells.
    fn properties(&self, tree: &Tree<'_>) -> Done<[(&'static [u8], RangeCells); 2]> {
        let cells = |range: PhysRange| {
            let root = tree.root().map(|root| root.child_cells());
            let root = root.ok_or(NextTreeError::Cells(range))?;
            let mut cells = RangeCells::new();
            for (value, count) in [(range.start, root.address), (range.bytes, root.size)] {
                match (count, u32::try_from(value)) {
                    (1, Ok(word)) => cells.push(word),
                    (2, _) => cells.extend([(value >> 32) as u32, value as u32]),
                    _ => return Err(NextTreeError::Cells(range)),
                }
            }
            Ok(cells)
        };
        Ok([
            (USABLE_MEMORY_RANGE.as_bytes(), cells(self.usable)?),
            (CORE_HEADER, cells(self.header)?),
        ])
    }
}

/// The changes to the structure.
struct NextKernel<'a> {
    changes: &'a Changes<'a>,
    /// The properties of a crash kernel.
    crash: Option<[(&'static [u8], RangeCells); 2]>,
    /// Whether `stdout-path` names a node that comes from ACPI's tables.
    has_console_of_acpi: bool,
}

impl<'t> Edit<'t> for NextKernel<'_> {
    fn keeps(&mut self, place: &EditPlace<'t>, node: &Node<'t>) -> bool {
        let is_from_tables = |mark: &[u8]| node.property(mark).is_some();
        matches!(place, EditPlace::Root | EditPlace::Chosen)
            || !(is_from_tables(FROM_EFI) || is_from_tables(FROM_ACPI))
    }

    fn keeps_property(&mut self, place: &EditPlace<'t>, name: Name<'t>) -> bool {
        let name = name.bytes();
        let is_of_acpi = self.has_console_of_acpi && (name == FROM_ACPI || name == b"stdout-path");
        !matches!(place, EditPlace::Chosen)
            || !(NAMES.contains(&name)
                || LEFT_BEHIND.contains(&name)
                || is_of_acpi
                || self.crash.is_some() && name == USABLE_MEMORY_RANGE.as_bytes())
    }

    /// Writes the properties that `/chosen` begins with.
    fn begins(&mut self, place: &EditPlace<'t>, to: &mut Writer<'t>) -> Result<(), WriteError> {
        if !matches!(place, EditPlace::Chosen) {
            return Ok(());
        }
        let changes = self.changes;
        to.text(BOOTARGS, changes.command_line)?;
        if let Some(initrd) = changes.initrd {
            to.numbers(INITRD_START, [initrd.start])?;
            to.numbers(INITRD_END, [initrd.start.saturating_add(initrd.bytes)])?;
        }
        if let Some(seed) = changes.seeds.kaslr {
            to.numbers(KASLR_SEED, [seed])?;
        }
        if let Some(seed) = &changes.seeds.rng {
            to.property(RNG_SEED, seed)?;
        }
        if let Some(note) = changes.note {
            to.numbers(note::PROPERTY.as_bytes(), [note.start])?;
        }
        let mut crash = self.crash.iter().flatten();
        crash.try_for_each(|(name, cells)| to.cells(name, cells))
    }
}

#[cfg(test)]
mod tests;
