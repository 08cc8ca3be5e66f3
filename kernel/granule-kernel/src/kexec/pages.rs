//! Pages for the next kernel: taken in a segment's place or elsewhere, filled, and freed together when
//! their owner is dropped. Only this file of the loading code accesses memory by address.

#![allow(unsafe_code, reason = "pages of the next kernel, in the linear map")]

use super::refused::Refused;
use crate::arch::cpu;
use crate::mm::kernel_tables::{self, Kernel, pointer};
use crate::mm::pages::{self, NoMemory, Run};
use crate::mm::transition;
use crate::task::frames::sync_instructions;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use core::cell::Cell;
use granule::arch::{Descriptor, PhysicalAddress};
use granule::hw::cache;
use granule::table::{FreedTable, Maintenance, TableEnvironment, TableRun};
pub(super) use granule_kcore::kexec::segments::MOST_SEGMENTS;
use granule_kexec::{
    Digest, ListError, ListHeader, ListMemory, MemoryMap, Needs, PhysRange, Refusal,
    RelocationList, Segment, Transition, TransitionError, Way, relocate,
};

pub(crate) fn page_bytes() -> u64 {
    kernel_tables::kernel().map_or(0, kernel_tables::Kernel::page)
}

/// Extents in order of insertion, neighbours joined. The storage grows as long as memory lasts.
#[derive(Debug)]
pub(crate) struct Runs {
    slots: Array<PhysRange>,
    used: usize,
}

impl Runs {
    /// Extents in the first storage; it doubles when it is full.
    const FIRST: usize = 128;

    pub(super) fn new() -> Result<Self, NoMemory> {
        Self::with_room(Self::FIRST)
    }

    /// An empty value with room for `room` extents.
    pub(super) fn with_room(room: usize) -> Result<Self, NoMemory> {
        let slots = Array::new(room, |_| PhysRange::default()).ok_or(NoMemory)?;
        Ok(Self { slots, used: 0 })
    }

    pub(super) fn push(&mut self, new: PhysRange) -> Result<(), NoMemory> {
        let last = self.used.checked_sub(1);
        if let Some(last) = last.and_then(|last| self.slots.get_mut(last))
            && last.end() == Some(new.start)
        {
            last.bytes += new.bytes;
            return Ok(());
        }
        if self.used == self.slots.len() {
            let mut larger = Self::with_room(2 * self.used)?;
            for (to, from) in larger.slots.iter_mut().zip(self.slots.iter()) {
                *to = *from;
            }
            self.slots = larger.slots;
        }
        if let Some(slot) = self.slots.get_mut(self.used) {
            *slot = new;
            self.used += 1;
        }
        Ok(())
    }

    /// The whole storage.
    pub(super) fn slots(&mut self) -> &mut [PhysRange] {
        &mut self.slots
    }

    /// The stored extents.
    pub(crate) fn all(&self) -> &[PhysRange] {
        self.slots.get(..self.used).unwrap_or_default()
    }
}

/// Pages that are freed when the owner is dropped. Pages in a segment's place are put aside instead of
/// used: other code frees memory during a load, also in the places, and relocation would overwrite a
/// page taken there. They stay held until all pages are taken; otherwise the allocator would return them
/// again.
#[derive(Debug)]
pub(crate) struct Held {
    own: Runs,
    aside: Runs,
    places: ArrayVec<PhysRange, MOST_SEGMENTS>,
    /// The only source of pages, if there is one: memory that is never freed.
    range: Option<PhysRange>,
}

impl Held {
    /// An empty value, before any segment has a place.
    pub(crate) fn new() -> Result<Self, NoMemory> {
        Ok(Self {
            own: Runs::new()?,
            aside: Runs::new()?,
            places: ArrayVec::new(),
            range: None,
        })
    }

