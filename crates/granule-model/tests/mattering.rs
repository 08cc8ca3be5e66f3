//! The model and the judge of `granule_testing::mattering` on one short trace: a kernel leaves a program by way
//! of an empty tree, and goes on under the program's ASID.

#![allow(clippy::unwrap_used, reason = "a test that goes on would hide it")]

use granule_model::trace::parse_line;
use granule_model::{Config, Event, Model};
use granule_testing::mattering::{Machine, matters};

/// Tables with one page each, at 0x1000 a program's and at 0x6000 that of the code that leaves, and an empty one
/// at 0x5000. 4K pages, 48 bits, TTBR0 alone, and the ASID in TTBR1.
const BEFORE: &str = "\
obtain cpu0 0x1000 0x9000
fill cpu0 0x1000 4608 0x0 0x0
store cpu0 0x1000 0x2003
store cpu0 0x2000 0x3003
store cpu0 0x3000 0x4003
store cpu0 0x4000 0x50000f43
store cpu0 0x6000 0x7003
store cpu0 0x7008 0x8003
store cpu0 0x8200 0x9003
store cpu0 0x9c30 0x48186783
dsb cpu0 sy
msr cpu0 mair_el1 0xff
msr cpu0 tcr_el1 0x5b5d03510
msr cpu0 ttbr1_el1 0x46000000000000
msr cpu0 ttbr0_el1 0x1000
isb cpu0
tlbi cpu0 vmalle1
dsb cpu0 nsh
isb cpu0
msr cpu0 sctlr_el1 0x1
isb cpu0
user cpu0
";

/// Leaves the program's tree and forgets it.
const LEAVES: &str = "\
msr cpu0 ttbr0_el1 0x5000
isb cpu0
dsb cpu0 nshst
tlbi cpu0 vmalle1
dsb cpu0 nsh
isb cpu0
";

const TO_THE_OTHER: &str = "msr cpu0 ttbr0_el1 0x6000\nisb cpu0\n";
const BACK: &str = "msr cpu0 ttbr0_el1 0x1000\nisb cpu0\nuser cpu0\n";

fn events(text: &str) -> Vec<(u32, Event)> {
    text.lines()
        .map(|line| parse_line(line).unwrap().unwrap())
        .collect()
}

/// The lines of [`LEAVES`] that the judge, and those that the model, finds missing before `after`.
fn missed(after: &str) -> [Vec<&'static str>; 2] {
    let (before, leaves) = (events(BEFORE), events(LEAVES));
    let mut machine = Machine::new(1);
    let mut whole = Model::new(Config::default());
    for (cpu, event) in &before {
        machine.apply(*cpu, event);
        whole.event(*cpu, *event).unwrap();
    }
    let reports = |events: &[(u32, Event)]| {
        let mut model = whole.clone();
        for (cpu, event) in events {
            model.event(*cpu, *event).unwrap();
        }
        !model.violations().is_empty()
    };
    let rest = [leaves, events(after)].concat();
    assert!(!reports(&rest), "the whole trace is good");
    let mut missed = [Vec::new(), Vec::new()];
    for (at, line) in LEAVES.lines().enumerate() {
        let (left_out, following) = (&rest[at], &rest[at + 1..]);
        if matters(&machine, left_out, following, false) {
            missed[0].push(line);
        }
        if reports(&[&rest[..at], following].concat()) {
            missed[1].push(line);
        }
        machine.apply(left_out.0, &left_out.1);
    }
    missed
}

#[test]
fn what_a_cpu_holds_of_a_tree_that_it_left_is_not_of_the_one_that_takes_its_place() {
    let needed = [
        "msr cpu0 ttbr0_el1 0x5000",
        "isb cpu0",
        "tlbi cpu0 vmalle1",
        "dsb cpu0 nsh",
    ];
    let [judge, model] = missed(TO_THE_OTHER);
    assert_eq!(judge, needed);
    assert_eq!(model, needed);
}

#[test]
fn an_empty_tree_takes_no_place() {
    let used = "assume-visible cpu0 0x0 0x1000 0x46\n";
    for after in [BACK.to_owned(), [used, BACK].concat()] {
        assert_eq!(missed(&after), [Vec::<&str>::new(), Vec::new()], "{after}");
    }
}
