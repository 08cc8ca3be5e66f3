//! Loads a crash kernel into its memory: segments from the lowest address on, and what enters it at the end.

use super::super::Request;
use super::super::assemble::Segments;
use super::super::load::{INITRD, Loader, Where, running, with_loader};
use super::super::machine::{MachineFacts, only};
use super::super::pages::{self, Held, MOST_SEGMENTS};
use super::super::refused::{Call, Refused};
use super::super::seeds::seeds;
use super::CrashKernel;
use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::arch::{cpu, image};
use crate::percpu;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use granule::arch::{PageSize, PhysicalAddress};
use granule_kcore::crash::header::{self, DeadKernel};
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kcore::kexec::next_tree::{Crash, same_length};
use granule_kexec::{ANYWHERE, Clean, Needs, PhysRange, Segment, Way, check_places, find_place};

const HEADER: &str = "header of the core";

/// Pages for the relocation code, the list, and the transitional tables, which map one range: far more than they take.
const CONTROL: u64 = 32;

pub(in super::super) fn load(request: &Request<'_>) -> Result<CrashKernel, Refused> {
    with_loader(request, run)
}

#[inline(never)]
fn run(loader: &Loader<'_>) -> Result<CrashKernel, Refused> {
    let memory = loader.machine.crash.ok_or(Call::NoCrashMemory)?;
    let page = loader.kernel.geometry.page_size();
    let map = only(page, &memory);
    let what = "header of the core";
    let mut count = 0;
    loader.machine.each_dumped(|_| count += 1);
    let mut dumped = Array::new(count, |_| PhysRange::default()).ok_or(Refused::Memory { what })?;
    let mut slots = dumped.iter_mut();
    loader.machine.each_dumped(|range| {
        if let Some(slot) = slots.next() {
            *slot = range;
        }
    });
    let cpus = percpu::ready();
    let layout = header::layout(cpus, count);
    let layout = layout.ok_or(Refused::Machine("it has too many CPUs or pieces of RAM"))?;

    let seeds = seeds(loader.machine.seed);
    let nowhere = loader.request.initrd.map(|_| PhysRange::default());
    let measured = loader.tree(nowhere, None, Some(Crash::default()), seeds)?;
    let mut segments = loader.places(measured.used as u64, Where::Crash(memory))?;
    let initrd = segments.iter().find(|it| it.name == INITRD);
    let initrd = initrd.map(|it| PhysRange::new(it.destination, it.bytes));
    let bytes = layout.bytes as u64;
    // As for every other kernel, it may have the largest page.
    let whole = bytes.next_multiple_of(PageSize::MAX.bytes());
    let at = find_place(
        HEADER,
        whole,
        (PageSize::MAX.bytes(), 0),
        &ANYWHERE,
        &segments,
        &map,
    )?;
    let crash = Crash {
        usable: memory,
        header: PhysRange::new(at, bytes),
    };
    let tree = loader.tree(initrd, None, Some(crash), seeds)?;
    same_length(measured.used, tree.used)?;
    drop(measured);
    segments.extend([Segment {
        name: HEADER,
        destination: at,
        bytes,
        memory: whole,
        pages: &[],
        clean: Clean::Nothing,
    }]);
    check_places(&segments, &map)?;

    let dead = DeadKernel {
        version: env!("CARGO_PKG_VERSION"),
        geometry: loader.kernel.geometry,
        tcr: cpu::tcr_el1(),
        mair: cpu::mair_el1(),
        root: loader.kernel.root.0,
        distance: loader.kernel.placement.distance(),
        image_distance: image::start().wrapping_sub(loader.kernel.image.start),
        text: image::start(),
    };
    let mut core = Array::new(layout.bytes, |_| 0).ok_or(Refused::Memory { what })?;
    // The array has the layout's bytes, so all of it fits.
    let _ = header::write(&mut core, at, cpus, &dumped, &dead);

    let notes = PhysRange::new(
        at + layout.notes as u64,
        (layout.bytes - layout.notes) as u64,
    );
    for segment in &segments {
        let bytes = match segment.name {
            HEADER => &core,
            name => loader.bytes_of(name, &tree),
        };
        pages::fill(&[whole_pages(segment, page)], bytes);
    }
    let address = |name| {
        let segment = segments.iter().find(|it| it.name == name);
        PhysicalAddress(segment.map_or(0, |it| it.destination))
    };
    let [kernel, _, tree] = NAMES.map(address);
    finish(loader.machine, &segments, (kernel, tree), notes)
}

