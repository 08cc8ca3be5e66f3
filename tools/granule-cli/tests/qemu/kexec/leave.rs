//! The way out of a kernel: from each page size into each, on every kind of machine; tasks stand
//! still, CPUs go off, devices fall silent; and a refusal at the last moment leaves all as it was.

use granule_cli::Outcome;
use granule_cli::PageSize::{self, K4, K16, K64};

use test_case::test_case;

use crate::booted::Booted;
use crate::kexec::chain::{How, every_pair, goes_through, machine, program_does, records};
use crate::kexec::machine::{NEXT, archive, ends};

const fn how(copy: bool, uncached: bool) -> How {
    How { copy, uncached }
}

const IN_PLACE: How = how(false, false);
const COPIED: How = how(true, false);

/// All ways, each on one CPU or on four.
const EVERY_WAY: &[(How, u32)] = &[
    (IN_PLACE, 4),
    (COPIED, 1),
    (how(true, true), 4),
    (how(false, true), 1),
];
const TWO_WAYS: &[(How, u32)] = &[(COPIED, 4), (IN_PLACE, 1)];

// Where it goes back to EL2 through the vectors that stay there, again and again, the CPU has no 16K pages.
#[test_case(1, 3, "max", &EVERY_WAY[2..]; "at EL1 with a GIC of version 3")]
#[test_case(1, 2, "max", TWO_WAYS; "at EL1 with a GIC of version 2")]
#[test_case(2, 3, "neoverse-n1", EVERY_WAY; "at EL2 with VHE")]
#[test_case(2, 2, "max", TWO_WAYS; "at EL2 with every feature")]
#[test_case(2, 3, "cortex-a72", EVERY_WAY; "at EL2 without VHE")]
#[test_case(2, 2, "cortex-a72", TWO_WAYS; "at EL2 without VHE with a GIC of version 2")]
fn on(el: u8, gic: u8, cpu: &str, ways: &[(How, u32)]) {
    let lacks_16k = cpu == "cortex-a72";
    let sizes = if lacks_16k {
        &[K4, K64][..]
    } else {
        &PageSize::ALL
    };
    for (how, cpus) in ways.iter().copied() {
        let machine = machine(cpus, el, gic, cpu);
        let recorded = goes_through(&every_pair(sizes), &machine, how, "");
        let vhe = el == 2 && !lacks_16k;
        assert_eq!(recorded[0]["vhe"], vhe.to_string());
        assert_eq!(recorded[0]["entry_el"], el.to_string());
    }
}

#[test]
fn while_other_processes_run_fork_and_sleep() {
    // One that computes on the only CPU leaves it to nobody by itself, as nobody waits for it.
    for (cpus, size, others) in [(1, K4, 1), (1, K64, 10), (2, K4, 10), (4, K16, 10)] {
        let request = machine(cpus, 2, 3, "max").page_size(size);
        let ran = program_does(&request, &format!("kexec-busy {others} 0 0"), Outcome::Ok);
        let recorded = records(&ran);
        assert_eq!(recorded.len(), 2, "{}", ran.console);
        // All stay where they are from when they stood still.
        assert_eq!(recorded[0]["kexec.leaving.taken_up"], "0");
        ran.has("boots.1.kexec.from_page_size", size.bytes());
        assert_eq!(recorded[1]["cpus"], cpus.to_string());
    }
}

/// The lines of what was refused.
fn refused(ran: &Booted) -> Vec<&str> {
    let lines = ran.console.lines();
    let refused =
        lines.filter_map(|printed| printed.trim_end().strip_prefix("granule: kexec refused: "));
    refused.collect()
}

const ANOTHER: &str = "another process is loading a kernel, or leaving for one: try again";

/// The last check of the tables refuses: each request that reaches it gets this line.
const LOOKED_AT: &str = "the transitional tables do not map ";

/// Returns the numbers of the program's line with these words.
#[track_caller]
fn numbers<const N: usize>(ran: &Booted, words: [&str; N]) -> [usize; N] {
    let mut lines = ran.console.lines().map(|line| line.split_whitespace());
    let line = lines.find(|line| line.clone().next() == words.first().copied());
    let line: Vec<_> = line.unwrap_or_else(|| panic!("{}", ran.console)).collect();
    std::array::from_fn(|index| {
        assert_eq!(line[2 * index], words[index], "{line:?}");
        line[2 * index + 1].parse().unwrap()
    })
}

