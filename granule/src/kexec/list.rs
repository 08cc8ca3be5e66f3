//! The list in memory: a header and records, in pages of their own, as the relocation code reads
//! them.
//!
//! All are little-endian words of 64 bits. The first page begins with the [`Header`], records follow
//! ([`RECORD_BYTES`] each: destination, source, bytes, kind), and the last record of a page that is
//! not the last one leads to the next page. A digest over all of it is in the header and is
//! [verified](verify) before the point of no return: nothing after that looks at what it does.
//!
//! How the pages are reached is [`ListMemory`]'s; where they come from, a
//! [`TableAllocator`]'s, whose pages no segment may be in the place of.

use super::layout::{CLEAN, COPY, EL2, END, LINK, RECORD_BYTES, UNCACHED, UNIT};
use super::plan::{Record, Totals, plan};
use super::segment::{Extent, Ground, Refusal, Segment, in_the_way};
use super::{Digest, Transition};
use crate::arch::{PageSize, PhysicalAddress};
use crate::table::TableAllocator;
use core::fmt;
use core::mem::{offset_of, size_of};

/// Memory of the list, a word at a time, by physical address.
pub trait ListMemory {
    /// The word at an address, a multiple of 8; `None` where this kernel has no memory. Only a list
    /// that something wrote over leads there.
    fn load(&self, address: u64) -> Option<u64>;

    /// Stores a word in a page that came from the allocator.
    fn store(&mut self, address: u64, word: u64);
}

/// What the relocation code is told, at the beginning of the list's first page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// [`Header::MAGIC`].
    pub magic: u64,
    /// The [`Digest`] of all other words of the header, and of all records.
    pub digest: u64,
    /// [`UNCACHED`], [`EL2`].
    pub flags: u64,
    /// The physical address of the first record.
    pub first: u64,
    /// What is added, wrapping, to a physical address for that in the linear map.
    pub distance: u64,
    /// SCTLR with the MMU off.
    pub sctlr: u64,
    /// TTBR1 with the transitional tables.
    pub ttbr1: u64,
    /// TCR with them.
    pub tcr: u64,
    /// The physical address at which the next kernel begins.
    pub entry: u64,
    /// The physical address of its device tree.
    pub tree: u64,
    /// The physical address at which the relocation code begins: in the page that it was copied to,
    /// [`START`](super::START) bytes on.
    pub code: u64,
    /// TTBR0 with the identity map of that page.
    pub ttbr0: u64,
    /// SCTLR_EL2 with the MMU off, without E2H.
    pub sctlr_el2: u64,
    /// How many records there are, without those that lead to a page, and without the end.
    pub records: u64,
    /// Bytes that are copied.
    pub bytes_copied: u64,
    /// Bytes whose lines are cleaned.
    pub bytes_cleaned: u64,
}

impl Header {
    /// "granKEXC".
    pub const MAGIC: u64 = u64::from_le_bytes(*b"granKEXC");

    const WORDS: usize = size_of::<Self>() / 8;

    const fn words(&self) -> [u64; Self::WORDS] {
        [
            self.magic,
            self.digest,
            self.flags,
            self.first,
            self.distance,
            self.sctlr,
            self.ttbr1,
            self.tcr,
            self.entry,
            self.tree,
            self.code,
            self.ttbr0,
            self.sctlr_el2,
            self.records,
            self.bytes_copied,
            self.bytes_cleaned,
        ]
    }

    fn load(memory: &impl ListMemory, at: u64) -> Result<Self, ListError> {
        let mut words = [0; Self::WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = load(memory, at, 8 * index as u64)?;
        }
        let [
            magic,
            digest,
            flags,
            first,
            distance,
            sctlr,
            ttbr1,
            tcr,
            entry,
            tree,
            code,
            ttbr0,
            sctlr_el2,
            records,
            bytes_copied,
            bytes_cleaned,
        ] = words;
        Ok(Self {
            magic,
            digest,
            flags,
            first,
            distance,
            sctlr,
            ttbr1,
            tcr,
            entry,
            tree,
            code,
            ttbr0,
            sctlr_el2,
            records,
            bytes_copied,
            bytes_cleaned,
        })
    }
}

