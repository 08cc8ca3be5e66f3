//! Changes live tables by the calls that the features name.

#![no_std]
#![no_main]
#![allow(unused_imports, unused_variables, reason = "not every build has every call")]

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
    let environment = unsafe { text_size::Identity::new(&cpu, PageSize::K4, output, output + bytes) };
    let root = PhysicalAddress(output);
    // SAFETY: as above.
    let live = unsafe { Live::<PageTables<Page4K, _>>::from_root(root, geometry, environment) };
    let mut live = live.ok()?;
    let start = VirtualAddress(start);
    // SAFETY: as above.
    let tables = unsafe { live.changes() };
    #[cfg(feature = "map")]
    {
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        tables.map(start, PhysicalAddress(output), bytes, attributes, Leaves::LARGEST).ok()?;
    }
    #[cfg(feature = "protect")]
    tables
        .protect(
            start,
            bytes,
            PermissionChange { writable: Some(false), ..PermissionChange::NONE },
            Holes::Skip,
        )
        .ok()?;
    #[cfg(feature = "unmap")]
    tables.unmap(start, bytes).ok()?;
    #[cfg(feature = "query")]
    core::hint::black_box(tables.query(start)?.output);
    core::hint::black_box(tables);
    Some(())
}

text_size::program!(live);
