//! The list in memory: a header and records, in pages of their own, in the form that the relocation
//! code reads. This file writes and seals the list; [`verify`](fn@super::verify) reads it.
//!
//! All fields are little-endian 64-bit words. The first page begins with the [`ListHeader`], then
//! come the records ([`RECORD_BYTES`] each: destination, source, bytes, kind). The last record of
//! every page but the last links to the next page. The header holds a digest over the whole list,
//! which is [verified](fn@super::verify) before the point of no return: the relocation code itself
//! checks nothing.
//!
//! A [`ListMemory`] gives access to the pages, and a [`TableEnvironment`] provides them. No segment's
//! destination may cover one of these pages.

#![allow(unsafe_code, reason = "words of the list's pages, and their way back")]

use super::digest::Digest;
use super::header::ListHeader;
use super::layout::{EL2, END, LINK, RECORD_BYTES, START, UNCACHED};
use super::memory::ListMemory;
use super::plan::{ListRecord, Totals, plan};
use super::segment::{MemoryMap, PhysRange, Refusal, Segment, in_the_way};
use super::tables::Transition;
use super::verify::{ListError, digest, load_record};
use core::mem::size_of;
use granule::arch::{PageSize, PhysicalAddress};
use granule::table::{FreedTable, Reservation, TableEnvironment};

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
///
/// The value owns the list's pages until [`free`](Self::free) consumes it. They cannot be freed twice:
///
/// ```compile_fail,E0382
/// use granule::table::TableEnvironment;
/// use granule_kexec::{ListError, ListMemory, RelocationList};
///
/// fn twice(
///     list: RelocationList,
///     memory: &impl ListMemory,
///     pages: &mut impl TableEnvironment,
/// ) -> Result<(), ListError> {
///     // SAFETY: the memory reaches the list's pages, which `pages` gave.
///     unsafe {
///         list.free(memory, pages)?;
///         list.free(memory, pages)
///     }
/// }
/// ```
///
/// nor can other pages be freed or written:
///
/// ```compile_fail,E0451
/// use granule::arch::PhysicalAddress;
/// use granule_kexec::RelocationList;
///
/// fn elsewhere(list: RelocationList, head: PhysicalAddress) -> RelocationList {
///     RelocationList { head, ..list }
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "pages that are not given back by `free` are lost"]
pub struct RelocationList {
    head: PhysicalAddress,
    pages: usize,
    page: PageSize,
    totals: Totals,
    /// The digest of the addresses of all pages, in order. The links are in memory, where they may be
    /// overwritten; no page is freed unless they lead to these.
    page_digest: u64,
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
    /// The first page.
    #[must_use]
    pub const fn head(&self) -> PhysicalAddress {
        self.head
    }

    /// The number of pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// The page size.
    #[must_use]
    pub const fn page(&self) -> PageSize {
        self.page
    }

