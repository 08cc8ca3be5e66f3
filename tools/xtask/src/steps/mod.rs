//! The steps of `cargo xtask test` and `cargo xtask check`: the work of each, and what it needs. Order, selection and
//! summary are in `ci`.

mod work;

use anyhow::Result;

use crate::nextest::{self, Selection};
use crate::packages::{KERNEL, USER};
use crate::results::Results;
use crate::{
    api, check, examples, figures, image, least_rust, miri, peers, report, run as three_boots,
};
use xtask::workspace::{KERNEL_TARGET, cargo, run};

pub(crate) use work::MANIFESTS;

/// The sets that a step is in: `make check`, `make test`, `.ci/run`.
pub(crate) const CHECK: u8 = 1;
pub(crate) const TEST: u8 = 2;
pub(crate) const ALL: u8 = 4;

/// A step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) sets: u8,
    /// The steps whose output it uses.
    pub(crate) needs: &'static [&'static str],
    /// The folder that cargo locks while it builds there.
    pub(crate) lock: Option<&'static str>,
    /// Whether its checks depend on real time.
    pub(crate) live: bool,
    /// Whether other steps cannot run if it fails.
    pub(crate) is_build: bool,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// Calls of cargo, one after the other.
    Cargo(&'static [&'static [&'static str]]),
    Call(fn() -> Result<()>),
    /// The part of how many.
    Tests(fn() -> Result<Selection>, Option<(u32, u32)>),
    /// Under Miri: each run's, or the part of ten.
    Miri(fn(u64) -> miri::Which),
    /// Debian's kernels and programs: what each run has, or the part of ten.
    Peers(fn(u64) -> Vec<String>),
}

const fn step(name: &'static str, what: &'static str, sets: u8, work: Work) -> Step {
    let (needs, lock) = (&[], None);
    Step {
        name,
        what,
        sets,
        needs,
        lock,
        live: false,
        is_build: false,
        work,
    }
}

impl Step {
    const fn needs(mut self, needs: &'static [&'static str]) -> Self {
        self.needs = needs;
        self
    }

    const fn locks(mut self, folder: &'static str) -> Self {
        self.lock = Some(folder);
        self
    }

    const fn builds(mut self, folder: &'static str) -> Self {
        self.is_build = true;
        self.locks(folder)
    }

    const fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Runs the step, or of a step of tests only those of the names.
    pub(crate) fn run(&self, only: &[String], part: u64) -> Results {
        let results = match &self.work {
            Work::Cargo(calls) => self.of(calls.iter().try_for_each(|words| run(cargo(words)))),
            Work::Call(work) => self.of(work()),
            Work::Miri(which) => self.of(miri::run(which(part))),
            Work::Tests(selection, share) => selection().and_then(|selection| {
                nextest::run(
                    &Selection {
                        share: *share,
                        ..selection
                    },
                    only,
                )
            }),
            Work::Peers(arguments) => peers::run(&arguments(part)),
        };
        results.unwrap_or_else(|error| Results::of(self.name, self.live, Err(error)))
    }

    /// Whether it has tests that can be repeated alone.
    pub(crate) fn has_tests(&self) -> bool {
        matches!(self.work, Work::Tests(..))
    }

    fn of(&self, result: Result<()>) -> Result<Results> {
        Ok(Results::of(self.name, self.live, result))
    }
}

/// The folders that cargo locks, by the kind of build.
const HOST: &str = "debug";
const GUEST: &str = "kernel";
/// The number of steps that tests in guests are dealt out to.
const GUESTS: u32 = 4;
/// The steps whose output guests boot.
const BOOTED: &[&str] = &["build", "image", "test-image", "fixed-images", "user"];

const fn guests(name: &'static str, part: u32) -> Step {
    let work = Work::Tests(work::tests_in_guests, Some((part, GUESTS)));
    step(
        name,
        "granule-cli's tests that boot guests, a part",
        TEST | ALL,
        work,
    )
    .needs(BOOTED)
}

