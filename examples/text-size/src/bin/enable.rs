//! Maps a range and turns the MMU on.

#![no_std]
#![no_main]

use granule::arch::*;
use granule::hw;
use granule::table::*;

fn enable(start: u64, output: u64, bytes: u64) -> u64 {
    map_and_enable(start, output, bytes).is_some().into()
}

fn map_and_enable(start: u64, output: u64, bytes: u64) -> Option<()> {
    let cpu = hw::cpu_features();
    let geometry = Geometry::new(&cpu, PageSize::K4, 39, VaRange::Lower, Regime::El1And0).ok()?;
    // SAFETY: this program is linked, never run.
    let environment = unsafe { hw::environment(&cpu, PageSize::K4, output..output + bytes) };
    let mut tables = PageTables::<Page4K, _>::new(geometry, environment).ok()?;
    let (start, output) = (VirtualAddress(start), PhysicalAddress(output));
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    tables.map(start, output, bytes, attributes, Leaves::LARGEST).ok()?;
    // SAFETY: as above.
    let live = unsafe { tables.make_live() };
    // SAFETY: as above.
    unsafe { hw::enable(&cpu, Some((&geometry, live.ttbr(0))), None) }.ok()?;
    Some(())
}

text_size::program!(enable);
