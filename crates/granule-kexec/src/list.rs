//! The list in memory: a header and records, in pages of their own, in the form that the relocation
//! code reads. This file writes and seals the list; [`verify`](fn@super::verify) reads it.
//!
//! All fields are little-endian 64-bit words. The first page begins with the [`ListHeader`], then
//! come the records ([`RECORD_BYTES`] each: destination, source, bytes, kind). The last record of
//! every page but the last links to the next page. The header holds a digest over the whole list,
//! which is [verified](fn@super::verify) before the point of no return: the relocation code itself
//! checks nothing.
//!
//! A [`ListMemory`] gives access to the pages, and a [`TableAllocator`] provides them. No segment's
//! destination may cover one of these pages.

#![allow(unsafe_code, reason = "pages of the list are not tables")]

use super::header::{ListHeader, ListMemory};
use super::layout::{EL2, END, LINK, RECORD_BYTES, START, UNCACHED};
use super::plan::{ListRecord, Totals, plan};
use super::segment::{MemoryMap, PhysRange, Refusal, Segment, in_the_way};
use super::tables::Transition;
use super::verify::{ListError, digest, load_record};
use core::mem::size_of;
use granule::arch::{PageSize, PhysicalAddress};
use granule::table::{FreedTable, TableAllocator};

/// The entry of the next kernel by the relocation code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Whether the MMU goes off before the first copy. This is far slower where there are caches,
    /// and exists for comparison.
    pub uncached: bool,
    /// Whether the next kernel starts at EL2: the machine began at EL2 and this kernel runs at EL1.
    /// A hypervisor call, handled by this kernel's EL2 vectors, leads back there.
    pub el2: bool,
    /// SCTLR with the MMU and caches off, for this kernel's exception level.
    pub sctlr: u64,
    /// SCTLR_EL2 with the MMU off, without E2H; used only with `el2`.
    pub sctlr_el2: u64,
    /// Entry point of the next kernel: the destination of its image.
    pub entry: PhysicalAddress,
    /// Destination of the device tree.
    pub tree: PhysicalAddress,
    /// The page that holds, or will hold, the copy of the relocation code.
    pub code: PhysicalAddress,
}

/// A written list: its records are complete, its header is still to be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelocationList {
    /// The first page.
    pub head: PhysicalAddress,
    /// Number of pages.
    pub pages: usize,
    /// The page size.
    pub page: PageSize,
    /// Totals over its records.
    pub totals: Totals,
}

/// Number of records that fit into a page, without the page's last record, which links to the next
/// page or ends the list.
const fn room(page: PageSize, first: bool) -> u64 {
    let header = if first {
        size_of::<ListHeader>() as u64
    } else {
        0
    };
    (page.bytes() - header) / RECORD_BYTES - 1
}

