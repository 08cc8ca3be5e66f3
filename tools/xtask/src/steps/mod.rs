//! The steps of `cargo xtask test` and `cargo xtask check`: the work of each, and what it needs. Order, selection and
//! summary are in `ci`.

mod work;

use anyhow::Result;

use self::Work::{Call, Cargo, Miri, Peers, Tests};
use crate::nextest::{self, Selection};
use crate::packages::{self, in_fixed_guests, in_guests};
use crate::results::Results;
use crate::{
    api, boots, check, examples, figures, image, least_rust, miri, peers, published, report,
    run as three_boots, size,
};
use xtask::workspace::{cargo, run};

pub(crate) use work::MANIFESTS;

/// The sets that a step is in: `make check`, `make test`, `.ci/run`.
pub(crate) const CHECK: u8 = 1;
pub(crate) const TEST: u8 = 2;
pub(crate) const ALL: u8 = 4;

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) sets: u8,
    /// The steps whose output it uses.
    pub(crate) needs: &'static [&'static str],
    /// The folder that cargo locks while it builds there.
    pub(crate) lock: Option<&'static str>,
    /// Whether chance may fail it: it boots guests without `-icount`, downloads, or waits for a browser. A failure is
    /// repeated as that of a live test is.
    pub(crate) live: bool,
    /// The part of ten that has it, if not each has.
    pub(crate) part: Option<u64>,
    /// Whether other steps cannot run if it fails.
    pub(crate) is_build: bool,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// The words of a call of cargo.
    Cargo(&'static str),
    Call(fn() -> Result<()>),
    /// The part of how many.
    Tests(fn() -> Result<Selection>, Option<(u32, u32)>),
    /// Under Miri: each run's, or the part of ten.
    Miri(fn(u64) -> miri::Which),
    /// Debian's kernels and programs: what each run has, or the part of ten.
    Peers(fn(u64) -> Vec<String>),
}

