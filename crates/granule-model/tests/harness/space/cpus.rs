//! The CPUs: which process each runs, and how it goes to another one or to none, as a kernel does
//! it. TTBR0 with a current number, TCR for the process's page size in the library's order, a flush
//! where the library requires it, and a barrier of its own on each CPU that is to rely on what
//! another one did.

use super::processes::Process;
use crate::environment;
use crate::machine::Shared;
use crate::registers::Recorded;
use crate::shape::Shape;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{Geometry, Page, PhysicalAddress};
use granule::space::asid::{AsidCpu, AsidMap, Asids, SpaceAsid};
use granule::space::switch;
use granule_model::{Barrier, Event, System};
use std::cell::RefCell;
use std::rc::Rc;

/// One number for each of three CPUs, one more, and the 0: a generation lasts for a few switches.
const NUMBERS: u64 = 5;

/// The CPUs, which processes of several page sizes share.
#[derive(Clone)]
pub(crate) struct Cpus {
    world: Shared,
    repeat: bool,
    state: Rc<RefCell<State>>,
}

struct State {
    /// Whom each CPU runs, by id.
    running: Vec<Option<u64>>,
    /// The value of TCR of each CPU.
    tcr: Vec<Tcr>,
    /// The root of no process.
    idle: Ttbr,
    asids: Asids<'static>,
    map: AsidMap<'static>,
    /// New generations of numbers.
    rolled: u64,
    /// Switches between page sizes.
    reshaped: u64,
}

impl Cpus {
    /// CPUs whose MMUs are on with the empty root `idle` of this geometry.
    pub(super) fn new(
        world: &Shared,
        shape: &Shape,
        geometry: Geometry,
        idle: PhysicalAddress,
    ) -> Self {
        let count = shape.cpus as usize;
        let numbers = Vec::leak((0..count).map(|_| AsidCpu::unused()).collect());
        // More CPUs have as many numbers more: each keeps its own in a new generation.
        let numbers_of_all = NUMBERS.max(u64::from(shape.cpus) + 2);
        let tcr = environment::tcr(&shape.features(), &geometry, shape.hardware);
        let state = State {
            running: vec![None; count],
            tcr: vec![tcr; count],
            // SAFETY: only the model's CPUs get the value, and the root stays empty.
            idle: unsafe { Ttbr::from_root(&geometry, idle, 0) },
            asids: Asids::of(numbers),
            map: AsidMap::with_numbers(Vec::leak(vec![0; 1]), numbers_of_all),
            rolled: 0,
            reshaped: 0,
        };
        Self {
            world: world.clone(),
            repeat: shape.repeat,
            state: Rc::new(RefCell::new(state)),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.state.borrow().running.len() as u64
    }

    pub(super) fn on(&self, cpu: u32) {
        self.world.borrow_mut().cpu = cpu;
    }

    fn event(&self, kind: Event) {
        self.world.borrow_mut().event(kind);
    }

    /// New generations of numbers so far.
    pub(crate) fn rolled(&self) -> u64 {
        self.state.borrow().rolled
    }

    /// Switches between page sizes so far.
    pub(crate) fn reshaped(&self) -> u64 {
        self.state.borrow().reshaped
    }

    /// The id of the process that a CPU runs.
    pub(super) fn running(&self, cpu: u32) -> Option<u64> {
        self.state.borrow().running[cpu as usize]
    }

    /// The CPUs that run a process, as a mask.
    pub(super) fn who_run(&self, id: u64) -> u64 {
        let state = self.state.borrow();
        let cpus = state.running.iter().enumerate();
        cpus.filter(|(_, one)| **one == Some(id))
            .fold(0, |mask, (cpu, _)| mask | 1 << cpu)
    }

    /// A CPU invalidates all of its own TLB.
    fn flush(&self) {
        self.event(Event::System(System::VMALLE1, 0));
        self.event(Event::Barrier(Barrier::DSB_NSH));
        self.event(Event::Barrier(Barrier::ISB));
    }

    /// A number of the present generation for a CPU that goes to a process, after the flushes that
    /// it takes.
    fn number(&self, cpu: u32, asid: &SpaceAsid) -> u16 {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(number) = state.asids.enter(cpu as usize, asid) {
            return number;
        }
        let renewed = match state.asids.renew(&mut state.map, cpu as usize, asid) {
            Ok(renewed) => renewed,
            Err(error) => panic!("{error}"),
        };
        if renewed.rolled_over {
            state.rolled += 1;
            // Each CPU could do it later, before it enters a space (`tests/asids.rs`). But the
            // model takes one that left a space to go on holding all of it, and relies on every CPU
            // at each step, where what is held under a number that the CPU does not use is
            // harmless.
            for other in (0..state.running.len() as u32).filter(|other| *other != cpu) {
                self.on(other);
                self.flush();
            }
            self.on(cpu);
        }
        if renewed.flush {
            self.flush();
        }
        renewed.asid
    }

    /// A CPU goes to a process, or to none. Without one it keeps TCR as it is, for the idle root is
    /// empty in every shape.
    pub(super) fn switch<P: Page>(&self, cpu: u32, to: Option<&mut Process<P>>) {
        self.on(cpu);
        let from = self.state.borrow().tcr[cpu as usize];
        let (id, tcr, ttbr) = match to {
            None => (None, Some(from), Some(self.state.borrow().idle)),
            Some(process) => {
                let number = self.number(cpu, &process.asid);
                // SAFETY: no CPU runs the space under another number.
                unsafe { process.space.set_asid(Some(number)) };
                let tcr = from.with_lower(process.space.geometry());
                (Some(process.id), tcr, process.space.ttbr(number))
            }
        };
        let (Some(tcr), Some(ttbr)) = (tcr, ttbr) else {
            panic!("a space that no CPU may walk");
        };
        // SAFETY: only the model's CPUs get the values, which are those of a live space or of the
        // idle root.
        unsafe {
            switch::enter(
                &mut Recorded(|event| self.event(event)),
                from,
                tcr,
                ttbr,
                self.repeat,
            )
        };
        let mut state = self.state.borrow_mut();
        state.reshaped += u64::from(tcr != from);
        state.tcr[cpu as usize] = tcr;
        state.running[cpu as usize] = id;
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