impl RelocationList {
    /// Writes the list for some segments.
    ///
    /// # Errors
    ///
    /// Those of [`check`](super::check); [`Refusal::OutOfPages`] and [`Refusal::PageInTheWay`],
    /// after all pages were given back.
    pub fn write(
        memory: &mut impl ListMemory,
        pages: &mut impl TableAllocator,
        segments: &[Segment<'_>],
        memory_map: &MemoryMap<'_>,
    ) -> Result<Self, Refusal> {
        let what = "list";
        let page = memory_map.page;
        let totals = plan(segments, memory_map, |_| {})?;
        let more = totals.records.saturating_sub(room(page, true));
        let needed = 1 + more.div_ceil(room(page, false)) as usize;
        let out = Refusal::OutOfPages { what, needed };
        if !pages.reserve(needed) {
            return Err(out);
        }
        // Each page is linked at once, so that an error path can find and free the pages allocated
        // so far.
        let mut head = None;
        let mut last = 0;
        let mut taken = 0;
        let mut wrong = None;
        while taken < needed && wrong.is_none() {
            let Some(run) = pages.allocate(needed - taken) else {
                wrong = Some(out);
                break;
            };
            for index in 0..run.count as u64 {
                let at = run.first.0 + index * page.bytes();
                match head {
                    None => head = Some(at),
                    Some(_) => store(memory, last + page.bytes() - RECORD_BYTES, &link(at)),
                }
                store(memory, at + page.bytes() - RECORD_BYTES, &end());
                if in_the_way(segments, &PhysRange::new(at, page.bytes())).is_some() {
                    wrong.get_or_insert(Refusal::PageInTheWay { what, page: at });
                }
                last = at;
                taken += 1;
            }
        }
        let list = Self {
            head: PhysicalAddress(head.unwrap_or_default()),
            pages: taken,
            page,
            totals,
        };
        if let Some(wrong) = wrong {
            list.give_back(memory, pages);
            return Err(wrong);
        }
        let mut at = list.first();
        let written = plan(segments, memory_map, |record| {
            if at & (page.bytes() - 1) == page.bytes() - RECORD_BYTES {
                // This slot holds the link to the next page. The last page has room for all
                // remaining records, so its `END` in this slot is never reached.
                at = memory.load(at).unwrap_or(at);
            }
            store(memory, at, &record);
            at += RECORD_BYTES;
        });
        store(memory, at, &end());
        match written {
            Ok(_) => Ok(list),
            Err(wrong) => {
                list.give_back(memory, pages);
                Err(wrong)
            }
        }
    }

    /// Frees the pages on an error path. Only this code has written the pages so far, so their
    /// links are intact.
    fn give_back(self, memory: &impl ListMemory, pages: &mut impl TableAllocator) {
        let _ = self.free(memory, pages);
    }

    const fn first(&self) -> u64 {
        self.head.0 + size_of::<ListHeader>() as u64
    }

    /// Calls `each` with the list's pages in order: the pages that the transitional tables map, and
    /// that the uncached way cleans.
    ///
    /// # Errors
    ///
    /// [`ListError::Lost`] if a link was overwritten; the pages before it were already passed to
    /// `each`.
    pub fn each_page(
        &self,
        memory: &impl ListMemory,
        mut each: impl FnMut(PhysicalAddress),
    ) -> Result<(), ListError> {
        let mut at = self.head.0;
        for left in (0..self.pages).rev() {
            // Read the link first: `each` may free this page, and its next owner may write to it.
            let last = load_record(memory, at + (self.page.bytes() - RECORD_BYTES))?;
            each(PhysicalAddress(at));
            let expected = if left > 0 { LINK } else { END };
            if last.kind != expected || last.destination & (self.page.bytes() - 1) != 0 {
                return Err(ListError::Lost { address: at });
            }
            at = last.destination;
        }
        Ok(())
    }

    /// Frees the pages of the list.
    ///
    /// # Errors
    ///
    /// [`ListError::Lost`] if a link was overwritten. No page is freed then, because the set of
    /// pages is unknown.
    pub fn free(
        self,
        memory: &impl ListMemory,
        pages: &mut impl TableAllocator,
    ) -> Result<(), ListError> {
        self.each_page(memory, |_| {})?;
        self.each_page(memory, |page| {
            // SAFETY: a page of the list holds data only and is never used as a table.
            pages.free(unsafe { FreedTable::unreachable(page) });
        })
    }

    /// Writes the header with the digest, which completes the list.
    ///
    /// # Errors
    ///
    /// [`ListError::Lost`] if the list was overwritten since it was written.
    pub fn seal(
        &self,
        memory: &mut impl ListMemory,
        way: &Way,
        transition: &Transition,
        tcr: u64,
    ) -> Result<ListHeader, ListError> {
        let flags = if way.uncached { UNCACHED } else { 0 } | if way.el2 { EL2 } else { 0 };
        let mut header = ListHeader {
            magic: ListHeader::MAGIC,
            digest: 0,
            flags,
            first: self.first(),
            distance: transition.distance,
            sctlr: way.sctlr,
            ttbr1: transition.ttbr1.bits(),
            tcr: transition.tcr(tcr),
            entry: way.entry.0,
            tree: way.tree.0,
            code: way.code.0.wrapping_add(START),
            ttbr0: transition.ttbr0.bits(),
            sctlr_el2: way.sctlr_el2,
            records: self.totals.records,
            bytes_copied: self.totals.bytes_copied,
            bytes_cleaned: self.totals.bytes_cleaned,
        };
        header.digest = digest(memory, &header, |_| {})?;
        for (index, word) in header.words().into_iter().enumerate() {
            memory.store(self.head.0 + 8 * index as u64, word);
        }
        Ok(header)
    }
}

const fn link(to: u64) -> ListRecord {
    ListRecord {
        destination: to,
        source: 0,
        bytes: 0,
        kind: LINK,
    }
}

const fn end() -> ListRecord {
    ListRecord {
        destination: 0,
        source: 0,
        bytes: 0,
        kind: END,
    }
}

fn store(memory: &mut impl ListMemory, at: u64, record: &ListRecord) {
    let words = [record.destination, record.source, record.bytes, record.kind];
    for (index, word) in words.into_iter().enumerate() {
        memory.store(at + 8 * index as u64, word);
    }
}
