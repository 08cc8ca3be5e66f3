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
use crate::fuzz::{Target, targets};
use crate::history::PARTS;
use crate::matrix::{self, kexec};

const MINUTE: Duration = Duration::from_secs(60);

/// Operations of the library on the model of the MMU.
const OPERATIONS: u64 = 1_200_000;
/// The factor over `make test`: cases of each property, schedules of each interleaving.
const TIMES: u64 = 10;
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

/// Whether a program prints libtest's summaries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prints {
    Tests,
    Other,
}

impl SoakCase {
    /// A call of cargo that keeps one core busy. It counts as hung long after its expected end, on a busy machine too.
    fn cargo(
        name: impl Into<String>,
        minutes: f32,
        prints: Prints,
        words: &str,
        variables: &[(&'static str, u64)],
    ) -> Self {
        let expected = MINUTE.mul_f32(minutes);
        let variables = variables
            .iter()
            .map(|(name, value)| (*name, value.to_string()));
        let program = Program {
            program: PathBuf::from("cargo"),
            arguments: words.split_whitespace().map(str::to_owned).collect(),
            variables: variables.collect(),
            tests: prints == Prints::Tests,
            limit: 60 * MINUTE + 15 * expected,
        };
        Self {
            name: name.into(),
            typed: program.typed(),
            work: Work::Program(program),
            alone: false,
            expected,
        }
    }

    /// A test of kernels in QEMU, on the image and the programs that the soak built. Not alone: in a guest with more CPUs
    /// than the host, a CPU waits in each TLBI for CPUs that the host does not run. Another guest uses that time.
    fn guests(name: String, minutes: f32, test: &str, variables: [(&'static str, u64); 2]) -> Self {
        let words = format!("test -p granule-cli --test qemu -- --nocapture {test}");
        Self::cargo(name, minutes, Prints::Tests, &words, &variables)
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

    /// Its part of the machine's time: cases that do not run alone share it in pairs.
    pub(crate) fn share(&self) -> Duration {
        self.expected / if self.alone { 1 } else { 2 }
    }
}

/// All cases of which `make test-all` runs samples: the model's harness, the properties, the fuzz
/// targets, systems of others, the whole QEMU matrix, kernels that leave for others, and random
/// boots of both. Steps of `make test-all` that would draw nothing and last no longer here are not
/// cases: a repetition would add nothing.
pub(crate) fn all(seed: u64, random: usize) -> Result<Vec<SoakCase>> {
    let mut cases = programs(seed);
    cases.splice(2..2, fuzz(seed)?);
    let mut boots = matrix::full();
    boots.extend(matrix::random(seed, random));
    boots.sort();
    boots.dedup();
    cases.extend(
        boots
            .into_iter()
            .map(|it| SoakCase::boot(&it, Work::Boot(it.clone()))),
    );
    let mut leaving = kexec::full();
    leaving.extend(kexec::random(seed, RANDOM_KEXEC));
    leaving.sort();
    leaving.dedup();
    cases.extend(
        leaving
            .into_iter()
            .map(|it| SoakCase::boot(&it, Work::Kexec(it.clone()))),
    );
    Ok(cases)
}

/// The programs, but for the fuzz targets.
fn programs(seed: u64) -> Vec<SoakCase> {
    use Prints::{Other, Tests};
    // Far from the seed of `packages::draws`.
    let drawn = seed * 1_000_000;
    let mut cases = vec![
        SoakCase::cargo(
            format!("model harness, {OPERATIONS} operations"),
            17.0,
            Tests,
            &format!("test -p granule-model --test harness -- --nocapture {HARNESS}"),
            &[
                ("GRANULE_HARNESS_SEED", seed),
                ("GRANULE_HARNESS_OPERATIONS", OPERATIONS),
            ],
        )
        .alone(),
        SoakCase::cargo(
            format!("properties and interleavings, {TIMES} times as many cases"),
            4.0,
            Tests,
            "test --no-fail-fast -p granule -p granule-boot -p granule-kexec -p granule-trace \
             -p granule-model -p granule-kcore --all-features --lib --bins --tests",
            &[
                ("PROPTEST_RNG_SEED", drawn),
                ("SHUTTLE_RANDOM_SEED", drawn),
                ("GRANULE_TIMES", TIMES),
            ],
        )
        .alone(),
    ];
    // The integration tests under Miri, of which each run of CI has a part. Two run at a time.
    cases.extend((0..PARTS).map(|part| {
        let words = format!("xtask miri --part {part}");
        SoakCase::cargo(format!("Miri, part {part}"), 6.0, Tests, &words, &[])
    }));
    // The images for one page size, of which each run of CI but one in ten has that for 4K alone.
    let words = "xtask test --only guests-fixed";
    cases.push(SoakCase::cargo("images for one page size", 4.0, Other, words, &[]).alone());
    // System calls of every number with arguments of every kind, from EL0.
    cases.push(SoakCase::guests(
        format!("hostile system calls, {HOSTILE_CHILDREN} children"),
        5.0,
        "calls_of_every_number_with_anything",
        [
            ("GRANULE_HOSTILE_SEED", drawn),
            ("GRANULE_HOSTILE_CHILDREN", HOSTILE_CHILDREN),
        ],
    ));
    // Events taken out of traces of boots, one at a time: the checker must notice those that matter.
    cases.push(SoakCase::guests(
        format!("sensitivity of the trace checker, {REMOVALS} removals of each kind"),
        2.0,
        "mattering_removals_from_traces_are_noticed",
        [
            ("GRANULE_SENSITIVITY_SEED", seed),
            ("GRANULE_SENSITIVITY_REMOVALS", REMOVALS),
        ],
    ));
    cases.extend(PEERS.map(|(name, part, minutes)| {
        let words = format!("run --quiet --package granule-peers -- --only {part}");
        SoakCase::cargo(name, minutes, Other, &words, &[]).alone()
    }));
    // The library's instructions in each kind of build.
    let words = "xtask figures --check --only instructions";
    cases.push(SoakCase::cargo("instructions of the library", 1.0, Other, words, &[]).alone());
    // Counts that docs/published.json takes from stored results otherwise.
    let words = "xtask published --check --dear";
    cases.push(SoakCase::cargo("published counts", 16.0, Other, words, &[]).alone());
    // The tests that stress CPUs in real time, which `make test` leaves out.
    let words = "test -p granule-cli --test qemu -- --nocapture --ignored live::";
    cases.push(SoakCase::cargo("stress in real time", 3.0, Tests, words, &[]).alone());
    // Changes of permissions beside other CPUs' accesses.
    cases.extend(["4k", "16k", "64k"].map(|size| {
        SoakCase::guests(
            format!("permissions, {STRESS_CHANGES} changes in {size} pages"),
            12.0,
            &format!("stress::in_{size}_pages"),
            [
                ("GRANULE_STRESS_CHANGES", STRESS_CHANGES),
                ("GRANULE_STRESS_SEED", seed),
            ],
        )
    }));
    cases
}

/// Each fuzz target, guided by coverage. Two run at a time.
fn fuzz(seed: u64) -> Result<Vec<SoakCase>> {
    let own = std::env::current_exe().context("xtask does not know where it is")?;
    let cases = targets()?.into_iter().map(|Target { name, .. }| {
        let words = format!("fuzz --seconds {FUZZ_SECONDS} {name}");
        let variables = [("GRANULE_FUZZ_SEED", seed)];
        let name = format!("fuzz {name}, {FUZZ_SECONDS} s");
        let mut case = SoakCase::cargo(name, 1.1, Prints::Other, &words, &variables);
        case.typed = format!("GRANULE_FUZZ_SEED={seed} cargo xtask {words}");
        if let Work::Program(program) = &mut case.work {
            program.program = own.clone();
        }
        case
    });
    Ok(cases.collect())
}

/// Parts of `granule-peers` that run only on request: the name, the part, and the minutes. It fails
/// where nothing could be run.
pub(crate) const PEERS: [(&str, &str, f32); 15] = [
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
    ("crashes into Linux", "crash", 1.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn everything_has_a_case_and_a_name_of_its_own() {
        let cases = all(1, 300).unwrap();
        let names: BTreeSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        let drawn = kexec::random(1, RANDOM_KEXEC);
        for boot in kexec::full().into_iter().chain(drawn) {
            // The cases that `--only kexec` selects.
            let name = format!("granule boot {boot}");
            assert!(names.contains(name.as_str()) && name.contains("kexec"));
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
