//! Faults in what a hypervisor does with stage 2: its TLBIs and their order, VMIDs, break-before-make,
//! concatenated root tables, and dirty logging.

use super::leaves::by_load_and_store;
use super::scenes::PAGE;
use super::tables::{INCOMPLETE, POINTER, STALE};
use super::taps::*;
use super::{Fault, fault};
use crate::bench::{Bench, capabilities};
use crate::machine::{Shared, Tap, machine};
use crate::shape::Shape;
use crate::stage::{Staged, VMID};
use granule::arch::{
    IntermediateAddress, Page4K, PageSize, PhysicalAddress, Stage2Attributes, Stage2Permissions,
    Vttbr,
};
use granule::table::{Harvest, Holes, Leaves, PageTables, Stage2, Stage2PermissionChange, Visit};
use granule_model::Rule::*;
use granule_model::{Barrier, Event, System};

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

fn with_pages(shape: Shape) -> Guest {
    let mut guest = guest(shape);
    guest.plug(0, 64 * PAGE, Leaves::PAGES);
    guest
}

/// Eight pages become read-only, as for a log of what the guest writes.
fn protect(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(40)).play(tap, |guest| guest.write_protect(8 * PAGE, 8 * PAGE))
}

/// As [`protect`], for a range with FEAT_TLBIRANGE.
fn protect_by_range(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(40).tlbi_range(true);
    with_pages(shape).play(tap, |guest| guest.write_protect(8 * PAGE, 8 * PAGE))
}

/// Pages go, and others come in their place.
fn replace_pages(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(40)).play(tap, |guest| {
        guest.unplug(8 * PAGE, 8 * PAGE);
        let all = Stage2Attributes::normal(Stage2Permissions::ALL);
        let other = PhysicalAddress(2 * OUTPUT);
        let _ = guest
            .tables
            .map(at(8 * PAGE), other, 8 * PAGE, all, Leaves::PAGES);
    })
}

/// All pages of a table go, and the table is freed.
fn unplug_table(tap: Option<Tap>) -> Shared {
    let mut guest = with_pages(Shape::kernel(40));
    guest.plug(8 * BLOCK, 20 * PAGE, Leaves::PAGES);
    guest.play(tap, |guest| guest.unplug(8 * BLOCK, 20 * PAGE))
}

/// A block of which one page is write-protected, split in place at level 3.
fn split(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(40).bbm_level(3);
    let mut guest = guest(shape);
    guest.plug(0, BLOCK, Leaves::LARGEST);
    guest.play(tap, |guest| guest.write_protect(8 * PAGE, PAGE))
}

/// The CPU was with another guest, and comes back before it changes the tables of this one.
fn come_back(tap: Option<Tap>) -> Shared {
    let guest = with_pages(Shape::kernel(40));
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
    guest.play(tap, |guest| {
        guest.write(System::VTTBR_EL2, own);
        guest.write_protect(8 * PAGE, 8 * PAGE);
    })
}

/// A host of programs leaves its own regime before it changes a guest's tables.
fn leave_the_host(tap: Option<Tap>) -> Shared {
    let guest = with_pages(Shape::kernel(40));
    let hcr = Stage2::geometry::<Page4K>(&guest.shape).hcr();
    guest.write(System::HCR_EL2, hcr | HOST);
    guest.play(tap, |guest| {
        guest.write(System::HCR_EL2, hcr);
        guest.write_protect(8 * PAGE, 8 * PAGE);
    })
}

/// A second guest is made, and gets its own VMID.
fn second_guest(tap: Option<Tap>) -> Shared {
    let guest = with_pages(Shape::kernel(40));
    let can = capabilities(&guest.shape);
    guest.play(tap, |guest| {
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
    })
}

/// VTCR_EL2.T0SZ changes between two runs of a guest, whose VMID is emptied.
fn resize(tap: Option<Tap>) -> Shared {
    let guest = guest(Shape::kernel(40).cpus(1));
    let geometry = Stage2::geometry::<Page4K>(&guest.shape);
    let vtcr = granule::arch::Vtcr::new(&guest.shape.features(), &geometry).0;
    guest.play(tap, |guest| {
        guest.write(System::HCR_EL2, 0);
        guest.write(System::VTCR_EL2, vtcr + 1);
        guest.event(Event::System(System::VMALLS12E1IS, 0));
        guest.event(Event::Barrier(Barrier::DSB_ISH));
        guest.event(Event::Barrier(Barrier::ISB));
        guest.write(System::HCR_EL2, geometry.hcr());
    })
}

const HARDWARE: Shape = Shape::kernel(40).hardware(true);

/// Reads from the tables which pages the guest wrote, and marks them clean.
fn log_dirty(tap: Option<Tap>) -> Shared {
    with_pages(HARDWARE).play(tap, |guest| {
        let mut found = 0;
        let _ = guest
            .tables
            .harvest(at(0), 64 * PAGE, Harvest::Dirty, |_, bytes| found += bytes);
        assert_eq!(found, 64 * PAGE, "all pages were writable");
    })
}

