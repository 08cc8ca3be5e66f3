//! The checks can fail: faults planted in what the library and kernels do, each of which the
//! model must report, with the right rule.

mod code;
mod guests;
mod hints;
mod kernel_scenes;
mod kexec;
mod leaves;
mod page_sizes;
mod registers;
mod scenes;
mod sizes;
mod space_scenes;
mod spaces;
mod tables;
mod taps;

use crate::machine::Tap;
use crate::sequence::Run;
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::Page4K;
use granule::table::{Stage1, Stage2};
use granule_model::{Rule, Violation};
use scenes::Scene;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One kind.
struct Fault {
    /// The mistake.
    name: &'static str,
    /// The sequence in which it is made.
    scene: Scene,
    plant: fn() -> Tap,
    /// A rule that must be reported.
    rule: Rule,
    /// A part of the expected report.
    text: &'static str,
}

const fn fault(
    name: &'static str,
    scene: Scene,
    plant: fn() -> Tap,
    rule: Rule,
    text: &'static str,
) -> Fault {
    Fault {
        name,
        scene,
        plant,
        rule,
        text,
    }
}

/// All kinds, in the order of the document.
fn faults() -> impl Iterator<Item = &'static Fault> {
    let tables = tables::FAULTS
        .iter()
        .chain(sizes::FAULTS)
        .chain(leaves::FAULTS);
    let tables = tables.chain(spaces::FAULTS).chain(code::FAULTS);
    let tables = tables.chain(registers::FAULTS).chain(page_sizes::FAULTS);
    tables.chain(guests::FAULTS).chain(kexec::FAULTS)
}

/// Plays a scene. Returns rules with the text of the violation, and how many events a fault
/// changed.
fn play(fault: &Fault, tap: Option<Tap>) -> (Vec<(Rule, String)>, u64) {
    let result = (fault.scene)(tap);
    let world = result.world.borrow();
    let found = world.model.violations().iter();
    (
        found.map(|one| (one.rule, one.to_string())).collect(),
        world.planted,
    )
}

#[test]
fn each_fault_is_reported_by_its_rule() {
    let mut wrong = Vec::new();
    for fault in faults() {
        let (found, planted) = play(fault, None);
        if !found.is_empty() || planted != 0 {
            wrong.push(format!("{}: without the fault {found:#?}", fault.name));
        }
        let (found, planted) = play(fault, Some((fault.plant)()));
        if planted == 0 {
            wrong.push(format!("{}: nothing was planted", fault.name));
        }
        let reported =
            |(rule, text): &(Rule, String)| *rule == fault.rule && text.contains(fault.text);
        if !found.iter().any(reported) {
            wrong.push(format!(
                "{}: {:?} saying {:?} expected, {found:#?}",
                fault.name, fault.rule, fault.text
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        faults().count(),
        wrong.join("\n")
    );
}

#[test]
fn there_are_many_kinds() {
    let names: BTreeSet<&str> = faults().map(|fault| fault.name).collect();
    assert_eq!(names.len(), faults().count(), "two kinds of one name");
    assert!(names.len() >= 25);
    let rules: BTreeSet<Rule> = faults().map(|fault| fault.rule).collect();
    assert!(rules.len() >= 20, "{rules:?}");
}

/// The table in the documentation is this list.
#[test]
fn the_document_has_this_list() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/planted-faults.md");
    let text = match std::fs::read_to_string(document) {
        Ok(text) => text,
        Err(error) => panic!("{document}: {error}"),
    };
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| What is planted"))
        .collect();
    let expected: Vec<String> = faults().map(row).collect();
    assert_eq!(
        rows,
        expected,
        "the rows should be:\n{}",
        expected.join("\n")
    );
}

/// The event numbers and addresses in a violation change with every change of the library's
/// order; its text does not.
fn row(fault: &Fault) -> String {
    let result = (fault.scene)(Some((fault.plant)()));
    let world = result.world.borrow();
    let reported =
        |one: &&Violation| one.rule == fault.rule && one.to_string().contains(fault.text);
    let text = world.model.violations().iter().find(reported).map(|one| {
        let missed = one
            .missed
            .map(|(_, miss)| format!("; the TLBI did not help: {}", miss.text()));
        format!("a CPU {}{}", one.observation, missed.unwrap_or_default())
    });
    let text = text.unwrap_or_default();
    format!("| {} | `{}` | {text} |", fault.name, fault.rule.name())
}

type Kind = (&'static str, fn() -> Tap);

/// Faults that come in the middle of random operations.
const KINDS: [Kind; 9] = [
    ("no TLBI", || taps::drop_all(taps::is_tlbi)),
    ("no DSB ISHST", || taps::drop_all(taps::is_ishst)),
    ("no DSB ISH", || taps::drop_all(taps::is_ish)),
    ("no ISB", || taps::drop_all(taps::is_isb)),
    ("local TLBIs", || taps::tlbis(taps::local)),
    ("plain links", || taps::replace(taps::is_link, taps::plain)),
    ("one entry less is changed", || {
        taps::replace(taps::is_update, taps::one_less)
    }),
    ("one leaf less is filled", || {
        taps::replace(taps::is_leaf_fill, taps::one_less)
    }),
    ("pages in a freed table", leaves::into_freed_table),
];

/// Plays random operations with a fault, which must find something: a violation, or an address with
/// another result than the reference's.
fn finds<S: Staged>(shape: Shape, name: &str, plant: fn() -> Tap) {
    let mut run = Run::<Page4K, S>::of(shape, 7);
    for _ in 0..10 {
        run.step();
    }
    run.plant(plant());
    let found = (0..200).find_map(|_| {
        let step = AssertUnwindSafe(|| run.step());
        catch_unwind(step).err()
    });
    let text = found
        .as_ref()
        .and_then(|what| what.downcast_ref::<String>());
    let text = text.map_or("nothing", String::as_str);
    let known = [
        ": CPU ",
        "finds [",
        "CPU ",
        "query of",
        "bytes visited",
        "is lost",
    ];
    assert!(
        known.iter().any(|known| text.contains(known)),
        "{name} on {shape:?} was not found: {text}"
    );
    assert!(run.planted() > 0, "{name}: nothing was planted");
}

#[test]
fn random_sequences_find_faults() {
    for (name, plant) in KINDS {
        finds::<Stage1>(Shape::kernel(48), name, plant);
        let asid = Some(9);
        finds::<Stage1>(
            Shape {
                asid,
                ..Shape::kernel(39)
            },
            name,
            plant,
        );
    }
}

#[test]
fn random_sequences_find_faults_of_a_guest() {
    let combined: Kind = ("no TLBI of what is combined", || {
        taps::drop_all(guests::is_combined)
    });
    let by_address: Kind = ("no TLBI by intermediate physical address", || {
        taps::drop_all(guests::is_by_address)
    });
    for (name, plant) in KINDS.into_iter().chain([combined, by_address]) {
        finds::<Stage2>(Shape::kernel(40), name, plant);
        finds::<Stage2>(Shape::kernel(48), name, plant);
    }
}

#[test]
fn random_sequences_find_lost_updates_by_hardware() {
    let kinds: [Kind; 2] = [
        ("loads and plain stores", || {
            leaves::by_load_and_store(taps::is_update)
        }),
        ("no TLBI", || taps::drop_all(taps::is_tlbi)),
    ];
    for va_bits in [40, 48] {
        let shape = Shape {
            hardware: true,
            ..Shape::kernel(va_bits)
        };
        for (name, plant) in kinds {
            finds::<Stage1>(shape, name, plant);
            finds::<Stage2>(shape, name, plant);
        }
    }
}
