//! The exact cost of making the map: TLBIs under an erratum, and counts of instructions. `bench::counts`
//! compares all other counts with the library's own.

use granule_cli::PageSize::{K4, K64};
use granule_cli::{LinearMap, Request};

use crate::kernel::machine::{GIB, ok, sized};

/// The errata that repeat TLBIs are of several CPUs: neoverse-n1 has one, and repeats none on its own.
#[test]
fn an_erratum_of_several_cpus_repeats_no_tlbi_of_one() {
    let [unaffected, affected] = ["cortex-a72", "neoverse-n1"]
        .map(|cpu| ok(&sized(K4).cpu(cpu).linear_map(LinearMap::Base)));
    assert_eq!(affected.texts("errata"), ["neoverse-n1-4193800"]);
    affected.has("linear_map.tlbi", unaffected.number("linear_map.tlbi"));
}

#[test]
fn instructions_are_counted_exactly() {
    for (cpu, el) in [
        ("neoverse-n1", 2),
        ("neoverse-n1", 1),
        ("cortex-a72", 2),
        ("max", 2),
    ] {
        for strategy in [LinearMap::Direct, LinearMap::Base] {
            let count = || {
                let kernel = ok(&Request {
                    cpu: cpu.into(),
                    el,
                    memory: GIB,
                    icount: true,
                    linear_map: Some(strategy),
                    // Pages on every CPU.
                    append: Some("arm64.bbm=0".into()),
                    ..sized(K4)
                });
                let stores = kernel.number("linear_map.descriptor_stores");
                (kernel.number("linear_map.instructions"), stores)
            };
            let (instructions, stores) = count();
            assert_eq!((instructions, stores), count(), "{cpu} EL{el} {strategy:?}");
            // Half an instruction an entry is the least, with stores in pairs. Base pays for
            // barriers and calls at each entry.
            let most = match strategy {
                LinearMap::Direct => stores * 2,
                _ => stores * 60,
            };
            assert!(
                (stores / 2..most).contains(&instructions),
                "{instructions} for {stores}"
            );
        }
    }
}

#[test]
fn instructions_are_not_recorded_unless_requested() {
    let kernel = ok(&sized(K64));
    assert!(kernel.json["linear_map"]["instructions"].is_null());
}

/// The phases of a boot are its whole: the same names for each page size, none twice, and the linear map's phase
/// contains what is counted of it. Without `--icount` they have times alone.
#[test]
fn the_phases_of_a_boot_are_its_whole() {
    const NAMES: [&str; 9] = [
        "mmu-off",
        "console",
        "memory",
        "linear-map",
        "self-check",
        "cpus",
        "pages",
        "record",
        "first-program",
    ];
    for (page_size, icount) in [(K4, true), (K64, true), (K64, false)] {
        let boot = || {
            ok(&Request {
                memory: GIB,
                icount,
                ..sized(page_size)
            })
        };
        let (kernel, again) = (boot(), boot());
        let phases = kernel.json["phases"].as_array().unwrap();
        let names: Vec<_> = phases
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, NAMES);
        let each = |unit: &str| {
            phases
                .iter()
                .map(|one| one[unit].as_u64())
                .collect::<Option<Vec<_>>>()
        };
        assert_eq!(each("instructions").is_some(), icount);
        let microseconds = each("microseconds").unwrap();
        let Some(instructions) = each("instructions") else {
            assert!(microseconds.iter().all(|one| *one > 0), "{microseconds:?}");
            continue;
        };
        assert_eq!(kernel.json["phases"], again.json["phases"]);
        // An instruction is a nanosecond there.
        let whole: u64 = instructions.iter().sum();
        assert_eq!(microseconds.iter().sum::<u64>(), whole / 1000);
        let (map, of_map) = (kernel.number("linear_map.instructions"), instructions[3]);
        assert!((map..map + 10_000).contains(&of_map), "{map} of {of_map}");
    }
}

/// Twice the range of the PMU's 32 bits and their overflow flag.
#[test]
fn more_instructions_than_the_counter_has_bits_are_counted_or_not_recorded() {
    let instructions = (1_u64 << 33) + (1 << 20);
    let boot = |cpu: &str, what: &str| {
        ok(&sized(K64)
            .cpu(cpu)
            .memory(GIB)
            .counted()
            .append(format!("granule.test={what}")))
    };
    // 32 bits with the virtual counter's help, and 64 bits.
    for cpu in ["neoverse-n1", "max"] {
        let console = boot(cpu, "count").boot.console_text();
        let line = format!("granule: a loop of {instructions}: counted ");
        let counted: u64 = console
            .lines()
            .find_map(|printed| printed.trim_end().strip_prefix(&line))
            .unwrap_or_else(|| panic!("{cpu}: {console}"))
            .parse()
            .unwrap();
        assert!(counted.abs_diff(instructions) <= 64, "{cpu}: {counted}");
    }
    boot("neoverse-n1", "count-alone").prints("not counted: the PMU's counter has 32 bits");
    boot("max", "count-alone").prints(": counted ");
}

mod live {
    use granule_cli::{Outcome, PageSize};

    use crate::kernel::machine::{ends, sized};

    #[test]
    fn a_count_that_cannot_be_had_is_refused() {
        // Without -icount the counters of QEMU's TCG do not count instructions.
        let kernel = ends(
            &sized(PageSize::K4).append("granule.count=instructions"),
            Outcome::Refused,
        );
        kernel.fails_with("cannot count instructions");
        kernel.fails_with("--icount");
    }
}
