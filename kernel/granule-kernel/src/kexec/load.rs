//! Loads a next kernel from files: finds each segment's place, takes pages for its bytes, and makes the
//! list and the tables. An owner holds every allocation and frees it on drop, so a refusal at any point
//! leaks nothing.

use super::Request;
use super::hook::KEXEC;
use super::loaded::{Loaded, PayloadSegment};
use super::machine::{MachineFacts, machine, only};
use super::pages::{self, Held, MOST_SEGMENTS, Runs, Words};
use super::refused::{Call, Refused};
use super::seeds::seeds;
use crate::arch::cpu;
use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::mm::kernel_tables::{self, Kernel};
use crate::mm::pages::{NoMemory, each_free_block};
use crate::mm::transition::TransitionTables;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use core::fmt::Write;
use granule::arch::PhysicalAddress;
use granule_boot::words;
use granule_kcore::kexec::MOST_COMMAND_LINE;
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kcore::kexec::next_tree::{self, Changes, Crash, Seeds};
use granule_kcore::line::Line;
use granule_kexec::image::IMAGE_ALIGN;
use granule_kexec::{
    ANYWHERE, Clean, ImageHeader, MemoryMap, Needs, PhysRange, Ranges, Refusal, RelocationList,
    Segment, TREE_BLOCK, Way, check_boot, check_places, find_place, near, reached,
};

pub(super) type Segments<'a> = ArrayVec<Segment<'a>, MOST_SEGMENTS>;

/// The search for places considers free blocks of at least this size, and at most this many free
/// ranges. If memory has more ranges, a place may be found at a higher address than necessary.
const LEAST_FREE: u64 = IMAGE_ALIGN;
const MOST_FREE: usize = 256;

/// The most rebuilds of the tables. A rebuild is needed if a page of a table lies in a segment's place,
/// in memory that other code freed meanwhile.
const MOST_TRIES: u32 = 64;

/// Where segments may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In free memory, so that no copy is needed.
    Free,
    /// Over this kernel and its programs too.
    Anywhere,
    /// In the memory of a crash kernel.
    Crash(PhysRange),
}

pub(super) fn load(request: &Request<'_>) -> Result<Loaded, Refused> {
    with_loader(request, |loader| match request.copy {
        // Copies take pages of their own. Free places would hold as many pages again, so the segments go
        // over memory in use.
        true => loader.run(Where::Anywhere),
        false => loader.run(Where::Free).or_else(|why| {
            if why.wants_memory() {
                loader.run(Where::Anywhere)
            } else {
                Err(why)
            }
        }),
    })
}

/// Calls `work` with what each load begins with: the image was checked, and the command line is known.
pub(super) fn with_loader<R>(
    request: &Request<'_>,
    work: impl FnOnce(&Loader<'_>) -> Result<R, Refused>,
) -> Result<R, Refused> {
    let unnoted = "memory is in too many pieces, or the device tree cannot be read";
    let machine = machine().ok_or(Refused::Machine(unnoted))?;
    let kernel = kernel_tables::kernel().ok_or(Refused::Machine(unnoted))?;
    let header = ImageHeader::read(request.kernel)?;
    header.check(&machine.cpu)?;
    let line = command_line(machine, request.command_line)?;
    work(&Loader {
        machine,
        kernel,
        header: &header,
        request,
        line: &line,
    })
}

/// The next kernel's command line: the requested line, preceded by `granule.persist=` for the memory
/// handed over, unless the line has such a word itself.
fn command_line(machine: &MachineFacts, asked: &[u8]) -> Result<Array<u8>, Refused> {
    let mut word = Line::<64>::new();
    if let Some(persist) = machine.persist
        && words::find(asked, b"granule.persist=").is_none()
    {
        // Writing to a `Line` never fails, and this word fits.
        let _ = write!(
            word,
            "granule.persist={:#x},{:#x} ",
            persist.start, persist.bytes
        );
    }
    let word = word.bytes();
    let length = word.len() + asked.len();
    if length >= MOST_COMMAND_LINE || asked.contains(&0) {
        let bytes = length as u64 + 1;
        return Err(Call::Line { bytes }.into());
    }
    let what = "command line";
    let mut line = Array::new(length, |_| 0).ok_or(Refused::Memory { what })?;
    for (to, from) in line.iter_mut().zip(word.iter().chain(asked)) {
        *to = *from;
    }
    Ok(line)
}

pub(super) struct Loader<'a> {
    pub(super) machine: &'static MachineFacts,
    pub(super) kernel: &'static Kernel,
    header: &'a ImageHeader,
    pub(super) request: &'a Request<'a>,
    line: &'a [u8],
}

