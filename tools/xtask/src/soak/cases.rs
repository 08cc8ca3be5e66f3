//! The cases of a soak. A new case goes into [`all`]: a boot, or a program with the command that repeats
//! it.
//!
//! A case's name is its key in the state. The name contains everything that the case depends on
//! besides the files, the image and the seed.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::program::Program;
use crate::check::HARNESS;
use crate::fuzz::targets;
use crate::history::PARTS;
use crate::matrix::{self, kexec};

const MINUTE: Duration = Duration::from_secs(60);

/// Operations of the library on the model of the MMU.
const OPERATIONS: u64 = 1_200_000;
/// The factor over `make test`: cases of each property, schedules of each interleaving.
const TIMES: u32 = 10;
/// Child processes that make calls on each machine.
const HOSTILE_CHILDREN: u64 = 1_000;
/// Events of each kind taken out of each of four traces.
const REMOVALS: u64 = 100;
/// The time of each fuzz target.
const FUZZ_SECONDS: u64 = 60;

/// Changes of permissions for each page size.
const STRESS_CHANGES: u64 = 1_000_000;

/// Kernels that leave for others, on machines and with disks drawn by the seed.
const RANDOM_KEXEC: usize = 10;

/// The work of a case.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Program(Program),
    Boot(matrix::MatrixBoot),
    Kexec(kexec::KexecBoot),
}

/// One case of the soak.
#[derive(Clone, Debug)]
pub(crate) struct SoakCase {
    pub(crate) name: String,
    pub(crate) work: Work,
    /// The command that repeats it alone.
    pub(crate) typed: String,
    /// Whether it keeps more than one core busy, and so runs with no other case beside it.
    pub(crate) alone: bool,
    /// Its time on an idle machine with two cores, for the estimate of the time left.
    pub(crate) expected: Duration,
}

impl SoakCase {
    /// A program that keeps one core busy. It counts as hung long after its expected end, on a busy machine too.
    fn program(name: impl Into<String>, minutes: f32, mut program: Program) -> Self {
        let expected = MINUTE.mul_f32(minutes);
        program.limit = 60 * MINUTE + 15 * expected;
        Self {
            name: name.into(),
            typed: program.typed(),
            work: Work::Program(program),
            alone: false,
            expected,
        }
    }

