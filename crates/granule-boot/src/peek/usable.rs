//! The memory that another kernel left to this one. Which of it is RAM does not belong here.
//!
//! The properties are `linux,usable-memory-range` in `/chosen` and `linux,usable-memory` in a memory node.
//! The area of `granule.trace=` is written before the kernel's memory map exists, so an area outside of the
//! usable memory is refused with the MMU off already.

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
            if !node.is_memory() || !node.is_usable() {
                continue;
            }
            let Some(usable) = entries(&node, USABLE_MEMORY) else {
                continue;
            };
            for bank in node.reg().into_iter().flatten().flatten() {
                if !covers(usable, bank.common(range)) {
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

/// Whether the entries together contain all of `range`.
fn covers(entries: Reg<'_>, range: Range) -> bool {
    let end = range.end();
    let mut at = range.start;
    // Each round goes on behind an entry, so it ends.
    while at < end {
        let mut entries = entries.flatten();
        let holds = |entry: &Range| {
            let after = at.checked_sub(entry.start);
            after.is_some_and(|after| after < entry.bytes)
        };
        match entries.find(holds) {
            Some(entry) => at = entry.end(),
            None => return false,
        }
    }
    true
}