/// A device tree not yet copied to its place.
pub(super) struct Tree {
    bytes: Array<u8>,
    pub(super) used: usize,
}

impl Loader<'_> {
    fn run(&self, at: Where) -> Result<Loaded, Refused> {
        let page = self.kernel.geometry.page_size();
        let seeds = seeds(self.machine.seed);
        // Measures the tree before any place is known: its length does not depend on the places.
        let nowhere = self.request.initrd.map(|_| PhysRange::default());
        let mut tree = self.tree(nowhere, Some(PhysRange::default()), None, seeds)?;
        // Allocate all bookkeeping first: no allocation may come between reading the free memory and
        // taking the places.
        let mut held = Held::new()?;
        let mut in_place = [Runs::new()?, Runs::new()?, Runs::new()?];
        let mut runs = [Runs::new()?, Runs::new()?, Runs::new()?];
        let mut segments = self.places(tree.used as u64, at)?;
        let mut in_use = self.in_use(&segments)?;
        // The hook's pages in the kernel's place become free only when just the tables remain to be
        // allocated.
        let in_use_for_long = in_use.pop_at(0);
        held.keep_out_of(&segments);
        // Take all free memory in the places, so that later allocations rarely land there. The part that
        // is to be copied over is given back at the end.
        for (segment, in_place) in segments.iter_mut().zip(&mut in_place) {
            self.take_free(segment, in_place, &mut held)?;
        }
        drop(in_use);
        for ((segment, in_place), runs) in segments.iter().zip(&in_place).zip(&mut runs) {
            complete(segment, page.bytes(), in_place, runs, &mut held)?;
        }
        let code = held.take_page()?;
        let note = PhysRange::new(held.take_page()?.0, page.bytes());
        let initrd = segments.iter().find(|it| it.name == INITRD);
        let initrd = initrd.map(|it| PhysRange::new(it.destination, it.bytes));
        // Drop the measured tree last: its storage may lie in a segment's place, and another allocation
        // would take that memory.
        let measured = core::mem::replace(&mut tree, self.tree(initrd, Some(note), None, seeds)?);
        next_tree::same_length(measured.used, tree.used)?;

        pages::fill(&[note], &[]);
        pages::put_code(code);
        let mut payload = [PayloadSegment::default(); NAMES.len()];
        for ((segment, runs), in_place) in segments.iter_mut().zip(&runs).zip(&in_place) {
            let bytes = self.bytes_of(segment.name, &tree);
            segment.pages = runs.all();
            let digest = pages::fill(segment.pages, bytes);
            if segment.clean != Clean::Nothing {
                in_place.all().iter().for_each(pages::clean);
            }
            let which = NAMES.iter().position(|name| *name == segment.name);
            if let Some(part) = which.and_then(|which| payload.get_mut(which)) {
                *part = PayloadSegment {
                    place: segment.place(),
                    bytes: segment.bytes,
                    in_place: in_place.all().iter().map(|it| it.bytes).sum(),
                    digest,
                };
            }
        }

        let mut kept = ArrayVec::<PhysRange, 4>::new();
        kept.extend(self.machine.kept().iter().copied());
        kept.extend([note, PhysRange::new(code.0, page.bytes())]);
        let memory_map = self.machine.memory_map(page, &kept);
        let list = pages::write_list(&mut held, &segments, &memory_map)?;
        drop(in_use_for_long);
        let tables = self.tables(&segments, &runs, &list, code, &mut held)?;
        held.complete();
        let [kernel, _, tree] = payload;
        let way = Way {
            uncached: self.machine.options.uncached,
            el2: self.machine.returns_to_el2,
            sctlr: SCTLR_MMU_OFF,
            sctlr_el2: SCTLR_EL2_MMU_OFF,
            entry: PhysicalAddress(kernel.place.start),
            tree: PhysicalAddress(tree.place.start),
            code,
        };
        let mut loaded = Loaded {
            list,
            tables,
            way,
            payload,
            note: PhysicalAddress(note.start),
            held,
        };
        loaded.seal(cpu::tcr_el1())?;
        if let Some(hook) = KEXEC.get() {
            (hook.sealed)(&loaded.list);
        }
        Ok(loaded)
    }

    pub(super) fn bytes_of<'s>(&'s self, name: &str, tree: &'s Tree) -> &'s [u8] {
        match name {
            KERNEL => self.request.kernel,
            INITRD => self.request.initrd.unwrap_or_default(),
            _ => tree.bytes.get(..tree.used).unwrap_or_default(),
        }
    }

    /// The device tree for the next kernel, which names the initramfs and the note.
    pub(super) fn tree(
        &self,
        initrd: Option<PhysRange>,
        note: Option<PhysRange>,
        crash: Option<Crash>,
        seeds: Seeds,
    ) -> Result<Tree, Refused> {
        let why = "its device tree is not in RAM that is mapped";
        let (old, bytes) = self.machine.tree().ok_or(Refused::Machine(why))?;
        let changes = Changes {
            command_line: self.line,
            initrd,
            note,
            crash,
            // A crash kernel's memory has none of it.
            kept: crash.map_or(self.machine.kept(), |_| &[]),
            old,
            seeds,
        };
        let what = "device tree";
        let room = next_tree::most_bytes(bytes, &changes)?;
        let mut into = Array::new(room, |_| 0).ok_or(Refused::Memory { what })?;
        let used = next_tree::write(bytes, &changes, &mut into)?;
        Ok(Tree { bytes: into, used })
    }

    /// The place of each segment. No segment has pages yet.
    pub(super) fn places(&self, tree_bytes: u64, at: Where) -> Result<Segments<'static>, Refused> {
        let page = self.kernel.geometry.page_size();
        let mut free = Runs::with_room(MOST_FREE)?;
        let mut free = Ranges::new(free.slots());
        if at == Where::Free {
            // A range that does not fit into the storage counts as in use.
            each_free_block(LEAST_FREE, |start, bytes| {
                let _ = free.insert(PhysRange::new(start.0, bytes));
            });
        }
        let crash;
        let all = match at {
            Where::Crash(memory) => {
                crash = memory;
                only(page, &crash)
            }
            _ => self.machine.memory_map(page, self.machine.kept()),
        };
        let memory_map = match at {
            Where::Free => MemoryMap {
                ram: free.all(),
                ..all
            },
            Where::Anywhere | Where::Crash(_) => all,
        };
        let mut segments = Segments::new();
        for name in NAMES {
            let forced = KEXEC.get().and_then(|hook| (hook.place)(name));
            let bytes = match name {
                KERNEL => self.request.kernel.len() as u64,
                INITRD => match self.request.initrd {
                    Some(initrd) => initrd.len() as u64,
                    None => continue,
                },
                _ => tree_bytes,
            };
            let kernel = name == KERNEL;
            let memory = if kernel {
                self.header.memory(bytes, page)
            } else {
                bytes.checked_next_multiple_of(page.bytes())
            };
            let segment = name;
            let memory = memory.ok_or(Refusal::Memory {
                segment,
                bytes,
                memory: self.header.image_size,
            })?;
            let free = match forced {
                Some(_) => &all,
                // Such an image may be unable to use memory below itself. So it goes as close to the
                // start of RAM as possible, even over memory in use.
                None if kernel && !self.header.anywhere => &all,
                None => &memory_map,
            };
            let align = (IMAGE_ALIGN, self.header.text_offset);
            let destination = match (forced, name) {
                (Some(forced), _) => forced,
                (None, KERNEL) => find_place(name, memory, align, &ANYWHERE, &[], free)?,
                (None, INITRD) => {
                    let within = self.usable(&segments, true);
                    find_place(name, memory, (page.bytes(), 0), &within, &segments, free)?
                }
                // Take the whole block that maps the tree, so that the block holds nothing which must
                // not be mapped. Without such a block, any place that passes the checks will do.
                (None, _) => {
                    let within = self.usable(&segments, false);
                    let find = |memory, align| {
                        find_place(name, memory, (align, 0), &within, &segments, free)
                    };
                    find(memory.max(TREE_BLOCK), TREE_BLOCK)
                        .or_else(|_| find(memory, page.bytes()))?
                }
            };
            segments.extend([Segment {
                name,
                destination,
                bytes,
                memory,
                pages: &[],
                clean: match name {
                    // The reader of the initramfs has the caches on.
                    INITRD => Clean::Nothing,
                    // Segments in place are cleaned here.
                    _ => Clean::Moved,
                },
            }]);
        }
        check_places(&segments, &all)?;
        if let [kernel, initrd @ .., tree] = &segments[..] {
            let unmapped = &self.machine.unmapped;
            check_boot(kernel, initrd.first(), tree, &all, unmapped)?;
        }
        Ok(segments)
    }

    /// The memory that the next kernel can use, given the kernel's place.
    fn usable(&self, segments: &Segments<'_>, initrd: bool) -> PhysRange {
        let Some(kernel) = segments.first().map(Segment::place) else {
            return ANYWHERE;
        };
        let mut within = if initrd { near(&kernel) } else { ANYWHERE };
        if !self.header.anywhere {
            let below = kernel.start.saturating_sub(within.start);
            within.start += below;
            within.bytes = within.bytes.saturating_sub(below);
        }
        within
    }

    /// Takes the free memory in a segment's place. Pages for the segment's bytes go to `in_place`. The
    /// rest of the place is cleaned here if all of it was free. If the request requires copies, all of
    /// it is only put aside.
    fn take_free(
        &self,
        segment: &mut Segment<'_>,
        in_place: &mut Runs,
        held: &mut Held,
    ) -> Result<(), NoMemory> {
        let whole = segment.whole_pages(self.kernel.geometry.page_size());
        let copies = self.request.copy;
        let own = if copies { 0 } else { whole.unwrap_or(0) };
        let bytes = PhysRange::new(segment.destination, own);
        held.take_free_in(bytes, |run| in_place.push(run))?;
        let rest = PhysRange::new(segment.destination + own, segment.memory - own);
        if copies {
            return held.put_aside(rest);
        }
        // The memory behind the bytes stays taken. Nothing writes it any more, so the kernel need not
        // clean it on leaving.
        let mut behind = 0;
        held.take_free_in(rest, |run| {
            behind += run.bytes;
            Ok(())
        })?;
        if behind == rest.bytes && segment.clean == Clean::Moved {
            pages::clean(&rest);
            segment.clean = Clean::MovedAlone;
        }
        Ok(())
    }

    /// Pages in the places that a hook holds as still in use.
    fn in_use(&self, segments: &[Segment<'_>]) -> Result<ArrayVec<Held, MOST_SEGMENTS>, NoMemory> {
        let Some(hook) = KEXEC.get() else {
            return Ok(ArrayVec::new());
        };
        let places = segments.iter().take(MOST_SEGMENTS).map(Segment::place);
        places.filter_map(|place| (hook.in_use)(&place)).collect()
    }

    /// The tables that the relocation code runs on.
    fn tables(
        &self,
        segments: &[Segment<'_>],
        runs: &[Runs],
        list: &RelocationList,
        code: PhysicalAddress,
        held: &mut Held,
    ) -> Result<TransitionTables, Refused> {
        let sources: usize = runs.iter().map(|runs| runs.all().len()).sum();
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
            cpu: self.machine.cpu,
            upper: self.kernel.geometry,
            distance: self.kernel.placement.distance(),
            code,
            written: written.all(),
            read: read.all(),
            segments,
        };
        // The pages of the tables come from the common allocator. If one lies in a segment's place, put
        // aside the memory freed there and retry; each retry finds less of it.
        let mut tries = MOST_TRIES;
        loop {
            match TransitionTables::build(self.kernel, &needs).map_err(Refused::from) {
                Err(why) if why.in_the_way() && tries > 0 => held.put_places_aside()?,
                result => return result,
            }
            tries -= 1;
        }
    }
}

const KERNEL: &str = NAMES[0];
pub(super) const INITRD: &str = NAMES[1];

/// The pages for a segment's bytes, in order: pages in place, and other pages for the gaps between them.
fn complete(
    segment: &Segment<'_>,
    page: u64,
    in_place: &Runs,
    all: &mut Runs,
    held: &mut Held,
) -> Result<(), NoMemory> {
    let end = segment.destination + segment.bytes.next_multiple_of(page);
    let mut at = segment.destination;
    let behind = PhysRange::new(end, 0);
    for own in in_place.all().iter().chain([&behind]) {
        let mut missing = own.start - at;
        while missing > 0 {
            let taken = held.take(missing)?;
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
