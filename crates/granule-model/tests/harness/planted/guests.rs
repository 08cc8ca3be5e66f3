//! Faults in what a hypervisor does with stage 2: its TLBIs and their order, VMIDs, break-before-make,
//! concatenated root tables, and dirty logging.

use super::scenes::{PAGE, Result};
use super::tables::{INCOMPLETE, POINTER, STALE};
use super::taps::*;
use super::{Fault, fault};
use crate::bench::{Bench, capabilities};
use crate::machine::{Tap, machine};
use crate::shape::Shape;
use crate::stage::{Staged, VMID};
use granule::arch::{
    IntermediateAddress, Page4K, PageSize, PhysicalAddress, Stage2Attributes, Stage2Permissions,
    Vttbr,
};
use granule::table::{Harvest, Holes, Leaves, PageTables, Stage2, Stage2PermissionChange, Visit};
use granule_model::Rule::*;
use granule_model::{Barrier, BitChange, Event, System, Visibility};

const COMBINED: &str = "combined with the guest's own tables";
const TOO_EARLY: &str = "the entry of stage 2 was still cached";
/// The guest's memory, which the second of two root tables translates.
const RAM: u64 = 1 << 39;
const OUTPUT: u64 = 0x10_0000_0000;
const BLOCK: u64 = 0x20_0000;
/// HCR_EL2.E2H and TGE.
const HOST: u64 = 1 << 34 | 1 << 27;

type Guest = Bench<Page4K, Stage2>;

/// 40 bits with 4K pages.
fn guest(shape: Shape) -> Guest {
    Bench::of(shape, 1)
}

const fn at(offset: u64) -> IntermediateAddress {
    IntermediateAddress(RAM + offset)
}

impl Guest {
    fn plug(&mut self, offset: u64, bytes: u64, leaves: Leaves) {
        let mut attributes = Stage2Attributes::normal(Stage2Permissions::ALL);
        attributes.permissions.dirty_modifier = self.shape.hardware;
        // With a fault planted the library may find tables that are not its own work.
        let output = PhysicalAddress(OUTPUT + offset);
        let _ = self
            .tables
            .map(at(offset), output, bytes, attributes, leaves);
    }

    fn unplug(&mut self, offset: u64, bytes: u64) {
        let _ = self.tables.unmap(at(offset), bytes);
    }

    fn write_protect(&mut self, offset: u64, bytes: u64) {
        let mut change = Stage2PermissionChange::NONE;
        change.writable = Some(false);
        let (tables, at) = (&mut self.tables, at(offset));
        let _ = tables.protect(at, bytes, change, Holes::Refuse);
    }

    fn plant(&self, tap: Option<Tap>) {
        self.settle();
        assert_eq!(self.violations(), Vec::<String>::new());
        self.world.borrow_mut().tap = tap;
    }

    fn finish(self) -> Result {
        self.settle();
        Result { world: self.world }
    }

    fn write(&self, register: System, value: u64) {
        self.event(Event::System(register, value));
        self.event(Event::Barrier(Barrier::ISB));
    }

    fn vttbr(&self, root: u64, vmid: u16) -> u64 {
        let geometry = Stage2::geometry::<Page4K>(&self.shape);
        // SAFETY: only the model's CPUs get the value, and the tree is live.
        unsafe { Vttbr::from_root(&geometry, PhysicalAddress(root), vmid) }.bits()
    }

    /// Where the entry of a page is.
    fn location(&self, offset: u64) -> u64 {
        let mut found = 0;
        let visited = self.tables.visit(at(offset), PAGE, |entry| {
            found = entry.table.0 + entry.index as u64 * 8;
            Visit::EVERYTHING
        });
        assert!(visited.is_ok());
        found
    }
}

/// A guest with 64 pages.
fn with_pages(shape: Shape) -> Guest {
    let mut guest = guest(shape);
    guest.plug(0, 64 * PAGE, Leaves::PAGES);
    guest
}

/// Eight pages become read-only, as for a log of what the guest writes.
fn protect(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(Shape::kernel(40));
    guest.plant(tap);
    guest.write_protect(8 * PAGE, 8 * PAGE);
    guest.finish()
}

/// As [`protect`], for a range with FEAT_TLBIRANGE.
fn protect_by_range(tap: Option<Tap>) -> Result {
    let shape = Shape {
        tlbi_range: true,
        ..Shape::kernel(40)
    };
    let mut guest = with_pages(shape);
    guest.plant(tap);
    guest.write_protect(8 * PAGE, 8 * PAGE);
    guest.finish()
}

