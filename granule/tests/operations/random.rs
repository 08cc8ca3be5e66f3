//! Random sequences of operations on every shape, compared with the reference after each step.

use crate::bench::{Bench, Setting};
use crate::common::host::Runs;
use crate::common::shape;
use crate::common::walk::Arch;
use granule::arch::{
    Attributes, Dispatch, Geometry, Kind, MemoryType, Page, PageSize, Permissions, Shareability,
};
use granule::arch::{Level, OutputFormat};
use granule::table::{Holes, Leaves, PermissionChange};
use proptest::prelude::*;

/// Most leaf entries that one mapping makes, so that a case takes milliseconds (its ends may add
/// up to two tables' worth).
const MOST_LEAVES: u64 = if cfg!(miri) { 40 } else { 3000 };
const CASES: u32 = if cfg!(miri) { 2 } else { 80 };
const STEPS: usize = if cfg!(miri) { 4 } else { 14 };

/// A multiple of one of the shape's leaf sizes, give or take some pages.
#[derive(Clone, Copy, Debug)]
struct Distance {
    unit: usize,
    count: u64,
    pages: i64,
    /// Counted from the top of the space.
    from_top: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Map {
        at: Distance,
        length: Distance,
        /// How output and input agree: modulo the unit of this index.
        agree: usize,
        output: usize,
        attributes: Attributes,
        leaves: Leaves,
    },
    /// Several mappings at once: distances of each from the end of the one before, lengths.
    Pieces {
        at: Distance,
        pieces: Vec<(Distance, Distance, Attributes, Leaves)>,
        agree: usize,
        output: usize,
    },
    Unmap {
        at: Distance,
        length: Distance,
    },
    Protect {
        at: Distance,
        length: Distance,
        change: PermissionChange,
        holes: Holes,
    },
    /// Unmaps exactly one leaf or group that is mapped.
    UnmapLeaf(usize),
    /// Protects exactly one.
    ProtectLeaf(usize, PermissionChange),
    Visit {
        at: Distance,
        length: Distance,
    },
}

