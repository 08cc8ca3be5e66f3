//! The list in memory: a header and records, in pages of their own, as the relocation code reads
//! them. Here it is written and sealed; [`verify`](fn@super::verify) reads it.
//!
//! All are little-endian words of 64 bits. The first page begins with the [`Header`], records follow
//! ([`RECORD_BYTES`] each: destination, source, bytes, kind), and the last record of a page that is
//! not the last one leads to the next page. A digest over all of it is in the header and is
//! [verified](fn@super::verify) before the point of no return: nothing after that looks at what it does.
//!
//! How the pages are reached is [`ListMemory`]'s; where they come from, a
//! [`TableAllocator`]'s, whose pages no segment may be in the place of.

use super::header::{Header, ListMemory};
use super::layout::{EL2, END, LINK, RECORD_BYTES, START, UNCACHED};
use super::plan::{Record, Totals, plan};
use super::segment::{Extent, Ground, Refusal, Segment, in_the_way};
use super::tables::Transition;
use super::verify::{ListError, digest, load_record};
use core::mem::size_of;
use granule::arch::{PageSize, PhysicalAddress};
use granule::table::{FreedTable, TableAllocator};

/// How the next kernel is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The MMU goes off before anything is copied: slower by far where there are caches, and there
    /// to be measured against.
    pub uncached: bool,
    /// The machine began at EL2 and this kernel runs at EL1: the next one begins at EL2 too, by a
    /// hypervisor call that this kernel's vectors of EL2 take.
    pub el2: bool,
    /// SCTLR with the MMU and caches off, of the level that this kernel runs at.
    pub sctlr: u64,
    /// SCTLR_EL2 with the MMU off, without E2H; for `el2` only.
    pub sctlr_el2: u64,
    /// Where the next kernel begins: the image's place.
    pub entry: PhysicalAddress,
    /// Where its device tree is to be.
    pub tree: PhysicalAddress,
    /// The page that the relocation code was, or will be, copied to.
    pub code: PhysicalAddress,
}

/// A list that was written: records, and room for the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// The first page.
    pub head: PhysicalAddress,
    /// Pages.
    pub pages: usize,
    /// The page size.
    pub page: PageSize,
    /// What its records come to.
    pub totals: Totals,
}

/// Records that a page has room for, its last one not counted, which leads on or ends the list.
const fn room(page: PageSize, first: bool) -> u64 {
    let header = if first { size_of::<Header>() as u64 } else { 0 };
    (page.bytes() - header) / RECORD_BYTES - 1
}

impl List {
    /// Writes the list for some segments.
    ///
    /// # Errors
    ///
    /// Those of [`check`](super::check); [`Refusal::OutOfPages`] and [`Refusal::PageInTheWay`], with
    /// all pages given back.
    pub fn write(
        memory: &mut impl ListMemory,
        pages: &mut impl TableAllocator,
        segments: &[Segment<'_>],
        ground: &Ground<'_>,
    ) -> Result<Self, Refusal> {
        let what = "list";
        let page = ground.page;
        let totals = plan(segments, ground, |_| {})?;
        let more = totals.records.saturating_sub(room(page, true));
        let needed = 1 + more.div_ceil(room(page, false)) as usize;
        let out = Refusal::OutOfPages { what, needed };
        if !pages.reserve(needed) {
            return Err(out);
        }
        // Linked as they come, so that those there are can be given back, and be found again.
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
                if in_the_way(segments, &Extent::new(at, page.bytes())).is_some() {
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
        let written = plan(segments, ground, |record| {
            if at & (page.bytes() - 1) == page.bytes() - RECORD_BYTES {
                // `end` in the last page, which has room for all that is left.
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

    /// Nobody but this has written the pages so far, so there is nothing to be found wrong.
    fn give_back(self, memory: &impl ListMemory, pages: &mut impl TableAllocator) {
        let _ = self.free(memory, pages);
    }

    const fn first(&self) -> u64 {
        self.head.0 + size_of::<Header>() as u64
    }

    /// The list's pages, one after the other: what the transitional tables must map, and what must be
    /// cleaned for the uncached way.
    ///
    /// # Errors
    ///
    /// [`ListError::Lost`] if something wrote over what links them; all before it were given then.
    pub fn each_page(
        &self,
        memory: &impl ListMemory,
        mut each: impl FnMut(PhysicalAddress),
    ) -> Result<(), ListError> {
        let mut at = self.head.0;
        for left in (0..self.pages).rev() {
            // The next one first: this one may be freed, and written by its next owner.
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

    /// Gives its pages back.
    ///
    /// # Errors
    ///
    /// [`ListError::Lost`] if something wrote over what links them: none is given back then, as
    /// nobody knows which they were.
    pub fn free(
        self,
        memory: &impl ListMemory,
        pages: &mut impl TableAllocator,
    ) -> Result<(), ListError> {
        self.each_page(memory, |_| {})?;
        self.each_page(memory, |page| {
            // SAFETY: a page of the list is data, and never becomes a table.
            pages.free(unsafe { FreedTable::unreachable(page) });
        })
    }

    /// Writes the header, with the digest: the list is complete.
    ///
    /// # Errors
    ///
    /// [`ListError::Lost`] if it was written over since.
    pub fn seal(
        &self,
        memory: &mut impl ListMemory,
        way: &Way,
        transition: &Transition,
        tcr: u64,
    ) -> Result<Header, ListError> {
        let flags = if way.uncached { UNCACHED } else { 0 } | if way.el2 { EL2 } else { 0 };
        let mut header = Header {
            magic: Header::MAGIC,
            digest: 0,
            flags,
            first: self.first(),
            distance: transition.distance,
            sctlr: way.sctlr,
            ttbr1: transition.ttbr1.0,
            tcr: transition.tcr(tcr),
            entry: way.entry.0,
            tree: way.tree.0,
            code: way.code.0.wrapping_add(START),
            ttbr0: transition.ttbr0.0,
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

const fn link(to: u64) -> Record {
    Record {
        destination: to,
        source: 0,
        bytes: 0,
        kind: LINK,
    }
}

const fn end() -> Record {
    Record {
        destination: 0,
        source: 0,
        bytes: 0,
        kind: END,
    }
}

fn store(memory: &mut impl ListMemory, at: u64, record: &Record) {
    let words = [record.destination, record.source, record.bytes, record.kind];
    for (index, word) in words.into_iter().enumerate() {
        memory.store(at + 8 * index as u64, word);
    }
}
