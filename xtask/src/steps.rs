//! The steps of `cargo xtask test` and `cargo xtask check`: the work of each. Order, selection and summary
//! are in `ci`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::packages::{LIBRARIES, LIBRARY, draws, package_named, packages};
use crate::programs::{self, Program};
use crate::{
    api, boot, boots, examples, figures, image, least_rust, licences, matrix, miri, probe, report,
    user,
};
use xtask::pool;
use xtask::workspace::{
    KERNEL_TARGET, MUSL_TARGET, capture, cargo, metadata, root, run, show, target_dir,
};

/// A step: its name for `--only`, its purpose, and its function.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Whether only `.ci/run` runs it, and not `make test`.
    pub(crate) long: bool,
    pub(crate) run: fn() -> Result<()>,
}

const KERNEL: &str = "granule-kernel";
const CLI: &str = "granule-cli";
const TESTING: &str = "granule-testing";

/// Cheap steps first, so that a slip is reported early.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "rustfmt agrees with every file",
        long: false,
        run: fmt,
    },
    Step {
        name: "clippy",
        what: "no warning in the host crates",
        long: false,
        run: clippy,
    },
    Step {
        name: "clippy-kernel",
        what: "no warning in the kernel and the probe",
        long: false,
        run: clippy_kernel,
    },
    Step {
        name: "features",
        what: "the libraries with each feature alone and none",
        long: false,
        run: features,
    },
    Step {
        name: "doc",
        what: "documentation without a warning",
        long: false,
        run: doc,
    },
    Step {
        name: "api",
        what: "the library's public interface is the listed one",
        long: false,
        run: api::check,
    },
    Step {
        name: "host-tests",
        what: "unit, integration and doc tests",
        long: false,
        run: host_tests,
    },
    Step {
        name: "image",
        what: "the kernel image and its MMU-off code",
        long: false,
        run: build_image,
    },
    Step {
        name: "user",
        what: "the user programs",
        long: false,
        run: build_user,
    },
    Step {
        name: "probe",
        what: "the probe and its code, all of it MMU-off",
        long: false,
        run: build_probe,
    },
    Step {
        name: "qemu-tests",
        what: "granule-cli's tests that boot guests",
        long: false,
        run: qemu_tests,
    },
    Step {
        name: "qemu-matrix",
        what: "a pairwise sample of the QEMU matrix",
        long: false,
        run: qemu_matrix,
    },
    Step {
        name: "firmware-matrix",
        what: "a pairwise sample of the boots through firmware",
        long: false,
        run: firmware_matrix,
    },
    Step {
        name: "examples",
        what: "the programs in examples, booted with each page size",
        long: false,
        run: examples::check,
    },
    Step {
        name: "package",
        what: "the libraries package and build alone",
        long: false,
        run: package,
    },
    Step {
        name: "licences",
        what: "licences and sources of all dependencies",
        long: false,
        run: licences::check,
    },
    Step {
        name: "miri",
        what: "the libraries' tests under Miri",
        long: true,
        run: miri::run,
    },
    Step {
        name: "least-rust",
        what: "the libraries with the least Rust that they declare",
        long: true,
        run: least_rust::check,
    },
    Step {
        name: "report",
        what: "the page of `granule report` in headless Chromium: light, dark, printed",
        long: true,
        run: report::check,
    },
    Step {
        name: "figures",
        what: "the documents' figures, those that are cheap to measure",
        long: true,
        run: figures::check_all,
    },
    Step {
        name: "peers",
        what: "Debian's kernels and shell beside this kernel",
        long: true,
        run: peers,
    },
];

pub(crate) fn fmt() -> Result<()> {
    run(cargo(&["fmt", "--all", "--", "--check"]))
}

pub(crate) fn clippy() -> Result<()> {
    // The kernel is only a line of text here: `clippy_kernel` has the rest.
    let scope = ["--workspace", "--all-targets", "--all-features"];
    let mut command = cargo(&["clippy"]);
    command.args(scope).args(["--", "-D", "warnings"]);
    run(command)
}

pub(crate) fn clippy_kernel() -> Result<()> {
    run(cargo(&[
        "clippy",
        "-p",
        KERNEL,
        "-p",
        probe::PACKAGE,
        "--target",
        KERNEL_TARGET,
        "--",
        "-D",
        "warnings",
    ]))
}

