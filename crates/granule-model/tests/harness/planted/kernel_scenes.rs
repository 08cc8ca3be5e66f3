//! Scenes of caches and registers: what a kernel does, event by event, that breaks no rule.

use super::scenes::{Kernel, OUTPUT, PAGE, upper, with_pages};
use crate::bench::turn_on;
use crate::machine::{Shared, Tap, World};
use crate::shape::Shape;
use granule::arch::{Attributes, Page4K, Permissions, PhysicalAddress};
use granule::table::Leaves;
use granule_model::{Access, Barrier, Event, System};

const SCTLR_ON: u64 = 1 | 1 << 2 | 1 << 12;

/// The first CPU turns its MMU on again with tables that it wrote, with the MMU off, into
/// memory that the caches may hold.
pub(super) fn boot(tap: Option<Tap>) -> Shared {
    let shape = Shape::kernel(48).cpus(1);
    let geometry = shape.geometry::<Page4K>();
    let world = World::shared(crate::bench::model(&shape), 1);
    world.borrow_mut().tap = tap;
    let event = |kind| world.borrow_mut().event(kind);
    let root = 0x4000_0000;
    let bytes = PAGE;
    let address = root;
    event(Event::obtained(address, bytes));
    event(Event::fill(address, 512, 0, 0));
    turn_on(&world, &shape, &geometry, root);
    event(Event::Settled);
    world
}

/// A kernel with its MMU on lays out a device tree for one that starts with the MMU off.
pub(super) fn hand_over(tap: Option<Tap>) -> Shared {
    let kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.plant(tap);
    let (address, bytes) = (OUTPUT, 3 * PAGE);
    kernel.event(Event::data(address, bytes));
    kernel.event(Event::lines(System::DC_CVAC, address, bytes));
    kernel.barrier(Barrier::DSB_SY);
    kernel.register(System::SCTLR_EL1, 0);
    kernel.barrier(Barrier::ISB);
    // With the MMU off it writes there too, which must not meet lines that are yet to be
    // written back.
    kernel.event(Event::data(address, bytes));
    kernel.world
}

/// Another CPU is switched on, and reads with its MMU off what was written for it.
pub(super) fn start_cpu(tap: Option<Tap>) -> Shared {
    let kernel = with_pages(Shape::kernel(48), Leaves::PAGES);
    kernel.plant(tap);
    let (address, bytes) = (OUTPUT, 128);
    kernel.event(Event::data(address, bytes));
    kernel.event(Event::lines(System::DC_CVAC, address, bytes));
    kernel.barrier(Barrier::DSB_SY);
    kernel.world.borrow_mut().cpu = 1;
    kernel.event(Event::Reset);
    kernel.world
}

/// Writes with the MMU off and reads with it on.
pub(super) fn write_with_mmu_off(tap: Option<Tap>) -> Shared {
    with_pages(Shape::kernel(48), Leaves::PAGES).play(tap, |kernel| {
        kernel.register(System::SCTLR_EL1, 0);
        kernel.barrier(Barrier::ISB);
        let (address, bytes) = (OUTPUT, PAGE);
        kernel.event(Event::data(address, bytes));
        kernel.event(Event::lines(System::DC_IVAC, address, bytes));
        kernel.barrier(Barrier::DSB_SY);
        kernel.register(System::SCTLR_EL1, SCTLR_ON);
        kernel.barrier(Barrier::ISB);
        for line in 0..PAGE / 64 {
            let va = kernel.at(line * 64).0;
            let _ = kernel.world.borrow_mut().model.access(0, va, Access::READ);
        }
    })
}

/// Code is stored and then run.
pub(super) fn store_code(tap: Option<Tap>) -> Shared {
    let mut kernel = upper();
    let attributes = Attributes::normal(Permissions::READ_EXECUTE);
    let at = kernel.at(0);
    let output = PhysicalAddress(OUTPUT);
    let mapped = kernel
        .tables
        .map(at, output, PAGE, attributes, Leaves::PAGES);
    assert_eq!(mapped, Ok(()));
    kernel.play(tap, |kernel| {
        let (address, bytes) = (OUTPUT, 128);
        kernel.event(Event::code(address, bytes));
        kernel.event(Event::lines(System::DC_CVAU, address, bytes));
        kernel.barrier(Barrier::DSB_ISH);
        let scope = System::IC_IALLUIS;
        kernel.event(Event::System(scope, 0));
        kernel.barrier(Barrier::DSB_ISH);
        kernel.barrier(Barrier::ISB);
        kernel.settle();
        for cpu in 0..kernel.shape.cpus {
            let mut world = kernel.world.borrow_mut();
            let _ = world.model.access(cpu, at.0, Access::FETCH);
            let _ = world.model.access(cpu, at.0 + 64, Access::FETCH);
        }
    })
}

/// Returns the earlier value of TCR, with the half that is used.
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
pub(super) fn change_tcr(tap: Option<Tap>) -> Shared {
    alone(None).play(tap, |kernel| {
        kernel.register(System::TCR_EL1, tcr(kernel) ^ 1 << 42);
        kernel.barrier(Barrier::ISB);
        kernel.tlbi(System::VMALLE1);
        kernel.barrier(Barrier::DSB_NSH);
        kernel.barrier(Barrier::ISB);
    })
}

/// A byte of MAIR that nothing uses is changed.
pub(super) fn change_mair(tap: Option<Tap>) -> Shared {
    alone(None).play(tap, |kernel| {
        let mair = granule::arch::registers::Mair::STANDARD.0;
        kernel.register(System::MAIR_EL1, mair ^ 0x44 << 56);
        kernel.barrier(Barrier::ISB);
        kernel.tlbi(System::VMALLE1);
        kernel.barrier(Barrier::DSB_NSH);
        kernel.barrier(Barrier::ISB);
    })
}

/// A CPU goes on with another process, which maps the same addresses elsewhere.
pub(super) fn switch_process(tap: Option<Tap>) -> Shared {
    let mut kernel = alone(Some(7));
    let other = 0x7000_0000;
    let fill = |address, first| Event::fill(address, 512, first, 0);
    kernel.event(Event::obtained(other, 2 * PAGE));
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
        kernel.event(Event::store(address, value));
    }
    kernel.barrier(Barrier::DSB_ISHST);
    kernel.plant(tap);
    kernel.register(System::TTBR0_EL1, other | 8 << 48);
    kernel.barrier(Barrier::ISB);
    let _ = kernel.world.borrow_mut().model.access(0, 0, Access::READ);
    kernel.event(Event::Settled);
    kernel.lay(0x40_0000, PAGE, OUTPUT, Leaves::PAGES);
    kernel.world
}
