//! The memory that another kernel left to this one. Which of it is RAM does not belong here.
//!
//! The properties are `linux,usable-memory-range` in `/chosen` and `linux,usable-memory` in a memory node.
//! The area of `granule.trace=` is written before the kernel's memory map exists, so an area outside of the
//! usable memory is refused with the MMU off already.

use super::super::bytes::same;
use super::super::chosen::USABLE_MEMORY_RANGE;
use super::super::tree::{Node, Range, Reg, Tree};

/// The property of a memory node with what another kernel leaves of its `reg`.
pub const USABLE_MEMORY: &str = "linux,usable-memory";

impl Tree<'_> {
    /// Whether a byte of `range` is still another kernel's.
    #[must_use]
    pub fn is_another_kernels(&self, range: Range) -> bool {
        let Some(root) = self.root() else {
            return false;
        };
        let chosen = root.child(b"chosen");
        let usable = chosen.and_then(|chosen| entries(&chosen, USABLE_MEMORY_RANGE));
        if usable.is_some_and(|usable| !covers(usable, range)) {
            return true;
        }
        for node in root.children() {
            let kind = node.property(b"device_type").unwrap_or_default();
            if !same(kind, b"memory\0") || !node.is_usable() {
                continue;
            }
            let Some(usable) = entries(&node, USABLE_MEMORY) else {
                continue;
            };
            for bank in node.reg().into_iter().flatten().flatten() {
                if !covers(usable, common(bank, range)) {
                    return true;
                }
            }
        }
        false
    }
}

/// The entries of a property that has the cells of the node's own `reg`.
fn entries<'a>(node: &Node<'a>, property: &str) -> Option<Reg<'a>> {
    let value = node.property(property.as_bytes())?;
    Some(Reg::new(value, node.cells()))
}

/// The bytes that are in both ranges.
fn common(one: Range, other: Range) -> Range {
    let start = one.start.max(other.start);
    let end = |range: Range| range.start.saturating_add(range.bytes);
    let bytes = end(one).min(end(other)).saturating_sub(start);
    Range { start, bytes }
}

/// Whether the entries together contain all of `range`.
fn covers(entries: Reg<'_>, range: Range) -> bool {
    let end = range.start.saturating_add(range.bytes);
    let mut at = range.start;
    // Each round goes on behind an entry, so it ends.
    while at < end {
        let mut entries = entries.flatten();
        let holds = |entry: &Range| {
            let after = at.checked_sub(entry.start);
            after.is_some_and(|after| after < entry.bytes)
        };
        match entries.find(holds) {
            Some(entry) => at = entry.start.saturating_add(entry.bytes),
            None => return false,
        }
    }
    true
}