/// Pages go, and others come in their place.
fn replace_pages(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(Shape::kernel(40));
    guest.plant(tap);
    guest.unplug(8 * PAGE, 8 * PAGE);
    let all = Stage2Attributes::normal(Stage2Permissions::ALL);
    let other = PhysicalAddress(2 * OUTPUT);
    let _ = guest
        .tables
        .map(at(8 * PAGE), other, 8 * PAGE, all, Leaves::PAGES);
    guest.finish()
}

/// All pages of a table go, and the table is freed.
fn unplug_table(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(Shape::kernel(40));
    guest.plug(8 * BLOCK, 20 * PAGE, Leaves::PAGES);
    guest.plant(tap);
    guest.unplug(8 * BLOCK, 20 * PAGE);
    guest.finish()
}

/// A block of which one page is write-protected, split in place at level 3.
fn split(tap: Option<Tap>) -> Result {
    let shape = Shape {
        bbm_level: 3,
        ..Shape::kernel(40)
    };
    let mut guest = guest(shape);
    guest.plug(0, BLOCK, Leaves::LARGEST);
    guest.plant(tap);
    guest.write_protect(8 * PAGE, PAGE);
    guest.finish()
}

/// The CPU was with another guest, and comes back before it changes the tables of this one.
fn come_back(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(Shape::kernel(40));
    let can = capabilities(&guest.shape);
    let mut machine = machine(&guest.world, PageSize::K4, can);
    machine.pages = crate::machine::Pages::from(&guest.world, PAGE, 0x6000_0000);
    let geometry = Stage2::geometry::<Page4K>(&guest.shape);
    let Ok(other) = PageTables::<Page4K, _, Stage2>::new(geometry, machine) else {
        panic!("there is room for another guest")
    };
    guest.event(Event::Barrier(Barrier::DSB_ISHST));
    let own = guest.vttbr(guest.tables.root_table().0, VMID);
    let others = guest.vttbr(other.root_table().0, VMID + 1);
    guest.write(System::VTTBR_EL2, others);
    guest.plant(tap);
    guest.write(System::VTTBR_EL2, own);
    guest.write_protect(8 * PAGE, 8 * PAGE);
    guest.finish()
}

/// A host of programs leaves its own regime before it changes a guest's tables.
fn leave_the_host(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(Shape::kernel(40));
    let hcr = Stage2::geometry::<Page4K>(&guest.shape).hcr();
    guest.write(System::HCR_EL2, hcr | HOST);
    guest.plant(tap);
    guest.write(System::HCR_EL2, hcr);
    guest.write_protect(8 * PAGE, 8 * PAGE);
    guest.finish()
}

/// A second guest is made, and gets its own VMID.
fn second_guest(tap: Option<Tap>) -> Result {
    let guest = with_pages(Shape::kernel(40));
    let can = capabilities(&guest.shape);
    guest.plant(tap);
    let mut machine = machine(&guest.world, PageSize::K4, can);
    machine.pages = crate::machine::Pages::from(&guest.world, PAGE, 0x6000_0000);
    let geometry = Stage2::geometry::<Page4K>(&guest.shape);
    let Ok(mut other) = PageTables::<Page4K, _, Stage2>::new(geometry, machine) else {
        panic!("there is room for another guest")
    };
    let all = Stage2Attributes::normal(Stage2Permissions::ALL);
    let output = PhysicalAddress(2 * OUTPUT);
    let _ = other.map(at(0), output, 64 * PAGE, all, Leaves::PAGES);
    guest.event(Event::Barrier(Barrier::DSB_ISHST));
    let vttbr = guest.vttbr(other.root_table().0, VMID + 1);
    guest.write(System::VTTBR_EL2, vttbr);
    guest.finish()
}

/// VTCR_EL2.T0SZ changes between two runs of a guest, whose VMID is emptied.
fn resize(tap: Option<Tap>) -> Result {
    let guest = guest(Shape {
        cpus: 1,
        ..Shape::kernel(40)
    });
    let geometry = Stage2::geometry::<Page4K>(&guest.shape);
    let vtcr = granule::arch::Vtcr::new(&guest.shape.features(), &geometry).0;
    guest.plant(tap);
    guest.write(System::HCR_EL2, 0);
    guest.write(System::VTCR_EL2, vtcr + 1);
    guest.event(Event::System(System::VMALLS12E1IS, 0));
    guest.event(Event::Barrier(Barrier::DSB_ISH));
    guest.event(Event::Barrier(Barrier::ISB));
    guest.write(System::HCR_EL2, geometry.hcr());
    guest.finish()
}

const HARDWARE: Shape = Shape {
    hardware: true,
    ..Shape::kernel(40)
};

