//! The strategies that make the linear map, on live tables of the model: through the map itself
//! ([`direct`]), and through slots of a fixmap, the published ones ([`fixmap`]); and all of them
//! running out of pages ([`exhaustion`]).

mod direct;
mod exhaustion;
mod fixmap;

use crate::machine::Shared;
use crate::random::Random;
use crate::reference::{Reference, Stretch};
use crate::shape::Shape;
use granule::arch::{Attributes, Geometry, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::{Leaves, Piece};
use granule_model::{Access, Event};

/// Where RAM begins that the map shows; it is shown at the beginning of the half.
const RAM: u64 = 0x1_0000_0000;

/// Where the linear map shows a physical address.
const fn shown(geometry: &Geometry, physical: u64) -> u64 {
    geometry.base().0.wrapping_add(physical)
}

/// RAM with holes, as firmware leaves it: aligned and not, one piece with pages only.
fn pieces(geometry: &Geometry, leaves: Leaves) -> Vec<Piece> {
    let page = geometry.page_size().bytes();
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let read_only = Attributes::normal(Permissions::READ);
    let table = page * geometry.page_size().entries() as u64;
    [
        (0, 2 * table, attributes, leaves),
        (2 * table, 3 * page, read_only, Leaves::PAGES),
        (2 * table + 3 * page, table, attributes, leaves),
        (4 * table + page, 40 * page, attributes, leaves),
        (6 * table, table, attributes, leaves),
    ]
    .map(|(at, bytes, attributes, leaves)| Piece {
        start: VirtualAddress(shown(geometry, RAM + at)),
        output: PhysicalAddress(RAM + at),
        bytes,
        attributes,
        leaves,
    })
    .to_vec()
}

/// Checks that the CPUs find the memory of the pieces, and that no rule was broken.
fn check(world: &Shared, shape: &Shape, geometry: &Geometry, pieces: &[Piece], seed: u64) {
    let mut reference: Reference = Reference::default();
    for piece in pieces {
        let stretch = Stretch {
            present_invalid: false,
            bytes: piece.bytes,
            output: piece.output.0,
            attributes: piece.attributes,
        };
        reference.map(piece.output.0, stretch);
    }
    let mut world = world.borrow_mut();
    world.event(Event::Settled);
    let isb = Event::Barrier(granule_model::Barrier::ISB);
    for cpu in 0..shape.cpus {
        world.cpu = cpu;
        world.event(isb);
    }
    let mut random = Random::new(seed);
    let page = geometry.page_size().bytes();
    for piece in pieces {
        let (from, to) = (piece.output.0, piece.output_end().0);
        let mut offsets = vec![from - 1, from, from + page, to - 1, to];
        offsets.extend((0..20).map(|_| from + random.below(piece.bytes)));
        for offset in offsets {
            let cpu = random.below(u64::from(shape.cpus)) as u32;
            let access = random.of(&[Access::READ, Access::WRITE]);
            let va = shown(geometry, offset);
            let outcomes = world.model.access(cpu, va, access);
            let expected = reference.outcome(geometry, offset, access);
            assert_eq!(outcomes, [expected], "{shape:?} {va:#x}");
        }
    }
    assert_eq!(world.model.violations(), [], "{shape:?}");
}
