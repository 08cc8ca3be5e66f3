//! The part of loading that follows the choice of places, for files and for a program's segments alike: takes
//! pages for the bytes, has them filled, and makes the list and the tables.

use super::hook::KEXEC;
use super::loaded::{Loaded, PayloadSegment};
use super::machine::MachineFacts;
use super::pages::{self, Held, MOST_SEGMENTS, Runs, Words};
use super::refused::Refused;
use crate::arch::cpu;
use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::mm::kernel_tables::Kernel;
use crate::mm::pages::NoMemory;
use crate::mm::transition::TransitionTables;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use granule::arch::{PageSize, PhysicalAddress};
use granule_kexec::{Clean, Needs, PhysRange, Ranges, RelocationList, Segment, Way, reached};

pub(super) type Segments<'a> = ArrayVec<Segment<'a>, MOST_SEGMENTS>;

/// The most rebuilds of the tables. A rebuild is needed if a page of a table lies in a segment's place,
/// in memory that other code freed meanwhile.
const MOST_TRIES: u32 = 64;

/// How the next kernel begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Its first instruction.
    pub(super) entry: PhysicalAddress,
    /// The device tree, for x0; 0 if the call names none.
    pub(super) tree: PhysicalAddress,
    /// The page for the note, if a tree names it.
    pub(super) note: Option<PhysRange>,
}

/// Writes a segment's bytes to pages, and returns their digest.
pub(super) type Fill<'a> = dyn FnMut(&Segment<'_>, &[PhysRange]) -> Result<u64, Refused> + 'a;

/// A next kernel while its pages are taken.
pub(super) struct Assembly {
    machine: &'static MachineFacts,
    kernel: &'static Kernel,
    /// Whether no segment is put into its place directly.
    copy: bool,
    pub(super) held: Held,
    payload: Array<PayloadSegment>,
    /// For each segment the pages in its place, and all of its pages. Not on the stack, which is small.
    runs: Array<Option<[Runs; 2]>>,
    /// Pages in the first place that a hook holds until just the tables remain to be allocated.
    in_use: Option<Held>,
}

impl Assembly {
    /// Allocates all bookkeeping for at most `count` segments: no allocation may come between reading the
    /// free memory and taking the places.
    pub(super) fn new(
        machine: &'static MachineFacts,
        kernel: &'static Kernel,
        copy: bool,
        count: usize,
    ) -> Result<Self, NoMemory> {
        let two = |_| Some([Runs::new().ok()?, Runs::new().ok()?]);
        let runs = Array::new(count, two).ok_or(NoMemory)?;
        if runs.iter().any(Option::is_none) {
            return Err(NoMemory);
        }
        Ok(Self {
            machine,
            kernel,
            copy,
            held: Held::new()?,
            payload: Array::new(count, |_| PayloadSegment::default()).ok_or(NoMemory)?,
            runs,
            in_use: None,
        })
    }

