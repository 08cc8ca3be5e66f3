//! The CPUs: which process each runs, and how it goes to another one or to none, as a kernel does
//! it. TTBR0 with a current number, a flush where the library says so, and a barrier of its own on
//! each CPU that is to rely on what another one did.

use super::processes::Process;
use crate::machine::Shared;
use granule::arch::registers::Ttbr;
use granule::arch::{Geometry, Page, PhysicalAddress};
use granule::space::asid::{AsidCpu, AsidMap, Asids};
use granule_model::{Barrier, Event, System};

/// One number for each CPU, one more, and the 0: a generation lasts for a few switches.
const NUMBERS: u64 = 5;

pub(crate) struct Cpus {
    world: Shared,
    geometry: Geometry,
    /// Whom each CPU runs, by id.
    running: Vec<Option<u64>>,
    /// The root of no process.
    idle: PhysicalAddress,
    asids: Asids<'static>,
    map: AsidMap<'static>,
    /// New generations of numbers.
    pub(crate) rolled: u64,
}

impl Cpus {
    pub(super) fn new(
        world: &Shared,
        geometry: Geometry,
        idle: PhysicalAddress,
        cpus: u32,
    ) -> Self {
        let numbers = Vec::leak((0..cpus).map(|_| AsidCpu::unused()).collect());
        Self {
            world: world.clone(),
            geometry,
            running: vec![None; cpus as usize],
            idle,
            asids: Asids::of(numbers),
            map: AsidMap::with_numbers(Vec::leak(vec![0; 1]), NUMBERS),
            rolled: 0,
        }
    }

    pub(super) const fn count(&self) -> u64 {
        self.running.len() as u64
    }

    pub(super) fn on(&self, cpu: u32) {
        self.world.borrow_mut().cpu = cpu;
    }

    fn event(&self, kind: Event) {
        self.world.borrow_mut().event(kind);
    }

    /// The id of the process that a CPU runs.
    pub(super) fn running(&self, cpu: u32) -> Option<u64> {
        self.running[cpu as usize]
    }

    /// The CPUs that run a process, as a mask.
    pub(super) fn who_run(&self, id: u64) -> u64 {
        let cpus = self.running.iter().enumerate();
        cpus.filter(|(_, one)| **one == Some(id))
            .fold(0, |mask, (cpu, _)| mask | 1 << cpu)
    }

    /// A CPU invalidates all of its own TLB.
    fn flush(&self) {
        self.event(Event::System(System::VMALLE1, 0));
        self.event(Event::Barrier(Barrier::DSB_NSH));
        self.event(Event::Barrier(Barrier::ISB));
    }

    /// A CPU goes to a process, or to none.
    pub(super) fn switch<P: Page>(&mut self, cpu: u32, to: Option<&mut Process<P>>) {
        self.on(cpu);
        let (mut flush, mut rolled) = (false, false);
        let id = to.as_ref().map(|process| process.id);
        let (root, number) = match to {
            None => (self.idle, 0),
            Some(process) => {
                let number = match self.asids.enter(cpu as usize, &process.asid) {
                    Some(number) => number,
                    None => {
                        let renewed = self.asids.renew(&mut self.map, cpu as usize, &process.asid);
                        match renewed {
                            Ok(renewed) => {
                                rolled = renewed.rolled_over;
                                self.rolled += u64::from(rolled);
                                flush = renewed.flush;
                                renewed.asid
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                };
                // SAFETY: no CPU runs the space under another number.
                unsafe { process.space.set_asid(Some(number)) };
                (process.space.tables().root_table(), number)
            }
        };
        if rolled {
            // Each CPU could do it later, before it enters a space (`tests/asids.rs`). But the
            // model takes one that left a space to go on holding all of it, and relies on every CPU
            // at each step, where what is held under a number that the CPU does not use is
            // harmless.
            for other in (0..self.count() as u32).filter(|other| *other != cpu) {
                self.on(other);
                self.flush();
            }
            self.on(cpu);
        }
        if flush {
            self.flush();
        }
        self.event(Event::System(
            System::TTBR0_EL1,
            // SAFETY: only the model's CPUs get the value, and the space is live.
            unsafe { Ttbr::from_root(&self.geometry, root, number) }.bits(),
        ));
        self.event(Event::Barrier(Barrier::ISB));
        self.running[cpu as usize] = id;
    }

    /// All that was done is relied on by every CPU; the others come by an exception.
    pub(super) fn settle(&self) {
        self.event(Event::Settled);
        let by = self.world.borrow().cpu;
        for cpu in (0..self.count() as u32).filter(|cpu| *cpu != by) {
            self.on(cpu);
            self.event(Event::Barrier(Barrier::ISB));
        }
        self.on(by);
    }
}
