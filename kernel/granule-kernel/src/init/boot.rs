//! The boot after the choice of page size: memory, linear map, self-check, boot record.
//!
//! No code here is compiled for each page size: `mm::walker` opens the tables behind an interface without
//! one.
//!
//! The frame of [`boot`] is large and stays on the stack under every later call. So the functions that it calls are not
//! inlined (`inline(never)`): their own frames must not be part of it.

#![allow(unsafe_code, reason = "memory that the boot tables map")]

use super::hook::BOOT;
use super::{bbm_policy, idle};
use crate::arch::counter::InstructionCounter;
use crate::arch::image;
use crate::arch::phases::Phases;
use crate::dev::console::println;
use crate::dev::registry;
use crate::fatal::refuse;
use crate::handover::{BootChoice, BootRoots, Handover};
use crate::kexec::arrive;
use crate::kexec::crash::vmcore;
use crate::mm::free_initmem;
use crate::mm::map::{self, Request};
use crate::mm::phys_to_virt::KernelPhysToVirt;
use crate::mm::selfcheck;
use crate::mm::split_to_pages;
use crate::mm::{firmware, kernel_tables, merge, pagealloc, pages};
use crate::smp::inputs::BringUp;
use crate::smp::{check, start};
use crate::task::{random, user_space};
use crate::trace::recorder;
use crate::{bench, kexec, module, persist, report, virtio_disk};
use granule::arch::errata::Errata;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, PhysicalAddress};
use granule::linear::{Arena, Placement};
use granule_boot::expand;
use granule_boot::kaslr::{Kaslr, Purpose};
use granule_boot::memblock::{self, LeftOut};
use granule_boot::tree::Tree;
use granule_kcore::devicetree::memory::{self as tree, Memory};
use granule_kcore::layout::{self, Randomised};
use granule_kcore::parameters::{Parameters, SelfCheck};
use granule_trace::recorder::Counters;

/// The result of user space. `Ok` if it ended well or did not exist.
pub(crate) type Ended = Result<(), user_space::Failure>;

/// Boots from the handover, and runs the user programs.
pub(crate) fn run(handover: &Handover, parameters: &Parameters<'_>, phases: Phases) -> Ended {
    let (Some(choice), Some(roots)) = (&handover.choice, &handover.roots) else {
        refuse::refuse(format_args!(
            "no page size was chosen before the MMU was on"
        ));
    };
    for note in choice.page.notes.iter().chain(choice.va.notes.iter()) {
        println!("granule: {note}");
    }
    report::firmware(&firmware::with_tree(handover, efi_tables), handover);
    // SAFETY: this is the only call, and the boot tables map the area that the handover names.
    unsafe { recorder::begin(handover.trace) };
    boot(handover, choice, roots, parameters, phases)
}

/// Reads EFI's tables from the device tree. The code with the MMU off has refused a tree with wrong ones.
fn efi_tables(tree: &[u8]) -> Option<expand::Request> {
    expand::Request::of(&Tree::new(tree).ok()?).ok()?
}

