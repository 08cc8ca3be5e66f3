//! Reads banks, reservations and the initial ramdisk of the device tree into a [`Memblock`].
//!
//! A tree that cannot be used is described in one line, with the node. A piece of memory that has no
//! effect is left out and reported as a [`Warning`]. Devices are not looked up here.
//!
//! - A bank that reaches the end of the address space is left out. Cut at the largest physical address it
//!   would be terabytes that do not exist, and no memory would hold the tables for them. A reservation that
//!   reaches the end counts in RAM only, and a reservation outside RAM takes no room in early memory.
//! - Part of an entry at the end of a `reg` is ignored, but memory without a whole entry is refused.
//! - If another kernel left memory to this one (`linux,usable-memory-range` in `/chosen`,
//!   `linux,usable-memory` in a memory node), no other RAM is mapped.

use super::{OwnPath, child, own};
use core::ops::Range;
use granule_boot::chosen::{InitrdError, USABLE_MEMORY_RANGE as USABLE_RANGE};
use granule_boot::memblock::{self, Memblock, Region};
use granule_boot::peek::USABLE_MEMORY as USABLE;
use granule_boot::tree::{self, Node, Path, Reg, Tree};
use thiserror::Error;

/// The most ranges of each kind in early memory.
pub const MOST_RANGES: usize = 128;

/// This kernel's early memory.
pub type Memory = Memblock<MOST_RANGES>;

/// Why a tree cannot be used.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum MemoryNodeError {
    #[error("{0}")]
    Header(tree::TreeError),
    #[error("{0}, in {node}", node = .1.text())]
    Damaged(tree::TreeError, OwnPath),
    #[error(
        "the device tree's {node} has a {1} that is not whole pairs of address and size of at most 64 bits",
        node = .0.text()
    )]
    BadReg(OwnPath, &'static str),
    #[error(
        "the device tree names no memory: it needs a node with device_type = \"memory\" and a reg"
    )]
    NoMemory,
    #[error("the device tree's memory cannot be used: {0}")]
    Ranges(#[from] memblock::Error),
}

/// Memory in the tree that has no effect, or less than its `reg` states.
#[derive(Clone, Copy, Debug, Error)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Warning<'a> {
    #[error(
        "the device tree's {0} has {bytes:#x} bytes at {start:#x}, which reach the end of the address space; left out",
        start = .1.start, bytes = .1.bytes
    )]
    EndlessBank(Path<'a>, tree::Range),
    #[error(
        "the device tree's {0} has a {1} that ends with part of an entry; only its whole entries count"
    )]
    PartialEntry(Path<'a>, &'static str),
    #[error(
        "the device tree reserves {bytes:#x} bytes at {start:#x}, which reach the end of the address space; ignored outside RAM",
        start = .0.start, bytes = .0.bytes
    )]
    EndlessReservation(tree::Range),
    #[error(
        "the device tree has RAM in more than {MOST_RANGES} places; {0} bytes in the smallest are left out"
    )]
    SmallBanks(u64),
    #[error(
        "the device tree reserves memory in more than {most} places; {0} bytes between the nearest are not used either",
        most = MOST_RANGES * 3 / 4
    )]
    ReservedBetween(u64),
    #[error(
        "the device tree has no-map ranges in more than {MOST_RANGES} places; {0} bytes between the nearest are not mapped \
         either"
    )]
    NoMapBetween(u64),
    #[error(
        "reserved range {start:#x} to {end:#x} lies outside RAM; ignored there",
        start = .0.start, end = .0.start.saturating_add(.0.bytes)
    )]
    ReservedOutside(tree::Range),
    #[error("the device tree's {0} has {USABLE}; other memory in its reg is left out")]
    Usable(Path<'a>),
    #[error("{USABLE_RANGE} leaves {0} bytes of RAM; other RAM is left out")]
    UsableRange(u64),
    #[error("the device tree's /chosen {0}; no initramfs")]
    Initrd(InitrdError),
}

