//! A hypervisor's own tables: the EL2 regime, one half, one privilege.
//!
//! Run it with `cargo run --example hypervisor`, or `… -- 16k`. EL2 without VHE translates its own
//! addresses from TTBR0_EL2 alone. The regime has no EL0, so it has one execute-never bit, no ASIDs
//! and only global mappings. The code names `Regime::El2` once, and the library encodes the same
//! attributes as a kernel's for it.
//!
//! The example shows a stack with a guard page for each CPU, a window that maps one page of a
//! guest's memory at a time, and the instructions that the library issues for that.

mod host;

use granule::arch::registers::{Mair, TcrSingle};
use granule::arch::{
    Attributes, CpuFeatures, Dispatch, Geometry, IdRegisters, Page, PageSize, Permissions,
    PhysicalAddress, Regime, VaRange, VirtualAddress,
};
use granule::table::{Holes, Leaves, PageTables, PermissionChange};
use std::error::Error;

/// The layout of the hypervisor's address space.
const IMAGE: VirtualAddress = VirtualAddress(0x10_0000_0000);
const STACKS: VirtualAddress = VirtualAddress(0x20_0000_0000);
const WINDOW: VirtualAddress = VirtualAddress(0x30_0000_0000);
const UART: VirtualAddress = VirtualAddress(0x40_0000_0000);

const CPUS: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    // A CPU with 44 bits of physical address and all three page sizes.
    let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(0x0010_0004));
    let page_size = host::page_size_argument()?.unwrap_or(PageSize::K4);
    let geometry = Geometry::new(&cpu, page_size, 40, VaRange::Lower, Regime::El2)?;
    // The regime has no upper half, so the request returns an error instead of a wrong register
    // value.
    let upper = Geometry::new(&cpu, page_size, 40, VaRange::Upper, Regime::El2);
    if let Err(error) = upper {
        println!("as it should be: {error}");
    }
    page_size.dispatch(Hypervisor { geometry })
}

struct Hypervisor {
    geometry: Geometry,
}

impl Dispatch for Hypervisor {
    type Output = Result<(), Box<dyn Error>>;

    fn run<P: Page>(self) -> Self::Output {
        let geometry = self.geometry;
        let page = P::SIZE.bytes();
        let environment = host::environment(&geometry, PhysicalAddress(0x9000_0000), 24, true);
        let mut tables = PageTables::<P, _>::new(geometry, environment)?;

        // Text and data of 2 MiB each: a block, or with larger pages a contiguous group of pages.
        let text = Attributes::normal(Permissions::READ_EXECUTE);
        let data = Attributes::normal(Permissions::READ_WRITE);
        let block = 2 << 20;
        let ram = PhysicalAddress(0x8000_0000);
        tables.map(IMAGE, ram, block, text, Leaves::LARGEST)?;
        let after = VirtualAddress(IMAGE.0 + block);
        let ram = PhysicalAddress(ram.0 + block);
        tables.map(after, ram, block, data, Leaves::LARGEST)?;

        // A stack of 64 KiB for each CPU. The page below it stays unmapped, so a stack overflow
        // faults instead of overwriting other data.
        let stack = 64 << 10;
        for cpu in 0..CPUS {
            let bottom = VirtualAddress(STACKS.0 + cpu * (stack + page) + page);
            let ram = PhysicalAddress(0x8100_0000 + cpu * stack);
            tables.map(bottom, ram, stack, data, Leaves::PAGES)?;
        }
        let uart = PhysicalAddress(0x0900_0000);
        tables.map(UART, uart, page, Attributes::device(), Leaves::PAGES)?;

        println!("{page_size} pages, EL2:", page_size = P::SIZE);
        println!("  MAIR_EL2  {:#018x}", Mair::STANDARD.0);
        println!("  TCR_EL2   {:#018x}", TcrSingle::new(&geometry).0);

        for (what, at) in [
            ("text", IMAGE),
            ("data", after),
            (
                "guard page of CPU 1",
                VirtualAddress(STACKS.0 + stack + page),
            ),
            (
                "stack of CPU 1",
                VirtualAddress(STACKS.0 + stack + 2 * page),
            ),
            ("UART", UART),
        ] {
            match tables.query(at) {
                Some(mapping) => {
                    println!(
                        "  {what:<20} {at} -> {}: {} leaf{}, {:?}, {}",
                        mapping.output,
                        host::size(mapping.bytes),
                        if mapping.contiguous {
                            " in a group"
                        } else {
                            ""
                        },
                        mapping.attributes.memory,
                        mapping.attributes.permissions,
                    );
                }
                None => println!("  {what:<20} {at} is not mapped"),
            }
        }

        // From here on the CPU uses the tables.
        println!("live:");
        tables.environment().tlb.aloud.set(true);
        // SAFETY: no CPU walks the tables here; a hypervisor passes `hw::Hardware`.
        let mut tables = unsafe { tables.make_live() };
        println!("  TTBR0_EL2 {:#018x}", tables.ttbr(0).0);
        // SAFETY: the window and the data are the hypervisor's own, and only the code below uses
        // them.
        let tables = unsafe { tables.changes() };
        // A page that stays mapped beside the window keeps the window's tables in use. Otherwise
        // each unmap would free them.
        println!("  a page beside the window:");
        let keep = VirtualAddress(WINDOW.0 + page);
        tables.map(
            keep,
            PhysicalAddress(0x8200_0000),
            page,
            data,
            Leaves::PAGES,
        )?;
        for guest in [0xa000_0000, 0xb000_0000] {
            let guest = PhysicalAddress(guest);
            println!("  look at the guest's page {guest}:");
            let look = Attributes::normal(Permissions::READ);
            tables.map(WINDOW, guest, page, look, Leaves::PAGES)?;
            tables.unmap(WINDOW, page)?;
        }

        // The complete data becomes read-only; permissions change in place.
        println!("  the data becomes read-only:");
        let change = PermissionChange::NONE.writable(false);
        tables.protect(after, block, change, Holes::Refuse)?;

        // A part of a live block or group cannot change alone; the error names the leaf.
        let part = tables.protect(after, page, change, Holes::Refuse);
        match part {
            Err(error) => println!("  refused, nothing changed: {error}"),
            Ok(()) => return Err("part of a leaf was changed".into()),
        }
        Ok(())
    }
}
