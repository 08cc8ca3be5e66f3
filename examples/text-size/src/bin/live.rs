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
    let environment = unsafe { hw::environment(&cpu, PageSize::K4, output..output + bytes) };
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
    #[cfg(feature = "modify")]
    tables.modify(start, bytes, Holes::Skip, |leaf| leaf.memory = MemoryType::NormalNonCacheable).ok()?;
    #[cfg(feature = "rest")]
    rest(tables, start, output, bytes)?;
    #[cfg(feature = "unmap")]
    tables.unmap(start, bytes).ok()?;
    #[cfg(feature = "query")]
    core::hint::black_box(tables.query(start)?.output);
    core::hint::black_box(tables);
    Some(())
}

/// The calls that have no feature of their own.
#[cfg(feature = "rest")]
fn rest(
    tables: &mut PageTables<Page4K, impl TableEnvironment>,
    start: VirtualAddress,
    output: u64,
    bytes: u64,
) -> Option<()> {
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let runs = [FrameRun { first: PhysicalAddress(output), count: bytes }];
    tables.map_frames(start, Frames::Runs(&runs), attributes, Leaves::LARGEST).ok()?;
    tables.harvest(start, bytes, Harvest::Dirty, |start, _| core::hint::black_box(start).0 = 0).ok()?;
    tables.limit_leaves(start, bytes, Leaves::PAGES).ok()?;
    tables.merge(start, bytes, Leaves::LARGEST).ok()?;
    tables.set_invalid(start, bytes).ok()?;
    tables.set_valid(start, bytes).ok()?;
    tables.unmap_keeping_tables(start, bytes).ok()?;
    tables.for_each(start, bytes, |leaf| core::hint::black_box(leaf).bytes = 0).ok()?;
    let mut cursor = tables.cursor(start).ok()?;
    cursor.map(PhysicalAddress(output), attributes).ok()?;
    cursor.protect(PermissionChange::NONE, Holes::Skip).ok()?;
    cursor.unmap(EmptyTables::Free).ok()
}

text_size::program!(live);