/// Reads all memory of `tree` into `memory`, which may have reservations, and nothing else. The caller provides it
/// because it is too large to move on a stack. `handed_over` is not reserved, see [`each_reserved`]. `warn` is called
/// for memory that is not used as the tree states it.
pub fn memory(
    tree: &[u8],
    handed_over: Option<Range<u64>>,
    memory: &mut Memory,
    mut warn: impl FnMut(Warning<'_>),
) -> Result<(), MemoryNodeError> {
    let tree = sound(tree)?;
    let chosen = child(&tree, b"chosen");
    let usable = chosen.and_then(|chosen| {
        let usable = pairs(&chosen, USABLE_RANGE)?;
        Some(whole(usable, &chosen, USABLE_RANGE, &mut warn))
    });
    let mut left_out = 0;
    let nodes = tree.root().into_iter().flat_map(|root| root.children());
    for node in nodes.filter(|node| node.is_memory() && node.is_usable()) {
        let own = pairs(&node, USABLE);
        if own.is_some() {
            warn(Warning::Usable(node.path()));
        }
        let property = if own.is_some() { USABLE } else { "reg" };
        let Some(banks) = own.or_else(|| node.reg()) else {
            continue;
        };
        for bank in whole(banks, &node, property, &mut warn) {
            let bank = bank.ok_or_else(|| bad_reg(&node, property))?;
            let Some(end) = bank.start.checked_add(bank.bytes) else {
                warn(Warning::EndlessBank(node.path(), bank));
                continue;
            };
            match (usable, &chosen) {
                (Some(usable), Some(chosen)) => {
                    for part in usable {
                        let part = part.ok_or_else(|| bad_reg(chosen, USABLE_RANGE))?;
                        let start = part.start.max(bank.start);
                        let end = part.start.saturating_add(part.bytes).min(end);
                        left_out +=
                            memory.add_bank_or_leave_out(start, end.saturating_sub(start))?;
                    }
                }
                _ => {
                    left_out += memory.add_bank_or_leave_out(bank.start, bank.bytes)?;
                }
            }
        }
    }
    if left_out > 0 {
        warn(Warning::SmallBanks(left_out));
    }
    if usable.is_some() {
        warn(Warning::UsableRange(memory.totals().ram));
    }
    if memory.banks().is_empty() {
        return Err(MemoryNodeError::NoMemory);
    }
    match tree.initrd_words() {
        Ok(None) => {}
        Ok(Some(initrd)) => memory.reserve(initrd.start, initrd.bytes)?,
        Err(error) => warn(Warning::Initrd(error)),
    }
    // No-map ranges come last, because many of them are joined beside all reservations.
    for are_no_map in [false, true] {
        let mut between = 0;
        for_each_reserved(&tree, handed_over.clone(), |reserved| {
            let range = match reserved {
                Reserved::Range(range, no_map) if no_map == are_no_map => range,
                Reserved::Partial(node) if !are_no_map => {
                    warn(Warning::PartialEntry(node.path(), "reg"));
                    return Ok(());
                }
                _ => return Ok(()),
            };
            let bytes = bytes_before_end(range);
            if bytes < range.bytes {
                warn(Warning::EndlessReservation(range));
            }
            let end = range.start.saturating_add(bytes);
            let mut banks = memory.banks().iter();
            if !banks.any(|bank| bank.inside(range.start, end).is_some()) {
                if !are_no_map && bytes > 0 {
                    warn(Warning::ReservedOutside(range));
                }
                return Ok(());
            }
            between += if are_no_map {
                memory.mark_no_map_coarsely(range.start, bytes)?
            } else {
                memory.reserve_coarsely(range.start, bytes)?
            };
            Ok(())
        })?;
        match (between, are_no_map) {
            (0, _) => {}
            (_, false) => warn(Warning::ReservedBetween(between)),
            (_, true) => warn(Warning::NoMapBetween(between)),
        }
    }
    Ok(())
}

/// The tree, if it has no damage.
fn sound(bytes: &[u8]) -> Result<Tree<'_>, MemoryNodeError> {
    let tree = Tree::new(bytes).map_err(MemoryNodeError::Header)?;
    match tree.damage() {
        Some(error) => Err(MemoryNodeError::Damaged(error, own(tree.damaged_node()))),
        None => Ok(tree),
    }
}

/// The bytes of a range up to the end of the address space. The last byte there is never RAM, and the
/// address behind it does not fit into 64 bits.
fn bytes_before_end(range: tree::Range) -> u64 {
    range.bytes.min(u64::MAX - range.start)
}

/// Something that the tree reserves.
enum Reserved<'a> {
    /// A range, for any user, and whether it must also stay unmapped.
    Range(tree::Range, bool),
    /// The `reg` of this node does not end with a whole entry.
    Partial(Node<'a>),
}

