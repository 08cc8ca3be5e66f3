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

use crate::machine::{Shared, Tap};
use crate::sequence::Run;
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::Page4K;
use granule::table::{Stage1, Stage2};
use granule_model::{Rule, Violation};
use scenes::Scene;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The name of a mistake.
struct Mistake(&'static str);

/// A mistake, and the sequence in which it is made.
struct Planted {
    name: &'static str,
    scene: Scene,
    plant: fn() -> Tap,
}

/// A planted mistake, and what the model must report of it.
struct Fault {
    planted: Planted,
    rule: Rule,
    /// A part of the report.
    text: &'static str,
}

const fn fault(name: &'static str) -> Mistake {
    Mistake(name)
}

impl Mistake {
    const fn planted(self, scene: Scene, plant: fn() -> Tap) -> Planted {
        let name = self.0;
        Planted { name, scene, plant }
    }
}

impl Planted {
    const fn breaks(self, rule: Rule, text: &'static str) -> Fault {
        let planted = self;
        Fault {
            planted,
            rule,
            text,
        }
    }
}

impl Fault {
    /// Plays the scene, and returns what the model then knows.
    fn play(&self, tap: Option<Tap>) -> Shared {
        (self.planted.scene)(tap)
    }

    fn play_planted(&self) -> Shared {
        self.play(Some((self.planted.plant)()))
    }

    /// Whether a violation is the one that must be reported.
    fn is_reported_by(&self, violation: &Violation) -> bool {
        violation.rule == self.rule && violation.to_string().contains(self.text)
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

#[test]
fn each_fault_is_reported_by_its_rule() {
    let mut wrong = Vec::new();
    for fault in faults() {
        let name = fault.planted.name;
        let world = fault.play(None);
        let (found, planted) = (
            world.borrow().model.violations().to_vec(),
            world.borrow().planted,
        );
        if !found.is_empty() || planted != 0 {
            wrong.push(format!("{name}: without the fault {found:#?}"));
        }
        let world = fault.play_planted();
        let (found, planted) = (
            world.borrow().model.violations().to_vec(),
            world.borrow().planted,
        );
        if planted == 0 {
            wrong.push(format!("{name}: nothing was planted"));
        }
        if !found.iter().any(|one| fault.is_reported_by(one)) {
            let (rule, text) = (fault.rule, fault.text);
            wrong.push(format!(
                "{name}: {rule:?} saying {text:?} expected, {found:#?}"
            ));
        }
    }
    let count = faults().count();
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn there_are_many_kinds() {
    let names: BTreeSet<&str> = faults().map(|fault| fault.planted.name).collect();
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
    let world = fault.play_planted();
    let world = world.borrow();
    let mut violations = world.model.violations().iter();
    let reported = violations.find(|one| fault.is_reported_by(one));
    let text = reported.map(|one| {
        let missed = one
            .missed
            .map(|(_, miss)| format!("; the TLBI did not help: {}", miss.text()));
        format!("a CPU {}{}", one.observation, missed.unwrap_or_default())
    });
    let text = text.unwrap_or_default();
    let (name, rule) = (fault.planted.name, fault.rule.name());
    format!("| {name} | `{rule}` | {text} |")
}

type TapKind = (&'static str, fn() -> Tap);

/// Faults that come in the middle of random operations.
const KINDS: [TapKind; 9] = [
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
    let combined: TapKind = ("no TLBI of what is combined", || {
        taps::drop_all(guests::is_combined)
    });
    let by_address: TapKind = ("no TLBI by intermediate physical address", || {
        taps::drop_all(guests::is_by_address)
    });
    for (name, plant) in KINDS.into_iter().chain([combined, by_address]) {
        finds::<Stage2>(Shape::kernel(40), name, plant);
        finds::<Stage2>(Shape::kernel(48), name, plant);
    }
}

#[test]
fn random_sequences_find_lost_updates_by_hardware() {
    let kinds: [TapKind; 2] = [
        ("loads and plain stores", || {
            leaves::by_load_and_store(taps::is_update)
        }),
        ("no TLBI", || taps::drop_all(taps::is_tlbi)),
    ];
    for va_bits in [40, 48] {
        let shape = Shape::kernel(va_bits).hardware(true);
        for (name, plant) in kinds {
            finds::<Stage1>(shape, name, plant);
            finds::<Stage2>(shape, name, plant);
        }
    }
}
