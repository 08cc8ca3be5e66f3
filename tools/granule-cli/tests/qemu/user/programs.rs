//! The behaviour of programs: each test of the program for tests, on machines of every kind.

use granule_cli::{PageSize, Request};

use crate::user::machine::{machine, well};

const SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// One CPU and several, either controller, either level.
const KINDS: [(u32, u8, u8); 4] = [(1, 3, 2), (1, 2, 1), (4, 3, 1), (3, 2, 2)];

/// Every page size, each on two kinds of machine.
fn everywhere(words: &str, line: &str) {
    for (index, size) in SIZES.into_iter().enumerate() {
        for kind in [index, index + 2] {
            let (cpus, gic, el) = KINDS[kind % KINDS.len()];
            let request = Request {
                gic,
                el,
                ..machine(size, cpus)
            };
            well(&request, words, line);
        }
    }
}

#[test]
fn a_program_prints_hello_and_its_arguments() {
    for (size, bytes) in SIZES.into_iter().zip([4096, 16384, 65536]) {
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
                assert!(ran.prints(line), "no {line:?} in:\n{}", ran.console);
            }
            assert_eq!(ran.number("user.processes"), 1);
        }
    }
}

#[test]
fn children_are_made_and_waited_for() {
    everywhere("fork", "forked");
}

#[test]
fn writes_after_a_fork_are_seen_by_who_made_them() {
    everywhere("copies", "copied");
}

#[test]
fn many_processes_at_once() {
    everywhere("storm", "stormed");
}

#[test]
fn nobody_keeps_a_cpu_for_himself() {
    everywhere("preempt", "preempted");
}

#[test]
fn a_child_borrows_its_parent_s_memory() {
    everywhere("vfork", "lent");
}

#[test]
fn orphans_are_the_first_process_s() {
    everywhere("orphans", "orphaned");
}

/// On several CPUs: a signal meets a fork only from another one.
#[test]
fn nobody_outlives_a_signal_for_a_group_by_being_forked() {
    for size in SIZES {
        well(&machine(size, 4), "comets", "burnt out");
    }
}

#[test]
fn a_fork_that_a_signal_comes_upon_is_made_again() {
    for (size, cpus) in SIZES.into_iter().zip([4, 2, 1]) {
        well(&machine(size, cpus), "pelted", "pelted");
    }
}

#[test]
fn a_parent_that_waits_for_its_vfork_child_can_be_ended() {
    everywhere("lender", "ended");
}

#[test]
fn the_first_process_gets_orphans_that_have_ended() {
    everywhere("adopted", "adopted");
}

#[test]
fn all_cpus_run_programs() {
    for (size, gic, el) in [
        (PageSize::K4, 3, 2),
        (PageSize::K16, 2, 1),
        (PageSize::K64, 3, 1),
    ] {
        for cpus in [1, 2, 4] {
            let request = Request {
                gic,
                el,
                ..machine(size, cpus)
            };
            let line = format!("on {cpus} CPUs");
            well(&request, &format!("spread {}", 2 * cpus), &line);
        }
    }
}

#[test]
fn the_first_process_ends_as_soon_as_its_last_child_did() {
    everywhere("hasty", "hastened");
}

#[test]
fn areas_beside_each_other_have_each_their_own_rights() {
    everywhere("areas", "apart");
}

/// By default, and as the command line states.
#[test]
fn areas_are_limited_in_number() {
    everywhere("limit", "limited");
    for (size, cpus) in SIZES.into_iter().zip([1, 2, 1]) {
        let request = Request {
            append: Some("user_max_map_count=200".into()),
            ..machine(size, cpus)
        };
        well(&request, "limit 200", "limited");
    }
}

#[test]
fn registers_are_a_process_s_own() {
    everywhere("registers", "kept");
}

#[test]
fn memory_is_mapped_protected_and_given_back() {
    everywhere("memory", "mapped");
}

/// On CPUs that set access flag and dirty state themselves or not, and on some that change the
/// contiguous hint in place.
#[test]
fn pages_in_order_become_groups_and_are_pages_again_where_they_differ() {
    for (cpu, cpus) in [("neoverse-n1", 1), ("cortex-a72", 2), ("max", 2)] {
        for (size, group) in SIZES.into_iter().zip([64, 2048, 2048]) {
            if cpu == "cortex-a72" && size == PageSize::K16 {
                // It has no pages of that size.
                continue;
            }
            let request = Request {
                cpu: cpu.into(),
                ..machine(size, cpus)
            };
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

#[test]
fn the_heap_grows_and_shrinks() {
    everywhere("heap", "grown");
}

/// With and without hardware that sets access flag and dirty state, with 52 bits, on the smallest
/// space.
#[test]
fn every_kind_of_cpu() {
    for (cpu, size, va_bits) in [
        ("cortex-a53", PageSize::K4, 39),
        ("cortex-a72", PageSize::K64, 42),
        ("neoverse-n1", PageSize::K16, 36),
        ("max", PageSize::K4, 52),
        ("max", PageSize::K64, 52),
    ] {
        for words in ["copies", "memory"] {
            let request = Request {
                cpu: cpu.into(),
                va_bits: Some(va_bits),
                ..machine(size, 2)
            };
            let line = if words == "copies" {
                "copied"
            } else {
                "mapped"
            };
            let ran = well(&request, words, line);
            assert_eq!(ran.number("user.va_bits"), u64::from(va_bits.min(48)));
        }
    }
}

#[test]
fn free_pages_may_be_invalid() {
    for size in SIZES {
        let request = Request {
            append: Some("debug_pagealloc=on".into()),
            ..machine(size, 2)
        };
        well(&request, "copies", "copied");
    }
}