/// Calls `each` with all that the tree reserves.
fn for_each_reserved<'a>(
    tree: &Tree<'a>,
    handed_over: Option<Range<u64>>,
    mut each: impl FnMut(Reserved<'a>) -> Result<(), memblock::Error>,
) -> Result<(), MemoryNodeError> {
    for range in tree.reservations().map_err(MemoryNodeError::Header)? {
        let bounds = range.start..range.start.saturating_add(range.bytes);
        if handed_over.as_ref() != Some(&bounds) {
            each(Reserved::Range(range, false))?;
        }
    }
    for node in tree.reserved_memory().into_iter().flatten() {
        // A child without reg requests an allocation; nothing here uses one.
        let Some(ranges) = node.reg().filter(|_| node.is_usable()) else {
            continue;
        };
        let no_map = node.property(b"no-map").is_some();
        let (ranges, is_cut) = ranges.whole();
        if is_cut {
            each(Reserved::Partial(node))?;
        }
        for range in ranges {
            let range = range.ok_or_else(|| bad_reg(&node, "reg"))?;
            each(Reserved::Range(range, no_map))?;
        }
    }
    Ok(())
}

/// Calls `each` with every range that `tree` reserves: start and bytes. Ranges that the last kernel
/// hands over by request are excluded. They are reserved so that a kernel that does not recognise them
/// keeps off, and this kernel learns of them from its command line.
pub fn each_reserved(
    tree: &[u8],
    handed_over: Option<Range<u64>>,
    mut each: impl FnMut(u64, u64),
) -> Result<(), MemoryNodeError> {
    for_each_reserved(&sound(tree)?, handed_over, |reserved| {
        if let Reserved::Range(range, _) = reserved {
            each(range.start, bytes_before_end(range));
        }
        Ok(())
    })
}

/// Whether the kernel uses a byte of `range` itself: it is in one of `own`, or reserved in `memory` by somebody
/// else than `tree`, which firmware wrote.
pub fn is_taken(tree: &[u8], memory: &Memory, own: &[tree::Range], range: tree::Range) -> bool {
    let end = range.start.saturating_add(range.bytes);
    let mut by_tree = false;
    // A tree that cannot be read reserves nothing.
    let _ = each_reserved(tree, None, |start, bytes| {
        by_tree |= start <= range.start && end <= start.saturating_add(bytes);
    });
    let mut reserved = memory.reserved().iter();
    own.iter().any(|own| own.meets(range))
        || !by_tree && reserved.any(|one| one.inside(range.start, end).is_some())
}

/// The whole pages from `start` to `end` that `firmware` neither reserves nor forbids to map: the part
/// of the kernel's storage that may be given back. `firmware` is the memory as the tree describes it.
/// A merged list cannot answer this, because reserving the image merges with reservations inside the
/// image.
pub fn unreserved(firmware: &Memory, start: u64, end: u64) -> impl Iterator<Item = Region> {
    firmware
        .free_pages()
        .filter_map(move |piece| piece.inside(start, end))
}

/// The entries of a property that has the root's cells, if the node has it.
fn pairs<'a>(node: &Node<'a>, property: &str) -> Option<Reg<'a>> {
    let value = node.property(property.as_bytes())?;
    Some(Reg::new(value, node.cells()))
}

/// The whole entries of a property. Part of an entry at its end is reported and has no effect; a property
/// without a whole entry is left as it is.
fn whole<'a>(
    entries: Reg<'a>,
    node: &Node<'a>,
    property: &'static str,
    warn: &mut impl FnMut(Warning<'_>),
) -> Reg<'a> {
    let (whole, is_cut) = entries.whole();
    if is_cut {
        warn(Warning::PartialEntry(node.path(), property));
    }
    whole
}

fn bad_reg(node: &Node<'_>, property: &'static str) -> MemoryNodeError {
    MemoryNodeError::BadReg(own(node.path()), property)
}

/// The range of the header of a dead kernel's core, which the kernel before left for this one.
pub fn core_header(tree: &[u8]) -> Option<Range<u64>> {
    let chosen = child(&Tree::new(tree).ok()?, b"chosen")?;
    let range = pairs(&chosen, "linux,elfcorehdr")?.next()??;
    Some(range.start..range.start.checked_add(range.bytes)?)
}

/// Calls `each` with all RAM of the machine, also what another kernel keeps.
pub fn each_bank(tree: &[u8], mut each: impl FnMut(Range<u64>)) {
    let root = Tree::new(tree).ok().and_then(|tree| tree.root());
    let nodes = root.into_iter().flat_map(|root| root.children());
    for node in nodes.filter(|node| node.is_memory() && node.is_usable()) {
        for bank in node.reg().into_iter().flatten().flatten() {
            if let Some(end) = bank.start.checked_add(bank.bytes) {
                each(bank.start..end);
            }
        }
    }
}

/// The initial ramdisk's place, as `tree` states it.
pub fn initial_ramdisk(tree: &[u8]) -> Option<Range<u64>> {
    let initrd = Tree::new(tree).ok()?.initial_ramdisk()?;
    Some(initrd.start..initrd.start.saturating_add(initrd.bytes))
}

#[cfg(test)]
mod tests;
