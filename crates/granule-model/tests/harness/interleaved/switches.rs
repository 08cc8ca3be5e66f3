//! The way of a CPU to a program of 64K pages and back, in the library's order: each instruction is
//! a point where the other CPUs go on with what they do to the space that the CPU comes from.

use super::machine::{Machine, Shared};
use crate::registers::Recorded;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{PageSize, PhysicalAddress, VaRange};
use granule::space::switch::enter;
use granule_model::{Access, AccessKind, Barrier, Event, Outcome, Regime};
use granule_testing::shape::PLAIN;

/// Its two tables, and the page that it has.
const ROOT: u64 = 0x5000_0000;
const LAST: u64 = 0x5001_0000;
const FRAME: u64 = 0x20_0000_0000;
/// Where that is: among the pages of the other program.
const PAGE_AT: u64 = 0x4000_0000;
/// A page for EL0, Normal, not global, not executable.
const USER: u64 = 0b11 | 1 << 6 | 0b11 << 8 | 1 << 10 | 1 << 11 | 0b11 << 53;

/// A program of another page size, and the values of the registers in it and in the first one.
pub(super) struct Other {
    home: (Tcr, Ttbr),
    there: (Tcr, Ttbr),
}

impl Other {
    /// The program, made by CPU 0. `home` is what the CPUs' registers have now.
    pub(super) fn new(machine: &Machine, home: (Tcr, Ttbr)) -> Self {
        let fill = |address, descriptor, count| Event::fill(address, count, descriptor, 0);
        let obtained = Event::obtained(ROOT, 0x2_0000);
        let events = [
            obtained,
            fill(ROOT, 0, 8192),
            fill(LAST, 0, 8192),
            fill(ROOT + (PAGE_AT >> 29) * 8, LAST | 0b11, 1),
            fill(LAST, FRAME | USER, 1),
            Event::Barrier(Barrier::DSB_ISHST),
        ];
        for event in events {
            machine.world.lock().unwrap().event(0, event);
        }
        let geometry = PLAIN.geometry(PageSize::K64, 42, VaRange::Lower);
        let root = PhysicalAddress(ROOT);
        // SAFETY: only the model's CPUs get the value, and the tables do not change.
        let ttbr = unsafe { Ttbr::from_root(&geometry, root, 2) };
        Self {
            home,
            there: (home.0.with_lower(&geometry).unwrap(), ttbr),
        }
    }

    /// A CPU goes there, uses the page, and comes back. Whether it found the page and nothing else.
    pub(super) fn visit(&self, world: &Shared, cpu: u32) -> bool {
        let (home, there) = (self.home, self.there);
        let mut here = Recorded(|event| world.lock().unwrap().event(cpu, event));
        // SAFETY: only the model's CPUs get the values, which are those of live trees.
        unsafe { enter(&mut here, home.0, there.0, there.1, false) };
        let access = Access {
            regime: Regime::El10,
            kind: AccessKind::Read,
            user: true,
        };
        let outcomes = world.lock().unwrap().model.outcomes(cpu, PAGE_AT, access);
        // SAFETY: as above.
        unsafe { enter(&mut here, there.0, home.0, home.1, false) };
        matches!(outcomes[..], [Outcome::Memory(to)] if to.address == FRAME)
    }
}