/// Reads from the tables which pages the guest wrote, and marks them clean.
fn log_dirty(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(HARDWARE);
    guest.plant(tap);
    let mut found = 0;
    let _ = guest
        .tables
        .harvest(at(0), 64 * PAGE, Harvest::Dirty, |_, bytes| found += bytes);
    assert_eq!(found, 64 * PAGE, "all pages were writable");
    guest.finish()
}

/// A clean page that hardware may mark dirty gets one of software's bits.
fn mark(tap: Option<Tap>) -> Result {
    let mut guest = with_pages(HARDWARE);
    let tables = &mut guest.tables;
    let _ = tables.harvest(at(0), 64 * PAGE, Harvest::Dirty, |_, _| ());
    guest.plant(tap);
    let mut change = Stage2PermissionChange::NONE;
    change.software = Some(1);
    let _ = guest.tables.protect(at(0), PAGE, change, Holes::Refuse);
    guest.finish()
}

/// Another page is put in place of one, by hand and by break-before-make.
fn swap(tap: Option<Tap>) -> Result {
    let guest = with_pages(Shape::kernel(40));
    let address = guest.location(0);
    let old = guest.world.borrow().model.descriptor(address);
    guest.plant(tap);
    let store = |descriptor| Event::Store {
        address,
        count: 1,
        descriptor,
        step: 0,
        visibility: Visibility::Live,
    };
    guest.event(store(0));
    for kind in [
        Event::Barrier(Barrier::DSB_ISHST),
        Event::System(System::IPAS2E1IS, RAM >> 12),
        Event::Barrier(Barrier::DSB_ISH),
        Event::System(System::VMALLE1IS, 0),
        Event::Barrier(Barrier::DSB_ISH),
        Event::Barrier(Barrier::ISB),
    ] {
        guest.event(kind);
    }
    guest.event(store(old + 0x1000_0000));
    guest.event(Event::Barrier(Barrier::DSB_ISHST));
    guest.event(Event::Barrier(Barrier::ISB));
    guest.finish()
}

/// A TLBI by intermediate physical address.
pub(super) const fn is_by_address(kind: &Event) -> bool {
    matches!(kind, Event::System(op, _) if op.is_tlbi() && matches!(op.crm(), 0 | 4))
}

pub(super) const fn is_combined(kind: &Event) -> bool {
    matches!(kind, Event::System(System::VMALLE1IS, _))
}

const fn is_vttbr(kind: &Event) -> bool {
    matches!(kind, Event::System(System::VTTBR_EL2, _))
}

const fn is_hcr(kind: &Event) -> bool {
    matches!(kind, Event::System(System::HCR_EL2, _))
}

const fn is_whole_guest(kind: &Event) -> bool {
    matches!(kind, Event::System(System::VMALLS12E1IS, _))
}

/// By address, each TLBI becomes what `into` makes of it.
fn by_address(into: fn(Tlbi) -> Tlbi) -> Tap {
    replace(is_by_address, move |kind| match kind {
        Event::System(op, operand) => {
            let (op, operand) = into((op, operand));
            vec![Event::System(op, operand)]
        }
        other => vec![other],
    })
}

/// The update also makes the inner half of MemAttr write-through.
fn write_through(mut kind: Event) -> Vec<Event> {
    if let Event::Store { descriptor, .. } = &mut kind {
        *descriptor &= !(1 << 2);
    }
    vec![kind]
}

