//! Scenes in which faults are planted: short sequences, each of which breaks no rule as it is.
//!
//! These are about tables, and mostly the library's own operations.

use crate::bench::Bench;
use crate::machine::{Shared, Tap};
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::{
    Attributes, Kind, Level, Page, Page4K, Permissions, PhysicalAddress, VirtualAddress,
};
use granule::table::{Entry, Holes, Leaves, PermissionChange, Visit};
use granule_model::{Barrier, BitChange, Event, System, Visibility};

/// A scene, in which a fault may be planted; the world at its end.
pub(in crate::planted) type Scene = fn(Option<Tap>) -> Shared;

pub(super) const PAGE: u64 = 0x1000;
pub(super) const BLOCK: u64 = 0x20_0000;
pub(super) const OUTPUT: u64 = 0x10_0000_0000;

pub(super) type Kernel = Bench<Page4K>;

pub(super) fn kernel(shape: Shape) -> Kernel {
    Bench::of(shape, 1)
}

impl<P: Page, S: Staged> Bench<P, S> {
    /// From here on the tap changes events. Nothing was wrong before.
    pub(super) fn plant(&self, tap: Option<Tap>) {
        self.settle();
        assert_eq!(self.violations(), Vec::<String>::new());
        self.world.borrow_mut().tap = tap;
    }

    /// Does something with the tap planted, and relies on it.
    pub(super) fn play(mut self, tap: Option<Tap>, does: impl FnOnce(&mut Self)) -> Shared {
        self.plant(tap);
        does(&mut self);
        self.settle();
        self.world
    }
}

impl Kernel {
    pub(super) fn at(&self, offset: u64) -> VirtualAddress {
        VirtualAddress(self.geometry.base().0.wrapping_add(offset))
    }

    pub(super) fn lay(&mut self, offset: u64, bytes: u64, output: u64, leaves: Leaves) {
        let attributes = Attributes {
            global: self.shape.asid.is_none(),
            ..Attributes::normal(Permissions::READ_WRITE)
        };
        let at = self.at(offset);
        // With a fault planted the library may find tables that are not its own work.
        let _ = self
            .tables
            .map(at, PhysicalAddress(output), bytes, attributes, leaves);
    }

    pub(super) fn take(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.unmap(at, bytes);
    }

    pub(super) fn read_only(&mut self, offset: u64, bytes: u64) {
        let change = PermissionChange {
            writable: Some(false),
            ..PermissionChange::NONE
        };
        let at = self.at(offset);
        let _ = self.tables.protect(at, bytes, change, Holes::Refuse);
    }

    pub(super) fn entry(&self, offset: u64) -> Entry {
        let mut found = None;
        let at = self.at(offset & !(PAGE - 1));
        let visited = self.tables.visit(at, PAGE, |entry| {
            found = Some(*entry);
            Visit::EVERYTHING
        });
        assert!(visited.is_ok(), "{visited:?}");
        match found {
            Some(entry) => entry,
            None => panic!("nothing at {offset:#x}"),
        }
    }

    pub(super) fn barrier(&self, barrier: Barrier) {
        self.event(Event::Barrier(barrier));
    }

    pub(super) fn tlbi(&self, op: System) {
        self.event(Event::System(op, 0));
    }

    pub(super) fn invalidate_all(&self) {
        self.barrier(Barrier::DSB_ISHST);
        self.tlbi(System::VMALLE1IS);
        self.barrier(Barrier::DSB_ISH);
        self.barrier(Barrier::ISB);
    }

    pub(super) fn register(&self, register: System, value: u64) {
        self.event(Event::System(register, value));
    }
}

pub(super) fn upper() -> Kernel {
    kernel(Shape::kernel(48))
}

/// 64 pages are mapped where there was no table.
pub(super) fn map(tap: Option<Tap>) -> Shared {
    upper().play(tap, |kernel| {
        kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES)
    })
}

/// As [`map`], with leaves in groups.
pub(super) fn map_groups(tap: Option<Tap>) -> Shared {
    upper().play(tap, |kernel| {
        kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::LARGEST)
    })
}

pub(super) fn with_pages(shape: Shape, leaves: Leaves) -> Kernel {
    let mut kernel = kernel(shape);
    kernel.lay(0, 64 * PAGE, OUTPUT, leaves);
    kernel
}

/// Eight of 64 pages are unmapped.
pub(super) fn unmap(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(48), Leaves::PAGES).play(tap, |kernel| kernel.take(8 * PAGE, 8 * PAGE))
}

/// As [`unmap`], with FEAT_TLBIRANGE and FEAT_TTL.
pub(super) fn unmap_by_range(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(48).tlbi_range(true);
    with_pages(shape, Leaves::PAGES).play(tap, |kernel| kernel.take(8 * PAGE, 8 * PAGE))
}

/// One page is unmapped, with FEAT_TTL.
pub(super) fn unmap_one(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(48).tlbi_range(true);
    with_pages(shape, Leaves::PAGES).play(tap, |kernel| kernel.take(8 * PAGE, PAGE))
}

