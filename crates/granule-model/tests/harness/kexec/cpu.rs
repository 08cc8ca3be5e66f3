//! The CPU that executes the steps: every access, and the fetch of the code itself after each step,
//! has to lead to where it should under everything that TLBs may hold, and bytes are moved.

use crate::machine::Shared;
use granule_kexec::LINE;
use granule_kexec::steps::RelocationCpu;
use granule_model::{Access, AccessKind, Barrier, BarrierKind, Event, Outcome, System};
use std::collections::HashMap;

/// The payload of the panic that ends the steps when an access went wrong.
pub(crate) struct Stopped;

/// Accesses at most: several times those of the longest.
const MOST_STEPS: u64 = 100_000;

/// Words of physical memory.
pub(crate) type Data = HashMap<u64, u64>;

/// Returns the contents of a word that nobody has written.
pub(crate) const fn untouched(address: u64) -> u64 {
    (address ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A stretch of physical memory, its first byte and its end, and what matters of stores there:
/// data, or code (`true`).
pub(crate) type Role = ((u64, u64), Option<bool>);

pub(crate) struct Cpu {
    pub(crate) world: Shared,
    pub(crate) data: Data,
    /// Virtual less physical address in both linear maps.
    pub(crate) distance: u64,
    pub(crate) tcr: u64,
    /// Where stores matter to an observer behind the caches; others have no events.
    pub(crate) roles: Vec<Role>,
    /// Memory of tables: what is stored there are descriptors.
    pub(crate) tables: (u64, u64),
    /// Where instructions are fetched from, and the physical address of that.
    pub(crate) fetched: (u64, u64),
    pub(crate) mmu_off: bool,
    /// The first access that went elsewhere, or nowhere.
    pub(crate) wrong: Option<String>,
    pub(crate) steps: u64,
}

impl Cpu {
    fn event(&self, kind: Event) {
        self.world.borrow_mut().event(kind);
    }

    fn physical(&self, address: u64) -> u64 {
        if self.mmu_off {
            address
        } else {
            address.wrapping_sub(self.distance)
        }
    }

    /// Nothing that comes after is of any use: the steps end here.
    fn stop(&mut self, why: String) -> ! {
        self.wrong = Some(why);
        std::panic::resume_unwind(Box::new(Stopped))
    }

    /// All that an access may result in is the memory that is expected, with the rights it takes.
    fn check(&mut self, address: u64, access: Access, expected: u64) {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            self.stop("does not end".into());
        }
        let world = self.world.borrow();
        let outcomes = world.model.outcomes(0, address, access);
        let right = |one: &Outcome| {
            let Outcome::Memory(found) = one else {
                return false;
            };
            let rights = found.privileged;
            let allowed = match access.kind {
                AccessKind::Read => rights.read,
                AccessKind::Write => rights.write,
                AccessKind::Fetch => rights.execute,
            };
            found.address == expected && allowed
        };
        if outcomes.is_empty() || !outcomes.iter().all(right) {
            drop(world);
            let found = format!("{access:?} at {address:#x}: {outcomes:x?}");
            self.stop(format!("{found}, expected {expected:#x}"));
        }
    }

    /// The next instruction.
    fn fetch(&mut self) {
        let (address, physical) = self.fetched;
        self.check(address, Access::FETCH, physical);
        let _ = self
            .world
            .borrow_mut()
            .model
            .access(0, address, Access::FETCH);
    }

    /// The page that instructions are fetched from holds what was copied there.
    fn code_is_whole(&self, at: u64) -> bool {
        let page = at & !0xfff;
        !self.data.keys().any(|word| word & !0xfff == page)
    }

    pub(crate) fn load(&mut self, address: u64) -> u64 {
        let physical = self.physical(address);
        let _ = self
            .world
            .borrow_mut()
            .model
            .access(0, address, Access::READ);
        self.check(address, Access::READ, physical);
        self.peek(physical)
    }

    pub(crate) fn peek(&self, physical: u64) -> u64 {
        let known = self.data.get(&physical).copied();
        known.unwrap_or_else(|| untouched(physical))
    }

    fn store_line(&mut self, address: u64, words: [u64; LINE / 8]) {
        let physical = self.physical(address);
        self.check(address, Access::WRITE, physical);
        for (index, word) in words.into_iter().enumerate() {
            let at = physical + 8 * index as u64;
            self.data.insert(at, word);
            if (self.tables.0..self.tables.1).contains(&at) {
                self.event(Event::store(at, word));
            }
        }
        let role = self
            .roles
            .iter()
            .find(|((start, end), _)| (*start..*end).contains(&physical));
        let (start, bytes) = (physical, LINE as u64);
        match role {
            Some((_, Some(true))) => self.event(Event::Code { start, bytes }),
            Some((_, Some(false))) => self.event(Event::Data { start, bytes }),
            _ => {}
        }
    }
}

impl RelocationCpu for Cpu {
    fn word(&mut self, address: u64) -> u64 {
        self.load(address)
    }

    fn move_line(&mut self, to: u64, from: u64) {
        let mut words = [0; LINE / 8];
        for (index, word) in words.iter_mut().enumerate() {
            // One access is enough for a line.
            let at = from.wrapping_add(8 * index as u64);
            *word = if index == 0 {
                self.load(at)
            } else {
                self.peek(self.physical(at))
            };
        }
        self.store_line(to, words);
    }

    fn line_bytes(&mut self) -> u64 {
        LINE as u64
    }

    fn tcr(&mut self) -> u64 {
        self.tcr
    }

    fn system(&mut self, system: System, operand: u64) {
        match system {
            System::DC_CVAC | System::DC_CIVAC | System::DC_IVAC => {
                let access = if system == System::DC_IVAC {
                    Access::WRITE
                } else {
                    Access::READ
                };
                let start = self.physical(operand);
                self.check(operand, access, start);
                let bytes = LINE as u64;
                self.event(Event::lines(system, start, bytes));
                return;
            }
            System::SCTLR_EL1 => {
                self.event(Event::System(system, operand));
                self.mmu_off = operand & 1 == 0;
            }
            _ => self.event(Event::System(system, operand)),
        }
        // Between a register write and its ISB the CPU may translate by either value: it goes on
        // fetching meanwhile.
        let (address, physical) = self.fetched;
        self.check(address, Access::FETCH, physical);
    }

    fn barrier(&mut self, barrier: Barrier) {
        self.event(Event::Barrier(barrier));
        if barrier.kind == BarrierKind::Isb {
            self.fetch();
            let (_, physical) = self.fetched;
            if !self.code_is_whole(physical) {
                self.stop(format!("instructions at {physical:#x} were written over"));
            }
        }
    }

    fn mask(&mut self) {}

    fn vectors(&mut self, address: u64) {
        assert_eq!(address % 2048, 0, "vectors at {address:#x}");
    }

    fn branch(&mut self, address: u64) {
        // Out of the linear map's half: every address fetched from is the physical one.
        self.fetched = (address, address);
        self.fetch();
    }

    fn set_el2_vectors(&mut self, _number: u64, _address: u64) {}

    fn enter_el2(&mut self) {
        // EL2 has its MMU off, and its own SCTLR.
    }

    fn sctlr_el2(&mut self, _value: u64) {}
}