/// The libraries run without std, so they are checked for the kernel's target; on the host for their users' tests.
fn features() -> Result<()> {
    let metadata = metadata()?;
    for library in LIBRARIES {
        for feature in feature_sets(package_named(&metadata, library)?) {
            for target in [&["--target", KERNEL_TARGET][..], &[]] {
                let mut command = cargo(&["check", "-p", library, "--no-default-features"]);
                command.args(target).arg(format!("--features={feature}"));
                println!("$ {}", show(&command));
                command.env("RUSTFLAGS", "-D warnings");
                // Other flags make everything anew; here the checks have a folder of their own.
                command.env("CARGO_TARGET_DIR", target_dir().join("features"));
                run(command)?;
            }
        }
    }
    Ok(())
}

/// The empty set, then each feature alone.
fn feature_sets(package: &Value) -> Vec<String> {
    let named = package["features"]
        .as_object()
        .into_iter()
        .flat_map(|f| f.keys());
    let named = named.filter(|name| *name != "default").cloned();
    std::iter::once(String::new()).chain(named).collect()
}

/// One call for each package, because the library and the program are both called `granule`, and cargo
/// warns if one call documents two things of one name. The libraries are documented for the kernel's target
/// too, where they have modules that the host does not.
fn doc() -> Result<()> {
    let metadata = metadata()?;
    let mut failures = Vec::new();
    for package in packages(&metadata)? {
        let name = package["name"]
            .as_str()
            .context("a package without a name")?;
        let document = |extra: &[&str]| {
            let mut command = cargo(&["doc", "--no-deps", "-p", name, "--all-features"]);
            command.args(extra).env("RUSTDOCFLAGS", "-D warnings");
            run(command)
        };
        let results = match name {
            LIBRARY => vec![
                document(&[]),
                document(&["--target", KERNEL_TARGET]),
                arm64_examples(),
            ],
            _ if LIBRARIES.contains(&name) => {
                vec![document(&[]), document(&["--target", KERNEL_TARGET])]
            }
            // No other crate links these; their documentation is for their developers.
            KERNEL | probe::PACKAGE => vec![document(&[
                "--document-private-items",
                "--target",
                KERNEL_TARGET,
            ])],
            _ => vec![document(&["--document-private-items"])],
        };
        failures.extend(results.into_iter().filter_map(Result::err));
    }
    all_of(failures)
}

/// The examples in the documentation of `granule::hw`, which the host does not have: compiled for arm64 and
/// not run. A target with a standard library is needed, for the test program around each.
fn arm64_examples() -> Result<()> {
    let mut command = cargo(&[
        "test",
        "-p",
        LIBRARY,
        "--doc",
        "--target",
        MUSL_TARGET,
        "src/hw",
    ]);
    // Cargo starts the program of all examples that can run on a host, to find that none is chosen.
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "true");
    let told = capture(command)?;
    let compiled = told
        .lines()
        .filter(|line| line.ends_with("- compile ... ok"));
    ensure!(
        compiled.count() >= 2,
        "the examples of granule::hw were not compiled:\n{told}"
    );
    Ok(())
}

/// One error from several, so that one run of a step reports all failures.
fn all_of(failures: Vec<anyhow::Error>) -> Result<()> {
    let lines: Vec<_> = failures.iter().map(|error| format!("{error:#}")).collect();
    ensure!(lines.is_empty(), "{}", lines.join("; "));
    Ok(())
}

/// All tests that boot no guest, and the examples in documentation.
fn host_tests() -> Result<()> {
    let programs = programs::choose(programs::build(&[])?, "tests for the host", runs_on_host)?;
    let draws: Vec<_> = draws().collect();
    let tests = programs::run(&programs, pool::parallel(), &[], &draws);
    let mut doc = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    doc.envs(draws);
    let examples = programs::run_command(doc).and_then(|sum| sum.result());
    all_of(
        [tests, examples]
            .into_iter()
            .filter_map(Result::err)
            .collect(),
    )
}

/// The kernel, the probe and programs for EL0 are tested in guests.
pub(crate) fn runs_on_host(program: &Program) -> bool {
    ![KERNEL, user::PACKAGE, probe::PACKAGE, TESTING].contains(&&*program.package)
        && !boots_guests(program)
}

/// The integration tests of granule-cli that are called `qemu`.
fn boots_guests(program: &Program) -> bool {
    program.package == CLI && program.kind == "test" && program.target == "qemu"
}

/// A separate program, with packages that no other step needs. Its last lines name its failed checks.
fn peers() -> Result<()> {
    run(cargo(&["run", "--quiet", "--package", "xtask-peers"]))
}

