//! Unmapping a range and giving back the tables that it leaves empty.
//!
//! The order is the architecture's: entries are cleared, the TLB is invalidated, and only then
//! are tables freed, for until then a walker may still be reading them. The tables to be freed
//! wait in a chain through their own first entries: a page address has bit 0 clear, so a walker
//! that still reads one finds an invalid entry there. Bit 1 says that there is a next one, for
//! its address may be zero.

use super::{BitChange, Environment, PageTables, TableError, flush};
use crate::arch::page_size::{Level, Page};
use crate::arch::tlbi::{Invalidation, Reach};
use crate::arch::{Descriptor, Kind, PhysicalAddress, VirtualAddress};

/// The tables that were unlinked and wait to be freed.
#[derive(Default)]
struct Unlinked {
    head: Option<PhysicalAddress>,
}

/// Marks a link to another unlinked table; bit 0 stays clear, so to a walker it is invalid.
const LINK: u64 = 0b10;

/// Leaves nothing of a leaf.
const CLEAR: BitChange = BitChange {
    of: BitChange::LEAVES,
    clear: u64::MAX,
    set: 0,
};

/// What was cleared: what the invalidation must reach.
struct Cleared {
    unlinked: Unlinked,
    /// The smallest entry cleared, in bytes; 0 while there is none.
    stride: u64,
    /// Every leaf was of this level; `None` while there is none or they differ.
    level: Option<Level>,
    /// Some offset was mapped.
    first: u64,
    last: u64,
}

impl Cleared {
    fn leaf(&mut self, level: Level, bytes: u64, from: u64, to: u64) {
        self.level = match (self.stride, self.level) {
            (0, _) => Some(level),
            (_, Some(same)) if same == level => Some(level),
            _ => None,
        };
        if self.stride == 0 {
            self.first = from;
            self.stride = bytes;
        }
        self.stride = self.stride.min(bytes);
        self.last = to;
    }
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Unmaps `bytes` bytes from `start`; what is not mapped there is passed over. Tables that
    /// become empty are given back to the allocator, but never the root.
    ///
    /// On live tables the TLB is invalidated before this returns: by address or range, or whole
    /// where that is cheaper. Nothing is invalidated when nothing was mapped, or only hidden blocks.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`InsideLeaf`](TableError::InsideLeaf) when the range begins or ends inside a block or
    /// contiguous group and the CPUs' level of FEAT_BBM does not allow to split it
    /// ([`set_bbm`](Self::set_bbm)); [`OutOfTables`](TableError::OutOfTables) for that split.
    pub fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        if from == to {
            return Ok(());
        }
        let resized = self.split_edges(from, to, CLEAR)?;
        let mut cleared = Cleared {
            unlinked: Unlinked::default(),
            stride: 0,
            level: None,
            first: from,
            last: from,
        };
        self.unmap_in(
            self.root,
            self.geometry.start_level(),
            from,
            to,
            &mut cleared,
        );
        let reach = if cleared.unlinked.head.is_some() {
            // Cached pointers to the unlinked tables must go too, for addresses that were not
            // mapped as well: the whole range then.
            cleared.first = from;
            cleared.last = to;
            Reach::AllLevels
        } else {
            Reach::LastLevel
        };
        if self.liveness == super::Liveness::Live && cleared.last > cleared.first {
            let what = Invalidation {
                start: self.address(cleared.first),
                bytes: cleared.last - cleared.first,
                stride: cleared.stride,
                reach,
                asid: self.asid,
                // With a hint at the level of the small leaves the one that was split could
                // stay cached (RSQXYZ).
                level: cleared.level.filter(|_| !resized),
            };
            flush::invalidate(&mut self.environment, &what);
        } else if self.liveness == super::Liveness::Live && resized {
            // Nothing was cached, for what was split was hidden; but walkers go by a table now.
            flush::publish(&mut self.environment);
        }
        let mut next = cleared.unlinked.head;
        while let Some(table) = next {
            let link = self.load(table, 0);
            next = (link.0 & LINK != 0).then_some(PhysicalAddress(link.0 & !LINK));
            self.environment.free(table);
        }
        Ok(())
    }

    /// Clears the entries for the offsets from `from` to `to`, which cut no leaf, and unlinks
    /// the tables that are left empty.
    fn unmap_in(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        cleared: &mut Cleared,
    ) {
        let how = self.visibility();
        let bytes = P::SIZE.entry_bytes(level);
        if level.is_last() {
            let first = Self::index(from, level);
            let count = ((to - from) >> P::SIZE.shift()) as usize;
            if self.update(table, first, count, CLEAR) > 0 {
                cleared.leaf(level, bytes, from, to);
            }
            return;
        }
        let mut at = from;
        while at < to {
            let run = self.leaves_end(table, level, at, to);
            if run > at {
                let count = ((run - at) >> P::SIZE.level_shift(level)) as usize;
                self.update(table, Self::index(at, level), count, CLEAR);
                cleared.leaf(level, bytes, at, run);
                at = run;
                continue;
            }
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = Self::index(at, level);
            let entry = self.load(table, index);
            match entry.kind(&self.geometry, level) {
                // Leaves were dealt with above.
                Kind::Invalid | Kind::Leaf => {}
                Kind::Hidden => self.store(table, index, Descriptor::INVALID, how),
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    if next - at == bytes {
                        self.store(table, index, Descriptor::INVALID, how);
                        self.unlink_all(below, level.next(), at, bytes, cleared);
                    } else {
                        self.unmap_in(below, level.next(), at, next, cleared);
                        if self.is_empty(below) {
                            self.store(table, index, Descriptor::INVALID, how);
                            self.unlink(below, bytes, cleared);
                        }
                    }
                }
            }
            at = next;
        }
    }

    /// Puts a table that was just unlinked, and all tables below it, into the chain. The leaves
    /// in them stay as they are: nobody finds them any more once the TLB is invalidated.
    fn unlink_all(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        offset: u64,
        span: u64,
        cleared: &mut Cleared,
    ) {
        let bytes = P::SIZE.entry_bytes(level);
        if level.is_last() {
            cleared.leaf(level, bytes, offset, offset + span);
        } else {
            let mut at = offset;
            while at < offset + span {
                let run = self.leaves_end(table, level, at, offset + span);
                if run > at {
                    cleared.leaf(level, bytes, at, run);
                    at = run;
                    continue;
                }
                let entry = self.load(table, Self::index(at, level));
                if entry.is_table(level) {
                    let below = self.geometry.address_of(entry, level);
                    self.unlink_all(below, level.next(), at, bytes, cleared);
                }
                at += bytes;
            }
        }
        self.unlink(table, span, cleared);
    }

    /// Chains one unlinked table that translated `span` bytes.
    fn unlink(&mut self, table: PhysicalAddress, span: u64, cleared: &mut Cleared) {
        // Each cached pointer to a table takes an operation inside what the table translated.
        if cleared.stride == 0 || cleared.stride > span {
            cleared.stride = span;
        }
        let link = Descriptor(cleared.unlinked.head.map_or(0, |next| next.0 | LINK));
        let how = self.visibility();
        self.store(table, 0, link, how);
        cleared.unlinked.head = Some(table);
    }

    fn is_empty(&self, table: PhysicalAddress) -> bool {
        self.find_mapped(table, 0, P::SIZE.entries()).is_none()
    }
}
