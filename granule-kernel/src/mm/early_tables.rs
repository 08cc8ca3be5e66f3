//! Table pages from early memory, while the boot has no page allocator; and memory given back to it.

use crate::dev::console::println;
use crate::fatal::refuse;
use granule::arch::PhysicalAddress;
use granule::table::{FreedTable, TableAllocator, TableRun};
use granule_boot::memblock::{Direction, Error};
use granule_kcore::devicetree::memory::{self as tree, Memory};

/// Table pages straight from early memory, wherever it is: mapped or not.
#[derive(Debug)]
pub(crate) struct EarlyTables<'m> {
    memory: &'m mut Memory,
    page_bytes: u64,
    /// What firmware reserved, where tables may come back that early memory did not give out.
    firmware: Option<&'m Memory>,
}

impl<'m> EarlyTables<'m> {
    /// Table pages of `page_bytes` from `memory`.
    pub(crate) const fn new(memory: &'m mut Memory, page_bytes: u64) -> Self {
        Self {
            memory,
            page_bytes,
            firmware: None,
        }
    }

    /// The same, where tables of the static pool come back too: of them `memory` gets only what
    /// `firmware` has not reserved.
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
}

// SAFETY: early memory gives each range out once and knows only RAM that is mapped or about to be.
unsafe impl TableAllocator for EarlyTables<'_> {
    fn reserve(&mut self, tables: usize) -> bool {
        let needed = tables as u64 * self.page_bytes;
        self.memory
            .free_pages()
            .map(|range| range.len())
            .sum::<u64>()
            >= needed
    }

    fn allocate(&mut self, _most: usize) -> Option<TableRun> {
        let (size, align) = (self.page_bytes, self.page_bytes);
        let first = self
            .memory
            .allocate(size, align, 0..u64::MAX, Direction::TopDown)
            .ok()?;
        Some(TableRun {
            first: PhysicalAddress(first),
            count: 1,
        })
    }

    fn free(&mut self, table: FreedTable) {
        let start = table.address().0;
        give_back(self.memory, self.firmware, start, start + self.page_bytes);
    }
}

/// Gives memory back that was reserved: part of the image, or a table that is none any more. What
/// `firmware` reserved of it stays reserved; none is named for memory that early memory gave out,
/// where nothing can be.
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
        // Tearing a range in two found no room: the pages stay reserved, which harms nothing.
        Err(Error::TooManyRegions { .. }) => {
            println!(
                "granule: {bytes} bytes at {start:#x} stay reserved: memory is in too many pieces"
            );
        }
        Err(error) => refuse::refuse(format_args!("static storage: {error}")),
    }
}
