//! From files to a next kernel that is ready: where each segment is to be, pages for its bytes, the
//! list, the tables. Everything that is taken on the way is owned by a value that gives it back, so
//! what is refused at any point leaves nothing.

use super::Request;
use super::hook::KEXEC;
use super::loaded::{Given, Loaded, Tables};
use super::machine::{Machine, machine};
use super::pages::{self, Held, MOST_SEGMENTS, Runs, Words};
use super::refused::{Call, Refused};
use crate::arch::cpu;
use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::mm::live::{self, Kernel};
use crate::mm::pages::{NoMemory, each_free_block};
use crate::user::owned::Array;
use crate::user::random;
use arrayvec::ArrayVec;
use core::fmt::Write;
use granule::arch::PhysicalAddress;
use granule_boot::words;
use granule_kcore::kexec::MOST_COMMAND_LINE;
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kcore::kexec::next_tree::{self, Changes, SEED_BYTES, Seeds};
use granule_kcore::line::Line;
use granule_kexec::image::IMAGE_ALIGN;
use granule_kexec::{
    ANYWHERE, Clean, Extent, Ground, ImageHeader, List, Needs, Ranges, Refusal, Segment,
    TREE_BLOCK, Way, check_boot, check_places, find_place, near, reached,
};

type Segments<'a> = ArrayVec<Segment<'a>, MOST_SEGMENTS>;

/// The smallest free blocks among which places are looked for, and how many stretches of them: with
/// more, places may be found later in memory than they could.
const LEAST_FREE: u64 = IMAGE_ALIGN;
const MOST_FREE: usize = 256;

/// How often tables are made anew as others free memory where it must not be.
const MOST_TRIES: u32 = 64;

/// Where segments may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// In memory that is free, so that nothing need be copied.
    Free,
    /// Over this kernel and its programs as well.
    Anywhere,
}

/// Loads what is asked for.
pub(super) fn load(request: &Request<'_>) -> Result<Loaded, Refused> {
    let unnoted = "memory is in too many pieces, or the device tree cannot be read";
    let machine = machine().ok_or(Refused::Machine(unnoted))?;
    let kernel = live::kernel().ok_or(Refused::Machine(unnoted))?;
    let header = ImageHeader::read(request.kernel)?;
    header.check(&machine.cpu)?;
    let line = command_line(machine, request.command_line)?;
    let attempt = |at| {
        Loader {
            machine,
            kernel,
            header: &header,
            request,
            line: &line,
        }
        .run(at)
    };
    match request.copy {
        // Over what is in use: copies take pages of their own, and places that are free take as many
        // again.
        true => attempt(Where::Anywhere),
        false => attempt(Where::Free).or_else(|why| {
            if why.wants_memory() {
                attempt(Where::Anywhere)
            } else {
                Err(why)
            }
        }),
    }
}

