//! A small kernel's boot: one program for all page sizes, with a linear map and its own image.
//!
//! Run it with `cargo run --example kernel`, or `… -- 64k` to request a page size, as a boot
//! loader's command line does. The example takes a kernel's boot steps, in order:
//!
//! 1. read the ID registers and choose a page size (`granule_boot`),
//! 2. build the memory map (`granule_boot::memblock`),
//! 3. enter the code compiled for the size, with one `dispatch`,
//! 4. map the image and all of RAM, without any page that is writable and executable,
//! 5. compute the values of TCR, MAIR and TTBR1,
//! 6. unmap the boot code from the live tables.

#![allow(
    unsafe_code,
    reason = "tables in the host's memory, which no CPU walks"
)]

mod host;

use core::ops::ControlFlow;
use granule::arch::registers::{Mair, Tcr};
use granule::arch::{
    Attributes, CpuFeatures, Dispatch, Geometry, Kind, Page, PageSize, Permissions,
    PhysicalAddress, Regime, VaRange, VirtualAddress,
};
use granule::linear::{LeafStats, Placement};
use granule::table::{Leaves, PageTables, Piece, Visit};
use granule_boot::choice::{PageSizeInputs, Wish, choose_page_size, choose_va_bits};
use granule_boot::memblock::Memblock;
use granule_boot::sizes::SizeSet;
use granule_trace::recorder::{Counted, Counters};
use std::error::Error;
use std::rc::Rc;

/// The image's physical address and sections. Sections begin at multiples of 64 KiB, which are
/// multiples of every page size, so that one image serves all sizes.
const IMAGE: u64 = 0x4020_0000;
const SECTIONS: [(&str, u64, u64, Permissions); 4] = [
    ("boot text", 0x0000, 0x1_0000, Permissions::READ_EXECUTE),
    ("text", 0x1_0000, 0x20_0000, Permissions::READ_EXECUTE),
    ("rodata", 0x20_0000, 0x28_0000, Permissions::READ),
    ("data", 0x28_0000, 0x40_0000, Permissions::READ_WRITE),
];
/// The physical range of the read-only sections, which end where data begins. The boot text is one
/// of them, and is not needed after boot.
const READ_ONLY: (u64, u64) = (IMAGE, IMAGE + 0x28_0000);

/// RAM as a device tree might describe it: with a hole, an unaligned end, and a range that firmware
/// keeps.
const BANKS: [(u64, u64); 2] = [(0x4000_0000, 0x8000_0000), (0x1_0000_0000, 0x4_0000_5000)];
const FIRMWARE: (u64, u64) = (0x5000_0000, 0x20_0000);

fn main() -> Result<(), Box<dyn Error>> {
    // The ID registers of a CPU with all features: ID_AA64MMFR0_EL1 with 52-bit physical addresses,
    // TGran4 = 1 and TGran16 = 2 (both with 52 bits), TGran64 = 0 (supported).
    let cpu = CpuFeatures {
        mmfr0: 0x1020_0026,
        mmfr2: 1 << 16,
        isar0: 2 << 56,
        ..CpuFeatures::NONE
    };
    let asked = host::page_size_argument()?;
    let choice = choose_page_size(&PageSizeInputs {
        cpu: (&cpu).into(),
        built: SizeSet::ALL,
        command_line: asked.map_or(Wish::Absent, Wish::Wanted),
        machine: None,
        build_default: None,
    })?;
    for note in choice.notes.iter() {
        println!("{note}");
    }
    println!("{} pages (chosen by: {})", choice.size, choice.source);

    let va_bits = choose_va_bits(&cpu, choice.size, Wish::Absent).bits;
    let geometry = Geometry::new(&cpu, choice.size, va_bits, VaRange::Upper, Regime::El1And0)?;
    println!(
        "{va_bits} bits of virtual address, {} of physical: {} levels of tables",
        geometry.pa_bits(),
        4 - geometry.start_level().number()
    );

    // From here on the page size is a type, and no code reads the choice again.
    choice.size.dispatch(Boot { cpu, geometry })
}

struct Boot {
    cpu: CpuFeatures,
    geometry: Geometry,
}

impl Dispatch for Boot {
    type Output = Result<(), Box<dyn Error>>;

