//! Prints the machine-readable record that `granule boot` reads from the console.
//!
//! `granule schema boot` and docs/boot-record.md document keys and values.
//!
//! Nothing is measured here.

use crate::arch::image;
use crate::arch::phases::Phase;
use crate::cpu::ipi;
use crate::dev::console::println;
use crate::dev::driver::Probed;
use crate::dev::registry;
use crate::exception::{conflict, spurious};
use crate::handover::{BootChoice, Handover};
use crate::mm::map::{LinearMap, Request};
use crate::mm::pages::HandedOver;
use crate::mm::selfcheck::Looked;
use crate::smp::start::{self, Started};
use core::fmt::{self, Display};
use core::sync::atomic::Ordering;
use granule::arch::bbm_policy::Decision;
use granule::arch::errata::Errata;
use granule::arch::{Geometry, OutputFormat, PageSize};
use granule::linear::Placement;
use granule::table::Piece;
use granule_boot::expand::Request as Efi;
use granule_boot::kaslr::Kaslr;
use granule_boot::sizes::SizeSet;
use granule_kcore::layout::Randomised;
use granule_kcore::persist::Left;

fn say(key: &str, value: impl Display) {
    println!("@granule {key}={value}");
}

/// Prints whether EFI firmware started the machine and where its tables are, and what describes the machine.
#[inline(never)]
pub(crate) fn firmware(efi: &Option<Efi>, handover: &Handover) {
    if let Some(efi) = efi {
        let table = efi.system_table;
        println!("granule: entered from EFI, system table at {table:#x}");
    }
    say("firmware", if efi.is_some() { "efi" } else { "none" });
    let is_acpi = handover.expanded.is_some_and(|it| it.is_acpi);
    say("described_by", if is_acpi { "acpi" } else { "device-tree" });
    if let Some(efi) = efi {
        println!("@granule efi.system_table={:#x}", efi.system_table);
        println!("@granule efi.map={:#x}", efi.map.start);
        say("efi.map_bytes", efi.map.bytes);
    }
}

/// Prints what the boot chose, and the CPU.
#[inline(never)]
pub(crate) fn boot(
    handover: &Handover,
    choice: &BootChoice,
    geometry: &Geometry,
    errata: Errata,
    bbm_policy: &Decision,
) {
    say("page_size", geometry.page_size().bytes());
    say("page_size_source", choice.page.source);
    say("va_bits", geometry.va_bits());
    say("pa_bits", geometry.pa_bits());
    say("levels", 4 - geometry.start_level().number());
    say("start_level", geometry.start_level());
    say("lpa2", geometry.format() == OutputFormat::Lpa2);
    say("bbm_level.id", handover.entry.features().bbm_level());
    say("bbm_level.used", bbm_policy.level as u32);
    say("bbm_level.why", bbm_policy);
    say("entry_el", handover.entry.entry_el);
    say("run_el", handover.entry.run_el);
    say("vhe", handover.entry.vhe == 1);
    for erratum in errata.iter() {
        say("errata", erratum.name);
    }
}

/// Prints where the image and the linear map lie, and among how many places a seed chose. The record is for
/// those who test the kernel, so it has addresses that no other line of the console has.
#[inline(never)]
pub(crate) fn kaslr(kaslr: Kaslr, randomised: &Randomised, placement: &Placement) {
    say(
        "kaslr.state",
        match kaslr {
            Kaslr::On(_) => "on",
            Kaslr::TurnedOff => "nokaslr",
            _ => "no-seed",
        },
    );
    println!("@granule kaslr.image={:#x}", image::start());
    println!("@granule kaslr.linear_map={:#x}", placement.base.0);
    say("kaslr.image_places", randomised.image_places);
    say("kaslr.linear_map_places", randomised.linear_map_places);
}

/// Prints the linear map and its cost.
#[inline(never)]
pub(crate) fn linear_map(map: &LinearMap, request: &Request<'_>, ram: u64) {
    let page_bytes = request.geometry.page_size().bytes();
    match request.parameters.strategy {
        Some(published) => say("linear_map.strategy", published),
        None => say("linear_map.strategy", "direct"),
    }
    say("linear_map.barriers", request.parameters.barriers);
    say("linear_map.rodata", request.parameters.rodata.name());
    say("linear_map.ram_bytes", ram);
    say("linear_map.mapped_bytes", map.stats.bytes);
    for (size, count) in map.stats.leaves() {
        println!(
            "@granule linear_map.leaf={},{},{count}",
            size.bytes, size.contiguous
        );
    }
    say("linear_map.tables", map.tables());
    say("linear_map.table_bytes", map.tables() * page_bytes);
    say(
        "linear_map.rewritten_to_pages",
        map.split_to_pages.is_some(),
    );
    say("linear_map.descriptor_stores", map.counts.stores);
    say("linear_map.tlbi", map.counts.tlbi);
    say("linear_map.dsb", map.counts.dsb);
    say("linear_map.isb", map.counts.isb);
    match map.instructions {
        Some(Ok(instructions)) => say("linear_map.instructions", instructions),
        // A missing figure must not look like one that was not requested.
        Some(Err(lost)) => say("linear_map.not_counted", lost),
        None => {}
    }
    say("linear_map.time_us", map.time_us);
    say("linear_map.sctlr", map.sctlr);
    say("linear_map.distance", request.placement.distance());
    say("linear_map.tlbi_range", request.capabilities.range);
    let pool_bytes = request.pool.1.0.saturating_sub(request.pool.0.0);
    say("linear_map.pool_pages", pool_bytes / page_bytes);
    let pieces = PieceList(&map.pieces);
    say("linear_map.pieces", &pieces);
    let left_out = pieces.0.len().saturating_sub(pieces.fitting());
    say("linear_map.pieces_left_out", left_out);
}