// The relocation code loads these in pairs.
const _: () = {
    assert!(offset_of!(Header, first) == offset_of!(Header, flags) + 8);
    assert!(offset_of!(Header, sctlr) == offset_of!(Header, distance) + 8);
    assert!(offset_of!(Header, tcr) == offset_of!(Header, ttbr1) + 8);
    assert!(offset_of!(Header, tree) == offset_of!(Header, entry) + 8);
    assert!(offset_of!(Header, ttbr0) == offset_of!(Header, code) + 8);
    assert!((size_of::<Header>() as u64).is_multiple_of(RECORD_BYTES));
};

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

/// Why a list is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListError {
    /// There is no header.
    NoList {
        /// Where one was expected.
        address: u64,
    },
    /// It leads to where there is no memory, or nowhere.
    Lost {
        /// Where to.
        address: u64,
    },
    /// Its digest is another one.
    Digest {
        /// What its header says.
        expected: u64,
        /// What it has.
        found: u64,
    },
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoList { address } => write!(
                f,
                "the list of what is to be relocated is not at {address:#x}: load the next kernel again"
            ),
            Self::Lost { address } => write!(
                f,
                "the list of what is to be relocated was written over, and leads to {address:#x}: load \
                 the next kernel again"
            ),
            Self::Digest { expected, found } => write!(
                f,
                "the list of what is to be relocated was written over, its digest is {found:#018x}, \
                 expected {expected:#018x}: load the next kernel again"
            ),
        }
    }
}

impl core::error::Error for ListError {}

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
        self.each_page(memory, |page| pages.free(page))
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
            code: way.code.0.wrapping_add(super::START),
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

fn load(memory: &impl ListMemory, base: u64, offset: u64) -> Result<u64, ListError> {
    let lost = ListError::Lost { address: base };
    let address = base.checked_add(offset).filter(|it| it % 8 == 0);
    memory.load(address.ok_or(lost)?).ok_or(lost)
}

fn load_record(memory: &impl ListMemory, at: u64) -> Result<Record, ListError> {
    Ok(Record {
        destination: load(memory, at, 0)?,
        source: load(memory, at, 8)?,
        bytes: load(memory, at, 16)?,
        kind: load(memory, at, 24)?,
    })
}

/// The digest of a header and what it leads to, whose records go to `each`.
fn digest(
    memory: &impl ListMemory,
    header: &Header,
    mut each: impl FnMut(&Record),
) -> Result<u64, ListError> {
    let mut digest = Digest::new();
    let words = Header {
        digest: 0,
        ..*header
    }
    .words();
    words.into_iter().for_each(|word| digest.word(word));
    let mut at = header.first;
    let mut left = header.records;
    // A page has room for more than one record: two links in a row are none of ours.
    let mut linked = false;
    loop {
        let record = load_record(memory, at)?;
        for word in [record.destination, record.source, record.bytes, record.kind] {
            digest.word(word);
        }
        match record.kind {
            END if left == 0 => return Ok(digest.value()),
            LINK if !linked => {
                linked = true;
                at = record.destination;
            }
            kind if left > 0 && kind & (COPY | CLEAN) != 0 && kind & !(COPY | CLEAN) == 0 => {
                let ends =
                    [record.destination, record.source].map(|it| it.checked_add(record.bytes));
                let whole = record.bytes != 0 && record.bytes.is_multiple_of(UNIT);
                if !whole || ends.contains(&None) {
                    return Err(ListError::Lost { address: at });
                }
                linked = false;
                left -= 1;
                at = at.saturating_add(RECORD_BYTES);
                each(&record);
            }
            _ => return Err(ListError::Lost { address: at }),
        }
    }
}

/// Looks at the list whose first page is at `head`, all of it, and gives its header if it is as it
/// was sealed. Its records go to `each`, before it is known whether they are right.
///
/// # Errors
///
/// [`ListError`]: nothing of it may be followed then.
pub fn verify(
    memory: &impl ListMemory,
    head: PhysicalAddress,
    each: impl FnMut(&Record),
) -> Result<Header, ListError> {
    let header = Header::load(memory, head.0)?;
    if header.magic != Header::MAGIC {
        return Err(ListError::NoList { address: head.0 });
    }
    let found = digest(memory, &header, each)?;
    if found != header.digest {
        return Err(ListError::Digest {
            expected: header.digest,
            found,
        });
    }
    Ok(header)
}
