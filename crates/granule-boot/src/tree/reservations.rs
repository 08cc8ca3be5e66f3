//! Reserved memory: the memory reservation block, and the children of `/reserved-memory`. What a child's
//! properties mean does not belong here.

use super::super::bytes::be64;
use super::bus::Range;
use super::error::TreeError;
use super::node::Children;
use super::walk::Tree;

const ENTRY_BYTES: usize = 16;

impl<'a> Tree<'a> {
    /// The entries of the memory reservation block.
    ///
    /// # Errors
    ///
    /// Fails with [`TreeError::BadReservations`] if the block does not end inside the tree. Reservations that
    /// cannot be read may be of memory that must be kept.
    pub fn reservations(&self) -> Result<Reservations<'a>, TreeError> {
        let at = self.reservations_at;
        let bad = TreeError::BadReservations { at };
        let (_, block) = self.bytes.split_at_checked(at as usize).ok_or(bad)?;
        let all = Reservations { rest: block };
        let mut rest = all;
        while rest.next().is_some() {}
        match entry(rest.rest) {
            Some(_) => Ok(all),
            None => Err(bad),
        }
    }

    /// The children of `/reserved-memory`, if there is such a node. Its binding demands the root's cells, so
    /// a node that states none has those, and not the default of other buses.
    #[must_use]
    pub fn reserved_memory(&self) -> Option<Children<'a>> {
        let root = self.root()?;
        let node = root.child(b"reserved-memory")?;
        Some(node.children_with(node.child_cells_or(root.child_cells())))
    }
}

/// Iterator over the memory reservations of a tree.
#[derive(Clone, Copy, Debug)]
pub struct Reservations<'a> {
    rest: &'a [u8],
}

impl Iterator for Reservations<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        let range = entry(self.rest)?;
        // An entry of zeros ends the block.
        if range.start == 0 && range.bytes == 0 {
            return None;
        }
        (_, self.rest) = self.rest.split_at_checked(ENTRY_BYTES)?;
        Some(range)
    }
}

fn entry(block: &[u8]) -> Option<Range> {
    Some(Range::new(be64(block, 0)?, be64(block, 8)?))
}
