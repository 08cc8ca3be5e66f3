//! A machine with its MMUs on and an empty, live tree, ready for operations.

use crate::environment;
use crate::machine::{Machine, Shared, World, machine};
use crate::shape::Shape;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, Page, PhysicalAddress};
use granule::table::PageTables;
use granule_model::{Barrier, Config, Event, Model};
use granule_testing::held::Held;

pub(crate) struct Bench<P: Page> {
    pub(crate) world: Shared,
    pub(crate) tables: Held<P, Machine>,
    pub(crate) geometry: Geometry,
    pub(crate) shape: Shape,
    /// The ranges that the last harvest reported, by offset.
    pub(crate) harvested: Vec<(u64, u64)>,
}

/// The model of a shape.
pub(crate) fn model(shape: &Shape) -> Model {
    Model::new(Config {
        cpus: shape.cpus,
        bbm_level: shape.bbm_level,
        pa_bits: shape.pa_bits(),
        lva: shape.wide,
        lpa2: shape.wide,
        strict: shape.strict,
        ..Config::default()
    })
}

pub(crate) const fn capabilities(shape: &Shape) -> TlbCapabilities {
    TlbCapabilities::BASIC
        .range(shape.tlbi_range)
        .level_hint(shape.tlbi_range)
        .repeat(shape.repeat)
}

/// Cleans a root and turns the MMU of every CPU on with it.
pub(crate) fn turn_on(world: &Shared, shape: &Shape, geometry: &Geometry, root: u64) {
    environment::turn_on(
        world,
        shape.cpus,
        &shape.features(),
        geometry,
        PhysicalAddress(root),
        shape.asid.unwrap_or(0),
        shape.hardware,
    );
}

impl<P: Page> Bench<P> {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let geometry = shape.geometry::<P>();
        let world = World::shared(model(&shape), seed);
        let machine = machine(&world, P::SIZE, capabilities(&shape));
        let mut tables = match PageTables::<P, _>::new(geometry, machine) {
            Ok(tables) => tables,
            Err(error) => panic!("{shape:?}: {error}"),
        };
        // SAFETY: the tables have no global leaf with an ASID, and the model has CPUs of this level.
        unsafe {
            tables.set_asid(shape.asid);
            tables.set_bbm(BbmLevel::from_number(shape.bbm_level.into()));
        }
        turn_on(&world, &shape, &geometry, tables.root_table().0);
        let tables = Held::new(tables, true);
        let bench = Self {
            world,
            tables,
            geometry,
            shape,
            harvested: Vec::new(),
        };
        assert_eq!(bench.violations(), Vec::<String>::new());
        bench
    }

    pub(crate) fn event(&self, kind: Event) {
        self.world.borrow_mut().event(kind);
    }

    /// From here on what was done is relied on, by every CPU. The one that did it executes no ISB
    /// for that: whatever it needs is the library's to do.
    pub(crate) fn settle(&self) {
        self.event(Event::Settled);
        let mut world = self.world.borrow_mut();
        let by = world.cpu;
        for cpu in (0..self.shape.cpus).filter(|cpu| *cpu != by) {
            world.cpu = cpu;
            world.event(Event::Barrier(Barrier::ISB));
        }
        world.cpu = by;
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        let world = self.world.borrow();
        let found = world.model.violations();
        found.iter().map(ToString::to_string).collect()
    }
}