/// A clean page that hardware may mark dirty gets one of software's bits.
fn mark(tap: Option<Tap>) -> Shared {
    let mut guest = with_pages(HARDWARE);
    let tables = &mut guest.tables;
    let _ = tables.harvest(at(0), 64 * PAGE, Harvest::Dirty, |_, _| ());
    guest.play(tap, |guest| {
        let mut change = Stage2PermissionChange::NONE;
        change.software = Some(1);
        let _ = guest.tables.protect(at(0), PAGE, change, Holes::Refuse);
    })
}

/// Another page is put in place of one, by hand and by break-before-make.
fn swap(tap: Option<Tap>) -> Shared {
    let guest = with_pages(Shape::kernel(40));
    let address = guest.location(0);
    let old = guest.world.borrow().model.descriptor(address);
    guest.play(tap, |guest| {
        let store = |descriptor| Event::store(address, descriptor);
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
    })
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

pub(super) const FAULTS: &[Fault] = &[
    fault("stage 2: no TLBI by intermediate physical address after write-protecting")
        .planted(protect, || drop_all(is_by_address))
        .breaks(StaleTranslation, TOO_EARLY),
    fault("stage 2: what a guest combined with its own tables is not invalidated")
        .planted(protect, || drop_all(is_combined))
        .breaks(StaleTranslation, COMBINED),
    fault("stage 2: what is combined is invalidated first")
        .planted(protect, || {
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
        })
        .breaks(StaleTranslation, COMBINED),
    fault("stage 2: no DSB between the two TLBIs")
        .planted(protect, || nth(0, is_ish, |_| Vec::new()))
        .breaks(StaleTranslation, TOO_EARLY),
    fault("stage 2: no DSB after the TLBI of what is combined")
        .planted(protect, || nth(1, is_ish, |_| Vec::new()))
        .breaks(StaleTranslation, INCOMPLETE),
    fault("stage 2: no DSB ISHST before the TLBIs")
        .planted(protect, || drop_all(is_ishst))
        .breaks(StaleTranslation, STALE),
    fault("stage 2: a TLBI of virtual addresses for intermediate physical ones")
        .planted(protect, || by_address(|op| (System::VAALE1IS, op.1)))
        .breaks(StaleTranslation, STALE),
    fault("stage 2: a local TLBI in place of a broadcast one")
        .planted(protect, || by_address(local))
        .breaks(StaleTranslation, STALE),
    fault("stage 2: what is combined is invalidated on one CPU only")
        .planted(protect, || {
            replace(is_combined, |_| vec![Event::System(System::VMALLE1, 0)])
        })
        .breaks(StaleTranslation, COMBINED),
    fault("stage 2: a TLBI of another intermediate physical address")
        .planted(protect, || {
            by_address(|op| with_operand(op, op.1 ^ 1 << 20))
        })
        .breaks(StaleTranslation, STALE),
    fault("stage 2: a TLBI by range of too few pages")
        .planted(protect_by_range, || {
            by_address(|op| with_operand(op, op.1 - (1 << 39)))
        })
        .breaks(StaleTranslation, STALE),
    fault("stage 2: the VMID of another guest is in VTTBR_EL2")
        .planted(come_back, || drop_all(is_vttbr))
        .breaks(StaleTranslation, "this VMID"),
    fault("stage 2: the CPU is still in the host's own regime (E2H, TGE)")
        .planted(leave_the_host, || drop_all(is_hcr))
        .breaks(StaleTranslation, COMBINED),
    fault("stage 2: other pages come before what is combined is invalidated")
        .planted(replace_pages, || drop_all(is_combined))
        .breaks(BreakBeforeMake, "output address"),
    fault("stage 2: the output address of a live entry changes")
        .planted(swap, || nth(0, is_break, |_| Vec::new()))
        .breaks(BreakBeforeMake, "output address"),
    fault("stage 2: the memory type of a live entry changes")
        .planted(protect, || nth(0, is_update, write_through))
        .breaks(BreakBeforeMake, ""),
    fault("stage 2: a last-level TLBI where a table was unlinked")
        .planted(unplug_table, || by_address(|op| (System::IPAS2LE1IS, op.1)))
        .breaks(FreedInUse, POINTER),
    fault("stage 2: a table is freed before the TLBI")
        .planted(unplug_table, || {
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
        })
        .breaks(FreedInUse, POINTER),
    fault("stage 2: the table of a split is linked by a plain store")
        .planted(split, || replace(is_link, plain))
        .breaks(UnorderedLink, ""),
    fault("stage 2: one of the root tables is never written")
        .planted(second_guest, || nth(1, is_fill, |_| Vec::new()))
        .breaks(UninitialisedTable, ""),
    fault("stage 2: another guest gets the VMID of a running one")
        .planted(second_guest, || {
            replace(is_vttbr, |kind| match kind {
                Event::System(op, value) => vec![Event::System(op, value ^ 1 << 48)],
                other => vec![other],
            })
        })
        .breaks(BreakBeforeMake, ""),
    fault("stage 2: a field of VTCR_EL2 changes, and its guest is not invalidated")
        .planted(resize, || drop_all(is_whole_guest))
        .breaks(CachedField, ""),
    fault("stage 2: no TLBI after pages were marked clean")
        .planted(log_dirty, || drop_all(is_tlbi))
        .breaks(StaleTranslation, "without marking it dirty"),
    fault("stage 2: a page that hardware may mark dirty is changed by a plain store")
        .planted(mark, || by_load_and_store(is_update))
        .breaks(LostUpdate, "dirty state"),
];
