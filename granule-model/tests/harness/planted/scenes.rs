//! What faults are planted in: short sequences, each of which breaks no rule as it is.
//!
//! Those of tables are the library's own operations; those of registers and caches are what a
//! kernel does, event by event.

use crate::bench::{Bench, turn_on};
use crate::machine::{Shared, Tap, World};
use crate::shape::Shape;
use granule::arch::{
    Attributes, Kind, Level, Page4K, Permissions, PhysicalAddress, VirtualAddress,
};
use granule::table::{Entry, Holes, Leaves, PermissionChange};
use granule_model::{Access, Barrier, CacheOp, EventKind, Order, Purpose, Register, Scope, Tlbi};

/// What was found, and how many events were not what they should be.
pub(super) struct Result {
    pub(super) world: Shared,
}

pub(super) type Scene = fn(Option<Tap>) -> Result;

const PAGE: u64 = 0x1000;
const BLOCK: u64 = 0x20_0000;
const OUTPUT: u64 = 0x10_0000_0000;

type Kernel = Bench<Page4K>;

fn kernel(shape: Shape) -> Kernel {
    Bench::new(shape, 1)
}

impl Kernel {
    fn at(&self, offset: u64) -> VirtualAddress {
        VirtualAddress(self.geometry.base().0.wrapping_add(offset))
    }

    fn lay(&mut self, offset: u64, bytes: u64, output: u64, leaves: Leaves) {
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

    fn take(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.unmap(at, bytes);
    }

    fn read_only(&mut self, offset: u64, bytes: u64) {
        let change = PermissionChange {
            writable: Some(false),
            ..PermissionChange::default()
        };
        let at = self.at(offset);
        let _ = self.tables.protect(at, bytes, change, Holes::Refuse);
    }

    fn tap(&self, tap: Option<Tap>) {
        self.settle();
        assert_eq!(self.violations(), Vec::<String>::new());
        self.world.borrow_mut().tap = tap;
    }

    fn end(self) -> Result {
        self.settle();
        Result { world: self.world }
    }

    fn entry(&self, offset: u64) -> Entry {
        let mut found = None;
        let at = self.at(offset & !(PAGE - 1));
        let visited = self.tables.visit(at, PAGE, |entry| {
            found = Some(*entry);
            true
        });
        assert_eq!(visited, Ok(()));
        match found {
            Some(entry) => entry,
            None => panic!("nothing at {offset:#x}"),
        }
    }

    fn barrier(&self, barrier: Barrier) {
        self.event(EventKind::Barrier(barrier));
    }

    fn tlbi(&self, name: &str) {
        let op = Tlbi::from_name(name, 0).map(EventKind::Tlbi);
        op.into_iter().for_each(|kind| self.event(kind));
    }

    fn invalidate_all(&self) {
        self.barrier(Barrier::DsbIshst);
        self.tlbi("vmalle1is");
        self.barrier(Barrier::DsbIsh);
        self.barrier(Barrier::Isb);
    }

    fn register(&self, register: Register, value: u64) {
        self.event(EventKind::RegisterWrite { register, value });
    }
}

fn upper() -> Kernel {
    kernel(Shape::kernel(48))
}

/// 64 pages are mapped where there was no table.
pub(super) fn map(tap: Option<Tap>) -> Result {
    let mut kernel = upper();
    kernel.tap(tap);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.end()
}

/// As [`map`], with leaves in groups.
pub(super) fn map_groups(tap: Option<Tap>) -> Result {
    let mut kernel = upper();
    kernel.tap(tap);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::LARGEST);
    kernel.end()
}

fn with_pages(shape: Shape, leaves: Leaves) -> Kernel {
    let mut kernel = kernel(shape);
    kernel.lay(0, 64 * PAGE, OUTPUT, leaves);
    kernel
}

/// Eight of 64 pages are unmapped.
pub(super) fn unmap(tap: Option<Tap>) -> Result {
    let mut kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.tap(tap);
    kernel.take(8 * PAGE, 8 * PAGE);
    kernel.end()
}