    /// Takes pages for the bytes of all segments. First all free memory in the places is taken, so that later
    /// allocations rarely land there. The part that is to be copied over is given back at the end.
    pub(super) fn take(&mut self, segments: &mut [Segment<'_>]) -> Result<(), NoMemory> {
        let mut in_use = None;
        if let Some(hook) = KEXEC.get() {
            for (index, segment) in segments.iter().enumerate() {
                let held = if index == 0 {
                    &mut self.in_use
                } else {
                    &mut in_use
                };
                (hook.in_use)(&segment.place(), held)?;
            }
        }
        self.held.keep_out_of(segments);
        let page = self.kernel.geometry.page_size();
        for (segment, [in_place, _]) in segments.iter_mut().zip(self.runs.iter_mut().flatten()) {
            take_free(segment, page, self.copy, in_place, &mut self.held)?;
        }
        drop(in_use);
        for (segment, [in_place, all]) in segments.iter().zip(self.runs.iter_mut().flatten()) {
            self.held.take_gaps(segment, in_place, all)?;
        }
        Ok(())
    }

    /// Fills the pages, and makes the list and the tables.
    pub(super) fn finish(
        mut self,
        segments: &[Segment<'static>],
        start: &Start,
        fill: &mut Fill<'_>,
    ) -> Result<Loaded, Refused> {
        let machine = self.machine;
        let page = self.kernel.geometry.page_size();
        let code = self.held.take_page()?;
        pages::put_code(code);
        let mut placed = Segments::new();
        let all = self.runs.iter().flatten().zip(self.payload.iter_mut());
        for (segment, ([in_place, runs], part)) in segments.iter().zip(all) {
            let pages = runs.all();
            placed.extend([Segment { pages, ..*segment }]);
            let digest = fill(segment, pages)?;
            if segment.clean != Clean::Nothing {
                in_place.all().iter().for_each(pages::clean);
            }
            *part = PayloadSegment {
                name: segment.name,
                place: segment.place(),
                bytes: segment.bytes,
                in_place: in_place.all().iter().map(|it| it.bytes).sum(),
                digest,
            };
        }
        let mut kept = ArrayVec::<PhysRange, 4>::new();
        kept.extend(machine.kept().iter().copied());
        kept.extend(start.note);
        kept.extend([PhysRange::new(code.0, page.bytes())]);
        let memory_map = machine.memory_map(page, &kept);
        let list = pages::write_list(&mut self.held, &placed, &memory_map)?;
        self.in_use = None;
        let tables = tables((machine, self.kernel), &placed, &list, code, &mut self.held)?;
        self.held.complete();
        let way = Way {
            uncached: machine.options.uncached,
            el2: machine.returns_to_el2,
            sctlr: SCTLR_MMU_OFF,
            sctlr_el2: SCTLR_EL2_MMU_OFF,
            entry: start.entry,
            tree: start.tree,
            code,
        };
        let mut loaded = Loaded {
            list,
            tables,
            way,
            payload: self.payload,
            note: start.note.map(|note| PhysicalAddress(note.start)),
            held: self.held,
        };
        loaded.seal(cpu::tcr_el1())?;
        if let Some(hook) = KEXEC.get() {
            (hook.sealed)(&loaded.list);
        }
        Ok(loaded)
    }
}

/// Takes the free memory in a segment's place. Pages for the segment's bytes go to `in_place`. The
/// rest of the place is cleaned here if all of it was free. With `copies`, all of
/// it is only put aside.
fn take_free(
    segment: &mut Segment<'_>,
    page: PageSize,
    copies: bool,
    in_place: &mut Runs,
    held: &mut Held,
) -> Result<(), NoMemory> {
    let whole = segment.whole_pages(page);
    let own = if copies { 0 } else { whole.unwrap_or(0) };
    let bytes = PhysRange::new(segment.destination, own);
    held.take_free_in(bytes, &mut |run| in_place.push(run))?;
    let rest = PhysRange::new(segment.destination + own, segment.memory - own);
    if copies {
        return held.put_aside(rest);
    }
    // The memory behind the bytes stays taken. Nothing writes it any more, so the kernel need not
    // clean it on leaving.
    let mut behind = 0;
    held.take_free_in(rest, &mut |run| {
        behind += run.bytes;
        Ok(())
    })?;
    if behind == rest.bytes && segment.clean == Clean::Moved {
        pages::clean(&rest);
        segment.clean = Clean::MovedAlone;
    }
    Ok(())
}

/// The tables that the relocation code runs on.
fn tables(
    (machine, kernel): (&MachineFacts, &'static Kernel),
    segments: &[Segment<'_>],
    list: &RelocationList,
    code: PhysicalAddress,
    held: &mut Held,
) -> Result<TransitionTables, Refused> {
    let sources: usize = segments.iter().map(|it| it.pages.len()).sum();
    let mut written = Runs::with_room(MOST_SEGMENTS)?;
    let mut written = Ranges::new(written.slots());
    let mut read = Runs::with_room(sources + list.pages())?;
    let mut read = Ranges::new(read.slots());
    let mut fits = true;
    reached(segments, |extent, writes| {
        let to = if writes { &mut written } else { &mut read };
        fits &= to.insert(extent).is_ok();
    });
    list.each_page(&Words, |page| {
        let page = PhysRange::new(page.0, list.page().bytes());
        fits &= read.insert(page).is_ok();
    })?;
    debug_assert!(fits, "no more extents than were counted");
    let needs = Needs {
        cpu: machine.cpu,
        upper: kernel.geometry,
        distance: kernel.placement.distance(),
        code,
        written: written.all(),
        read: read.all(),
        segments,
    };
    // The pages of the tables come from the common allocator. If one lies in a segment's place, put
    // aside the memory freed there and retry; each retry finds less of it.
    let mut tries = MOST_TRIES;
    loop {
        match TransitionTables::build(kernel, &needs).map_err(Refused::from) {
            Err(why) if why.in_the_way() && tries > 0 => held.put_places_aside()?,
            result => return result,
        }
        tries -= 1;
    }
}