/// The sizes that matter to a shape, smallest first.
fn units(arch: &Arch) -> Vec<u64> {
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
    fn bytes(&self, arch: &Arch) -> u64 {
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

fn permissions() -> impl Strategy<Value = Permissions> {
    any::<(bool, bool, bool, bool, bool, bool, u8)>().prop_map(|bits| Permissions {
        writable: bits.0,
        user: bits.1,
        privileged_execute: bits.2,
        user_execute: bits.3,
        guarded: bits.4,
        dirty_modifier: bits.5,
        software: bits.6,
    })
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let memory = prop_oneof![
        Just(MemoryType::Normal),
        Just(MemoryType::Device),
        Just(MemoryType::NormalNonCacheable),
        Just(MemoryType::DeviceStrict),
        Just(MemoryType::NormalTagged),
        (5..8_u8).prop_map(MemoryType::Index),
    ];
    let shareability = prop_oneof![
        Just(Shareability::None),
        Just(Shareability::Outer),
        Just(Shareability::Inner)
    ];
    (
        memory,
        shareability,
        permissions(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(memory, shareability, permissions, accessed, global)| Attributes {
                memory,
                shareability,
                permissions,
                accessed,
                global,
            },
        )
}

fn change() -> impl Strategy<Value = PermissionChange> {
    let maybe = || proptest::option::of(any::<bool>());
    (
        maybe(),
        maybe(),
        maybe(),
        maybe(),
        maybe(),
        proptest::option::of(any::<u8>()),
    )
        .prop_map(|bits| PermissionChange {
            writable: bits.0,
            user: bits.1,
            privileged_execute: bits.2,
            user_execute: bits.3,
            guarded: bits.4,
            software: bits.5,
        })
}

fn leaves() -> impl Strategy<Value = Leaves> {
    let any = (0..Level::ALL.len(), any::<bool>()).prop_map(|(level, contiguous)| Leaves {
        top: Level::ALL[level],
        contiguous,
    });
    prop_oneof![Just(Leaves::LARGEST), Just(Leaves::PAGES), any]
}

fn step() -> impl Strategy<Value = Step> {
    let holes = || prop_oneof![Just(Holes::Refuse), Just(Holes::Skip)];
    let map = (
        distance(true),
        distance(false),
        0..12_usize,
        0..6_usize,
        attributes(),
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
    let piece = || (distance(false), distance(false), attributes(), leaves());
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
        2 => (distance(true), distance(false)).prop_map(|(at, length)| Step::Unmap { at, length }),
        2 => (distance(true), distance(false), change(), holes()).prop_map(
            |(at, length, change, holes)| Step::Protect { at, length, change, holes }
        ),
        1 => any::<usize>().prop_map(Step::UnmapLeaf),
        1 => (any::<usize>(), change()).prop_map(|(which, change)| {
            Step::ProtectLeaf(which, change)
        }),
        1 => (distance(true), distance(false)).prop_map(|(at, length)| Step::Visit { at, length }),
    ]
}

/// A physical address that agrees with `offset` modulo `align`, of several kinds: low, across
/// 2^48, high, and across 2^50, where the formats hold them.
fn output(arch: &Arch, offset: u64, align: u64, choice: usize) -> u64 {
    let top = 1_u64 << arch.pa_bits;
    let align = align.min(top / 4);
    let base = match choice {
        0 => 0,
        1 => align,
        2 => (1 << 48) - align,
        3 => top - 2 * align,
        4 => (1 << 50) - align,
        _ => (3 << 50) + align,
    };
    let base = if base + 2 * align > top { align } else { base };
    base / align * align + offset % align
}

/// Shortens what would become too many leaves.
fn shorten(arch: &Arch, offset: u64, output: u64, bytes: u64, leaves: Leaves) -> u64 {
    let distance = output.wrapping_sub(offset);
    let largest = (arch.start_level()..=3)
        .find(|&level| {
            level >= leaves.top.number()
                && arch.leaf_allowed(level)
                && distance.is_multiple_of(arch.entry_bytes(level))
        })
        .unwrap_or(3);
    let edges = 2 * arch.entries() as u64;
    let most = MOST_LEAVES.max(if cfg!(miri) { 0 } else { edges });
    if bytes / arch.entry_bytes(largest) > most {
        most * arch.page()
    } else if cfg!(miri) && largest < 3 && bytes > MOST_LEAVES * arch.page() {
        // Under Miri the odd ends of a block mapping alone would take minutes.
        bytes / arch.entry_bytes(largest) * arch.entry_bytes(largest)
    } else {
        bytes
    }
}

/// What decoding gives of attributes that were encoded: the rest has no place in a descriptor.
fn as_decoded(geometry: &Geometry, mut attributes: Attributes) -> Attributes {
    attributes.permissions.software &= 0b1111;
    if geometry.format() == OutputFormat::Lpa2 {
        attributes.shareability = Shareability::Inner;
    }
    if !geometry.regime().has_user() {
        attributes.permissions.user = false;
        attributes.permissions.user_execute = false;
        attributes.global = true;
    }
    attributes
}

fn check_query<P: Page>(bench: &Bench<P>, offset: u64) {
    let address = bench.reference.address(offset);
    let found = bench.tables.query(address);
    let Some(expected) = bench.reference.at(offset) else {
        assert_eq!(found, None, "{address} should not be mapped");
        return;
    };
    let found = found.unwrap_or_else(|| panic!("{address} should be mapped"));
    let leaf = expected.leaf;
    assert_eq!(found.output.0, leaf.output + (offset - leaf.offset));
    assert_eq!(found.start, bench.reference.address(leaf.offset));
    assert_eq!(found.bytes, leaf.bytes);
    assert_eq!(found.level.number(), leaf.level);
    assert_eq!(found.contiguous, expected.group.is_some());
    let attributes = as_decoded(bench.tables.geometry(), expected.attributes);
    assert_eq!(found.attributes, attributes);
}

/// Visits a range and compares with what the independent reader saw.
fn check_visit<P: Page>(bench: &Bench<P>, offset: u64, bytes: u64) {
    let start = bench.reference.address(offset);
    let mut found = Vec::new();
    let answer = bench.tables.visit(start, bytes, |entry| {
        assert_eq!(
            bench.host.word(entry.table.0, entry.index),
            entry.descriptor.0
        );
        found.push((
            entry.start.0,
            entry.level.number(),
            entry.bytes,
            entry.kind,
            entry.output.0,
        ));
        true
    });
    if offset >= bench.arch.span() || bytes > bench.arch.span() - offset {
        assert!(answer.is_err() && found.is_empty());
        return;
    }
    assert_eq!(answer, Ok(()));
    let inside = |at: u64, size: u64| bytes > 0 && at < offset + bytes && at + size > offset;
    let leaves = bench
        .tree
        .leaves
        .iter()
        .filter(|l| inside(l.offset, l.bytes));
    let leaves = leaves.map(|l| (l.offset, l.level, l.bytes, Kind::Leaf, l.output));
    let tables = bench.tree.tables.iter().skip(1);
    let tables = tables.filter(|t| inside(t.offset, t.span));
    let tables = tables.map(|t| (t.offset, t.level - 1, t.span, Kind::Table, t.address));
    let mut expected: Vec<_> = leaves.chain(tables).collect();
    expected.sort_by_key(|entry| (entry.0, entry.1));
    for entry in &mut expected {
        entry.0 = bench.arch.address(entry.0);
    }
    assert_eq!(found, expected);
    // Saying no leaves out what is below a table: then only the root's entries are met.
    let root = bench.arch.start_level();
    expected.retain(|entry| entry.1 == root);
    found.clear();
    let pruned = bench.tables.visit(start, bytes, |entry| {
        found.push((
            entry.start.0,
            entry.level.number(),
            entry.bytes,
            entry.kind,
            entry.output.0,
        ));
        false
    });
    assert_eq!((pruned, found), (Ok(()), expected));
}

/// Visits everything in runs, and compares what they stand for with the leaves there are.
fn check_runs<P: Page>(bench: &Bench<P>) {
    let mut found = Vec::new();
    let mut longest = 0;
    bench.tables.visit_runs(|entry| {
        if entry.kind == Kind::Leaf {
            longest = longest.max(entry.count);
            for number in 0..entry.count as u64 {
                let at = entry.start.0.wrapping_add(number * entry.bytes);
                let output = entry.output.0 + number * entry.bytes;
                let attributes = Attributes::decode(entry.descriptor, bench.tables.geometry());
                found.push((at, entry.level.number(), output, attributes));
            }
        } else {
            assert_eq!(entry.count, 1, "tables are no runs");
        }
        true
    });
    let geometry = bench.tables.geometry();
    let expected: Vec<_> = bench
        .reference
        .mapped
        .values()
        .map(|mapped| {
            let leaf = mapped.leaf;
            let attributes = as_decoded(geometry, mapped.attributes);
            (
                bench.arch.address(leaf.offset),
                leaf.level,
                leaf.output,
                attributes,
            )
        })
        .collect();
    assert_eq!(found, expected, "runs");
    // A contiguous group in one table is always one run.
    let grouped = bench
        .tree
        .leaves
        .iter()
        .find(|leaf| leaf.word >> 52 & 1 == 1);
    if let Some(leaf) = grouped {
        assert!(longest as u64 >= bench.arch.contiguous(leaf.level).min(16));
    }
}

fn run<P: Page>(geometry: &Geometry, setting: Setting, runs: Runs, steps: &[Step]) {
    let mut bench = Bench::<P>::new(geometry, setting);
    bench.host.set_runs(runs);
    let arch = bench.arch;
    let nth = |bench: &Bench<P>, which: usize| {
        let count = bench.reference.mapped.len();
        let mapped = bench.reference.mapped.values().nth(which % count.max(1))?;
        Some(
            mapped
                .group
                .unwrap_or((mapped.leaf.offset, mapped.leaf.bytes)),
        )
    };
    for step in steps {
        let mut at = 0;
        // What the operations answer is compared inside; whether they succeed does not matter.
        match step {
            Step::Map {
                at: place,
                length,
                agree,
                output: choice,
                attributes,
                leaves,
            } => {
                at = place.bytes(&arch);
                let units = units(&arch);
                let output = output(&arch, at, units[agree % units.len()], *choice);
                let bytes = shorten(&arch, at, output, length.bytes(&arch), *leaves);
                let _ = bench.map(at, output, bytes, *attributes, *leaves);
            }
            Step::Pieces {
                at: place,
                pieces,
                agree,
                output: choice,
            } => {
                at = place.bytes(&arch);
                let units = units(&arch);
                let mut next = at;
                let mut list = Vec::new();
                for (gap, length, attributes, leaves) in pieces {
                    // Often they touch, so that tables have several pieces in them.
                    if gap.count > 1 {
                        next = next.wrapping_add(gap.bytes(&arch));
                    }
                    let output = output(&arch, next, units[agree % units.len()], *choice);
                    let bytes = shorten(&arch, next, output, length.bytes(&arch), *leaves);
                    let bytes = bytes / 2 / arch.page() * arch.page();
                    list.push(bench.piece(next, output, bytes, *attributes, *leaves));
                    next = next.wrapping_add(bytes);
                }
                let _ = bench.map_pieces(&list);
            }
            Step::Unmap { at: place, length } => {
                at = place.bytes(&arch);
                let _ = bench.unmap(at, length.bytes(&arch));
            }
            Step::Protect {
                at: place,
                length,
                change,
                holes,
            } => {
                at = place.bytes(&arch);
                let _ = bench.protect(at, length.bytes(&arch), *change, *holes);
            }
            Step::UnmapLeaf(which) => {
                if let Some((first, bytes)) = nth(&bench, *which) {
                    at = first;
                    bench.unmap(first, bytes).unwrap();
                }
            }
            Step::ProtectLeaf(which, change) => {
                if let Some((first, bytes)) = nth(&bench, *which) {
                    at = first;
                    bench.protect(first, bytes, *change, Holes::Refuse).unwrap();
                }
            }
            Step::Visit { at: place, length } => {
                at = place.bytes(&arch);
                check_visit(&bench, at, length.bytes(&arch));
            }
        }
        let page = arch.page();
        for offset in [at, at.wrapping_sub(1), at + page + 8] {
            if offset < arch.span() {
                check_query(&bench, offset);
            }
        }
        let count = bench.tree.leaves.len();
        for leaf in bench.tree.leaves.iter().step_by(count / 8 + 1) {
            check_query(&bench, leaf.offset);
            check_query(&bench, leaf.offset + leaf.bytes - 1);
        }
    }
    check_runs(&bench);
    // Everything goes, and only the root is left.
    bench.unmap(0, arch.span()).unwrap();
    assert_eq!(bench.host.given_out(), 1, "tables leaked");
}

/// One case, for the page size of its geometry.
struct Case<'a> {
    geometry: Geometry,
    setting: Setting,
    runs: Runs,
    steps: &'a [Step],
}

impl Dispatch for Case<'_> {
    type Output = ();
    fn run<P: Page>(self) {
        run::<P>(&self.geometry, self.setting, self.runs, self.steps);
    }
}

fn run_on(geometry: &Geometry, setting: Setting, runs: Runs, steps: &[Step]) {
    geometry.page_size().dispatch(Case {
        geometry: *geometry,
        setting,
        runs,
        steps,
    });
}

fn settings() -> impl Strategy<Value = (Setting, usize, Runs)> {
    let runs = prop_oneof![Just(Runs::Long), Just(Runs::Scattered), Just(Runs::Short)];
    (
        any::<(bool, bool, bool, bool)>(),
        proptest::option::of(any::<u16>()),
        0..5_usize,
        runs,
    )
        .prop_map(|((live, range, level_hint, repeat), asid, memory, runs)| {
            let setting = Setting {
                live,
                range,
                level_hint,
                repeat,
                asid,
                ..Setting::PRIVATE
            };
            (setting, memory, runs)
        })
}

/// Where the tables are: at zero, low, across 2^48, across 2^50, or high, if the format can say.
fn table_memory(arch: &Arch, setting: Setting, choice: usize) -> u64 {
    let few = arch.page() * 4;
    let first = match choice {
        0 => 0,
        1 => 0x4000_0000,
        2 => (1 << 48) - few,
        3 => (1 << 50) - few,
        _ => (3 << 50) + (1 << 48),
    };
    if first + setting.pages as u64 * arch.page() > 1 << arch.pa_bits {
        0x4000_0000
    } else {
        first
    }
}

fn property(size: PageSize) -> impl Strategy<Value = (Geometry, Setting, Runs, Vec<Step>)> {
    let mut shapes = shape::all();
    shapes.retain(|geometry| geometry.page_size() == size);
    (
        proptest::sample::select(shapes),
        settings(),
        proptest::collection::vec(step(), 1..STEPS),
    )
        .prop_map(|(geometry, (mut setting, memory, runs), steps)| {
            setting.first = table_memory(&Arch::of(&geometry), setting, memory);
            (geometry, setting, runs, steps)
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sequences_with_4k_pages((geometry, setting, runs, steps) in property(PageSize::K4)) {
        run_on(&geometry, setting, runs, &steps);
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "tables of 2048 entries take Miri minutes; 4K runs the same code"
    )]
    fn sequences_with_16k_pages((geometry, setting, runs, steps) in property(PageSize::K16)) {
        run_on(&geometry, setting, runs, &steps);
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "tables of 8192 entries take Miri minutes; 4K runs the same code"
    )]
    fn sequences_with_64k_pages((geometry, setting, runs, steps) in property(PageSize::K64)) {
        run_on(&geometry, setting, runs, &steps);
    }
}
