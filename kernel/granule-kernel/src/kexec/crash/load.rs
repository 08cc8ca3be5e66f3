//! Loads a crash kernel into its memory: segments from the lowest address on, and what enters it at the end.

use super::super::Request;
use super::super::load::{INITRD, Loader, Where, with_loader};
use super::super::machine::only;
use super::super::pages::{self, Held, MOST_SEGMENTS};
use super::super::refused::{Call, Refused};
use super::super::seeds::seeds;
use super::CrashKernel;
use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF};
use crate::arch::{cpu, image};
use crate::mm::transition;
use crate::percpu;
use crate::task::owned::Array;
use arrayvec::ArrayVec;
use granule::arch::{PageSize, PhysicalAddress};
use granule_kcore::crash::header::{self, DeadKernel};
use granule_kcore::kexec::next_tree::{Crash, same_length};
use granule_kexec::{ANYWHERE, Clean, Needs, PhysRange, Segment, Way, check_places, find_place};

const HEADER: &str = "header of the core";

/// Bytes for the transitional tables, which map one range: far more than they take.
const TABLES: u64 = 16;

pub(super) fn load(request: &Request<'_>) -> Result<CrashKernel, Refused> {
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
    };
    let mut core = Array::new(layout.bytes, |_| 0).ok_or(Refused::Memory { what })?;
    // The array has the layout's bytes, so all of it fits.
    let _ = header::write(&mut core, at, cpus, &dumped, &dead);

    let mut checked = [(PhysRange::default(), 0); MOST_SEGMENTS + 1];
    let mut end = memory.start;
    for (segment, checked) in segments.iter().zip(&mut checked) {
        let bytes = match segment.name {
            HEADER => &core,
            name => loader.bytes_of(name, &tree),
        };
        let whole = segment.bytes.next_multiple_of(page.bytes());
        pages::fill(&[PhysRange::new(segment.destination, whole)], bytes);
        pages::clean(&segment.place());
        // Panics store the notes at the end of the header.
        let fixed = if segment.name == HEADER {
            layout.notes
        } else {
            bytes.len()
        };
        checked.0 = PhysRange::new(segment.destination, fixed as u64);
        end = end.max(segment.destination + segment.memory);
    }
    let memory_end = memory.start + memory.bytes;
    let mut held = Held::of_range(PhysRange::new(end, memory_end - end))?;
    let code = held.take_page()?;
    pages::put_code(code);
    let whole = |it: &Segment<'_>| {
        let bytes = it.bytes.next_multiple_of(page.bytes());
        PhysRange::new(it.destination, bytes)
    };
    let places: ArrayVec<_, MOST_SEGMENTS> = segments.iter().map(whole).collect();
    let in_place = segments
        .iter()
        .zip(&places)
        .map(|(segment, place)| Segment {
            pages: core::slice::from_ref(place),
            clean: Clean::Nothing,
            ..*segment
        });
    let segments: ArrayVec<_, MOST_SEGMENTS> = in_place.collect();
    let mut list = pages::write_list(&mut held, &segments, &map)?;
    let tables = held.take(TABLES * page.bytes())?;
    let needs = Needs {
        cpu: loader.machine.cpu,
        upper: loader.kernel.geometry,
        distance: loader.kernel.placement.distance(),
        code,
        written: &[memory],
        read: &[],
        segments: &segments,
    };
    let tables = tables.start..tables.start + tables.bytes;
    let tables = transition::build_in(loader.kernel, &needs, tables)?;
    let [kernel, .., tree, _] = &segments[..] else {
        return Err(Refused::Machine("a segment is missing"));
    };
    let way = Way {
        uncached: loader.machine.options.uncached,
        el2: loader.machine.returns_to_el2,
        sctlr: SCTLR_MMU_OFF,
        sctlr_el2: SCTLR_EL2_MMU_OFF,
        entry: PhysicalAddress(kernel.destination),
        tree: PhysicalAddress(tree.destination),
        code,
    };
    pages::seal_list(&mut list, &held, &way, &tables, cpu::tcr_el1())?;
    let left = held.left();
    let control = PhysRange::new(
        left.start + left.bytes,
        memory_end - (left.start + left.bytes),
    );
    pages::clean(&control);
    let mut loaded = CrashKernel {
        head: list.head().0,
        notes: PhysRange::new(
            at + layout.notes as u64,
            (layout.bytes - layout.notes) as u64,
        ),
        checked,
    };
    let [.., last] = &mut loaded.checked;
    last.0 = control;
    loaded.note_digests();
    Ok(loaded)
}
