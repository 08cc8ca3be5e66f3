//! Random sequences of operations on every shape, compared with the reference after each step.

use crate::bench::{Bench, Setting};
use crate::reference::Mapped;
use crate::step::{Action, Step, step, units};
use core::ops::ControlFlow;
use granule::arch::{Dispatch, Geometry, Kind, Level, Page, PageSize};
use granule::table::{Leaves, Stage1, Stage2, TableError, Visit};
use granule_testing::cases::config;
use granule_testing::host::Runs;
use granule_testing::shape;
use granule_testing::stage::TestStage;
use granule_testing::walk::Arch;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Most leaf entries that one mapping makes, so that a case takes milliseconds (its ends may add
/// up to two tables' worth).
const MOST_LEAVES: u64 = if cfg!(miri) { 40 } else { 3000 };
const STEPS: usize = if cfg!(miri) { 4 } else { 14 };

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
                && distance % arch.entry_bytes(level) == 0
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

fn check_query<P: Page, S: TestStage>(bench: &Bench<P, S>, offset: u64) {
    let address = bench.reference.address(offset);
    let found = bench.tables.query(address);
    let expected = bench.reference.at(offset);
    let Some(expected) = expected.filter(|mapped| !mapped.present_invalid) else {
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
    let attributes = S::as_decoded(expected.attributes, &bench.arch);
    assert_eq!(found.attributes, attributes);
}

/// Visits a range and compares with what the independent reader saw.
fn check_visit<P: Page, S: TestStage>(bench: &Bench<P, S>, offset: u64, bytes: u64) {
    let start = bench.reference.address(offset);
    let mut found = Vec::new();
    let answer = bench.tables.visit(start, bytes, |entry| {
        assert_eq!(
            bench.host.word(entry.table.0, entry.index),
            entry.descriptor.0
        );
        found.push((
            S::address(entry.start).0,
            entry.level.number(),
            entry.bytes,
            entry.kind,
            entry.output.0,
        ));
        Visit::EVERYTHING
    });
    if offset >= bench.arch.span() || bytes > bench.arch.span() - offset {
        assert!(answer.is_err() && found.is_empty());
        return;
    }
    assert_eq!(answer, Ok(ControlFlow::Continue(())));
    let inside = |at: u64, size: u64| bytes > 0 && at < offset + bytes && at + size > offset;
    let leaves = bench
        .tree
        .leaves
        .iter()
        .filter(|l| inside(l.offset, l.bytes));
    let leaves = leaves.map(|l| (l.offset, l.level, l.bytes, Kind::Leaf, l.output));
    let present_invalid = bench.tree.present_invalid.iter();
    let present_invalid = present_invalid.filter(|l| inside(l.offset, l.bytes));
    let present_invalid =
        present_invalid.map(|l| (l.offset, l.level, l.bytes, Kind::PresentInvalid, l.output));
    let root = bench.arch.start_level();
    let tables = bench.tree.tables.iter().filter(|t| t.level > root);
    let tables = tables.filter(|t| inside(t.offset, t.span));
    let tables = tables.map(|t| (t.offset, t.level - 1, t.span, Kind::Table, t.address));
    let mut expected: Vec<_> = leaves.chain(present_invalid).chain(tables).collect();
    expected.sort_by_key(|entry| (entry.0, entry.1));
    for entry in &mut expected {
        entry.0 = bench.arch.address(entry.0);
    }
    assert_eq!(found, expected);
    check_early_end(bench, start, bytes, &found);
    // Skipping leaves out what is below a table: then only the root's entries are met.
    expected.retain(|entry| entry.1 == root);
    found.clear();
    let pruned = bench.tables.visit(start, bytes, |entry| {
        found.push((
            S::address(entry.start).0,
            entry.level.number(),
            entry.bytes,
            entry.kind,
            entry.output.0,
        ));
        ControlFlow::<(), _>::Continue(Visit::Skip)
    });
    let pruned = pruned.map(|flow| flow.is_continue());
    assert_eq!((pruned, found), (Ok(true), expected));
}

/// An entry as a visit showed it: start, level, bytes, kind, output.
type Seen = (u64, i32, u64, Kind, u64);

/// A visit that ends at its last entry but one returns that, and shows no other after it.
fn check_early_end<P: Page, S: TestStage>(
    bench: &Bench<P, S>,
    start: S::Input,
    bytes: u64,
    all: &[Seen],
) {
    let Some(end) = all.len().checked_sub(2) else {
        return;
    };
    let mut met = 0;
    let answer = bench.tables.visit(start, bytes, |entry| {
        met += 1;
        if met <= end {
            ControlFlow::Continue(Visit::Descend)
        } else {
            ControlFlow::Break((S::address(entry.start).0, entry.level.number()))
        }
    });
    let last = (all[end].0, all[end].1);
    assert_eq!((answer, met), (Ok(ControlFlow::Break(last)), end + 1));
}

/// Visits everything in runs, and compares what they stand for with the leaves there are.
fn check_runs<P: Page, S: TestStage>(bench: &Bench<P, S>) {
    let mut found = Vec::new();
    let mut longest = 0;
    bench.tables.visit_runs(|entry| {
        if entry.kind == Kind::Leaf {
            longest = longest.max(entry.count);
            for number in 0..entry.count as u64 {
                let at = S::address(entry.start).0.wrapping_add(number * entry.bytes);
                let output = entry.output.0 + number * entry.bytes;
                let attributes = S::decode(entry.descriptor, bench.tables.geometry());
                found.push((at, entry.level.number(), output, attributes));
            }
        } else {
            assert_eq!(entry.count, 1, "tables are not runs");
        }
        Visit::EVERYTHING
    });
    let expected: Vec<_> = bench
        .reference
        .mapped
        .values()
        .filter(|mapped| !mapped.present_invalid)
        .map(|mapped| {
            let leaf = mapped.leaf;
            let attributes = S::as_decoded(mapped.attributes, &bench.arch);
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

fn act<P: Page, S: TestStage>(
    bench: &mut Bench<P, S>,
    offset: u64,
    bytes: u64,
    action: Action<S>,
) -> Result<(), TableError> {
    match action {
        Action::Unmap => bench.unmap(offset, bytes),
        Action::Protect(change, holes) => bench.protect(offset, bytes, change, holes),
        Action::SetInvalid => bench.set_invalid(offset, bytes),
        Action::SetValid => bench.set_valid(offset, bytes),
        Action::Merge(leaves) => bench.merge(offset, bytes, leaves).map(|_| ()),
        Action::Modify(change, holes) => bench.modify(offset, bytes, change, holes),
        Action::Harvest(what) => bench.harvest(offset, bytes, what).map(|_| ()),
    }
}

fn run<P: Page, S: TestStage>(
    geometry: S::Geometry,
    setting: Setting,
    runs: Runs,
    steps: &[Step<S>],
) {
    let mut bench = Bench::<P, S>::of(geometry, setting);
    bench.host.set_runs(runs);
    let arch = bench.arch;
    // Any size of leaf or group is as likely as any other: most by far are pages.
    let nth = |bench: &Bench<P, S>, which: usize| {
        let mut sizes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (first, bytes) in bench.reference.mapped.values().map(Mapped::whole) {
            sizes.entry(bytes).or_default().push(first);
        }
        let (bytes, places) = sizes.iter().nth(which % sizes.len().max(1))?;
        Some((places[which / 7 % places.len()], *bytes))
    };
    for step in steps {
        let mut at = 0;
        // The answers of operations are compared inside; whether they succeed does not matter.
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
            Step::Range {
                at: place,
                length,
                action,
            } => {
                at = place.bytes(&arch);
                let _ = act(&mut bench, at, length.bytes(&arch), *action);
            }
            Step::Leaf(which, action) => {
                if let Some((first, bytes)) = nth(&bench, *which) {
                    at = first;
                    act(&mut bench, first, bytes, *action).unwrap();
                }
            }
            Step::Part(which, ends, action) => {
                if let Some((first, bytes)) = nth(&bench, *which) {
                    let pages = bytes / arch.page();
                    let [from, to] = [ends.0, ends.1].map(|end| {
                        // From the end as often as from the start.
                        let end = end.bytes(&arch) / arch.page() % (pages + 1);
                        first + end * arch.page()
                    });
                    // The end may lie in the next leaf.
                    at = from;
                    let to = if to > from { to } else { to + bytes };
                    let _ = act(&mut bench, from, to - from, *action);
                }
            }
            Step::Bbm(bbm) => bench.set_bbm(*bbm),
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
    let _ = bench.merge(0, arch.span(), Leaves::LARGEST);
    check_runs(&bench);
    for top in [Level::L2, Level::L3] {
        let contiguous = false;
        let _ = bench.limit_leaves(0, arch.span(), Leaves { top, contiguous });
    }
    // Everything goes, and only the root tables are left.
    bench.unmap(0, arch.span()).unwrap();
    assert_eq!(bench.host.given_out(), arch.root_tables(), "tables leaked");
}

/// One case, for the page size of its geometry.
struct RandomCase<'a, S: TestStage> {
    geometry: S::Geometry,
    setting: Setting,
    runs: Runs,
    steps: &'a [Step<S>],
}

impl<S: TestStage> Dispatch for RandomCase<'_, S> {
    type Output = ();
    fn run<P: Page>(self) {
        run::<P, S>(self.geometry, self.setting, self.runs, self.steps);
    }
}

fn run_on<S: TestStage>(geometry: S::Geometry, setting: Setting, runs: Runs, steps: &[Step<S>]) {
    let shape: Geometry = geometry.into();
    shape.page_size().dispatch(RandomCase {
        geometry,
        setting,
        runs,
        steps,
    });
}

fn settings() -> impl Strategy<Value = (Setting, usize, Runs)> {
    let runs = prop_oneof![Just(Runs::Long), Just(Runs::Scattered), Just(Runs::Short)];
    // Live more often than not, and the level that allows everything: there is most to go wrong.
    let live = proptest::bool::weighted(0.75);
    let bbm = prop_oneof![Just(0), Just(1), Just(2), Just(3), Just(3)];
    (
        (live, any::<[bool; 3]>(), any::<bool>()),
        bbm,
        proptest::option::of(any::<u16>()),
        0..5_usize,
        runs,
    )
        .prop_map(
            |((live, [range, level_hint, repeat], reserves), bbm, asid, memory, runs)| {
                let setting = Setting {
                    live,
                    range,
                    level_hint,
                    repeat,
                    asid,
                    bbm,
                    reserves,
                    ..Setting::PRIVATE
                };
                (setting, memory, runs)
            },
        )
}

/// Where the tables are: at zero, low, across 2^48, across 2^50, or high, if the format can encode it.
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

fn property<S: TestStage>(
    size: PageSize,
    mut shapes: Vec<S::Geometry>,
) -> impl Strategy<Value = (S::Geometry, Setting, Runs, Vec<Step<S>>)> {
    shapes.retain(|&geometry| geometry.into().page_size() == size);
    (
        proptest::sample::select(shapes),
        settings(),
        proptest::collection::vec(step::<S>(), 1..STEPS),
    )
        .prop_map(|(geometry, (mut setting, memory, runs), steps)| {
            setting.first = table_memory(&Arch::of(&geometry.into()), setting, memory);
            (geometry, setting, runs, steps)
        })
}

proptest! {
    #![proptest_config(config(80, 2))]

    #[test]
    fn sequences_with_4k_pages((geometry, setting, runs, steps) in property::<Stage1>(PageSize::K4, shape::all())) {
        run_on(geometry, setting, runs, &steps);
    }

    #[test]
    #[cfg_attr(miri, ignore = "2048 entries take minutes; 4K runs the same code")]
    fn sequences_with_16k_pages((geometry, setting, runs, steps) in property::<Stage1>(PageSize::K16, shape::all())) {
        run_on(geometry, setting, runs, &steps);
    }

    #[test]
    #[cfg_attr(miri, ignore = "8192 entries take minutes; 4K runs the same code")]
    fn sequences_with_64k_pages((geometry, setting, runs, steps) in property::<Stage1>(PageSize::K64, shape::all())) {
        run_on(geometry, setting, runs, &steps);
    }

    #[test]
    fn stage_2_sequences_with_4k_pages(
        (geometry, setting, runs, steps) in property::<Stage2>(PageSize::K4, shape::stage2())
    ) {
        run_on(geometry, setting, runs, &steps);
    }

    #[test]
    #[cfg_attr(miri, ignore = "2048 entries take minutes; 4K runs the same code")]
    fn stage_2_sequences_with_16k_pages(
        (geometry, setting, runs, steps) in property::<Stage2>(PageSize::K16, shape::stage2())
    ) {
        run_on(geometry, setting, runs, &steps);
    }

    #[test]
    #[cfg_attr(miri, ignore = "8192 entries take minutes; 4K runs the same code")]
    fn stage_2_sequences_with_64k_pages(
        (geometry, setting, runs, steps) in property::<Stage2>(PageSize::K64, shape::stage2())
    ) {
        run_on(geometry, setting, runs, &steps);
    }
}
