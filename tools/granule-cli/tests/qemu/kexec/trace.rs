//! The trace of a kernel that leaves, as `granule check` sees it: to the switch of the MMU.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::check::{self, CheckOptions};
use granule_cli::{Outcome, Request};
use granule_testing::text::assert_contains;

use crate::kexec::machine::{NEXT, archive, ends, machine};

const STRICT: CheckOptions = CheckOptions::STRICT;

/// The events of a kernel that leaves with these words on its command line; checked, and clean.
fn traced(request: &Request, copy: &str, words: &str) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let request = Request {
        trace: Some(file.path().to_owned()),
        append: Some(words.into()),
        ..request.clone()
    };
    // The next kernel keeps off the records, and makes none.
    let lines = format!("load {NEXT}{copy} --append granule.kexec=digest\nexec\n");
    let ran = ends(&request, archive(&lines), Outcome::Ok);
    ran.has("trace.complete", true);
    let text = std::fs::read_to_string(file.path()).unwrap();
    let checked = check::check(text.as_bytes(), &STRICT, &mut |_| ()).unwrap();
    assert_eq!(checked.violations, 0, "{}", ran.console);
    text.lines().map(str::to_owned).collect()
}

/// From the first write of TCR behind all others' on, without operands.
fn end_of(events: &[String]) -> Vec<String> {
    let is = |line: &&String, what: &str| line.contains(what);
    let off = events
        .iter()
        .rposition(|line| is(&line, "sctlr_el1"))
        .unwrap();
    let written: Vec<usize> = events[..off]
        .iter()
        .enumerate()
        .filter(|(_, line)| is(line, "tcr_el1"))
        .map(|(index, _)| index)
        .collect();
    let [.., first, _, _, _, _] = *written else {
        panic!("{events:?}");
    };
    let words = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let known = words
            .iter()
            .take(3)
            .filter(|it| !it.starts_with("0x") && **it != "cpu0");
        known.copied().collect::<Vec<_>>().join(" ")
    };
    events[first..].iter().map(words).collect()
}

const TO_ITS_TABLES: [&str; 19] = [
    "msr tcr_el1",
    "isb",
    "msr ttbr0_el1",
    "msr tcr_el1",
    "isb",
    "tlbi vmalle1",
    "dsb nsh",
    "isb",
    "msr tcr_el1",
    "isb",
    "msr tcr_el1",
    "isb",
    "tlbi vmalle1",
    "dsb nsh",
    "isb",
    "msr ttbr1_el1",
    "isb",
    "msr tcr_el1",
    "isb",
];
const OFF: [&str; 9] = [
    "dsb sy",
    "ic iallu",
    "dsb nsh",
    "isb",
    "msr sctlr_el1",
    "isb",
    "tlbi vmalle1",
    "dsb nsh",
    "isb",
];

#[test]
fn leaving_for_another_kernel_breaks_no_rule() {
    for (size, cpus, cpu, el) in [
        (K4, 1, "max", 1),
        (K16, 4, "max", 2),
        (K64, 2, "cortex-a72", 2),
    ] {
        let request = machine(size, cpus).cpu(cpu).el(el);
        let events = traced(&request, " --copy", "");
        let end = end_of(&events);
        let (tables, rest) = end.split_at(TO_ITS_TABLES.len());
        assert_eq!(tables, TO_ITS_TABLES, "{end:?}");
        let off = rest.iter().position(|line| line == "dsb sy").unwrap();
        let (copied, off) = rest.split_at(off);
        // Image and tree, stored and cleaned, with what is behind the image's bytes.
        assert_eq!(copied, ["data", "dc cvac", "data", "dc cvac"], "{rest:?}");
        let back: &[&str] = if cpu == "max" {
            &[]
        } else {
            &["msr sctlr_el2", "isb"]
        };
        assert_eq!(off, [&OFF, back].concat(), "{rest:?}");
    }
}

#[test]
fn past_the_caches_too() {
    for size in [K4, K64] {
        let events = traced(&machine(size, 2), " --copy", "granule.kexec=uncached");
        let end = end_of(&events).join(",");
        assert_contains(&end, "dc civac");
        assert_contains(&end, "dmb sy,dc ivac");
        // In place, lines are only cleaned, when it is loaded.
        traced(&machine(size, 1), "", "granule.kexec=uncached");
    }
}

/// The events at the end of a trace whose removal is noticed, by their place in [`TO_ITS_TABLES`]
/// and behind it.
///
/// Between the linear maps: the walks switched off (EPD1), in effect before the TLBI, the TLBI, and the
/// wait for it. Each of the two cleans, and the one wait for both.
///
/// Not the way to the identity map, as no translation of the lower half is in a trace by which it
/// could be held; nor what comes behind the wait: those are held by what stands there, above.
const MISSED: [(usize, &str); 7] = [
    (10, "msr tcr_el1"),
    (11, "isb"),
    (12, "tlbi vmalle1"),
    (13, "dsb nsh"),
    (20, "dc cvac"),
    (22, "dc cvac"),
    (23, "dsb sy"),
];

/// Each step without which a CPU stays on old translations, or the next kernel reads what was before,
/// is missed when it is left out of a trace; so what is shown above is not shown of everything.
#[test]
fn a_missing_event_is_noticed() {
    for size in PageSize::ALL {
        let events = traced(&machine(size, 1), " --copy", "");
        let end = end_of(&events);
        let from = events.len() - end.len();
        let found: Vec<(usize, &str)> = (0..end.len())
            .filter(|index| violations_without(&events, from + index) > 0)
            .map(|index| (index, end[index].as_str()))
            .collect();
        assert_eq!(found, MISSED, "{size:?}: {end:?}");
    }
}

/// Violations that are found in a trace without one of its lines.
fn violations_without(events: &[String], index: usize) -> u64 {
    let mut without = events.to_vec();
    without.remove(index);
    let (header, _) = without[0].rsplit_once("events=").unwrap();
    without[0] = format!("{header}events={}", without.len() - 1);
    let text = without.join("\n") + "\n";
    let checked = check::check(text.as_bytes(), &STRICT, &mut |_| ());
    checked.unwrap().violations
}