/// Eight pages of a process are unmapped.
pub(super) fn unmap_process(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(48).asid(7);
    with_pages(shape, Leaves::PAGES).play(tap, |kernel| kernel.take(8 * PAGE, 8 * PAGE))
}

/// All pages of a table are unmapped, and the table is freed and used again.
pub(super) fn unmap_table(tap: Option<Tap>) -> Shared {
    let mut kernel = upper();
    kernel.lay(BLOCK, PAGE, OUTPUT + BLOCK, Leaves::PAGES);
    kernel.lay(8 * BLOCK, 20 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| {
        kernel.take(8 * BLOCK, 20 * PAGE);
        kernel.lay(16 * BLOCK, 20 * PAGE, OUTPUT, Leaves::PAGES);
    })
}

/// Eight pages that were read-only become writable.
pub(super) fn widen(tap: Option<Tap>) -> Shared {
    let mut kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.read_only(8 * PAGE, 8 * PAGE);
    kernel.play(tap, |kernel| {
        let change = PermissionChange {
            writable: Some(true),
            ..PermissionChange::NONE
        };
        let at = kernel.at(8 * PAGE);
        let _ = kernel.tables.protect(at, 8 * PAGE, change, Holes::Refuse);
    })
}

/// Eight pages become read-only.
pub(super) fn protect(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(48), Leaves::PAGES)
        .play(tap, |kernel| kernel.read_only(8 * PAGE, 8 * PAGE))
}

/// A contiguous group becomes read-only.
pub(super) fn protect_group(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(48), Leaves::LARGEST)
        .play(tap, |kernel| kernel.read_only(16 * PAGE, 16 * PAGE))
}

/// A contiguous group is unmapped and something else mapped there.
pub(super) fn replace_group(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(48), Leaves::LARGEST).play(tap, |kernel| {
        kernel.take(16 * PAGE, 16 * PAGE);
        kernel.lay(16 * PAGE, 16 * PAGE, OUTPUT + BLOCK, Leaves::LARGEST);
    })
}

/// A group loses its hint in place, as level 2 of FEAT_BBM allows.
pub(super) fn clear_hint(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(48).bbm_level(2);
    let kernel = with_pages(shape, Leaves::LARGEST);
    let entry = kernel.entry(16 * PAGE);
    kernel.play(tap, |kernel| {
        kernel.event(Event::Update {
            address: entry.table.0 + entry.index as u64 * 8,
            count: 16,
            change: BitChange {
                of: 1,
                clear: 1 << 52,
                set: 0,
            },
            visibility: Visibility::Live,
        });
        kernel.invalidate_all();
    })
}

/// A block is broken, and a table of pages with the same mapping put in its place.
fn split(shape: Shape, tap: Option<Tap>, breaks: bool) -> Shared {
    let mut kernel = kernel(shape);
    let block = Leaves {
        top: Level::L2,
        contiguous: false,
    };
    kernel.lay(0, BLOCK, OUTPUT, block);
    let entry = kernel.entry(0);
    assert_eq!((entry.kind, entry.level), (Kind::Leaf, Level::L2));
    let location = entry.table.0 + entry.index as u64 * 8;
    let table = 0x7000_0000;
    kernel.play(tap, |kernel| {
        kernel.event(Event::obtained(table, PAGE));
        kernel.event(Event::fill(table, 512, entry.descriptor.0 | 0b11, PAGE));
        let store = |value, order| Event::Store {
            address: location,
            count: 1,
            descriptor: value,
            step: 0,
            visibility: order,
        };
        if breaks {
            kernel.event(store(0, Visibility::Live));
            kernel.invalidate_all();
        }
        kernel.event(store(table | 0b11, Visibility::Publish));
        if breaks {
            kernel.barrier(Barrier::DSB_ISHST);
            kernel.barrier(Barrier::ISB);
        } else {
            kernel.invalidate_all();
        }
    })
}

/// By break-before-make.
pub(super) fn split_by_break(tap: Option<Tap>) -> Shared {
    split(Shape::kernel(48), tap, true)
}

/// In place, as level 2 allows.
pub(super) fn split_in_place(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(48).bbm_level(2);
    split(shape, tap, false)
}

/// Blocks in all of an address space whose top table has eight entries, half a group.
pub(super) fn map_small_space(tap: Option<Tap>) -> Shared {
    kernel(Shape::kernel(33)).play(tap, |kernel| {
        kernel.lay(0, 8 << 30, OUTPUT, Leaves::LARGEST)
    })
}

/// Pages are unmapped and mapped again as they were, for a strict model.
pub(super) fn map_again(tap: Option<Tap>) -> Shared {
    let shape = Shape {
        strict: true,
        ..Shape::kernel(48)
    };
    with_pages(shape, Leaves::PAGES).play(tap, |kernel| {
        kernel.take(8 * PAGE, 8 * PAGE);
        kernel.lay(8 * PAGE, 8 * PAGE, OUTPUT + 8 * PAGE, Leaves::PAGES);
    })
}