    /// The totals over its records.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Writes the list for some segments.
    ///
    /// The memory and the pages are two values, so the caller vouches that they fit:
    ///
    /// ```compile_fail,E0133
    /// use granule::table::TableEnvironment;
    /// use granule_kexec::{ListMemory, MemoryMap, Refusal, RelocationList};
    ///
    /// fn through_other_memory(
    ///     other: &mut impl ListMemory,
    ///     pages: &mut impl TableEnvironment,
    ///     memory_map: &MemoryMap<'_>,
    /// ) -> Result<RelocationList, Refusal> {
    ///     RelocationList::write(other, pages, &[], memory_map)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`check`](super::check) does, or with [`Refusal::OutOfPages`] and [`Refusal::PageInTheWay`]
    /// after all pages were given back.
    ///
    /// # Safety
    ///
    /// `memory` reaches all pages that `pages` gives. They have the page size of `memory_map`.
    pub unsafe fn write(
        memory: &mut impl ListMemory,
        pages: &mut impl TableEnvironment,
        segments: &[Segment<'_>],
        memory_map: &MemoryMap<'_>,
    ) -> Result<Self, Refusal> {
        let what = "list";
        let page = memory_map.page;
        let totals = plan(segments, memory_map, |_| {})?;
        let more = totals.records.saturating_sub(room(page, true));
        let needed = 1 + more.div_ceil(room(page, false)) as usize;
        let out = Refusal::OutOfPages { what, needed };
        if pages.reserve(needed) == Reservation::Refused {
            return Err(out);
        }
        // Each page is linked at once, so that an error path can find and free the pages allocated
        // so far.
        let mut head = None;
        let mut page_digest = Digest::new();
        let mut last = 0;
        let mut taken = 0;
        let mut wrong = None;
        while taken < needed && wrong.is_none() {
            let Some(run) = pages.allocate_run(needed - taken) else {
                wrong = Some(out);
                break;
            };
            for index in 0..run.count as u64 {
                let at = run.first.0 + index * page.bytes();
                page_digest.word(at);
                // SAFETY: both pages were just allocated, and so are this call's alone. The caller
                // vouches that `memory` reaches them.
                unsafe {
                    match head {
                        None => head = Some(at),
                        Some(_) => store(memory, last + page.bytes() - RECORD_BYTES, &link(at)),
                    }
                    store(memory, at + page.bytes() - RECORD_BYTES, &end());
                }
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
            page_digest: page_digest.value(),
        };
        let written = match wrong {
            Some(wrong) => Err(wrong),
            // SAFETY: all pages of the list were just allocated, as many as the records need. The
            // caller vouches that `memory` reaches them.
            None => unsafe { list.write_records(memory, segments, memory_map) },
        };
        match written {
            Ok(()) => Ok(list),
            Err(wrong) => {
                // Only this code has written the pages so far, so their links are intact.
                // SAFETY: `pages` gave them, and the caller vouches that `memory` reaches them.
                let _ = unsafe { list.free(memory, pages) };
                Err(wrong)
            }
        }
    }

    /// Writes the records to the linked pages.
    ///
    /// # Safety
    ///
    /// `memory` reaches the pages of the list, which have room for all records.
    unsafe fn write_records(
        &self,
        memory: &mut impl ListMemory,
        segments: &[Segment<'_>],
        memory_map: &MemoryMap<'_>,
    ) -> Result<(), Refusal> {
        let page = self.page.bytes();
        let mut at = self.first();
        plan(segments, memory_map, |record| {
            if at & (page - 1) == page - RECORD_BYTES {
                // This slot holds the link to the next page. The last page has room for all
                // remaining records, so its `END` in this slot is never reached.
                let Some(next) = memory.load(at) else { return };
                at = next;
            }
            // SAFETY: the private fields are those of `write`: the pages belong to the list. `at` is
            // behind the header or at the start of a linked page, and never passes the last slot.
            unsafe { store(memory, at, &record) };
            at += RECORD_BYTES;
        })?;
        // SAFETY: as above.
        unsafe { store(memory, at, &end()) };
        Ok(())
    }

    const fn first(&self) -> u64 {
        self.head.0 + size_of::<ListHeader>() as u64
    }

    /// Calls `each` with the list's pages in order: the pages that the transitional tables map, and
    /// that the uncached way cleans.
    ///
    /// # Errors
    ///
    /// Fails with [`ListError::Lost`] if a link was overwritten; the pages before it were already passed to
    /// `each`.
    pub fn each_page(
        &self,
        memory: &impl ListMemory,
        mut each: impl FnMut(PhysicalAddress),
    ) -> Result<(), ListError> {
        let mut at = self.head.0;
        let mut page_digest = Digest::new();
        for left in (0..self.pages).rev() {
            page_digest.word(at);
            // Read the link first: `each` may free this page, and its next owner may write to it.
            let last = load_record(memory, at + (self.page.bytes() - RECORD_BYTES))?;
            each(PhysicalAddress(at));
            let expected = if left > 0 { LINK } else { END };
            if last.kind != expected || last.destination & (self.page.bytes() - 1) != 0 {
                return Err(ListError::Lost { address: at });
            }
            at = last.destination;
        }
        if page_digest.value() == self.page_digest {
            Ok(())
        } else {
            let address = self.head.0;
            Err(ListError::Lost { address })
        }
    }

    /// Frees the pages of the list.
    ///
    /// The environment is another value than the list, so the caller vouches for it:
    ///
    /// ```compile_fail,E0133
    /// use granule::table::TableEnvironment;
    /// use granule_kexec::{ListMemory, RelocationList};
    ///
    /// fn to_another(
    ///     list: RelocationList,
    ///     memory: &impl ListMemory,
    ///     other: &mut impl TableEnvironment,
    /// ) {
    ///     let _ = list.free(memory, other);
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`ListError::Lost`] if a link was overwritten. No page is freed then, because the set of
    /// pages is unknown.
    ///
    /// # Safety
    ///
    /// `memory` reaches the list's pages, as in [`write`](Self::write). `pages` is the environment that
    /// they came from, or one that may have them and can reach them.
    pub unsafe fn free(
        self,
        memory: &impl ListMemory,
        pages: &mut impl TableEnvironment,
    ) -> Result<(), ListError> {
        self.each_page(memory, |_| {})?;
        self.each_page(memory, |page| {
            // SAFETY: the pages that the links lead to are those that were allocated, by the private
            // `page_digest`, and `self` is consumed. They hold data only and are never used as tables.
            // The caller vouches for the environment.
            pages.free(unsafe { FreedTable::unreachable(page) });
        })
    }

    /// Writes the header with the digest, which completes the list.
    ///
    /// The header is stored through memory that the caller vouches for:
    ///
    /// ```compile_fail,E0133
    /// use granule_kexec::{ListMemory, RelocationList, Transition, Way};
    ///
    /// fn through_other_memory(
    ///     list: &mut RelocationList,
    ///     other: &mut impl ListMemory,
    ///     way: &Way,
    ///     transition: &Transition,
    /// ) {
    ///     let _ = list.seal(other, way, transition, 0);
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`ListError::Lost`] if the list was overwritten since it was written.
    ///
    /// # Safety
    ///
    /// `memory` reaches the list's pages, as in [`write`](Self::write).
    pub unsafe fn seal(
        &mut self,
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
            distance: transition.distance(),
            sctlr: way.sctlr,
            ttbr1: transition.ttbr1().bits(),
            tcr: transition.tcr(tcr),
            entry: way.entry.0,
            tree: way.tree.0,
            code: way.code.0.wrapping_add(START),
            ttbr0: transition.ttbr0().bits(),
            sctlr_el2: way.sctlr_el2,
            records: self.totals.records,
            bytes_copied: self.totals.bytes_copied,
            bytes_cleaned: self.totals.bytes_cleaned,
        };
        header.digest = digest(memory, &header, |_| {})?;
        for (index, word) in header.words().into_iter().enumerate() {
            // SAFETY: the header begins the first page, which the list owns by the private `head`. The
            // caller vouches that `memory` reaches it.
            unsafe { memory.store(self.head.0 + 8 * index as u64, word) };
        }
        Ok(header)
    }
}

fn link(to: u64) -> ListRecord {
    ListRecord {
        destination: to,
        kind: LINK,
        ..ListRecord::default()
    }
}

fn end() -> ListRecord {
    ListRecord {
        kind: END,
        ..ListRecord::default()
    }
}

/// Stores a record.
///
/// # Safety
///
/// As for [`ListMemory::store`], for each of its words.
unsafe fn store(memory: &mut impl ListMemory, at: u64, record: &ListRecord) {
    for (index, word) in record.words().into_iter().enumerate() {
        // SAFETY: the caller keeps the conditions.
        unsafe { memory.store(at + 8 * index as u64, word) };
    }
}