    fn run<P: Page>(self) -> Self::Output {
        let geometry = self.geometry;
        let ram = sort_out_ram(P::SIZE)?;

        // The linear map has the lower half of this half of the address space. The image begins 2
        // GiB below the top.
        let span = geometry.span() / 2;
        let ends = ram.mapped().fold(None, |ends, region| {
            let (low, _) = ends.unwrap_or((region.start(), 0));
            Some((low, region.end()))
        });
        let (low, high) = ends.ok_or("no RAM")?;
        let placement = Placement::choose(
            &geometry,
            geometry.base(),
            span,
            PhysicalAddress(low),
            PhysicalAddress(high),
        );
        let pieces = linear_pieces(&placement, &ram)?;

        // The number of tables is arithmetic, so a kernel can reserve them before it begins.
        let stats = LeafStats::new(&geometry, &pieces);
        let pages = stats.tables as usize + 16;
        let first = PhysicalAddress(0x7000_0000);
        let counters = Counters::new();
        let inner = host::environment(&geometry, first, pages, true);
        let aloud = Rc::clone(&inner.aloud);
        let environment = Counted::new(inner, &counters);
        let mut tables = PageTables::<P, _>::new(geometry, environment)?;

        // Map each section of the image with its own permissions, in single pages, so that the
        // permissions of each page can change later.
        let image = VirtualAddress(0u64.wrapping_sub(0x8000_0000));
        println!("the image at {image}:");
        for (name, start, end, permissions) in SECTIONS {
            let at = VirtualAddress(image.0 + start);
            let output = PhysicalAddress(IMAGE + start);
            let attributes = Attributes::normal(permissions);
            tables.map(at, output, end - start, attributes, Leaves::PAGES)?;
            println!("  {name:<10} {}", host::size(end - start));
        }

        tables.map_pieces(&pieces)?;
        println!("the linear map at {}:", placement.base);
        for (leaf, count) in stats.leaves() {
            let hint = if leaf.contiguous { " (contiguous)" } else { "" };
            println!("  {count:>6} × {}{hint}", host::size(leaf.bytes));
        }

        no_page_is_writable_and_executable(&tables)?;
        let counts = counters.get();
        println!(
            "{} tables, {} descriptor stores, {} TLBIs",
            counts.tables, counts.stores, counts.tlbi
        );

        println!("to be written with the MMU off, or through an empty table:");
        println!("  MAIR_EL1  {:#018x}", Mair::STANDARD.0);
        println!(
            "  TCR_EL1   {:#018x}",
            Tcr::new(&self.cpu, None, Some(&geometry)).0
        );

        // Now a CPU walks the tables, so the library issues barriers and TLBIs for changes.
        aloud.set(true);
        println!("the tables become live:");
        // SAFETY: no CPU walks the tables here; a kernel calls `hw::issue`.
        let mut tables = unsafe { tables.make_live() };
        println!("  TTBR1_EL1 {:#018x}", tables.ttbr(0).bits());
        println!("the boot text goes:");
        let (_, start, end, _) = SECTIONS[0];
        // SAFETY: the boot text has run, and nothing uses it any more.
        unsafe { tables.changes() }.unmap(VirtualAddress(image.0 + start), end - start)?;
        if tables.query(image).is_some() {
            return Err("the boot text is still there".into());
        }
        Ok(())
    }
}

/// Builds the memory map: the banks without firmware's range and without partial pages at their
/// ends.
fn sort_out_ram(page_size: PageSize) -> Result<Memblock<16>, Box<dyn Error>> {
    let mut ram = Memblock::new(page_size);
    for (start, size) in BANKS {
        ram.add_bank(start, size)?;
    }
    ram.mark_no_map(FIRMWARE.0, FIRMWARE.1)?;
    ram.reserve(IMAGE, 0x40_0000)?;
    let totals = ram.totals();
    println!(
        "RAM: {}, of it {} at odd edges and {} that firmware keeps",
        host::size(totals.ram),
        host::size(totals.edges),
        host::size(totals.no_map)
    );
    Ok(ram)
}

/// The pieces of the linear map: all of RAM, writable except for the alias of the image's text and
/// read-only data. Otherwise a stray store through the linear map could change code.
fn linear_pieces(placement: &Placement, ram: &Memblock<16>) -> Result<Vec<Piece>, Box<dyn Error>> {
    let mut pieces = Vec::new();
    for region in ram.mapped() {
        let cuts = [
            (region.start(), READ_ONLY.0, Permissions::READ_WRITE),
            (READ_ONLY.0, READ_ONLY.1, Permissions::READ),
            (READ_ONLY.1, region.end(), Permissions::READ_WRITE),
        ];
        // A region without the image is one piece.
        let whole = [(region.start(), region.end(), Permissions::READ_WRITE)];
        let cuts = if region.contains(READ_ONLY.0) {
            &cuts[..]
        } else {
            &whole[..]
        };
        for &(start, end, permissions) in cuts {
            let output = PhysicalAddress(start);
            let start = placement.virtual_address(output);
            pieces.push(Piece {
                start: start.ok_or("RAM beyond the linear map")?,
                output,
                bytes: end - output.0,
                attributes: Attributes::normal(permissions),
                leaves: Leaves::LARGEST,
            });
        }
    }
    Ok(pieces)
}

/// Checks that no leaf is both writable and executable, and prints the number of executable leaves.
fn no_page_is_writable_and_executable<P: Page, E>(
    tables: &PageTables<P, E>,
) -> Result<(), Box<dyn Error>>
where
    E: granule::table::TableEnvironment,
{
    let (mut leaves, mut executable) = (0, 0);
    let found = tables.visit_all(|entry| {
        if entry.kind == Kind::Leaf {
            let attributes = Attributes::decode(entry.descriptor, tables.geometry());
            leaves += 1;
            executable += u64::from(attributes.permissions.privileged_execute);
            if attributes.permissions.writable_and_executable() {
                return ControlFlow::Break(entry.start);
            }
        }
        ControlFlow::Continue(Visit::Descend)
    });
    if let ControlFlow::Break(address) = found {
        return Err(format!("{address} is writable and executable").into());
    }
    println!("{leaves} leaf entries, {executable} of them executable, none of those writable");
    Ok(())
}
