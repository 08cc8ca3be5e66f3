//! Targets for tables with any contents, descriptors with any bits, and memory maps of any shape.

#![allow(unsafe_code, reason = "table memory that takes no stores")]

use crate::bytes::Bytes;
use core::cell::Cell;
use core::ops::ControlFlow;
use granule::arch::{
    Attributes, CpuFeatures, Descriptor, Geometry, Kind, Level, Page, Page4K, Page16K, Page64K,
    PageSize, PhysicalAddress, Regime, VaRange, VirtualAddress,
};
use granule::table::{
    Entry, FreedTable, Maintenance, PageTables, TableEnvironment, TableError, TableView,
    UnreadTable, Visibility, Visit,
};
use granule_boot::memblock::{Direction, LeftOut, Memblock};

/// A CPU with all features and 52 bits.
fn cpu() -> CpuFeatures {
    let mmfr0 = 0x1022_0006 & !(0xf << 24) | 0x6;
    let mmfr2 = 1 << 16 | 1 << 28;
    CpuFeatures {
        mmfr0,
        mmfr2,
        ..CpuFeatures::NONE
    }
}

const VA_BITS: [u32; 6] = [36, 39, 42, 47, 48, 52];

pub(crate) fn geometry(bytes: &mut Bytes<'_>, size: PageSize) -> Option<Geometry> {
    let bits = VA_BITS[bytes.below(VA_BITS.len())];
    let va_range = if bytes.byte() & 1 == 0 {
        VaRange::Lower
    } else {
        VaRange::Upper
    };
    Geometry::new(&cpu(), size, bits, va_range, Regime::El1And0).ok()
}

pub(crate) fn descriptor(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = PageSize::ALL[bytes.below(3)];
    let Some(geometry) = geometry(&mut bytes, size) else {
        return;
    };
    let level = Level::ALL[bytes.below(5)];
    let descriptor = Descriptor(bytes.word());
    if descriptor.kind(&geometry, level) == Kind::Leaf {
        let attributes = Attributes::decode(descriptor, &geometry);
        let output = geometry.address_of(descriptor, level);
        // A descriptor that was decoded and encoded decodes to the same again.
        let again = Descriptor::leaf(&geometry, level, output, attributes.encode(&geometry));
        assert_eq!(Attributes::decode(again, &geometry), attributes);
        assert_eq!(geometry.address_of(again, level), output);
    }
}

/// Every address is a table: a few pages of the fuzzer's bytes, repeated.
struct Hostile {
    words: Vec<u64>,
}

impl Hostile {
    fn word(&self, table: PhysicalAddress, index: usize) -> u64 {
        let at = (table.0 >> 12).wrapping_mul(0x9e37_79b9) as usize ^ index;
        self.words[at % self.words.len()]
    }
}

// SAFETY: it reads its own vector at every address, drops every store, and allocates nothing.
unsafe impl TableEnvironment for Hostile {
    const BY_POINTER: bool = false;

    fn reach(&self, _: PhysicalAddress) -> *mut u64 {
        core::ptr::null_mut()
    }
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        None
    }
    fn free(&mut self, _: FreedTable) {}
    fn invalidate(&mut self, _: Maintenance) {}
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        Descriptor(self.word(table, index))
    }
    unsafe fn store(&mut self, _: PhysicalAddress, _: usize, _: Descriptor, _: Visibility) {}
}

pub(crate) fn walker(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    match bytes.below(3) {
        0 => walk::<Page4K>(bytes),
        1 => walk::<Page16K>(bytes),
        _ => walk::<Page64K>(bytes),
    }
}