    /// A value whose pages come from the end of a range that the caller owns, and stay taken.
    pub(super) fn of_range(range: PhysRange) -> Result<Self, NoMemory> {
        let mut held = Self::new()?;
        held.range = Some(range);
        Ok(held)
    }

    /// Sets the segments' places, which later allocations avoid.
    pub(super) fn keep_out_of(&mut self, segments: &[Segment<'_>]) {
        let places = segments.iter().take(MOST_SEGMENTS).map(Segment::place);
        self.places = places.collect();
    }

    /// Takes all free pages of an extent and calls `each` with them in ascending order.
    pub(crate) fn take_free_in(
        &mut self,
        extent: PhysRange,
        each: &mut dyn FnMut(PhysRange) -> Result<(), NoMemory>,
    ) -> Result<(), NoMemory> {
        take_free(&mut self.own, extent, each)
    }

    /// Puts aside the free pages of an extent.
    pub(super) fn put_aside(&mut self, extent: PhysRange) -> Result<(), NoMemory> {
        take_free(&mut self.aside, extent, &mut |_| Ok(()))
    }

    /// Puts aside the pages freed in the places so far, for allocations that bypass this owner.
    pub(super) fn put_places_aside(&mut self) -> Result<(), NoMemory> {
        let Self { aside, places, .. } = self;
        let mut places = places.iter();
        places.try_for_each(|place| take_free(aside, *place, &mut |_| Ok(())))
    }

    /// Frees the pages put aside; no more pages will be taken.
    pub(super) fn complete(&mut self) {
        let aside = core::mem::take(&mut self.aside.used);
        release_all(self.aside.slots.get(..aside).unwrap_or_default());
    }

    /// Takes at least one page and at most `most` bytes, in one run outside the places.
    pub(super) fn take(&mut self, most: u64) -> Result<PhysRange, NoMemory> {
        if let Some(range) = &mut self.range {
            let bytes = most.min(range.bytes);
            range.bytes -= bytes;
            let taken = PhysRange::new(range.start + range.bytes, bytes);
            return if bytes > 0 { Ok(taken) } else { Err(NoMemory) };
        }
        loop {
            let run = pages::allocate_run(most / page_bytes().max(1))?;
            let taken = PhysRange::new(run.0.0, run.1 * page_bytes());
            if !self.places.iter().any(|place| place.overlaps(&taken)) {
                return add(&mut self.own, run);
            }
            add(&mut self.aside, run)?;
        }
    }

    /// Takes pages for the gaps between a segment's pages in place, and appends all of them to `all` in order.
    pub(super) fn take_gaps(
        &mut self,
        segment: &Segment<'_>,
        in_place: &Runs,
        all: &mut Runs,
    ) -> Result<(), NoMemory> {
        let end = segment.destination + segment.bytes.next_multiple_of(page_bytes());
        let mut at = segment.destination;
        let behind = PhysRange::new(end, 0);
        for own in in_place.all().iter().chain([&behind]) {
            let mut missing = own.start - at;
            while missing > 0 {
                let taken = self.take(missing)?;
                missing -= taken.bytes;
                all.push(taken)?;
            }
            if own.bytes > 0 {
                all.push(*own)?;
            }
            at = own.start + own.bytes;
        }
        Ok(())
    }

    /// Takes one page outside the places.
    pub(super) fn take_page(&mut self) -> Result<PhysicalAddress, NoMemory> {
        let page = self.take(page_bytes())?;
        Ok(PhysicalAddress(page.start))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.complete();
        release_all(self.own.all());
    }
}

fn add(to: &mut Runs, (first, count): Run) -> Result<PhysRange, NoMemory> {
    let new = PhysRange::new(first.0, count * page_bytes());
    if to.push(new).is_err() {
        pages::release(first, count);
        return Err(NoMemory);
    }
    Ok(new)
}

// Once in the image, and not at each of its callers.
#[inline(never)]
fn take_free(
    to: &mut Runs,
    extent: PhysRange,
    each: &mut dyn FnMut(PhysRange) -> Result<(), NoMemory>,
) -> Result<(), NoMemory> {
    let end = extent.start + extent.bytes;
    let mut at = extent.start;
    while let Some(run) = pages::allocate_free_in(at..end)? {
        let taken = add(to, run)?;
        at = taken.start + taken.bytes;
        each(taken)?;
    }
    Ok(())
}

fn release_all(runs: &[PhysRange]) {
    for run in runs {
        pages::release(PhysicalAddress(run.start), run.bytes / page_bytes().max(1));
    }
}

// SAFETY: the pages come from the page allocator, and `Held` alone owns them until it is dropped. The
// linear map covers all of them, and they lie below the kernel's physical address size.
unsafe impl TableEnvironment for Held {
    fn reach(&self, page: PhysicalAddress) -> *mut u64 {
        pointer(page).map_or(core::ptr::null_mut(), |page| page.cast().as_ptr())
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.take_page().ok()
    }

