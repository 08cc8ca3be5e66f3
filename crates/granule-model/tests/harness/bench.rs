//! A machine with its MMUs on and an empty, live tree, ready for operations.

use crate::machine::{Machine, Shared, World, machine};
use crate::reference::Reference;
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, Page};
use granule::table::{PageTables, Stage1};
use granule_model::{Barrier, Config, Event, Model};
use granule_testing::held::Held;

pub(crate) struct Bench<P: Page, S: Staged = Stage1> {
    pub(crate) world: Shared,
    pub(crate) tables: Held<P, Machine, S>,
    pub(crate) geometry: Geometry,
    pub(crate) shape: Shape,
    /// The ranges that the last harvest reported, by offset.
    pub(crate) harvested: Vec<(u64, u64)>,
    /// The expected contents of the tables after the last operation, if its parts may fail one by one.
    pub(crate) left: Option<Reference<S>>,
}

pub(crate) fn model(shape: &Shape) -> Model {
    Model::new(Config {
        cpus: shape.cpus,
        bbm_level: shape.bbm_level,
        pa_bits: shape.pa_bits(),
        lva: shape.wide,
        lpa2: shape.wide,
        strict: shape.strict,
        execute_by_privilege: shape.guest_features,
        ..Config::default()
    })
}

pub(crate) const fn capabilities(shape: &Shape) -> TlbCapabilities {
    TlbCapabilities {
        range: shape.tlbi_range,
        level_hint: shape.tlbi_range,
        repeat: shape.repeat,
    }
}

/// Cleans a root and turns the MMU of every CPU on with it.
pub(crate) fn turn_on(world: &Shared, shape: &Shape, geometry: &Geometry, root: u64) {
    Stage1::turn_on(world, shape, geometry, root);
}

/// From here on what was done is relied on, by every CPU. The one that did it executes no ISB for
/// that: whatever it needs is the library's to do.
pub(crate) fn settle(world: &Shared, cpus: u32) {
    let mut world = world.borrow_mut();
    world.event(Event::Settled);
    let by = world.cpu;
    for cpu in (0..cpus).filter(|cpu| *cpu != by) {
        world.cpu = cpu;
        world.event(Event::Barrier(Barrier::ISB));
    }
    world.cpu = by;
}

impl<P: Page, S: Staged> Bench<P, S> {
    /// Tables of either stage.
    pub(crate) fn of(shape: Shape, seed: u64) -> Self {
        let geometry = S::geometry::<P>(&shape);
        let world = World::shared(model(&shape), seed);
        let machine = machine(&world, P::SIZE, capabilities(&shape));
        let mut tables = match PageTables::<P, _, S>::new(geometry, machine) {
            Ok(tables) => tables,
            Err(error) => panic!("{shape:?}: {error}"),
        };
        S::set_asid(&mut tables, shape.asid);
        // SAFETY: the model has CPUs of this level.
        unsafe { tables.set_bbm(BbmLevel::from_number(shape.bbm_level.into())) };
        S::turn_on(&world, &shape, &geometry, tables.root_table().0);
        let tables = Held::new(tables, true);
        let bench = Self {
            world,
            tables,
            geometry: geometry.into(),
            shape,
            harvested: Vec::new(),
            left: None,
        };
        assert_eq!(bench.violations(), Vec::<String>::new());
        bench
    }

    pub(crate) fn event(&self, kind: Event) {
        self.world.borrow_mut().event(kind);
    }

    /// From here on what was done is relied on, by every CPU.
    pub(crate) fn settle(&self) {
        settle(&self.world, self.shape.cpus);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        let world = self.world.borrow();
        let found = world.model.violations();
        found.iter().map(ToString::to_string).collect()
    }
}