fn walk<P: Page>(mut bytes: Bytes<'_>) {
    let Some(geometry) = geometry(&mut bytes, P::SIZE) else {
        return;
    };
    let base = geometry.base();
    let address = VirtualAddress(base.0.wrapping_add(bytes.word() % geometry.span()));
    let mut words = Vec::new();
    while !bytes.is_empty() && words.len() < 64 {
        words.push(bytes.word());
    }
    words.push(0);
    let memory = Hostile { words };
    // SAFETY: the memory has a value for every address, and no CPU walks these tables.
    let tables = unsafe { PageTables::<P, _>::from_root(PhysicalAddress(0), geometry, memory) };
    let Ok(mut tables) = tables else { return };
    if let Some(found) = tables.query(address) {
        assert!(found.start.0 <= address.0);
        assert!(address.0 - found.start.0 < found.bytes);
    }
    // Tables may point back at themselves: the visitor ends the walk, not the walker.
    let mut left = 200u32;
    let mut visit = |_: &Entry| {
        left = left.saturating_sub(1);
        if left > 0 {
            ControlFlow::Continue(Visit::Descend)
        } else {
            ControlFlow::Break(())
        }
    };
    let _ = tables.visit_all(&mut visit);
    let _ = tables.visit_runs(&mut visit);
    let page = P::SIZE.bytes();
    let start = VirtualAddress(address.0 & !(page - 1));
    let ram = Attributes::normal(granule::arch::Permissions::READ);
    let mapped = tables.map(
        start,
        PhysicalAddress(0),
        page,
        ram,
        granule::table::Leaves::LARGEST,
    );
    assert!(matches!(
        mapped,
        Ok(()) | Err(TableError::AlreadyMapped { .. } | TableError::OutOfTables { .. })
    ));
}

/// Tables that somebody else owns, in a dump with holes: no address is trusted.
pub(crate) fn table_view(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = PageSize::ALL[bytes.below(3)];
    let Some(geometry) = geometry(&mut bytes, size) else {
        return;
    };
    let base = geometry.base();
    let address = VirtualAddress(base.0.wrapping_add(bytes.word() % geometry.span()));
    let holes = bytes.byte();
    let mut words = Vec::new();
    while !bytes.is_empty() && words.len() < 64 {
        words.push(bytes.word());
    }
    words.push(0);
    let loads = Cell::new(0u64);
    let read = |table: PhysicalAddress, index: usize| {
        loads.set(loads.get() + 1);
        assert!(index < size.entries() && table.0.is_multiple_of(size.bytes()));
        let page = ((table.0 >> size.shift()) + 1).wrapping_mul(0x9e37_79b9);
        let there = holes == 0 || !page.is_multiple_of(u64::from(holes));
        there.then(|| Descriptor(words[(page as usize ^ index) % words.len()]))
    };
    const MOST_TABLES: u64 = 6;
    let view = TableView::new(geometry, PhysicalAddress(0), read).limit(MOST_TABLES);
    if let Ok(Some(found)) = view.query(address) {
        assert!(
            address
                .0
                .checked_sub(found.start.0)
                .is_some_and(|into| into < found.bytes)
        );
    }
    for runs in [false, true] {
        let (mut next, mut bytes) = (base, 0);
        let see = |found: Result<&Entry, UnreadTable>| {
            // Ascending: nothing is shown before what was shown already.
            let (start, end) = match found {
                Ok(entry) if entry.kind == Kind::Table => (entry.start, 0),
                Ok(entry) => (entry.start, entry.bytes * entry.count as u64),
                Err(unread) => (unread.start, 0),
            };
            assert!(start >= next, "{start} comes after {next}");
            next = VirtualAddress(start.0.wrapping_add(end.saturating_sub(1)));
            bytes += end;
            Visit::EVERYTHING
        };
        loads.set(0);
        if runs {
            view.visit_runs(see);
        } else {
            view.visit_all(see);
        }
        assert!(bytes <= geometry.span());
        // A run's end is read twice: once for the run before it.
        assert!(loads.get() <= 2 * MOST_TABLES * size.entries() as u64);
    }
}

pub(crate) fn memblock(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut memory: Memblock<8> = Memblock::new(PageSize::ALL[bytes.below(3)]);
    while !bytes.is_empty() {
        let (start, size) = (bytes.word(), bytes.word());
        // Errors are valid results; the invariants hold after each of them.
        match bytes.below(6) {
            0 => drop(memory.add_bank(start, size)),
            1 => drop(memory.reserve(start, size)),
            2 => drop(memory.mark_no_map(start, size)),
            3 => drop(memory.free(start, size)),
            4 => drop(memory.truncate(start, LeftOut::BeyondPhysical)),
            _ => drop(memory.allocate(size, 1 << (start & 31), 0..u64::MAX, Direction::TopDown)),
        }
        let totals = memory.totals();
        assert_eq!(totals.ram, totals.edges + totals.no_map + totals.mapped);
        assert_eq!(totals.mapped, totals.reserved + totals.free);
    }
}