    /// Tables are freed with all other pages, so a damaged list cannot free a wrong page.
    fn free(&mut self, _: FreedTable) {}

    /// No CPU walks what the pages hold.
    fn invalidate(&mut self, _: Maintenance) {}

    // Nothing is reserved: other allocations may come first, and a shortage shows here.
    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let taken = self.take((most as u64).saturating_mul(page_bytes())).ok()?;
        Some(TableRun {
            first: PhysicalAddress(taken.start),
            count: (taken.bytes / page_bytes().max(1)) as usize,
        })
    }
}

/// The words of the list, through the linear map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words;

// SAFETY: a store goes to the word of this address in the linear map, and a load comes from there. Where
// nothing is mapped there is no word.
unsafe impl ListMemory for Words {
    fn load(&self, address: u64) -> Option<u64> {
        let at = pointer(PhysicalAddress(address)).filter(|_| address.is_multiple_of(8))?;
        // Only mapped RAM: the links of an overwritten list may lead anywhere.
        cpu::translate(at.as_ptr() as u64).ok()?;
        // SAFETY: the address is aligned and was just seen to be mapped; any word is valid.
        Some(unsafe { at.cast::<u64>().as_ptr().read_volatile() })
    }

    unsafe fn store(&mut self, address: u64, word: u64) {
        if let Some(at) = pointer(PhysicalAddress(address)) {
            // SAFETY: the caller owns the page, which the linear map covers, as it came from an allocator.
            unsafe { at.cast::<u64>().as_ptr().write_volatile(word) };
        }
    }
}