/// The next kernel's command line: what is asked for, behind the word for the memory that is handed
/// over, unless it has one of its own.
fn command_line(machine: &Machine, asked: &[u8]) -> Result<Array<u8>, Refused> {
    let mut word = Line::<64>::new();
    if let Some(persist) = machine.persist
        && words::find(asked, b"granule.persist=").is_none()
    {
        // A line never fails, and this one fits.
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

struct Loader<'a> {
    machine: &'static Machine,
    kernel: &'static Kernel,
    header: &'a ImageHeader,
    request: &'a Request<'a>,
    line: &'a [u8],
}

/// A device tree that is not in its place yet.
struct Tree {
    bytes: Array<u8>,
    used: usize,
}

impl Loader<'_> {
    fn run(&self, at: Where) -> Result<Loaded, Refused> {
        let page = self.kernel.geometry.page_size();
        let seeds = seeds();
        // Its length does not depend on what is where, of which nothing is known yet.
        let nowhere = self.request.initrd.map(|_| Extent::default());
        let mut tree = self.tree(nowhere, Extent::default(), seeds)?;
        // Before it is asked what is free: nothing may be taken between that and taking the places.
        let mut held = Held::new()?;
        let mut in_place = [Runs::new()?, Runs::new()?, Runs::new()?];
        let mut runs = [Runs::new()?, Runs::new()?, Runs::new()?];
        let mut segments = self.places(tree.used as u64, at)?;
        let mut in_use = self.in_use(&segments)?;
        // The kernel's own become free only when nothing but the tables is left to be taken.
        let in_use_for_long = in_use.pop_at(0);
        held.keep_out_of(&segments);
        // What is free in the places is taken, all of it, so that little that is taken later can be in
        // the way; of what is to be copied over, it is free again at the end.
        for (segment, in_place) in segments.iter_mut().zip(&mut in_place) {
            self.take_free(segment, in_place, &mut held)?;
        }
        drop(in_use);
        for ((segment, in_place), runs) in segments.iter().zip(&in_place).zip(&mut runs) {
            complete(segment, page.bytes(), in_place, runs, &mut held)?;
        }
        let code = held.take_page()?;
        let note = Extent::new(held.take_page()?.0, page.bytes());
        let initrd = segments.iter().find(|it| it.name == INITRD);
        let initrd = initrd.map(|it| Extent::new(it.destination, it.bytes));
        // The first one's storage may be in a place that it was in the way of: it goes last, or
        // something else would be there.
        let measured = core::mem::replace(&mut tree, self.tree(initrd, note, seeds)?);
        next_tree::same_length(measured.used, tree.used)?;

        pages::fill(&[note], &[]);
        pages::put_code(code);
        let mut given = [Given::default(); MOST_SEGMENTS];
        for ((segment, runs), in_place) in segments.iter_mut().zip(&runs).zip(&in_place) {
            let bytes = self.bytes_of(segment.name, &tree);
            segment.pages = runs.all();
            let digest = pages::fill(segment.pages, bytes);
            if segment.clean != Clean::Nothing {
                in_place.all().iter().for_each(pages::clean);
            }
            let which = NAMES.iter().position(|name| *name == segment.name);
            if let Some(given) = which.and_then(|which| given.get_mut(which)) {
                *given = Given {
                    place: segment.place(),
                    bytes: segment.bytes,
                    in_place: in_place.all().iter().map(|it| it.bytes).sum(),
                    digest,
                };
            }
        }

        let mut kept = ArrayVec::<Extent, 4>::new();
        kept.extend(self.machine.kept().iter().copied());
        kept.extend([note, Extent::new(code.0, page.bytes())]);
        let ground = self.machine.ground(page, &kept);
        let list = List::write(&mut Words, &mut held, &segments, &ground)?;
        drop(in_use_for_long);
        let tables = self.tables(&segments, &runs, &list, code, &mut held)?;
        held.complete();
        let [kernel, _, tree] = given;
        let way = Way {
            uncached: self.machine.options.uncached,
            el2: self.machine.returns_to_el2,
            sctlr: SCTLR_MMU_OFF,
            sctlr_el2: SCTLR_EL2_MMU_OFF,
            entry: PhysicalAddress(kernel.place.start),
            tree: PhysicalAddress(tree.place.start),
            code,
        };
        let loaded = Loaded {
            list,
            tables,
            way,
            given,
            note: PhysicalAddress(note.start),
            held,
        };
        loaded.seal(cpu::tcr_el1())?;
        if let Some(hook) = KEXEC.get() {
            hook.sealed(&loaded.list);
        }
        Ok(loaded)
    }

    fn bytes_of<'s>(&'s self, name: &str, tree: &'s Tree) -> &'s [u8] {
        match name {
            KERNEL => self.request.kernel,
            INITRD => self.request.initrd.unwrap_or_default(),
            _ => tree.bytes.get(..tree.used).unwrap_or_default(),
        }
    }

    /// The tree for the next kernel, with the initramfs and the note there.
    fn tree(&self, initrd: Option<Extent>, note: Extent, seeds: Seeds) -> Result<Tree, Refused> {
        let why = "its device tree is not in RAM that is mapped";
        let (old, bytes) = self.machine.tree().ok_or(Refused::Machine(why))?;
        let changes = Changes {
            command_line: self.line,
            initrd,
            note,
            kept: self.machine.kept(),
            old,
            seeds,
        };
        let what = "device tree";
        let room = next_tree::most_bytes(bytes, &changes)?;
        let mut into = Array::new(room, |_| 0).ok_or(Refused::Memory { what })?;
        let used = next_tree::write(bytes, &changes, &mut into)?;
        Ok(Tree { bytes: into, used })
    }

    /// Where each segment is to be. None has pages yet.
    fn places(&self, tree_bytes: u64, at: Where) -> Result<Segments<'static>, Refused> {
        let page = self.kernel.geometry.page_size();
        let mut free = Runs::with_room(MOST_FREE)?;
        let mut free = Ranges::new(free.slots());
        if at == Where::Free {
            // What does not fit into the storage counts as in use.
            each_free_block(LEAST_FREE, |start, bytes| {
                let _ = free.insert(Extent::new(start.0, bytes));
            });
        }
        let all = self.machine.ground(page, self.machine.kept());
        let ground = match at {
            Where::Free => Ground {
                ram: free.all(),
                ..all
            },
            Where::Anywhere => all,
        };
        let mut segments = Segments::new();
        for name in NAMES {
            let forced = KEXEC.get().and_then(|hook| hook.place(name));
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
                // As near to RAM's first byte as can be, and not as is free: it may not be able to use
                // what is below it.
                None if kernel && !self.header.anywhere => &all,
                None => &ground,
            };
            let align = (IMAGE_ALIGN, self.header.text_offset);
            let destination = match (forced, name) {
                (Some(forced), _) => forced,
                (None, KERNEL) => find_place(name, memory, align, &ANYWHERE, &[], free)?,
                (None, INITRD) => {
                    let within = self.usable(&segments, true);
                    find_place(name, memory, (page.bytes(), 0), &within, &segments, free)?
                }
                // All of the block in which it is mapped, so that nothing else is in there that must not
                // be; if there is no such block, where it is seen to be well.
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
                    // Its reader has the caches on.
                    INITRD => Clean::Nothing,
                    // In place means cleaned here.
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

    /// Where the next kernel can use memory, once its place is known.
    fn usable(&self, segments: &Segments<'_>, initrd: bool) -> Extent {
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

    /// Takes what is free in a segment's place and holds it: what its bytes come to is told, and what is
    /// behind them cleaned if that is all of it. All is only put aside if the bytes are to be copied.
    fn take_free(
        &self,
        segment: &mut Segment<'_>,
        in_place: &mut Runs,
        held: &mut Held,
    ) -> Result<(), NoMemory> {
        let whole = segment.whole_pages(self.kernel.geometry.page_size());
        let copies = self.request.copy;
        let own = if copies { 0 } else { whole.unwrap_or(0) };
        let bytes = Extent::new(segment.destination, own);
        held.take_free_in(bytes, |run| in_place.push(run))?;
        let rest = Extent::new(segment.destination + own, segment.memory - own);
        if copies {
            return held.put_aside(rest);
        }
        // What is behind the bytes stays taken: nobody writes to it any more, so that it need not be
        // cleaned when the kernel leaves.
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

    /// Pages of the places that somebody uses still, if a hook says so.
    fn in_use(&self, segments: &[Segment<'_>]) -> Result<ArrayVec<Held, MOST_SEGMENTS>, NoMemory> {
        let Some(hook) = KEXEC.get() else {
            return Ok(ArrayVec::new());
        };
        let places = segments.iter().take(MOST_SEGMENTS).map(Segment::place);
        places.filter_map(|place| hook.in_use(&place)).collect()
    }

    /// The tables that the relocation code runs on.
    fn tables(
        &self,
        segments: &[Segment<'_>],
        runs: &[Runs],
        list: &List,
        code: PhysicalAddress,
        held: &mut Held,
    ) -> Result<Tables, Refused> {
        let sources: usize = runs.iter().map(|runs| runs.all().len()).sum();
        let mut written = Runs::with_room(MOST_SEGMENTS)?;
        let mut written = Ranges::new(written.slots());
        let mut read = Runs::with_room(sources + list.pages)?;
        let mut read = Ranges::new(read.slots());
        let mut fits = true;
        reached(segments, |extent, writes| {
            let to = if writes { &mut written } else { &mut read };
            fits &= to.insert(extent).is_ok();
        });
        list.each_page(&Words, |page| {
            let page = Extent::new(page.0, list.page.bytes());
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
        // Their pages come from where all tables' do. If one is in the way, what became free in the
        // places is put aside: each time there is less of it.
        let mut tries = MOST_TRIES;
        loop {
            match Tables::build(self.kernel, &needs) {
                Err(why) if why.in_the_way() && tries > 0 => held.put_places_aside()?,
                result => return result,
            }
            tries -= 1;
        }
    }
}

/// Drawn once, so that the tree is as long when it is written as when it was measured.
fn seeds() -> Seeds {
    let mut rng = [0; SEED_BYTES];
    Seeds {
        kaslr: random::number(),
        rng: random::fill_by_hardware(&mut rng).then_some(rng),
    }
}

const KERNEL: &str = NAMES[0];
const INITRD: &str = NAMES[1];

/// The pages that a segment's bytes come to, in order: those that are in place, and others for what is
/// between them.
fn complete(
    segment: &Segment<'_>,
    page: u64,
    in_place: &Runs,
    all: &mut Runs,
    held: &mut Held,
) -> Result<(), NoMemory> {
    let end = segment.destination + segment.bytes.next_multiple_of(page);
    let mut at = segment.destination;
    let behind = Extent::new(end, 0);
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
