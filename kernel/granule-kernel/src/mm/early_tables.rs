//! Table pages from early memory, while the boot has no page allocator, and the return of memory to early
//! memory.

#![allow(unsafe_code, reason = "early memory has no other owner")]

use crate::dev::console::println;
use crate::fatal::refuse;
use granule::arch::PhysicalAddress;
use granule::table::FreedTable;
use granule_boot::memblock::{Direction, Error};
use granule_kcore::devicetree::memory::{self as tree, Memory};

/// Table pages from early memory, mapped or not.
#[derive(Debug)]
pub(crate) struct EarlyTables<'m> {
    memory: &'m mut Memory,
    page_bytes: u64,
    /// Firmware's reservations. Needed when tables of the static pool may be freed here, because early memory
    /// did not give those out.
    firmware: Option<&'m Memory>,
}

impl<'m> EarlyTables<'m> {
    /// Allocates table pages of `page_bytes` bytes from `memory`.
    pub(crate) const fn new(memory: &'m mut Memory, page_bytes: u64) -> Self {
        Self {
            memory,
            page_bytes,
            firmware: None,
        }
    }

    /// As [`new`](Self::new), for use when tables of the static pool are freed too: `memory` gets back only
    /// the parts of them that `firmware` has not reserved.
    pub(crate) const fn keeping(
        memory: &'m mut Memory,
        page_bytes: u64,
        firmware: &'m Memory,
    ) -> Self {
        Self {
            memory,
            page_bytes,
            firmware: Some(firmware),
        }
    }

    /// Whether early memory has this many pages.
    pub(super) fn has(&self, tables: usize) -> bool {
        let needed = tables as u64 * self.page_bytes;
        let free = self.memory.free_pages().map(|range| range.len());
        free.sum::<u64>() >= needed
    }

    /// Takes a page. Early memory gives each range out once, and contains only RAM that is mapped, or will be.
    pub(super) fn allocate(&mut self) -> Option<PhysicalAddress> {
        let (size, align) = (self.page_bytes, self.page_bytes);
        let all = 0..u64::MAX;
        let first = self.memory.allocate(size, align, all, Direction::TopDown);
        first.ok().map(PhysicalAddress)
    }

    /// Gives a page back.
    pub(super) fn free(&mut self, table: FreedTable) {
        let start = table.address().0;
        give_back(self.memory, self.firmware, start, start + self.page_bytes);
    }
}

/// Returns reserved memory to early memory: a part of the image, or a table that is no longer used. Ranges
/// that `firmware` reserved stay reserved. `firmware` is `None` for memory that early memory itself gave out,
/// because such memory holds no reservation.
pub(super) fn give_back(memory: &mut Memory, firmware: Option<&Memory>, start: u64, end: u64) {
    let Some(firmware) = firmware else {
        free(memory, start, end);
        return;
    };
    for piece in tree::unreserved(firmware, start, end) {
        free(memory, piece.start(), piece.end());
    }
}

fn free(memory: &mut Memory, start: u64, end: u64) {
    let bytes = end - start;
    match memory.free(start, bytes) {
        Ok(()) => {}
        // The list of regions had no room to split one in two. The pages stay reserved, which is safe.
        Err(Error::TooManyRegions { .. }) => {
            println!(
                "granule: {bytes} bytes at {start:#x} stay reserved: memory is in too many pieces"
            );
        }
        Err(error) => refuse::refuse(format_args!("static storage: {error}")),
    }
}