/// Loads the segments of a program, which `fill` writes to their places. It has made a header of its own, if there is one.
pub(in super::super) fn of_program(
    machine: &'static MachineFacts,
    segments: &[Segment<'_>],
    entry: PhysicalAddress,
    mut fill: impl FnMut(&Segment<'_>, &[PhysRange]) -> Result<u64, Refused>,
) -> Result<CrashKernel, Refused> {
    let memory = machine.crash.ok_or(Call::NoCrashMemory)?;
    let (_, kernel) = running()?;
    check_places(segments, &only(kernel.geometry.page_size(), &memory))?;
    for segment in segments {
        fill(segment, &[segment.place()])?;
    }
    finish(
        machine,
        segments,
        (entry, PhysicalAddress(0)),
        PhysRange::default(),
    )
}

/// The whole pages of a segment's contents, in their place.
fn whole_pages(segment: &Segment<'_>, page: PageSize) -> PhysRange {
    let bytes = segment.bytes.next_multiple_of(page.bytes());
    PhysRange::new(segment.destination, bytes)
}

/// Makes what enters the crash kernel, whose segments are in their places, and notes all digests. Panics store the
/// registers of CPUs in `notes`, at the end of a segment.
fn finish(
    machine: &'static MachineFacts,
    segments: &[Segment<'_>],
    (entry, tree): (PhysicalAddress, PhysicalAddress),
    notes: PhysRange,
) -> Result<CrashKernel, Refused> {
    let (_, kernel) = running()?;
    let memory = machine.crash.ok_or(Call::NoCrashMemory)?;
    let page = kernel.geometry.page_size();
    let map = only(page, &memory);
    let bytes = CONTROL * page.bytes();
    let align = (page.bytes(), 0);
    let at = find_place("way there", bytes, align, &ANYWHERE, segments, &map)?;
    let control = PhysRange::new(at, bytes);
    let mut held = Held::of_range(control)?;
    let code = held.take_page()?;
    pages::put_code(code);
    let whole = segments.iter().map(|segment| whole_pages(segment, page));
    let whole: ArrayVec<_, MOST_SEGMENTS> = whole.collect();
    let in_place = segments.iter().zip(&whole).map(|(segment, whole)| Segment {
        pages: core::slice::from_ref(whole),
        clean: Clean::Nothing,
        ..*segment
    });
    let in_place: Segments<'_> = in_place.collect();
    let mut list = pages::write_list(&mut held, &in_place, &map)?;
    let needs = Needs {
        cpu: machine.cpu,
        upper: kernel.geometry,
        distance: kernel.placement.distance(),
        code,
        written: &[memory],
        read: &[],
        segments: &in_place,
    };
    let tables = pages::build_tables(&mut held, kernel, &needs)?;
    let way = Way {
        uncached: machine.options.uncached,
        el2: machine.returns_to_el2,
        sctlr: SCTLR_MMU_OFF,
        sctlr_el2: SCTLR_EL2_MMU_OFF,
        entry,
        tree,
        code,
    };
    pages::seal_list(&mut list, &held, &way, &tables, cpu::tcr_el1())?;
    let mut loaded = CrashKernel {
        head: list.head().0,
        notes,
        ..CrashKernel::default()
    };
    let fixed = segments.iter().map(|segment| {
        let end = match segment.place().holds(&notes) && notes.bytes > 0 {
            true => notes.start,
            false => segment.destination + segment.bytes,
        };
        PhysRange::new(segment.destination, end - segment.destination)
    });
    for (checked, range) in loaded.checked.iter_mut().zip(fixed.chain([control])) {
        checked.0 = range;
    }
    for range in segments.iter().map(Segment::place).chain([control]) {
        pages::clean(&range);
    }
    loaded.note_digests();
    Ok(loaded)
}