/// As [`unmap`], with FEAT_TLBIRANGE and FEAT_TTL.
pub(super) fn unmap_by_range(tap: Option<Tap>) -> Result {
    let shape = Shape {
        tlbi_range: true,
        ..Shape::kernel(48)
    };
    let mut kernel = with_pages(shape, Leaves::PAGES);
    kernel.tap(tap);
    kernel.take(8 * PAGE, 8 * PAGE);
    kernel.end()
}

/// One page is unmapped, with FEAT_TTL.
pub(super) fn unmap_one(tap: Option<Tap>) -> Result {
    let shape = Shape {
        tlbi_range: true,
        ..Shape::kernel(48)
    };
    let mut kernel = with_pages(shape, Leaves::PAGES);
    kernel.tap(tap);
    kernel.take(8 * PAGE, PAGE);
    kernel.end()
}

/// Eight pages of a process are unmapped.
pub(super) fn unmap_process(tap: Option<Tap>) -> Result {
    let shape = Shape {
        asid: Some(7),
        ..Shape::kernel(48)
    };
    let mut kernel = with_pages(shape, Leaves::PAGES);
    kernel.tap(tap);
    kernel.take(8 * PAGE, 8 * PAGE);
    kernel.end()
}

/// All pages of a table are unmapped, and the table is freed and used again.
pub(super) fn unmap_table(tap: Option<Tap>) -> Result {
    let mut kernel = upper();
    kernel.lay(BLOCK, PAGE, OUTPUT + BLOCK, Leaves::PAGES);
    kernel.lay(8 * BLOCK, 20 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.tap(tap);
    kernel.take(8 * BLOCK, 20 * PAGE);
    kernel.lay(16 * BLOCK, 20 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.end()
}

/// Eight pages become read-only.
pub(super) fn protect(tap: Option<Tap>) -> Result {
    let mut kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.tap(tap);
    kernel.read_only(8 * PAGE, 8 * PAGE);
    kernel.end()
}

/// A contiguous group becomes read-only.
pub(super) fn protect_group(tap: Option<Tap>) -> Result {
    let mut kernel = with_pages(Shape::kernel(48), Leaves::LARGEST);
    kernel.tap(tap);
    kernel.read_only(16 * PAGE, 16 * PAGE);
    kernel.end()
}

/// A contiguous group is unmapped and something else mapped there.
pub(super) fn replace_group(tap: Option<Tap>) -> Result {
    let mut kernel = with_pages(Shape::kernel(48), Leaves::LARGEST);
    kernel.tap(tap);
    kernel.take(16 * PAGE, 16 * PAGE);
    kernel.lay(16 * PAGE, 16 * PAGE, OUTPUT + BLOCK, Leaves::LARGEST);
    kernel.end()
}

/// A group loses its hint in place, as level 2 of FEAT_BBM allows.
pub(super) fn clear_hint(tap: Option<Tap>) -> Result {
    let shape = Shape {
        bbm_level: 2,
        ..Shape::kernel(48)
    };
    let kernel = with_pages(shape, Leaves::LARGEST);
    let entry = kernel.entry(16 * PAGE);
    kernel.tap(tap);
    kernel.event(EventKind::UpdateDescriptors {
        address: entry.table.0 + entry.index as u64 * 8,
        count: 16,
        clear: 1 << 52,
        set: 0,
        order: Order::Plain,
    });
    kernel.invalidate_all();
    kernel.end()
}

/// A block is broken, and a table of pages that say the same put in its place.
fn split(shape: Shape, tap: Option<Tap>, breaks: bool) -> Result {
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
    kernel.tap(tap);
    kernel.event(EventKind::TableObtained {
        address: table,
        bytes: PAGE,
    });
    kernel.event(EventKind::FillDescriptors {
        address: table,
        count: 512,
        first: entry.descriptor.0 | 0b11,
        step: PAGE,
        order: Order::Plain,
    });
    let store = |value, order| EventKind::StoreDescriptor {
        address: location,
        value,
        order,
    };
    if breaks {
        kernel.event(store(0, Order::Plain));
        kernel.invalidate_all();
    }
    kernel.event(store(table | 0b11, Order::Release));
    if breaks {
        kernel.barrier(Barrier::DsbIshst);
        kernel.barrier(Barrier::Isb);
    } else {
        kernel.invalidate_all();
    }
    kernel.end()
}

/// By break-before-make.
pub(super) fn split_by_break(tap: Option<Tap>) -> Result {
    split(Shape::kernel(48), tap, true)
}

/// In place, as level 2 allows.
pub(super) fn split_in_place(tap: Option<Tap>) -> Result {
    let shape = Shape {
        bbm_level: 2,
        ..Shape::kernel(48)
    };
    split(shape, tap, false)
}

const SCTLR_ON: u64 = 1 | 1 << 2 | 1 << 12;

/// The first CPU turns its MMU on again with tables that it wrote, with the MMU off, into
/// memory that the caches may hold.
pub(super) fn boot(tap: Option<Tap>) -> Result {
    let shape = Shape {
        cpus: 1,
        ..Shape::kernel(48)
    };
    let geometry = shape.geometry::<Page4K>();
    let world = World::shared(crate::bench::model(&shape), 1);
    world.borrow_mut().tap = tap;
    let event = |kind| world.borrow_mut().event(kind);
    let root = 0x4000_0000;
    let bytes = PAGE;
    let address = root;
    event(EventKind::TableObtained { address, bytes });
    event(EventKind::FillDescriptors {
        address,
        count: 512,
        first: 0,
        step: 0,
        order: Order::Plain,
    });
    turn_on(&world, &shape, &geometry, root);
    event(EventKind::Sync);
    Result { world }
}

/// A kernel with its MMU on lays out a device tree for one that starts with the MMU off.
pub(super) fn hand_over(tap: Option<Tap>) -> Result {
    let kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.tap(tap);
    let (address, bytes) = (OUTPUT, 3 * PAGE);
    kernel.event(EventKind::OtherStore {
        address,
        bytes,
        purpose: Purpose::Data,
    });
    kernel.event(EventKind::Cache {
        op: CacheOp::CleanToPoc,
        address,
        bytes,
    });
    kernel.barrier(Barrier::DsbSy);
    kernel.register(Register::SctlrEl1, 0);
    kernel.barrier(Barrier::Isb);
    // With the MMU off it writes there too, which must not meet lines that are yet to be
    // written back.
    kernel.event(EventKind::OtherStore {
        address,
        bytes,
        purpose: Purpose::Data,
    });
    Result {
        world: kernel.world,
    }
}

/// What was written with the MMU off is read with it on.
pub(super) fn write_with_mmu_off(tap: Option<Tap>) -> Result {
    let kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.tap(tap);
    kernel.register(Register::SctlrEl1, 0);
    kernel.barrier(Barrier::Isb);
    let (address, bytes) = (OUTPUT, PAGE);
    kernel.event(EventKind::OtherStore {
        address,
        bytes,
        purpose: Purpose::Data,
    });
    kernel.event(EventKind::Cache {
        op: CacheOp::InvalidateToPoc,
        address,
        bytes,
    });
    kernel.barrier(Barrier::DsbSy);
    kernel.register(Register::SctlrEl1, SCTLR_ON);
    kernel.barrier(Barrier::Isb);
    for line in 0..PAGE / 64 {
        let va = kernel.at(line * 64).0;
        let _ = kernel.world.borrow_mut().model.access(0, va, Access::READ);
    }
    kernel.end()
}

/// Code is stored and then run.
pub(super) fn store_code(tap: Option<Tap>) -> Result {
    let mut kernel = upper();
    let attributes = Attributes::normal(Permissions::READ_EXECUTE);
    let at = kernel.at(0);
    let output = PhysicalAddress(OUTPUT);
    let mapped = kernel
        .tables
        .map(at, output, PAGE, attributes, Leaves::PAGES);
    assert_eq!(mapped, Ok(()));
    kernel.tap(tap);
    let (address, bytes) = (OUTPUT, 128);
    kernel.event(EventKind::OtherStore {
        address,
        bytes,
        purpose: Purpose::Code,
    });
    kernel.event(EventKind::Cache {
        op: CacheOp::CleanToPou,
        address,
        bytes,
    });
    kernel.barrier(Barrier::DsbIsh);
    let scope = Scope::Broadcast;
    kernel.event(EventKind::InstructionCache { scope });
    kernel.barrier(Barrier::DsbIsh);
    kernel.settle();
    for cpu in 0..kernel.shape.cpus {
        let mut world = kernel.world.borrow_mut();
        let _ = world.model.access(cpu, at.0, Access::FETCH);
        let _ = world.model.access(cpu, at.0 + 64, Access::FETCH);
    }
    kernel.end()
}

/// What TCR was, with the half that is used.
fn tcr(kernel: &Kernel) -> u64 {
    use granule::arch::registers::Tcr;
    let (lower, upper) = match kernel.shape.asid {
        Some(_) => (Some(&kernel.geometry), None),
        None => (None, Some(&kernel.geometry)),
    };
    Tcr::new(&kernel.shape.features(), lower, upper).0
}

/// One CPU, for registers are each CPU's own.
fn alone(asid: Option<u16>) -> Kernel {
    let shape = Shape {
        cpus: 1,
        asid,
        ..Shape::kernel(48)
    };
    with_pages(shape, Leaves::PAGES)
}

/// TCR.HPD1 is set, which a TLB may hold.
pub(super) fn change_tcr(tap: Option<Tap>) -> Result {
    let kernel = alone(None);
    kernel.tap(tap);
    kernel.register(Register::TcrEl1, tcr(&kernel) ^ 1 << 42);
    kernel.barrier(Barrier::Isb);
    kernel.tlbi("vmalle1");
    kernel.barrier(Barrier::DsbNsh);
    kernel.barrier(Barrier::Isb);
    kernel.end()
}

/// A byte of MAIR that nothing uses is changed.
pub(super) fn change_mair(tap: Option<Tap>) -> Result {
    let kernel = alone(None);
    kernel.tap(tap);
    let mair = granule::arch::registers::Mair::STANDARD.0;
    kernel.register(Register::MairEl1, mair ^ 0x44 << 56);
    kernel.barrier(Barrier::Isb);
    kernel.tlbi("vmalle1");
    kernel.barrier(Barrier::DsbNsh);
    kernel.barrier(Barrier::Isb);
    kernel.end()
}

/// A CPU goes on with another process, which maps the same addresses elsewhere.
pub(super) fn switch_process(tap: Option<Tap>) -> Result {
    let mut kernel = alone(Some(7));
    let other = 0x7000_0000;
    let fill = |address, first| EventKind::FillDescriptors {
        address,
        count: 512,
        first,
        step: 0,
        order: Order::Plain,
    };
    kernel.event(EventKind::TableObtained {
        address: other,
        bytes: 2 * PAGE,
    });
    kernel.event(fill(other, 0));
    kernel.event(fill(other + PAGE, 0));
    let leaf = kernel.entry(0).descriptor.0;
    for (address, value) in [
        (other, (other + PAGE) | 0b11),
        // A block of 1 GiB, with the attributes of the other's page.
        (
            other + PAGE,
            (leaf & 0xfff0_0000_0000_0ffc | 0b01) | 0x20_0000_0000,
        ),
    ] {
        kernel.event(EventKind::StoreDescriptor {
            address,
            value,
            order: Order::Plain,
        });
    }
    kernel.barrier(Barrier::DsbIshst);
    kernel.tap(tap);
    kernel.register(Register::Ttbr0El1, other | 8 << 48);
    kernel.barrier(Barrier::Isb);
    let _ = kernel.world.borrow_mut().model.access(0, 0, Access::READ);
    kernel.event(EventKind::Sync);
    kernel.lay(2 * BLOCK, PAGE, OUTPUT, Leaves::PAGES);
    Result {
        world: kernel.world,
    }
}

/// Blocks in all of an address space whose top table has eight entries, half a group.
pub(super) fn map_small_space(tap: Option<Tap>) -> Result {
    let mut kernel = kernel(Shape::kernel(33));
    kernel.tap(tap);
    kernel.lay(0, 8 << 30, OUTPUT, Leaves::LARGEST);
    kernel.end()
}

/// Pages are unmapped and mapped again as they were, for a strict model.
pub(super) fn map_again(tap: Option<Tap>) -> Result {
    let shape = Shape {
        strict: true,
        ..Shape::kernel(48)
    };
    let mut kernel = with_pages(shape, Leaves::PAGES);
    kernel.tap(tap);
    kernel.take(8 * PAGE, 8 * PAGE);
    kernel.lay(8 * PAGE, 8 * PAGE, OUTPUT + 8 * PAGE, Leaves::PAGES);
    kernel.end()
}