/// Prints what the self-check examined.
pub(crate) fn self_check(looked: &Looked, seed: u64) {
    say("self_check.seed", seed);
    say("self_check.translations", looked.translations);
    say("self_check.patterns", looked.patterns);
    say("self_check.leaves", looked.leaves);
    say("self_check.tables", looked.tables);
    say("self_check.read_only_bytes", looked.read_only_bytes);
}

/// Prints what the page allocator was given, and how much static storage is in it.
pub(crate) fn memory(static_bytes: u64, pages: &HandedOver, page_bytes: u64) {
    say("memory.static_bytes_given_back", static_bytes);
    say("memory.free_bytes", pages.free * page_bytes);
    say("memory.page_metadata_bytes", pages.metadata_bytes);
}

/// Prints how much of the boot CPU's stack was used, tests included, and its size.
pub(crate) fn boot_stack(used: u64, bytes: u64) {
    say("memory.boot_stack_bytes_used", used);
    say("memory.boot_stack_bytes", bytes);
}

/// Prints the phases of the boot.
#[inline(never)]
pub(crate) fn phases(phases: impl Iterator<Item = Phase>) {
    for phase in phases {
        let Phase {
            name, microseconds, ..
        } = phase;
        match phase.instructions {
            Some(count) => {
                println!(
                    "@granule phase=name={name} instructions={count} microseconds={microseconds}"
                );
            }
            None => println!("@granule phase=name={name} microseconds={microseconds}"),
        }
    }
}

/// Prints the counts of exceptions that were handled.
pub(crate) fn exceptions() {
    say("tlb_conflicts", conflict::count());
    say("spurious_faults", spurious::count());
}

/// Prints the drivers that were probed.
#[inline(never)]
pub(crate) fn drivers(page_size: PageSize) {
    for Probed {
        name,
        sizes,
        mismatch,
    } in registry::probed(page_size)
    {
        let used = mismatch.is_none();
        println!(
            "@granule driver=name={name} page_sizes={} in_use={used}",
            Commas(sizes)
        );
        if let Some(mismatch) = mismatch {
            say("drivers_left_out", mismatch);
        }
    }
}

/// Page sizes with commas between them.
struct Commas(SizeSet);

impl Display for Commas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for size in PageSize::ALL.into_iter().filter(|size| self.0.has(*size)) {
            write!(f, "{separator}{size}")?;
            separator = ",";
        }
        Ok(())
    }
}

/// Prints what the previous boot left in RAM.
#[inline(never)]
pub(crate) fn left_by_last_boot(left: &Left) {
    say("persist.boots", left.boots);
    match left.last {
        Ok(size) => say("persist.last_page_size", size.bytes()),
        Err(error) => println!("granule: the count of boots that the last boot left: {error}"),
    }
    match left.same_map {
        Ok(same) => say("persist.same_linear_map", same),
        Err(error) => {
            println!("granule: the linear map that the last boot left: {error}");
            say("persist.linear_map_refused", error);
        }
    }
}

/// Formats the pieces of the linear map as `FIRST+BYTES` in hexadecimal, with commas between them, as many
/// as a line of the record may have.
struct PieceList<'a>(&'a [Piece]);

/// The most bytes of a line of the record, without its line feed and carriage return.
const LONGEST_LINE: usize = 4094;

impl PieceList<'_> {
    /// The number of pieces, from the first one, that fit the line.
    fn fitting(&self) -> usize {
        let digits = |number: u64| number.checked_ilog(16).map_or(1, |log| log as usize + 1);
        let mut used = "@granule linear_map.pieces=".len();
        let fits = |piece: &&Piece| {
            // A plus and a comma.
            used += digits(piece.output.0) + digits(piece.bytes) + 2;
            used <= LONGEST_LINE
        };
        self.0.iter().take_while(fits).count()
    }
}

impl Display for PieceList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, piece) in self.0.iter().take(self.fitting()).enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{:x}+{:x}", piece.output.0, piece.bytes)?;
        }
        Ok(())
    }
}

/// Prints the CPUs that are up, and why the others are not.
#[inline(never)]
pub(crate) fn cpus(started: &Started, page_size: PageSize) {
    say("cpus", start::facts().count());
    say("cpus_expected", started.expected);
    say("bbm_level.system", started.common.bbm_level);
    say("tlbi_range", started.common.tlbi_range);
    say("tlbi_level_hint", started.common.level_hint);
    for line in &started.mismatches {
        say("cpu_mismatch", line.text());
    }
    for facts in start::facts() {
        let cpu = &facts.features;
        let calls = ipi::answered(facts.number);
        println!(
            "@granule cpu=number={} mpidr={:#x} midr={:#010x} entry_el={} run_el={} pa_bits={} \
             va_bits={} asid_bits={} bbm_level={} translations={} calls={calls}",
            facts.number,
            facts.affinity,
            cpu.midr,
            facts.entry_el,
            facts.run_el,
            cpu.pa_bits(),
            cpu.most_va_bits(page_size),
            cpu.asid_bits(),
            cpu.bbm_level(),
            facts.translations.load(Ordering::Relaxed),
        );
    }
}