    /// A program that keeps all cores busy.
    fn alone(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    /// A boot with these arguments, which keeps one core busy.
    fn boot(arguments: &impl std::fmt::Display, work: Work) -> Self {
        Self {
            name: format!("granule boot {arguments}"),
            typed: format!("cargo run -p granule-cli -- boot {arguments}"),
            work,
            alone: false,
            expected: Duration::from_millis(400),
        }
    }

    fn one_kernel(case: matrix::MatrixBoot) -> Self {
        Self::boot(&case, Work::Boot(case.clone()))
    }

    fn two_kernels(case: kexec::KexecBoot) -> Self {
        Self::boot(&case, Work::Kexec(case.clone()))
    }

    /// Its part of the machine's time: cases that do not run alone share it in pairs.
    pub(crate) fn share(&self) -> Duration {
        if self.alone {
            self.expected
        } else {
            self.expected / 2
        }
    }
}

/// All cases of which `make test-all` runs samples: the model's harness, the properties, the fuzz
/// targets, systems of others, the whole QEMU matrix, kernels that leave for others, and random
/// boots of both. Steps of `make test-all` that would draw nothing and last no longer here are not
/// cases: a repetition would add nothing.
pub(crate) fn all(seed: u64, random: usize) -> Result<Vec<SoakCase>> {
    let mut cases = vec![model(seed), properties(seed)];
    cases.extend(fuzz(seed)?);
    cases.extend(under_miri());
    cases.push(hostile_calls(seed));
    cases.push(sensitivity(seed));
    cases.extend(peers());
    cases.extend([instructions(), stress_in_real_time()]);
    cases.extend(stress(seed));
    let mut boots = matrix::full();
    boots.extend(matrix::random(seed, random));
    boots.sort();
    boots.dedup();
    cases.extend(boots.into_iter().map(SoakCase::one_kernel));
    let mut leaving = kexec::full();
    leaving.extend(kexec::random(seed, RANDOM_KEXEC));
    leaving.sort();
    leaving.dedup();
    cases.extend(leaving.into_iter().map(SoakCase::two_kernels));
    Ok(cases)
}

/// A run of `cargo`: its words, the variables, and whether it prints libtest's summaries.
fn cargo(words: &str, variables: &[(&'static str, String)], tests: bool) -> Program {
    Program {
        program: PathBuf::from("cargo"),
        arguments: words.split_whitespace().map(str::to_owned).collect(),
        variables: variables.to_vec(),
        tests,
        limit: Duration::ZERO,
    }
}

fn model(seed: u64) -> SoakCase {
    let variables = [
        ("GRANULE_HARNESS_SEED", seed.to_string()),
        ("GRANULE_HARNESS_OPERATIONS", OPERATIONS.to_string()),
    ];
    let words = format!("test -p granule-model --test harness -- --nocapture {HARNESS}");
    let name = format!("model harness, {OPERATIONS} operations");
    SoakCase::program(name, 17.0, cargo(&words, &variables, true)).alone()
}

/// The properties and interleavings of the host tests, with other draws than in `make test`.
fn properties(seed: u64) -> SoakCase {
    // Far from the seed of `packages::draws`.
    let drawn = (seed * 1_000_000).to_string();
    let variables = [
        ("PROPTEST_RNG_SEED", drawn.clone()),
        ("SHUTTLE_RANDOM_SEED", drawn),
        ("GRANULE_TIMES", TIMES.to_string()),
    ];
    let words = "test --no-fail-fast -p granule -p granule-boot -p granule-kexec -p granule-trace \
                 -p granule-model -p granule-kcore --all-features --lib --bins --tests";
    let name = format!("properties and interleavings, {TIMES} times as many cases");
    SoakCase::program(name, 4.0, cargo(words, &variables, true)).alone()
}

/// Each fuzz target, guided by coverage. Two run at a time.
fn fuzz(seed: u64) -> Result<Vec<SoakCase>> {
    let own = std::env::current_exe().context("xtask does not know where it is")?;
    let cases = targets()?.into_iter().map(|target| {
        let name = target.name;
        let words = format!("fuzz --seconds {FUZZ_SECONDS} {name}");
        let variables = [("GRANULE_FUZZ_SEED", seed.to_string())];
        let program = Program {
            program: own.clone(),
            ..cargo(&words, &variables, false)
        };
        let case = SoakCase::program(format!("fuzz {name}, {FUZZ_SECONDS} s"), 1.1, program);
        SoakCase {
            typed: format!("GRANULE_FUZZ_SEED={seed} cargo xtask {words}"),
            ..case
        }
    });
    Ok(cases.collect())
}

/// The integration tests under Miri, of which each run of CI has a part. Two run at a time.
fn under_miri() -> impl Iterator<Item = SoakCase> {
    (0..PARTS).map(|part| {
        let words = format!("xtask miri --part {part}");
        SoakCase::program(format!("Miri, part {part}"), 6.0, cargo(&words, &[], true))
    })
}

/// A test of kernels in QEMU, on the image and the programs that the soak built. Not alone: in a guest with more CPUs than
/// the host, a CPU waits in each TLBI for CPUs that the host does not run. Another guest uses that time.
fn guests(name: String, minutes: f32, test: &str, variables: [(&'static str, u64); 2]) -> SoakCase {
    let variables = variables.map(|(name, value)| (name, value.to_string()));
    let words = format!("test -p granule-cli --test qemu -- --nocapture {test}");
    SoakCase::program(name, minutes, cargo(&words, &variables, true))
}

/// System calls of every number with arguments of every kind, from EL0.
fn hostile_calls(seed: u64) -> SoakCase {
    let variables = [
        ("GRANULE_HOSTILE_SEED", seed * 1_000_000),
        ("GRANULE_HOSTILE_CHILDREN", HOSTILE_CHILDREN),
    ];
    let name = format!("hostile system calls, {HOSTILE_CHILDREN} children");
    guests(name, 5.0, "calls_of_every_number_with_anything", variables)
}

/// Events taken out of traces of boots, one at a time: the checker must notice those that matter.
fn sensitivity(seed: u64) -> SoakCase {
    let variables = [
        ("GRANULE_SENSITIVITY_SEED", seed),
        ("GRANULE_SENSITIVITY_REMOVALS", REMOVALS),
    ];
    let name = format!("sensitivity of the trace checker, {REMOVALS} removals of each kind");
    guests(
        name,
        2.0,
        "mattering_removals_from_traces_are_noticed",
        variables,
    )
}

/// The library's instructions in each kind of build.
fn instructions() -> SoakCase {
    let words = "xtask figures --check --only instructions";
    SoakCase::program("instructions of the library", 1.0, cargo(words, &[], false)).alone()
}

/// The tests that stress CPUs in real time, which `make test` leaves out.
fn stress_in_real_time() -> SoakCase {
    let words = "test -p granule-cli --test qemu -- --nocapture --ignored live::";
    SoakCase::program("stress in real time", 3.0, cargo(words, &[], true))
}

/// Changes of permissions beside other CPUs' accesses, a case for each page size.
fn stress(seed: u64) -> impl Iterator<Item = SoakCase> {
    ["4k", "16k", "64k"].into_iter().map(move |size| {
        let variables = [
            ("GRANULE_STRESS_CHANGES", STRESS_CHANGES),
            ("GRANULE_STRESS_SEED", seed),
        ];
        let name = format!("permissions, {STRESS_CHANGES} changes in {size} pages");
        guests(name, 12.0, &format!("stress::in_{size}_pages"), variables)
    })
}

/// Parts of `granule-peers` that run only on request: the name, the part, and the minutes. It fails
/// where nothing could be run.
const PEERS: [(&str, &str, f32); 14] = [
    // Debian's kernels on all machines, and systems other than Linux, under `granule watch`.
    ("watched systems, all machines", "watch-all", 7.0),
    // With each QEMU and each page size.
    ("QEMU's boards", "boards-all", 1.0),
    ("boots through firmware, all", "firmware-all", 10.0),
    // Every planted fault is found, and so is every removed event that matters in a recording.
    ("faults planted in Linux", "faults-all", 2.0),
    ("sensitivity in recordings of Linux", "sensitivity", 2.0),
    ("device trees", "trees", 1.0),
    ("boot disks", "disk", 2.0),
    ("page tables of Linux, and makedumpfile", "inspect", 4.0),
    ("TLBs that are replayed", "tlb", 1.0),
    ("Debian's shell", "shell", 3.0),
    ("kernels that leave for each other", "kexec", 3.0),
    ("benchmarks beside Linux", "bench", 3.0),
    ("kexec after EFI", "kexec-efi", 1.0),
    ("kernels that Linux leaves for", "from-linux", 1.0),
];

fn peers() -> impl Iterator<Item = SoakCase> {
    PEERS.into_iter().map(|(name, part, minutes)| {
        let words = format!("run --quiet --package granule-peers -- --only {part}");
        SoakCase::program(name, minutes, cargo(&words, &[], false)).alone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn everything_has_a_case_and_a_name_of_its_own() {
        let cases = all(1, 300).unwrap();
        let names: BTreeSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        let boots = matrix::full().into_iter().map(SoakCase::one_kernel);
        for case in boots {
            assert!(names.contains(case.name.as_str()));
        }
        let leaving = kexec::full()
            .into_iter()
            .chain(kexec::random(1, RANDOM_KEXEC));
        for case in leaving.map(SoakCase::two_kernels) {
            // The cases that `--only kexec` selects.
            assert!(names.contains(case.name.as_str()) && case.name.contains("kexec"));
        }
        assert!(cases.len() > matrix::full().len() + 290);
    }

    #[test]
    fn seeds_reach_every_program_that_draws() {
        let with = |seed| {
            let cases = all(seed, 0).unwrap();
            let typed = cases.into_iter().map(|case| case.typed);
            typed.filter(|text| text.contains("SEED=77")).count()
        };
        assert_eq!(with(77), targets().unwrap().len() + 4 + 3);
        assert_eq!(with(1), 0);
    }

    #[test]
    fn the_whole_is_planned_for_less_than_three_hours() {
        let total: Duration = all(1, 300).unwrap().iter().map(SoakCase::share).sum();
        assert!(total <= 180 * MINUTE, "{} min", total.as_secs() / 60);
    }
}