const fn step(name: &'static str, sets: u8, work: Work, what: &'static str) -> Step {
    let (needs, lock) = (&[], None);
    Step {
        name,
        what,
        sets,
        needs,
        lock,
        live: false,
        part: None,
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

    const fn in_part(mut self, part: u64) -> Self {
        self.part = Some(part);
        self
    }

    const fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Runs the step, or of a step of tests only those of the names. Other steps run whole.
    pub(crate) fn run(&self, only: &[String], part: u64) -> Results {
        let results = match &self.work {
            Cargo(words) => self.of(run(cargo(&words.split(' ').collect::<Vec<_>>()))),
            Call(work) => self.of(work()),
            Miri(which) => self.of(miri::run(which(part))),
            Tests(filter, share) => filter().and_then(|filter| {
                let share = *share;
                nextest::run(&Selection { share, ..filter }, only)
            }),
            Peers(arguments) => peers::run(&arguments(part), only),
        };
        results.unwrap_or_else(|error| Results::of(self.name, self.live, Err(error)))
    }

    fn of(&self, result: Result<()>) -> Result<Results> {
        Ok(Results::of(self.name, self.live, result))
    }
}

/// The folders that cargo locks, by the kind of build.
const HOST: &str = "debug";
const GUEST: &str = "kernel";
/// The numbers of steps that tests on the host and those in guests are dealt out to.
const HOSTS: u32 = 2;
const GUESTS: u32 = 4;
/// The part that boots the images for one page size.
const FIXED: u64 = 0;
/// The steps whose output guests boot.
const BOOTED: &[&str] = &["build", "image", "test-image", "image-4k", "user"];

const fn on_host(name: &'static str, part: u32) -> Step {
    let work = Tests(|| Ok(packages::on_host().into()), Some((part, HOSTS)));
    let what = "unit and integration tests, a part";
    step(name, TEST | ALL, work, what).needs(&["build"])
}

const fn guests(name: &'static str, part: u32) -> Step {
    let others = || Ok(format!("{} - ({})", in_guests(), in_fixed_guests()).into());
    let work = Tests(others, Some((part, GUESTS)));
    let what = "granule-cli's tests that boot guests, a part";
    step(name, TEST | ALL, work, what).needs(BOOTED)
}

/// All steps: the name, the sets, the work, and a line about it.
#[rustfmt::skip]
pub(crate) const STEPS: &[Step] = &[
    step("fmt", CHECK | TEST | ALL, Cargo("fmt --all -- --check"), "rustfmt agrees with every file"),
    // The kernel is only a line of text here: `clippy-kernel` has the rest.
    step("clippy", CHECK | TEST | ALL,
        Cargo("clippy --workspace --all-targets --all-features -- -D warnings"),
        "no warning in the host crates").locks(HOST),
    step("clippy-kernel", CHECK | TEST | ALL, Call(work::clippy_kernel),
        "no warning in the kernel and the programs that it starts").locks(HOST),
    step("features", TEST | ALL, Call(work::features), "the libraries with each feature alone and none"),
    step("doc", TEST | ALL, Call(work::doc), "documentation without a warning").locks(HOST),
    step("api", TEST | ALL, Call(api::check), "the library's public interface is the listed one"),
    step("deny", TEST | ALL, Call(work::deny), "licences, sources and versions of every lock file"),
    step("build", TEST | ALL, Call(work::build), "the programs and tests of the host").builds(HOST),
    step("image", TEST | ALL, Call(|| image::Build::For(None).build().map(drop)),
        "the kernel image and its MMU-off code").builds(GUEST),
    step("test-image", TEST | ALL, Call(|| image::Build::Hooks.build().map(drop)),
        "the image with the hooks for tests").builds(GUEST),
    step("image-4k", TEST | ALL, Call(|| image::Build::For(Some(image::Fixed::K4)).build().map(drop)),
        "the image for 4K pages").builds(GUEST),
    step("fixed-images", ALL, Call(work::fixed_images),
        "the images for 16K and 64K pages, and one with a default").builds(GUEST).in_part(FIXED),
    step("user", TEST | ALL, Call(work::programs),
        "the user programs, and the probe with its code, all of it MMU-off").builds(GUEST),
    on_host("host-tests-1", 1),
    on_host("host-tests-2", 2),
    step("doc-tests", TEST | ALL, Call(work::doc_tests), "the examples in documentation")
        .needs(&["build"]).locks(HOST),
    guests("guests-1", 1),
    guests("guests-2", 2),
    guests("guests-3", 3),
    guests("guests-4", 4),
    step("guests-fixed", ALL, Tests(|| Ok(in_fixed_guests().into()), None),
        "granule-cli's tests that boot images for one page size, or one with a default")
        .needs(&["build", "image", "image-4k", "fixed-images", "user"]).in_part(FIXED),
    step("qemu-matrix", TEST | ALL, Call(boots::qemu_matrix), "a pairwise sample of the QEMU matrix")
        .needs(&["build", "image", "test-image"]).live(),
    step("firmware-matrix", TEST | ALL, Call(boots::through_firmware),
        "a pairwise sample of the boots through firmware").needs(&["build", "image"]).live(),
    step("published", TEST | ALL, Call(published::check),
        "the table of what was published, its cheap commands").needs(&["build", "image", "user"]).live(),
    step("size", TEST | ALL, Call(size::check), "the image for all page sizes over that for 4K")
        .needs(&["image", "image-4k"]),
    step("examples", TEST | ALL, Call(examples::check),
        "the programs in examples, booted with each page size").live(),
    step("package", TEST | ALL, Call(work::package), "the libraries package and build alone"),
    step("miri-build", ALL, Call(miri::build), "the libraries' tests for Miri").builds("miri"),
    step("miri-unit", ALL, Miri(|_| miri::Which::Unit), "the libraries' unit tests under Miri")
        .needs(&["miri-build"]),
    step("miri-part", ALL, Miri(miri::Which::Part),
        "a tenth of the libraries' integration tests under Miri").needs(&["build", "miri-build"]),
    step("miri-doc", ALL, Call(miri::doc), "the libraries' examples under Miri").needs(&["miri-build"]),
    step("least-rust", ALL, Call(least_rust::check),
        "the libraries with the least Rust that they declare").live(),
    step("report", ALL, Call(report::check),
        "the page of `granule report` in headless Chromium: light, dark, printed").needs(&["build"]).live(),
    step("figures", ALL, Call(figures::check_all), "the stored results, those that are cheap to measure")
        .needs(BOOTED),
    step("packages", ALL, Call(peers::fetch), "Debian's packages").needs(&["build"]).live(),
    step("peers", ALL, Peers(peers::always), "Debian's oldest kernel beside this one")
        .needs(&["packages", "image", "user"]).live(),
    step("peers-part", ALL, Peers(peers::part), "the part of ten of what changes with Debian")
        .needs(&["packages", "image", "user"]).live(),
    step("unit-build", CHECK, Call(|| nextest::build(&check::TARGETS)),
        "unit tests, and the model's harness").builds(HOST),
    step("unit", CHECK, Tests(check::unit, None),
        "unit tests of what changed and of what depends on it").needs(&["unit-build"]),
    step("model", CHECK, Tests(check::model, None), "the library on the model of the MMU, briefly")
        .needs(&["unit-build"]),
    step("boots", CHECK, Call(|| three_boots::run(&[])), "one boot with each page size")
        .needs(&["unit-build"]).live(),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::{CLI, KERNEL, LIBRARIES, USER, package_named};
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
        for all in [HOSTS, GUESTS] {
            let shares = STEPS.iter().filter_map(|it| match it.work {
                Tests(_, Some((part, of))) if of == all => Some(part),
                _ => None,
            });
            assert_eq!(shares.collect::<Vec<_>>(), (1..=all).collect::<Vec<_>>());
        }
    }
}