/// All steps.
pub(crate) const STEPS: &[Step] = &[
    step(
        "fmt",
        "rustfmt agrees with every file",
        CHECK | TEST | ALL,
        Work::Cargo(&[&["fmt", "--all", "--", "--check"]]),
    ),
    step(
        "clippy",
        "no warning in the host crates",
        CHECK | TEST | ALL,
        Work::Cargo(&[&[
            // The kernel is only a line of text here: `clippy-kernel` has the rest.
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ]]),
    )
    .locks(HOST),
    step(
        "clippy-kernel",
        "no warning in the kernel and the programs that it starts",
        CHECK | TEST | ALL,
        Work::Cargo(&[
            &[
                "clippy",
                "-p",
                KERNEL,
                "--target",
                KERNEL_TARGET,
                "--",
                "-D",
                "warnings",
            ],
            // All but the program with a standard library, which this target does not have.
            &[
                "clippy",
                "-p",
                USER,
                "--lib",
                "--bin",
                "granule-user",
                "--bin",
                "granule-user-bench",
                "--bin",
                "granule-user-memory",
                "--bin",
                "granule-user-leave",
                "--bin",
                "granule-kexec",
                "--bin",
                "granule-pagesize",
                "--bin",
                "granule-probe",
                "--target",
                KERNEL_TARGET,
                "--",
                "-D",
                "warnings",
            ],
        ]),
    )
    .locks(HOST),
    step(
        "features",
        "the libraries with each feature alone and none",
        TEST | ALL,
        Work::Call(work::features),
    ),
    step(
        "doc",
        "documentation without a warning",
        TEST | ALL,
        Work::Call(work::doc),
    )
    .locks(HOST),
    step(
        "api",
        "the library's public interface is the listed one",
        TEST | ALL,
        Work::Call(api::check),
    ),
    step(
        "deny",
        "licences, sources and versions of every lock file",
        TEST | ALL,
        Work::Call(work::deny),
    ),
    step(
        "build",
        "the programs and tests of the host",
        TEST | ALL,
        Work::Call(work::build),
    )
    .builds(HOST),
    step(
        "image",
        "the kernel image and its MMU-off code",
        TEST | ALL,
        Work::Call(|| image::Build::For(None).build().map(drop)),
    )
    .builds(GUEST),
    step(
        "test-image",
        "the image with the hooks for tests",
        TEST | ALL,
        Work::Call(|| image::Build::Hooks.build().map(drop)),
    )
    .builds(GUEST),
    step(
        "fixed-images",
        "the images for one page size each, and one with a default",
        TEST | ALL,
        Work::Call(work::fixed_images),
    )
    .builds(GUEST),
    step(
        "user",
        "the user programs, and the probe with its code, all of it MMU-off",
        TEST | ALL,
        Work::Call(work::programs),
    )
    .builds(GUEST),
    step(
        "host-tests",
        "unit and integration tests",
        TEST | ALL,
        Work::Tests(work::tests_on_host, None),
    )
    .needs(&["build"]),
    step(
        "doc-tests",
        "the examples in documentation",
        TEST | ALL,
        Work::Call(work::doc_tests),
    )
    .needs(&["build"])
    .locks(HOST),
    guests("guests-1", 1),
    guests("guests-2", 2),
    guests("guests-3", 3),
    guests("guests-4", 4),
    step(
        "qemu-matrix",
        "a pairwise sample of the QEMU matrix",
        TEST | ALL,
        Work::Call(work::qemu_matrix),
    )
    .needs(&["build", "image", "test-image"]),
    step(
        "firmware-matrix",
        "a pairwise sample of the boots through firmware",
        TEST | ALL,
        Work::Call(work::firmware_matrix),
    )
    .needs(&["build", "image"]),
    step(
        "examples",
        "the programs in examples, booted with each page size",
        TEST | ALL,
        Work::Call(examples::check),
    ),
    step(
        "package",
        "the libraries package and build alone",
        TEST | ALL,
        Work::Call(work::package),
    ),
    step(
        "miri-build",
        "the libraries' tests for Miri",
        ALL,
        Work::Call(miri::build),
    )
    .builds("miri"),
    step(
        "miri-unit",
        "the libraries' unit tests under Miri",
        ALL,
        Work::Miri(|_| miri::Which::Unit),
    )
    .needs(&["miri-build"]),
    step(
        "miri-part",
        "a tenth of the libraries' integration tests under Miri",
        ALL,
        Work::Miri(miri::Which::Part),
    )
    .needs(&["build", "miri-build"]),
    step(
        "miri-doc",
        "the libraries' examples under Miri",
        ALL,
        Work::Call(miri::doc),
    )
    .needs(&["miri-build"]),
    step(
        "least-rust",
        "the libraries with the least Rust that they declare",
        ALL,
        Work::Call(least_rust::check),
    ),
    step(
        "report",
        "the page of `granule report` in headless Chromium: light, dark, printed",
        ALL,
        Work::Call(report::check),
    )
    .needs(&["build"]),
    step(
        "figures",
        "the stored results, those that are cheap to measure",
        ALL,
        Work::Call(figures::check_all),
    )
    .needs(BOOTED),
    step(
        "packages",
        "Debian's packages",
        ALL,
        Work::Call(peers::fetch),
    )
    .needs(&["build"]),
    step(
        "peers",
        "Debian's oldest kernel beside this one",
        ALL,
        Work::Peers(peers::always),
    )
    .needs(&["packages", "image", "user"])
    .live(),
    step(
        "peers-part",
        "the part of ten of what changes with Debian",
        ALL,
        Work::Peers(peers::part),
    )
    .needs(&["packages", "image", "user"])
    .live(),
    step(
        "unit-build",
        "unit tests, and the model's harness",
        CHECK,
        Work::Call(|| nextest::build(&check::TARGETS)),
    )
    .builds(HOST),
    step(
        "unit",
        "unit tests of what changed and of what depends on it",
        CHECK,
        Work::Tests(check::unit, None),
    )
    .needs(&["unit-build"]),
    step(
        "model",
        "the library on the model of the MMU, briefly",
        CHECK,
        Work::Tests(check::model, None),
    )
    .needs(&["unit-build"]),
    step(
        "boots",
        "one boot with each page size",
        CHECK,
        Work::Call(|| three_boots::run(&[])),
    )
    .needs(&["unit-build"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::{CLI, LIBRARIES, package_named};
    use xtask::workspace::{metadata, root};

    #[test]
    fn this_workspace_has_the_packages_the_steps_name() {
        let metadata = metadata().unwrap();
        for name in LIBRARIES.into_iter().chain([KERNEL, CLI, USER]) {
            package_named(&metadata, name).unwrap();
        }
        assert!(package_named(&metadata, "no-such-package").is_err());
        assert!(
            MANIFESTS
                .iter()
                .all(|it| root().join(it).with_file_name("Cargo.lock").is_file())
        );
    }

    #[test]
    fn names_are_unique_and_every_need_comes_before() {
        for (at, step) in STEPS.iter().enumerate() {
            let before = &STEPS[..at];
            assert!(
                before.iter().all(|it| it.name != step.name),
                "{}",
                step.name
            );
            for needed in step.needs {
                let needed = before.iter().find(|it| it.name == *needed);
                assert!(
                    needed.is_some_and(|it| it.is_build || it.name == "packages"),
                    "{}",
                    step.name
                );
            }
        }
        let parts = |name: &str| STEPS.iter().filter(|it| it.name.starts_with(name)).count();
        assert_eq!(parts("guests-"), GUESTS as usize);
    }
}
