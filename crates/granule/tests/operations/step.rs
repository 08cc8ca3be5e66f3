//! The steps of random sequences: what there is to do, where, and how likely each is.

use granule::arch::Level;
use granule::table::{Harvest, Holes, Leaves};
use granule_testing::stage::{AttributeChange, AttributeChangeOf, TestStage, any_shareability};
use granule_testing::walk::Arch;
use proptest::prelude::*;

/// A multiple of one of the shape's leaf sizes, give or take some pages.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    unit: usize,
    pub count: u64,
    pages: i64,
    /// Counted from the top of the space.
    from_top: bool,
}

/// An operation on a range.
#[derive(Clone, Copy, Debug)]
pub enum Action<S: TestStage> {
    Unmap,
    Protect(S::PermissionChange, Holes),
    SetInvalid,
    SetValid,
    Merge(Leaves),
    Modify(AttributeChangeOf<S>, Holes),
    Harvest(Harvest),
}

#[derive(Clone, Debug)]
pub enum Step<S: TestStage> {
    Map {
        at: Distance,
        length: Distance,
        /// The agreement of output and input: modulo the unit of this index.
        agree: usize,
        output: usize,
        attributes: S::Attributes,
        leaves: Leaves,
    },
    /// Several mappings at once: distances of each from the end of the one before, lengths.
    Pieces {
        at: Distance,
        pieces: Vec<(Distance, Distance, S::Attributes, Leaves)>,
        agree: usize,
        output: usize,
    },
    /// Something with exactly one leaf or group that is mapped.
    Leaf(usize, Action<S>),
    /// Something with a part of one: where it begins and ends inside.
    Part(usize, (Distance, Distance), Action<S>),
    /// Something with a range of any kind.
    Range {
        at: Distance,
        length: Distance,
        action: Action<S>,
    },
    /// The CPUs that use the tables come to have this level of FEAT_BBM.
    Bbm(u32),
    Visit {
        at: Distance,
        length: Distance,
    },
}

/// The sizes that matter to a shape, smallest first.
pub fn units(arch: &Arch) -> Vec<u64> {
    let mut units = vec![arch.page(), arch.page() * 3];
    for level in (arch.start_level()..=3).rev() {
        let entry = arch.entry_bytes(level);
        units.push(entry);
        units.push(entry * arch.contiguous(level));
    }
    units.retain(|&unit| unit <= arch.span());
    units
}

impl Distance {
    const ZERO: Self = Self {
        unit: 0,
        count: 0,
        pages: 0,
        from_top: false,
    };
    /// Cut to the whole space.
    const ALL: Self = Self {
        unit: usize::MAX,
        ..Self::ZERO
    };

    pub fn bytes(&self, arch: &Arch) -> u64 {
        if self.unit == usize::MAX {
            return arch.span();
        }
        let units = units(arch);
        let unit = units[self.unit % units.len()];
        let bytes = (unit * self.count).wrapping_add_signed(self.pages * arch.page() as i64);
        let bytes = if bytes > arch.span() + arch.page() {
            bytes % arch.span()
        } else {
            bytes
        };
        if self.from_top {
            arch.span().wrapping_sub(bytes) % arch.span()
        } else {
            bytes
        }
    }
}

fn distance(top: bool) -> impl Strategy<Value = Distance> {
    (0..12_usize, 0..4_u64, -2..=2_i64, any::<bool>()).prop_map(
        move |(unit, count, pages, from_top)| Distance {
            unit,
            count,
            pages,
            from_top: top && from_top,
        },
    )
}

fn attribute_change<S: TestStage>() -> impl Strategy<Value = AttributeChangeOf<S>> {
    let maybe = || proptest::option::of(any::<bool>());
    // The access flag alone is another way through the code.
    let few = prop_oneof![
        maybe().prop_map(|accessed| (None, None, accessed)),
        (
            proptest::option::of(S::any_memory()),
            proptest::option::of(any_shareability()),
            maybe()
        ),
    ];
    let permissions = proptest::option::of(S::any_change());
    (few, maybe(), permissions).prop_map(
        |((memory, shareability, accessed), dirty, permissions)| AttributeChange {
            memory,
            shareability,
            accessed,
            dirty,
            permissions,
        },
    )
}

fn harvest() -> impl Strategy<Value = Harvest> {
    prop_oneof![
        any::<bool>().prop_map(|invalidate| Harvest::Accessed { invalidate }),
        Just(Harvest::Dirty),
    ]
}

fn leaves() -> impl Strategy<Value = Leaves> {
    let any = (0..Level::ALL.len(), any::<bool>()).prop_map(|(level, contiguous)| Leaves {
        top: Level::ALL[level],
        contiguous,
    });
    prop_oneof![Just(Leaves::LARGEST), Just(Leaves::PAGES), any]
}

fn action<S: TestStage>() -> impl Strategy<Value = Action<S>> {
    let holes = || prop_oneof![Just(Holes::Refuse), Just(Holes::Skip)];
    prop_oneof![
        2 => Just(Action::Unmap),
        4 => (S::any_change(), holes()).prop_map(|(change, holes)| Action::Protect(change, holes)),
        2 => Just(Action::SetInvalid),
        2 => Just(Action::SetValid),
        1 => leaves().prop_map(Action::Merge),
        5 => (attribute_change::<S>(), holes()).prop_map(|(change, holes)| {
            Action::Modify(change, holes)
        }),
        2 => harvest().prop_map(Action::Harvest),
    ]
}

pub fn step<S: TestStage>() -> impl Strategy<Value = Step<S>> {
    let map = (
        distance(true),
        distance(false),
        0..12_usize,
        0..6_usize,
        S::any_attributes(),
        leaves(),
    )
        .prop_map(
            |(at, length, agree, output, attributes, leaves)| Step::Map {
                at,
                length,
                agree,
                output,
                attributes,
                leaves,
            },
        );
    let piece = || {
        (
            distance(false),
            distance(false),
            S::any_attributes(),
            leaves(),
        )
    };
    let pieces = (
        distance(true),
        proptest::collection::vec(piece(), 0..5),
        0..12_usize,
        0..6_usize,
    )
        .prop_map(|(at, pieces, agree, output)| Step::Pieces {
            at,
            pieces,
            agree,
            output,
        });
    prop_oneof![
        6 => map,
        3 => pieces,
        4 => (distance(true), distance(false), action()).prop_map(
            |(at, length, action)| Step::Range { at, length, action }
        ),
        2 => (any::<usize>(), action()).prop_map(|(which, action)| Step::Leaf(which, action)),
        6 => (any::<usize>(), (distance(false), distance(false)), action()).prop_map(
            |(which, ends, action)| Step::Part(which, ends, action)
        ),
        2 => leaves().prop_map(|leaves| Step::Range {
            at: Distance::ZERO,
            length: Distance::ALL,
            action: Action::Merge(leaves),
        }),
        1 => (0..4_u32).prop_map(Step::Bbm),
        1 => (distance(true), distance(false)).prop_map(|(at, length)| Step::Visit { at, length }),
    ]
}
