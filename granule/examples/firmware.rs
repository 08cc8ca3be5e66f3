//! Firmware's identity map, and its register values.
//!
//! Run it with `cargo run --example firmware`, or `… -- el2 64k` for a boot loader at EL2 with
//! another page size. Firmware maps each region to itself, so turning the MMU on changes no
//! address. Flash is executable, RAM is writable, and devices are neither cached nor executable.
//! The example prints the values for MAIR, TCR and TTBR0 that firmware writes before it sets
//! SCTLR.M, with their fields.
//!
//! At EL3 the outputs are in the Secure address space, because the library leaves a leaf's NS bit
//! clear.

mod host;

use granule::arch::registers::{Mair, TcrSingle};
use granule::arch::{
    Attributes, CpuFeatures, Dispatch, Geometry, IdRegisters, MemoryType, Page, PageSize,
    Permissions, PhysicalAddress, Regime, VaRange, VirtualAddress,
};
use granule::table::{Leaves, PageTables, Piece, TableError};
use std::error::Error;

/// The regions of a small board in ascending order: name, address, bytes and attributes.
fn regions() -> [(&'static str, u64, u64, Attributes); 5] {
    let strict = Attributes::device().memory(MemoryType::DeviceStrict);
    [
        // Code runs in place. Flash must not be written as if it were memory.
        (
            "flash",
            0x0000_0000,
            64 << 20,
            Attributes::normal(Permissions::READ_EXECUTE),
        ),
        ("GIC and UART", 0x0800_0000, 32 << 20, Attributes::device()),
        // A configuration write must reach the device before the next access, so no early
        // acknowledgement.
        ("PCI configuration", 0x3f00_0000, 16 << 20, strict),
        (
            "DRAM",
            0x4000_0000,
            2 << 30,
            Attributes::normal(Permissions::READ_WRITE),
        ),
        (
            "shared with a device",
            0xc000_0000,
            1 << 20,
            Attributes::normal(Permissions::READ_WRITE).memory(MemoryType::NormalNonCacheable),
        ),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut regime = Regime::El3;
    let mut page_size = PageSize::K4;
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "el2" => regime = Regime::El2,
            "el3" => regime = Regime::El3,
            word => {
                let named = PageSize::ALL.into_iter().find(|size| size.name() == word);
                page_size =
                    named.ok_or_else(|| format!("{word:?}: say el2 or el3, 4k, 16k or 64k"))?;
            }
        }
    }
    // A CPU with 40 bits of physical address and all three page sizes.
    let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(0x0010_0002));
    // An identity map needs as many input bits as the CPU has physical address bits.
    let va_bits = cpu.pa_bits();
    let geometry = Geometry::new(&cpu, page_size, va_bits, VaRange::Lower, regime)?;
    page_size.dispatch(Firmware { geometry })
}

struct Firmware {
    geometry: Geometry,
}

impl Dispatch for Firmware {
    type Output = Result<(), Box<dyn Error>>;

    fn run<P: Page>(self) -> Self::Output {
        let geometry = self.geometry;
        let regime = geometry.regime();
        let environment = host::environment(&geometry, PhysicalAddress(0x4010_0000), 12, false);
        let mut tables = PageTables::<P, _>::new(geometry, environment)?;

        // One call maps all regions or none, and writes a table that two regions share only once.
        let pieces = regions().map(|(_, start, bytes, attributes)| Piece {
            start: VirtualAddress(start),
            output: PhysicalAddress(start),
            bytes,
            attributes,
            leaves: Leaves::LARGEST,
        });
        tables.map_pieces(&pieces)?;

        println!(
            "{regime:?}, {} pages, {} levels:",
            P::SIZE,
            geometry.levels()
        );
        for (name, start, bytes, _) in regions() {
            // Both ends of each region translate to themselves.
            for at in [start, start + bytes - 1] {
                let mapping = tables.query(VirtualAddress(at));
                let mapping = mapping.ok_or_else(|| format!("{name}: {at:#x} is not mapped"))?;
                if mapping.output.0 != at {
                    return Err(format!("{name}: {at:#x} is not itself").into());
                }
            }
            let leaf = tables.query(VirtualAddress(start)).ok_or("not mapped")?;
            let permissions = leaf.attributes.permissions;
            println!(
                "  {start:#011x} {:>8}  {name:<20} {:?}, r{}{}, from leaves of {}",
                host::size(bytes),
                leaf.attributes.memory,
                if permissions.writable { 'w' } else { '-' },
                if permissions.privileged_execute {
                    'x'
                } else {
                    '-'
                },
                host::size(leaf.bytes),
            );
        }

        // A mistake in the board's description is an error before anything is written.
        let again = tables.map_pieces(&pieces[1..2]);
        match again {
            Err(error @ TableError::AlreadyMapped { .. }) => println!("  twice? {error}"),
            other => return Err(format!("mapping twice gave {other:?}").into()),
        }

        let tcr = TcrSingle::new(&geometry).0;
        let level = if regime == Regime::El3 { 3 } else { 2 };
        println!("registers, before SCTLR_EL{level}.M is set:");
        println!("  MAIR_EL{level}  {:#018x}", Mair::STANDARD.0);
        println!("  TCR_EL{level}   {tcr:#018x}");
        println!(
            "    T0SZ {} ({} bits), TG0 {:#04b} ({}), PS {:#05b} ({} bits), DS {}",
            tcr & 0x3f,
            64 - (tcr & 0x3f),
            tcr >> 14 & 0b11,
            P::SIZE,
            tcr >> 16 & 0b111,
            geometry.pa_bits(),
            tcr >> 32 & 1,
        );
        // SAFETY: no CPU walks the tables here. Firmware vouches that its flash, RAM and devices are
        // where the regions say.
        let ttbr = unsafe { tables.make_live() }.ttbr(0).0;
        println!("  TTBR0_EL{level} {ttbr:#018x}");
        println!("then: isb, tlbi, dsb nsh, isb; set M, C and I; isb; ic iallu, dsb nsh, isb");
        Ok(())
    }
}