/// Writes the list, to pages that `held` takes.
pub(super) fn write_list(
    held: &mut Held,
    segments: &[Segment<'_>],
    memory_map: &MemoryMap<'_>,
) -> Result<RelocationList, Refusal> {
    // SAFETY: the pages of `Held` are this kernel's, and the linear map covers all of them. The memory map
    // is made for the same kernel.
    unsafe { RelocationList::write(&mut Words, held, segments, memory_map) }
}

/// Builds tables from all that is left of the range of `held`.
pub(super) fn build_tables(
    held: &mut Held,
    kernel: &Kernel,
    needs: &Needs<'_>,
) -> Result<Transition, TransitionError> {
    let left = held.range.take().unwrap_or_default();
    // SAFETY: the range was the caller's, and `held` had the rest of it by its private field, which is empty now.
    unsafe { transition::build_in(kernel, needs, left.start..left.start + left.bytes) }
}

/// Completes a list whose pages `_held` has.
pub(super) fn seal_list(
    list: &mut RelocationList,
    _held: &Held,
    way: &Way,
    transition: &Transition,
    tcr: u64,
) -> Result<ListHeader, ListError> {
    // SAFETY: the pages are still held, and the linear map covers all of them.
    unsafe { list.seal(&mut Words, way, transition, tcr) }
}

pub(super) trait ReadTables: Fn(PhysicalAddress, usize) -> Option<Descriptor> {}

impl<R: Fn(PhysicalAddress, usize) -> Option<Descriptor>> ReadTables for R {}

/// Reads entries of tables that were loaded for the next kernel, for a view of them: from mapped RAM
/// only, as their links may have been overwritten.
pub(super) fn table_reader() -> impl ReadTables {
    let (page, last) = (page_bytes(), Cell::new(None));
    move |table, index| {
        let at = pointer(table)?;
        // A table is one page, so it is looked up once, as long as the walk stays in it.
        if last.get() != Some(table) {
            cpu::translate(at.as_ptr() as u64).ok()?;
            last.set(Some(table));
        }
        let inside = table.0.is_multiple_of(page) && (index as u64) < page / 8;
        // SAFETY: the table's page was just seen to be mapped, and the entry lies in it; any word is
        // valid.
        inside.then(|| Descriptor(unsafe { at.cast::<u64>().as_ptr().add(index).read_volatile() }))
    }
}

/// Writes `bytes` to pages, in order, fills the rest with zeros, and returns the digest of `bytes`.
pub(super) fn fill(pages: &[PhysRange], bytes: &[u8]) -> u64 {
    let mut digest = Digest::new();
    let mut rest = bytes;
    let written = fill_with(pages, bytes.len() as u64, &mut |head| {
        let (piece, behind) = rest.split_at(rest.len().min(head.len()));
        head.copy_from_slice(piece);
        digest.bytes(piece);
        rest = behind;
        Ok(())
    });
    debug_assert!(written.is_ok(), "no piece is refused");
    digest.value()
}

/// Calls `write` for the first `bytes` bytes of pages, in order and a run at a time, and fills the rest with zeros.
pub(super) fn fill_with(
    pages: &[PhysRange],
    bytes: u64,
    write: &mut dyn FnMut(&mut [u8]) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut rest = bytes;
    for run in pages {
        let Some(start) = pointer(PhysicalAddress(run.start)) else {
            continue;
        };
        // SAFETY: `Held` took these pages, or they are reserved for a crash kernel that is not loaded yet; the
        // linear map maps them writable, and nothing else uses them.
        let to = unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), run.bytes as usize) };
        let (head, tail) = to.split_at_mut(rest.min(run.bytes) as usize);
        write(head)?;
        tail.fill(0);
        rest -= head.len() as u64;
    }
    Ok(())
}

/// The digest of the first `bytes` bytes of a range.
///
/// # Safety
///
/// The range is this kernel's, and nothing writes to it meanwhile.
pub(super) unsafe fn digest(range: &PhysRange, bytes: u64) -> u64 {
    let mut digest = Digest::new();
    if let Some(start) = pointer(PhysicalAddress(range.start)) {
        // SAFETY: the linear map shows it, and the caller answers for the rest.
        digest.bytes(unsafe { core::slice::from_raw_parts(start.as_ptr(), bytes as usize) });
    }
    digest.value()
}

/// Cleans an extent to the point of coherency.
pub(crate) fn clean(extent: &PhysRange) {
    if let Some(start) = pointer(PhysicalAddress(extent.start)) {
        let start = start.as_ptr() as u64;
        cache::clean(start..start + extent.bytes);
    }
}

/// Copies the relocation code to a page and makes it executable with the MMU on and off.
pub(super) fn put_code(page: PhysicalAddress) {
    let place = PhysRange::new(page.0, page_bytes());
    fill(&[place], relocate::code());
    clean(&place);
    sync_instructions(page, page_bytes());
}

/// Whether a page begins with the relocation code.
pub(super) fn is_code(page: PhysicalAddress) -> bool {
    let words = relocate::code().as_chunks::<8>().0;
    words
        .iter()
        .zip((page.0..).step_by(8))
        .all(|(word, at)| Words.load(at) == Some(u64::from_le_bytes(*word)))
}