#[inline(never)]
fn boot(
    handover: &Handover,
    choice: &BootChoice,
    roots: &BootRoots,
    parameters: &Parameters<'_>,
    mut phases: Phases,
) -> Ended {
    let page_size = choice.page.size;
    let cpu = handover.entry.features();
    let forced = parameters.errata;
    let errata = Errata::of_cpu(cpu.midr).union(forced);
    let geometry = roots.upper;
    let capabilities = TlbCapabilities {
        // While only this CPU runs, few errata require repetition. A test may force all.
        repeat: errata.repeats_tlbi(true) || forced.repeats_tlbi(false),
        ..TlbCapabilities::of(&cpu)
    };
    let system = bbm_policy::system(parameters.bbm, forced);

    let mut memory = Memory::new(page_size);
    read_memory(handover, parameters, &mut memory);
    let (placement, randomised) = place(&geometry, handover.kaslr, &mut memory);
    let dead = vmcore::find(handover, parameters, &mut memory);
    let persist = persist::find(parameters, &mut memory);
    let crash = kexec::crash::reserve::reserve(parameters, &mut memory);
    // SAFETY: the image is mapped at its distance. The linear map's distance is set before a table there is
    // used.
    let phys_to_virt = unsafe {
        KernelPhysToVirt::new(
            handover.entry.load,
            image::bytes(),
            handover.mmu.virt_offset,
            placement.distance(),
        )
    };
    let counter = instruction_counter(handover, parameters);
    let counters = Counters::new();
    let pool_end = handover.entry.load + image::static_pool().end;
    let bbm = bbm_policy::of_boot_cpu(&cpu, &system, parameters.rodata);
    // Where blocks can be split later, any pages will do later.
    let guard = parameters.guard.filter(|_| !bbm.splits_blocks());
    let guard = guard.and_then(|pool| module::guard::reserve(pool, &mut memory));
    let mut request = Request {
        geometry,
        capabilities,
        root: roots.kernel,
        phys_to_virt,
        placement,
        image_start: handover.entry.load,
        pool: (
            PhysicalAddress(handover.pool_next),
            PhysicalAddress(pool_end),
        ),
        bbm_policy: bbm,
        pages_for: pages_for(parameters),
        parameters,
        guard,
        counter: counter.as_ref(),
    };
    if let Some(user) = request.pages_for {
        println!("granule: linear map: it is made of pages, which {user} needs");
    }
    // SAFETY: nothing else uses the pool from `pool_next` on, and `phys_to_virt` covers the image. Additional RAM is
    // taken from early memory.
    let mut arena = unsafe { Arena::new(phys_to_virt, request.pool.0, request.pool.1, page_size) };
    phases.end("memory");
    // In place: a function that returned the map would have it on the stack a second time.
    let (mut map, mut tables) = match map::map_mem(&request, &mut memory, &counters, &mut arena) {
        Ok(made) => made,
        Err(error) => refuse::refuse(format_args!("{error}")),
    };
    phases.end("linear-map");
    println!("map_mem: time={} us", map.time_us);
    let extent = selfcheck::extent(parameters, &map);
    let mut looked = match selfcheck::run(
        &mut tables,
        &map,
        &placement,
        &memory,
        (handover.entry.counter, extent),
        |stage, tables| {
            if let Some(hook) = BOOT.get() {
                (hook.before_check)(parameters, stage, tables, &placement);
            }
        },
    ) {
        Ok(looked) => looked,
        Err(fault) => refuse::self_check_failed(format_args!("{fault}")),
    };
    phases.end("self-check");
    let initrd = firmware::with_tree(handover, tree::initial_ramdisk);
    firmware::with_tree(handover, random::begin);
    let cpus = firmware::with_tree(handover, |tree| {
        start::start(&mut BringUp {
            request: &request,
            handover,
            roots,
            memory: &mut memory,
            tree,
            parameters,
            errata,
            translations: looked.translations,
            has_programs: initrd.is_some(),
            idle: idle::serve,
        })
    });
    // From here on tables change while several CPUs run, so the common capabilities count.
    let common = cpus.common;
    request.capabilities.range = common.tlbi_range;
    request.capabilities.level_hint = common.level_hint;
    if start::facts().count() > 1 {
        request.capabilities.repeat = common.errata.repeats_tlbi(false);
    }
    let seed = handover.entry.counter;
    let bbm_policy = bbm_policy::of_all(&system, &request);
    if split_to_pages::is_needed(&request, &bbm_policy) {
        let split = split_to_pages::split(
            &request,
            &mut tables,
            &mut memory,
            &mut map,
            seed,
            &mut looked,
        );
        match split {
            Ok(()) => println!("granule: the linear map is rewritten to pages"),
            Err(split_to_pages::Failure::SelfCheck(fault)) => {
                refuse::self_check_failed(format_args!("rewritten to pages: {fault}"))
            }
            Err(error) => refuse::refuse(format_args!(
                "{bbm_policy}, so the linear map must be rewritten to pages: {error}"
            )),
        }
    }
    if extent != SelfCheck::Off
        && let Err((cpu, fault)) = check::translations(&map, &placement, seed)
    {
        refuse::self_check_failed(format_args!("on CPU {cpu}: {fault}"));
    }
    phases.end("cpus");
    kexec::machine::begin(
        handover,
        &memory,
        persist.map(|persist| persist.extent()),
        crash,
        parameters,
    );
    drop(tables);
    let arrival = arrive::look(handover, parameters.kexec.digest);
    let (unused_pool, pool_end) = arena.unused_pool();
    // The memory for a tree of firmware's tables follows the pool. It is unused where `entry.dtb` is another.
    let unused_end = match handover.expanded {
        None => PhysicalAddress(handover.entry.load + image::firmware_tree().end),
        Some(_) => pool_end,
    };
    let given_back = free_initmem::free(
        &request,
        handover,
        roots,
        &mut memory,
        (unused_pool, unused_end),
        cpus.needs_identity,
    );
    let given_back = given_back.unwrap_or_else(|error| {
        refuse::refuse(format_args!("boot mappings cannot be dropped: {error}"))
    });
    let pages = match pages::take_over(&memory, &placement) {
        Ok(pages) => pages,
        Err(error) => refuse::refuse(format_args!("{error}")),
    };
    // The trust that holds for all CPUs limits how the map may change.
    request.bbm_policy = bbm_policy;
    kernel_tables::begin(&request);
    pagealloc::invalidate_free_pages();
    merge::configure(parameters.merges_when_idle);
    if let Some(dead) = dead {
        vmcore::begin(dead);
    }
    if let Some(pool) = parameters.guard {
        module::guard::begin(pool, request.guard.clone());
    }
    phases.end("pages");
    report::boot(handover, choice, &geometry, common.errata, &bbm_policy);
    report::kaslr(handover.kaslr, &randomised, &placement);
    let ram = memory.totals().ram;
    report::linear_map(&map, &request, ram);
    report::self_check(&looked, handover.entry.counter);
    report::memory(given_back, &pages, page_size.bytes());
    report::cpus(&cpus, page_size);
    if let Some(hook) = registry::MORE_DRIVERS.get() {
        (hook.probe)(parameters, page_size);
    }
    if parameters.disk {
        virtio_disk::probe(page_size);
    }
    report::drivers(page_size);
    arrive::report(&arrival, handover, &placement, &geometry);
    if let Some(left) = persist.and_then(|area| area.exchange(&placement, &geometry, &map)) {
        report::left_by_last_boot(&left);
    }
    if let Some(hook) = BOOT.get() {
        (hook.tables_are_up)(parameters).unwrap_or_else(|error| {
            refuse::refuse(format_args!(
                "arm64.inject_conflict= cannot be granted: {error}"
            ))
        });
        (hook.boot_is_done)(&request, parameters);
    }
    if let Some(bench) = parameters.bench {
        bench::run(bench, request.counter);
    }
    merge::settle();
    phases.end("record");
    let mut phases = Some(phases);
    let mut up = || {
        if let Some(mut phases) = phases.take() {
            phases.end("first-program");
            report::phases(phases.all(request.counter));
        }
    };
    let inputs = user_space::Inputs {
        boot_cpu: cpu,
        common,
        geometry: request.geometry,
        capabilities: request.capabilities,
        ram_end: memory.banks().last().map_or(0, |bank| bank.end()),
        initrd,
        parameters,
    };
    let ended = user_space::run(&inputs, &mut up);
    // Without programs.
    up();
    report::exceptions();
    ended
}

