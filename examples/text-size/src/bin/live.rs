//! Maps, protects, unmaps and queries in live tables.

#![no_std]
#![no_main]

use granule::arch::tlbi::TlbCapabilities;
use granule::arch::*;
use granule::hw;
use granule::table::*;

fn live(start: u64, output: u64, bytes: u64) -> u64 {
    change(start, output, bytes).is_some().into()
}

fn change(start: u64, output: u64, bytes: u64) -> Option<()> {
    let cpu = hw::cpu_features();
    let geometry = Geometry::new(&cpu, PageSize::K4, 39, VaRange::Lower, Regime::El1And0).ok()?;
    // SAFETY: this program is linked, never run.
    let flat = unsafe { Offset::new(0) };
    let mut allocator = FreeList::new(flat, PageSize::K4);
    // SAFETY: as above.
    unsafe { allocator.add(PhysicalAddress(output), PhysicalAddress(output + bytes)) };
    let environment = Environment {
        memory: DirectMapped(flat),
        allocator,
        tlb: hw::Hardware::new(TlbCapabilities::of(&cpu)),
    };
    // SAFETY: as above.
    let mut live = unsafe { Live::<PageTables<Page4K, _>>::from_root(PhysicalAddress(output), geometry, environment).ok()? };
    let (start, output) = (VirtualAddress(start), PhysicalAddress(output));
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    // SAFETY: as above.
    let tables = unsafe { live.changes() };
    tables.map(start, output, bytes, attributes, Leaves::LARGEST).ok()?;
    tables.protect(start, bytes, PermissionChange::NONE.writable(false), Holes::Skip).ok()?;
    tables.unmap(start, bytes).ok()?;
    tables.query(start).map(|_| ())
}

text_size::program!(live);
