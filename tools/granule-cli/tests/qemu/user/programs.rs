//! The behaviour of programs: each test of the program for tests, on machines of every kind.

use granule_cli::KaslrSeed;
use granule_cli::PageSize::{self, K4, K16, K64};
use test_case::test_case;

use crate::user::machine::{machine, machine_at, well};

/// One CPU and several, either controller, either level.
const KINDS: [(u32, u8, u8); 4] = [(1, 3, 2), (1, 2, 1), (4, 3, 1), (3, 2, 2)];

/// Every page size, each on two kinds of machine. The program's words, and its line when all is well.
#[test_case("fork", "forked"; "children are made and waited for")]
#[test_case("copies", "copied"; "writes after a fork are seen by who made them")]
#[test_case("storm", "stormed"; "many processes at once")]
#[test_case("preempt", "preempted"; "nobody keeps a CPU for himself")]
#[test_case("vfork", "lent"; "a child borrows its parent's memory")]
#[test_case("orphans", "orphaned"; "orphans are the first process's")]
#[test_case("lender", "ended"; "a parent that waits for its vfork child can be ended")]
#[test_case("adopted", "adopted"; "the first process gets orphans that have ended")]
#[test_case("hasty", "hastened"; "the first process ends as soon as its last child did")]
#[test_case("areas", "apart"; "areas beside each other have each their own rights")]
#[test_case("limit", "limited"; "areas are limited in number")]
#[test_case("registers", "kept"; "registers are a process's own")]
#[test_case("memory", "mapped"; "memory is mapped, protected and given back")]
#[test_case("heap", "grown"; "the heap grows and shrinks")]
fn everywhere(words: &str, line: &str) {
    for (index, size) in PageSize::ALL.into_iter().enumerate() {
        for kind in [index, index + 2] {
            let (cpus, gic, el) = KINDS[kind % KINDS.len()];
            let request = machine_at(size, cpus, el).gic(gic);
            well(&request, words, line);
        }
    }
}

/// The CPU has FEAT_DIT and FEAT_SSBS2.
#[test]
fn legal_bits_of_pstate_survive_a_signal() {
    let request = machine(K16, 1).cpu("max");
    well(&request, "pstate", "kept");
}

/// FEAT_RNG seeds, and so does `rng-seed`; a machine with neither says so, and getrandom returns EAGAIN (11).
#[test]
fn random_bytes_are_secret_or_refused() {
    for (cpu, seed, answer) in [
        ("max", KaslrSeed::Off, 0),
        ("cortex-a72", KaslrSeed::Random, 0),
        ("cortex-a72", KaslrSeed::Off, 11),
    ] {
        let request = machine(K4, 1).cpu(cpu).kaslr_seed(seed);
        let ran = well(&request, &format!("getrandom {answer}"), "drawn");
        let line = "granule: nothing seeds random numbers";
        assert_eq!(ran.console.contains(line), answer != 0, "{}", ran.console);
    }
}

#[test]
fn a_program_prints_hello_and_its_arguments() {
    for (size, bytes) in PageSize::ALL.into_iter().zip([4096, 16384, 65536]) {
        for cpus in [1, 2] {
            let ran = well(&machine(size, cpus), "hello you", "hello from process 1");
            for line in [
                "argument /init",
                "argument hello",
                "argument you",
                "path /init",
                &format!("page size {bytes}"),
                // Lines that only look like the kernel's are not taken for them.
                "@granul e outcome=panic",
                "@granul e end",
                "without a newline",
            ] {
                ran.prints_line(line);
            }
            ran.has("user.processes", 1);
        }
    }
}

/// On several CPUs: a signal meets a fork only from another one.
#[test]
fn nobody_outlives_a_signal_for_a_group_by_being_forked() {
    for size in PageSize::ALL {
        well(&machine(size, 4), "comets", "burnt out");
    }
}

#[test]
fn a_fork_that_a_signal_comes_upon_is_made_again() {
    for (size, cpus) in PageSize::ALL.into_iter().zip([4, 2, 1]) {
        well(&machine(size, cpus), "pelted", "pelted");
    }
}

#[test]
fn all_cpus_run_programs() {
    for (size, gic, el) in [(K4, 3, 2), (K16, 2, 1), (K64, 3, 1)] {
        for cpus in [1, 2, 4] {
            let request = machine_at(size, cpus, el).gic(gic);
            let line = format!("on {cpus} CPUs");
            well(&request, &format!("spread {}", 2 * cpus), &line);
        }
    }
}

#[test]
fn the_command_line_limits_areas_in_number() {
    for (size, cpus) in PageSize::ALL.into_iter().zip([1, 2, 1]) {
        let request = machine(size, cpus).append("user_max_map_count=200");
        well(&request, "limit 200", "limited");
    }
}

/// On CPUs that set access flag and dirty state themselves or not, and on some that change the
/// contiguous hint in place.
#[test]
fn pages_in_order_become_groups_and_are_pages_again_where_they_differ() {
    for (cpu, cpus) in [("neoverse-n1", 1), ("cortex-a72", 2), ("max", 2)] {
        for (size, group) in PageSize::ALL.into_iter().zip([64, 2048, 2048]) {
            if cpu == "cortex-a72" && size == K16 {
                // It has no pages of that size.
                continue;
            }
            let request = machine(size, cpus).cpu(cpu);
            let ran = well(&request, "groups", "grouped");
            let groups = 6 * 1024 / group;
            // A block of 2 MiB is the groups in it.
            let blocks = ran.number("user.blocks.mapped") * 2048 / group;
            let made = ran.number("user.groups.mapped") + ran.number("user.groups.folded");
            assert!(made + blocks >= groups, "{made} of {groups} groups, {cpu}");
            // By rights for one page, by a child's write, by the end of a hole.
            let cut = ran.number("user.groups.unfolded") + ran.number("user.blocks.split");
            assert!((3..20).contains(&cut), "{cut} cut, {cpu}");
            assert!(ran.number("user.pages.copied") >= 1);
            assert!(ran.number("user.pages.mapped") >= 6 << 20 >> size.bytes().ilog2());
        }
    }
}

/// With and without hardware that sets access flag and dirty state, with 52 bits, on the smallest
/// space.
#[test]
fn every_kind_of_cpu() {
    for (cpu, size, va_bits) in [
        ("cortex-a53", K4, 39),
        ("cortex-a72", K64, 42),
        ("neoverse-n1", K16, 36),
        ("max", K4, 52),
        ("max", K64, 52),
    ] {
        for (words, line) in [("copies", "copied"), ("memory", "mapped")] {
            let request = machine(size, 2).cpu(cpu).va_bits(va_bits);
            let ran = well(&request, words, line);
            ran.has("user.va_bits", va_bits.min(48));
        }
    }
}

#[test]
fn free_pages_may_be_invalid() {
    for size in PageSize::ALL {
        let request = machine(size, 2).append("debug_pagealloc=on");
        well(&request, "copies", "copied");
    }
}