/// Who needs the linear map in pages: one that hands single pages to another owner from any context, as a realm does,
/// or that makes them invalid, where no block may be split. A further one is named here.
fn pages_for(parameters: &Parameters<'_>) -> Option<&'static str> {
    if parameters.debug_pagealloc {
        return Some("debug_pagealloc=on");
    }
    BOOT.get().and_then(|hook| (hook.needs_pages)(parameters))
}

/// Early memory: the device tree's RAM, less the image and the tree itself.
fn read_memory(handover: &Handover, parameters: &Parameters<'_>, memory: &mut Memory) {
    let (entry, tree_info) = (&handover.entry, &handover.tree);
    let trace = &handover.trace;
    let own = [
        (entry.load, image::bytes(), "image"),
        (entry.dtb, tree_info.bytes, "device tree"),
        (trace.start, trace.bytes, "trace"),
    ];
    // Before the tree's: many no-map ranges are joined beside all that is reserved.
    for (start, bytes, what) in own {
        if let Err(error) = memory.reserve(start, bytes) {
            refuse::refuse(format_args!("the {what} cannot be reserved: {error}"));
        }
    }
    firmware::memory(handover, parameters, memory, |warning| {
        println!("granule: {warning}");
    });
    let initrd = firmware::with_tree(handover, tree::initial_ramdisk);
    for (start, bytes, what) in own {
        let end = start.saturating_add(bytes);
        // Both were written, so one of them is damaged. The code with the MMU off has compared the others.
        if let Some(initrd) = initrd
            .as_ref()
            .filter(|it| it.start < end && start < it.end)
        {
            refuse::refuse(format_args!(
                "the initramfs, {:#x} to {:#x}, overlaps the memory of the {what}, {start:#x} to \
                 {end:#x} (of the image that is image_size in its header, more than its file): \
                 place it elsewhere",
                initrd.start, initrd.end
            ));
        }
        // The range is mapped, so its owner is not the only one that can access it.
        let meets = |range: &&memblock::Region| range.start() < end && start < range.end();
        if let Some(range) = memory.no_map().iter().find(meets) {
            refuse::refuse(format_args!(
                "the {what}, {bytes:#x} bytes at {start:#x}, lies in the no-map range {:#x} to \
                 {:#x} of the device tree: load it elsewhere",
                range.start(),
                range.end()
            ));
        }
    }
    let image_end = entry.load + image::bytes();
    let holds_image =
        |bank: &memblock::Region| bank.start() <= entry.load && image_end <= bank.end();
    if !memory.banks().iter().any(holds_image) {
        refuse::refuse(format_args!(
            "the image, {:#x} bytes at {:#x}, does not lie in one bank of the device tree's \
             memory: RAM is too small, or the image was loaded at a wrong address",
            image::bytes(),
            entry.load
        ));
    }
}

/// Chooses the place of the linear map, and drops RAM that the map or the CPU cannot reach.
fn place(geometry: &Geometry, kaslr: Kaslr, memory: &mut Memory) -> (Placement, Randomised) {
    memory.truncate(1 << geometry.pa_bits(), LeftOut::BeyondPhysical);
    let start = memory.banks().first().map_or(0, |bank| bank.start());
    let end = memory.banks().last().map_or(0, |bank| bank.end());
    // The lower half of TTBR1's range. The image, the device tree and the fixmap are at the top of the upper
    // half.
    let placement = Placement::choose(
        geometry,
        geometry.base(),
        geometry.span() / 2,
        PhysicalAddress(start),
        PhysicalAddress(end),
    );
    // As much again as there is RAM is kept free above it, for memory that is added later.
    let room = end.saturating_add(end.saturating_sub(start));
    let places = placement.places(geometry, PhysicalAddress(start), PhysicalAddress(room));
    let randomised = Randomised {
        image_places: layout::KIMAGE_SPANS * layout::kimage_places(image::bytes()),
        linear_map_places: places.count(),
    };
    print_kaslr(kaslr, &randomised);
    let moved = kaslr
        .seed()
        .and_then(|seed| places.get(seed.choose(Purpose::LinearMap, places.count())));
    let placement = moved.unwrap_or(placement);
    let (first, span) = (placement.origin.0, placement.span);
    memory.keep_only(first, first.saturating_add(span), LeftOut::BeyondVirtual);
    print_memory(memory, geometry);
    (placement, randomised)
}

/// Prints whether addresses are randomised, and never an address: the console may have other readers than
/// the record.
fn print_kaslr(kaslr: Kaslr, randomised: &Randomised) {
    let (image, linear_map) = (randomised.image_places, randomised.linear_map_places);
    match kaslr {
        Kaslr::On(_) if linear_map > 1 => println!(
            "granule: KASLR: {image} possible image positions, {linear_map} of the linear map"
        ),
        Kaslr::On(_) => println!(
            "granule: KASLR: {image} possible image positions, one of the linear map: RAM leaves no room"
        ),
        Kaslr::TurnedOff => println!("granule: KASLR is off: nokaslr is in the command line"),
        _ => println!("granule: KASLR is off: /chosen has no kaslr-seed"),
    }
}

fn print_memory(memory: &Memory, geometry: &Geometry) {
    let banks = memory.banks().iter().map(|bank| ("RAM", bank));
    let no_map = memory.no_map().iter().map(|range| ("no-map", range));
    for (what, range) in banks.chain(no_map) {
        let (start, end) = (range.start(), range.end());
        println!("granule: {what} {start:#014x} to {end:#014x}");
    }
    for range in memory.reserved_outside_ram() {
        println!(
            "granule: reserved range {:#x} to {:#x} lies outside RAM; ignored there",
            range.start(),
            range.end()
        );
    }
    let totals = memory.totals();
    let (physical, virtual_) = (totals.beyond_physical, totals.beyond_virtual);
    let notes = [
        (
            totals.overlapping,
            "of RAM are in more than one bank; counted once",
        ),
        (
            totals.edges,
            "of RAM at the edges of banks do not fill a page; not used",
        ),
        (
            physical,
            "of RAM lie beyond the physical addresses that are used; left out",
        ),
        (virtual_, "of RAM do not fit the linear map; left out"),
    ];
    for (bytes, what) in notes {
        if bytes > 0 {
            println!("granule: {bytes} bytes {what}");
        }
    }
    if virtual_ > 0 || physical > 0 {
        println!(
            "granule: with {} pages there are {} bits of physical and {} of virtual address",
            geometry.page_size(),
            geometry.pa_bits(),
            geometry.va_bits()
        );
    }
}

/// The instruction counter, if the command line requests one.
fn instruction_counter(
    handover: &Handover,
    parameters: &Parameters<'_>,
) -> Option<InstructionCounter> {
    if !parameters.counts_instructions {
        return None;
    }
    match InstructionCounter::new(handover.entry.dfr0, handover.entry.run_el == 2) {
        Ok(counter) => {
            println!("granule: counting instructions by {counter}");
            if let Some(hook) = BOOT.get() {
                (hook.counter_is_up)(parameters, &counter);
            }
            Some(counter)
        }
        // A requested counter that is unavailable is an error: a missing figure must not look like one that
        // was not requested.
        Err(error) => refuse::refuse(format_args!("{error}")),
    }
}