/// Replaces an update by a store of what was loaded before, which is not one step.
fn by_load_and_store(kind: Event) -> Vec<Event> {
    match kind {
        Event::Update {
            address, change, ..
        } => {
            let BitChange { set, .. } = change;
            // The entry of the first page: clean, with the modifier.
            let mut clean = Stage2Attributes::normal(Stage2Permissions::ALL);
            let to = &mut clean.permissions;
            (to.writable, to.dirty_modifier) = (false, true);
            let geometry = Stage2::geometry::<Page4K>(&HARDWARE);
            let descriptor = clean.encode(&geometry) | OUTPUT | 0b11 | set;
            vec![Event::Store {
                address,
                count: 1,
                descriptor,
                step: 0,
                visibility: Visibility::Live,
            }]
        }
        other => vec![other],
    }
}

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "stage 2: no TLBI by intermediate physical address after write-protecting",
        protect,
        || drop_all(is_by_address),
        StaleTranslation,
        TOO_EARLY,
    ),
    fault(
        "stage 2: what a guest combined with its own tables is not invalidated",
        protect,
        || drop_all(is_combined),
        StaleTranslation,
        COMBINED,
    ),
    fault(
        "stage 2: what is combined is invalidated first",
        protect,
        || {
            let mut held = Vec::new();
            Box::new(move |_, kind| {
                if is_by_address(&kind) {
                    held.push(kind);
                    return Vec::new();
                }
                let mut now = vec![kind];
                if is_combined(&kind) {
                    now.append(&mut held);
                }
                now
            })
        },
        StaleTranslation,
        COMBINED,
    ),
    fault(
        "stage 2: no DSB between the two TLBIs",
        protect,
        || nth(0, is_ish, |_| Vec::new()),
        StaleTranslation,
        TOO_EARLY,
    ),
    fault(
        "stage 2: no DSB after the TLBI of what is combined",
        protect,
        || nth(1, is_ish, |_| Vec::new()),
        StaleTranslation,
        INCOMPLETE,
    ),
    fault(
        "stage 2: no DSB ISHST before the TLBIs",
        protect,
        || drop_all(is_ishst),
        StaleTranslation,
        STALE,
    ),
    fault(
        "stage 2: a TLBI of virtual addresses for intermediate physical ones",
        protect,
        || by_address(|op| (System::VAALE1IS, op.1)),
        StaleTranslation,
        STALE,
    ),
    fault(
        "stage 2: a local TLBI in place of a broadcast one",
        protect,
        || by_address(local),
        StaleTranslation,
        STALE,
    ),
    fault(
        "stage 2: what is combined is invalidated on one CPU only",
        protect,
        || replace(is_combined, |_| vec![Event::System(System::VMALLE1, 0)]),
        StaleTranslation,
        COMBINED,
    ),
    fault(
        "stage 2: a TLBI of another intermediate physical address",
        protect,
        || by_address(|op| with_operand(op, op.1 ^ 1 << 20)),
        StaleTranslation,
        STALE,
    ),
    fault(
        "stage 2: a TLBI by range of too few pages",
        protect_by_range,
        || by_address(|op| with_operand(op, op.1 - (1 << 39))),
        StaleTranslation,
        STALE,
    ),
    fault(
        "stage 2: the VMID of another guest is in VTTBR_EL2",
        come_back,
        || drop_all(is_vttbr),
        StaleTranslation,
        "this VMID",
    ),
    fault(
        "stage 2: the CPU is still in the host's own regime (E2H, TGE)",
        leave_the_host,
        || drop_all(is_hcr),
        StaleTranslation,
        COMBINED,
    ),
    fault(
        "stage 2: other pages come before what is combined is invalidated",
        replace_pages,
        || drop_all(is_combined),
        BreakBeforeMake,
        "output address",
    ),
    fault(
        "stage 2: the output address of a live entry changes",
        swap,
        || nth(0, is_break, |_| Vec::new()),
        BreakBeforeMake,
        "output address",
    ),
    fault(
        "stage 2: the memory type of a live entry changes",
        protect,
        || nth(0, is_update, write_through),
        BreakBeforeMake,
        "",
    ),
    fault(
        "stage 2: a last-level TLBI where a table was unlinked",
        unplug_table,
        || by_address(|op| (System::IPAS2LE1IS, op.1)),
        FreedInUse,
        POINTER,
    ),
    fault(
        "stage 2: a table is freed before the TLBI",
        unplug_table,
        || {
            let mut held = Vec::new();
            Box::new(move |_, kind| {
                if is_by_address(&kind) {
                    held.push(kind);
                    return Vec::new();
                }
                let mut now = vec![kind];
                if is_freed(&kind) {
                    now.append(&mut held);
                }
                now
            })
        },
        FreedInUse,
        POINTER,
    ),
    fault(
        "stage 2: the table of a split is linked by a plain store",
        split,
        || replace(is_link, plain),
        UnorderedLink,
        "",
    ),
    fault(
        "stage 2: one of the root tables is never written",
        second_guest,
        || nth(1, is_fill, |_| Vec::new()),
        UninitialisedTable,
        "",
    ),
    fault(
        "stage 2: another guest gets the VMID of a running one",
        second_guest,
        || {
            replace(is_vttbr, |kind| match kind {
                Event::System(op, value) => vec![Event::System(op, value ^ 1 << 48)],
                other => vec![other],
            })
        },
        BreakBeforeMake,
        "",
    ),
    fault(
        "stage 2: a field of VTCR_EL2 changes, and its guest is not invalidated",
        resize,
        || drop_all(is_whole_guest),
        CachedField,
        "",
    ),
    fault(
        "stage 2: no TLBI after pages were marked clean",
        log_dirty,
        || drop_all(is_tlbi),
        StaleTranslation,
        "without marking it dirty",
    ),
    fault(
        "stage 2: a page that hardware may mark dirty is changed by a plain store",
        mark,
        || replace(is_update, by_load_and_store),
        LostUpdate,
        "dirty state",
    ),
];