fn build_image() -> Result<()> {
    image::image(None).map(drop)
}

fn build_user() -> Result<()> {
    user::build()
}

fn build_probe() -> Result<()> {
    probe::build().map(drop)
}

fn qemu_tests() -> Result<()> {
    // The tests boot these files; a failed build leaves none. The image for all page sizes comes last, so
    // that its ELF file is the one that stays.
    for size in image::Fixed::ALL {
        image::image(Some(size))?;
    }
    image::test_image()?;
    image::image(None)?;
    user::build()?;
    probe::build()?;
    let programs = programs::choose(
        programs::build(&[])?,
        "tests that boot guests",
        boots_guests,
    )?;
    // A guest keeps a thread busy, so there are as many tests at a time as cores.
    let threads = format!("--test-threads={}", pool::parallel());
    programs::run(&programs, 1, &[&threads], &[])
}

/// Properties that tests prove of the test image must also hold for the shipped image: each is in part of the boots.
fn qemu_matrix() -> Result<()> {
    let granule = boot::build_cli()?;
    let images = [image::image(None)?, image::test_image()?];
    let cases = matrix::covering();
    let mut failed = 0;
    pool::run(
        cases.len(),
        pool::parallel(),
        || true,
        |at| boots::wrong(&cases[at].0, &granule, &images[usize::from(cases[at].1)]),
        |done| {
            let (case, test) = &cases[done.job];
            let option = if *test { " --test-image" } else { "" };
            match done.result {
                None => println!("ok ({:.1} s): {case}{option}", done.time.as_secs_f32()),
                Some(wrong) => {
                    failed += 1;
                    println!("FAILED: granule boot {case}{option}: {wrong}");
                }
            }
            true
        },
    );
    println!("qemu-matrix: {} boots run, {failed} failed", cases.len());
    ensure!(failed == 0, "{failed} of {} boots failed", cases.len());
    Ok(())
}

fn firmware_matrix() -> Result<()> {
    boots::through_firmware(&boot::build_cli()?, &image::image(None)?)
}

/// Packages the libraries without a warning, and builds each from the packages of its dependencies alone. The library
/// of page tables needs no other crate.
fn package() -> Result<()> {
    let metadata = metadata()?;
    let needs = package_named(&metadata, LIBRARY)?["dependencies"].as_array();
    let needs = needs
        .into_iter()
        .flatten()
        .find(|one| one["kind"].is_null());
    ensure!(
        needs.is_none(),
        "{LIBRARY} depends on {}: it must build without any other crate",
        needs.map_or(&Value::Null, |one| &one["name"])
    );
    // Cargo builds a packaged version once and for all, so what an earlier run built is not this one.
    let folder = tempfile::tempdir_in(target_dir()).context("cannot make a folder to build in")?;
    let mut command = cargo(&["package", "--all-features", "--target-dir"]);
    command.arg(folder.path());
    command.args(LIBRARIES.iter().flat_map(|library| ["-p", library]));
    let mut git = std::process::Command::new("git");
    git.args(["status", "--porcelain"]).current_dir(root());
    if !capture(git)?.trim().is_empty() {
        println!("the work tree has changes: packaging them too (--allow-dirty)");
        command.arg("--allow-dirty");
    }
    let text = show(&command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    eprint!("{told}");
    ensure!(
        output.status.success(),
        "`{text}` failed ({})",
        output.status
    );
    ensure!(
        !told.lines().any(|line| line.starts_with("warning")),
        "`{text}` warned"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn targets_and_features_are_read() {
        let package = json!({
            "features": {"default": [], "count": [], "std": []},
            "targets": [
                {"name": "check", "kind": ["test"]},
                {"name": "usage", "kind": ["test"]},
                {"name": "granule", "kind": ["lib"]},
            ],
        });
        assert_eq!(feature_sets(&package), ["", "count", "std"]);
        assert_eq!(
            crate::packages::targets(&package, "test"),
            ["check", "usage"]
        );
    }

    #[test]
    fn this_workspace_has_the_packages_the_steps_name() {
        let metadata = metadata().unwrap();
        for name in LIBRARIES
            .into_iter()
            .chain([KERNEL, CLI, TESTING, probe::PACKAGE])
        {
            package_named(&metadata, name).unwrap();
        }
        assert!(package_named(&metadata, "no-such-package").is_err());
    }

    #[test]
    fn step_names_are_unique() {
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
    }
}