/// One leaves, or is verified, and no other comes between.
#[test]
fn of_several_requests_at_once_one_is_verified() {
    let mut all_busy = 0;
    for (cpus, size) in [(2, K4), (4, K64)] {
        let request = machine(cpus, 2, 3, "max")
            .page_size(size)
            .append("granule.test=kexec:loosen@1");
        let ran = program_does(&request, "kexec-crowd 4 15", Outcome::Ok);
        let [served, busy] = numbers(&ran, ["served", "busy"]);
        assert_eq!(served + busy, 4 * 15 + 1);
        let printed = refused(&ran);
        let looked = printed.iter().filter(|line| line.starts_with(LOOKED_AT));
        assert_eq!(looked.count(), served, "{}", ran.console);
        // Before the boot CPU gets a request.
        let another = printed.iter().filter(|line| **line == ANOTHER);
        assert_eq!(another.count(), busy, "{}", ran.console);
        ran.frames_came_back();
        all_busy += busy;
    }
    assert!(all_busy > 0, "no two requests ever came at once");
    // And if nothing is wrong, the next kernel begins once.
    let ran = program_does(&machine(4, 2, 3, "max"), "kexec-crowd 8 1", Outcome::Ok);
    assert_eq!(records(&ran).len(), 2, "{}", ran.console);
    assert!(
        refused(&ran).iter().all(|line| *line == ANOTHER),
        "{}",
        ran.console
    );
}

/// Checks a refusal at the last moment: the program gets the error, twice, and then processes run
/// on all CPUs as before.
#[track_caller]
fn stays(cpus: u32, gic: u8, test: &str, error: u32, line: &str) -> Booted {
    let request = machine(cpus, 2, gic, "max").append(format!("granule.test=kexec:{test}"));
    let words = format!("kexec-busy 9 {error} {cpus}");
    let ran = program_does(&request, &words, Outcome::Ok);
    ran.prints_line("stayed");
    let refused = refused(&ran);
    assert_eq!(refused.len(), 2, "{}", ran.console);
    for printed in refused {
        assert!(printed.contains(line), "{printed}");
    }
    ran.frames_came_back();
    ran
}

const EBUSY: u32 = 16;
const EINVAL: u32 = 22;

#[test]
fn a_cpu_that_does_not_go_off_keeps_all_as_it_was() {
    for gic in [2, 3] {
        let line = "CPU 3 (MPIDR 0x3) cannot be switched off: firmware refuses PSCI CPU_OFF";
        let ran = stays(4, gic, "stays@3", EBUSY, line);
        let again = "granule: switched off to leave, and started again: CPU 1, 2";
        let printed = ran
            .console
            .lines()
            .filter(|printed| printed.trim_end() == again);
        assert_eq!(printed.count(), 2, "{}", ran.console);
        // The first CPU: none is off yet.
        let ran = stays(3, gic, "stays@1", EBUSY, "CPU 1 (MPIDR 0x1)");
        ran.does_not_print("started again");
    }
}

#[test]
fn an_interrupt_that_does_not_fall_silent_keeps_all_as_it_was() {
    for (cpus, gic) in [(1, 3), (1, 2), (3, 2), (2, 3)] {
        stays(cpus, gic, "loud@27", EBUSY, "interrupt 27 stays enabled");
    }
}

#[test]
fn tables_that_map_something_else_are_not_relied_on() {
    let line = "the transitional tables map ";
    stays(2, 3, "map@1", EINVAL, line);
    let line = "the transitional tables do not map ";
    stays(1, 3, "loosen@1", EINVAL, line);
}

#[test]
fn nothing_loaded_is_nothing_to_leave_for() {
    for lines in ["exec\n".to_owned(), format!("load {NEXT}\nunload\nexec\n")] {
        let request = machine(2, 2, 3, "max");
        let ran = ends(&request, archive(&lines), Outcome::GuestExit);
        let refused =
            "granule: kexec refused: no next kernel is loaded: load one first (kexec load IMAGE)";
        ran.prints_line(refused);
    }
}

/// One that waits in this kernel's memory would run what is written there.
#[test]
fn a_cpu_that_is_parked_is_not_left_behind() {
    let request = machine(3, 2, 3, "max").append("arm64.fake_cpu=1:parange=0");
    let ran = program_does(&request, "kexec-busy 3 16 2", Outcome::Ok);
    ran.prints_line("stayed");
    let line = "granule: kexec refused: CPU 1 (MPIDR 0x1) cannot be switched off: it waits in this kernel's memory";
    ran.mentions(line);
}

/// A unit that the last kernel left on in the CPU is named, and off: the next kernel leaves nothing on for the third.
#[test]
fn what_was_left_on_in_the_cpu_is_turned_off() {
    let lines = ["the PMU", "a timer"];
    for el in [1, 2] {
        for left in [false, true] {
            let words = if left {
                "granule.test=kexec:left@1"
            } else {
                ""
            };
            let request = machine(1, el, 3, "max").append(words);
            let ran = program_does(&request, "kexec-busy 1 0 0", Outcome::Ok);
            for name in lines {
                let line = format!("granule: {name} was left on; turned off");
                let printed = ran
                    .console
                    .lines()
                    .filter(|printed| printed.trim_end() == line);
                assert_eq!(printed.count(), usize::from(left), "{}", ran.console);
            }
        }
    }
}
