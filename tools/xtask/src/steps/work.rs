//! The work of steps that is more than a call of cargo or of one module.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::packages::{CLI, KERNEL, LIBRARIES, LIBRARY, USER, draws, package_named};
use crate::programs::run_command;
use crate::{cargo_tools, image, nextest, probe, user};
use xtask::workspace::{
    KERNEL_TARGET, MUSL_TARGET, capture, cargo, git, metadata, root, run, show, target_dir,
};

/// The programs too, so that no step that runs one builds it.
pub(super) fn build() -> Result<()> {
    nextest::build(&[])?;
    run(cargo(&["build", "--workspace", "--bins"]))
}

/// Lints the kernel, and of its programs all but the one with a standard library, which this target does not have.
pub(super) fn clippy_kernel() -> Result<()> {
    let programs = "--lib --bin granule-user --bin granule-user-bench --bin granule-user-memory \
                    --bin granule-user-module --bin granule-user-leave --bin granule-kexec --bin granule-pagesize \
                    --bin granule-probe";
    for (package, targets) in [(KERNEL, ""), (USER, programs)] {
        let mut lint = cargo(&["clippy", "--target", KERNEL_TARGET, "-p", package]);
        lint.args(targets.split_whitespace());
        lint.args(["--", "-D", "warnings"]);
        run(lint)?;
    }
    Ok(())
}

/// The libraries run without std, so they are checked for the kernel's target; on the host for their users' tests.
pub(super) fn features() -> Result<()> {
    for target in [&["--target", KERNEL_TARGET][..], &[]] {
        let mut check = cargo_tools::tool("hack", &["check", "--each-feature"])?;
        check
            .arg("--exclude-all-features")
            .args(LIBRARIES.iter().flat_map(|library| ["-p", library]))
            .args(target);
        check.env("RUSTFLAGS", "-D warnings");
        // Other flags make everything anew; here the checks have a folder of their own.
        check.env("CARGO_TARGET_DIR", target_dir().join("features"));
        run(check)?;
    }
    Ok(())
}

/// Documents the libraries as their users see them, for both targets, and all else as its developers do. The program
/// is documented alone, because the library has the same name, and cargo warns of two things of one name.
pub(super) fn doc() -> Result<()> {
    let each = |word| LIBRARIES.map(|library| [word, library]).concat();
    let (libraries, others) = (each("-p"), each("--exclude"));
    let (private, target) = ("--document-private-items", ["--target", KERNEL_TARGET]);
    let without = ["--exclude", KERNEL, "--exclude", CLI];
    let all = ["--all-features", "--workspace", private];
    for words in [
        [&["--all-features"][..], &libraries].concat(),
        [&["--all-features"][..], &target, &libraries].concat(),
        [&all[..], &without, &others].concat(),
        vec!["--all-features", private, "-p", CLI],
        // No other crate links it.
        [&[private, "-p", KERNEL][..], &target].concat(),
    ] {
        let mut document = cargo(&["doc", "--no-deps"]);
        document.args(words).env("RUSTDOCFLAGS", "-D warnings");
        run(document)?;
    }
    arm64_examples()
}

/// The examples in the documentation of `granule::hw`, which the host does not have: compiled for arm64 and
/// not run. A target with a standard library is needed, for the test program around each.
fn arm64_examples() -> Result<()> {
    let mut command = cargo(&["test", "--doc", "--target", MUSL_TARGET, "-p", LIBRARY]);
    command.arg("src/hw");
    // Cargo starts the program of all examples that can run on a host, to find that none is chosen.
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "true");
    let printed = capture(command)?;
    let compiled = printed
        .lines()
        .filter(|line| line.ends_with("- compile ... ok"));
    ensure!(
        compiled.count() >= 2,
        "the examples of granule::hw were not compiled:\n{printed}"
    );
    Ok(())
}

/// Every lock file of the repository.
pub(super) fn deny() -> Result<()> {
    for manifest in MANIFESTS {
        // Defaults are of the folder from which it is called: deny.toml is the workspace's.
        let mut check = cargo_tools::tool("deny", &["--manifest-path"])?;
        check.arg(root().join(manifest));
        check.args(["check", "licenses", "sources", "bans"]);
        run(check)?;
    }
    Ok(())
}

/// The manifests of the workspaces, each with its lock file.
pub(crate) const MANIFESTS: [&str; 3] = [
    "Cargo.toml",
    "examples/Cargo.toml",
    "tools/granule-fuzz/fuzz/Cargo.toml",
];

pub(super) fn doc_tests() -> Result<()> {
    let mut examples = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    // Only as a nightly does rustdoc compare the numbers of errors behind `compile_fail`.
    examples.envs(draws()).env("RUSTC_BOOTSTRAP", "1");
    run_command(examples)?.result()
}

pub(super) fn fixed_images() -> Result<()> {
    let sizes = [image::Fixed::K16, image::Fixed::K64].map(|size| image::Build::For(Some(size)));
    let mut builds = sizes
        .into_iter()
        .chain([image::Build::Default(image::Fixed::K16)]);
    builds.try_for_each(|build| build.build().map(drop))
}

pub(super) fn programs() -> Result<()> {
    user::build()?;
    probe::build().map(drop)
}

/// Packages the libraries without a warning, and builds each from the packages of its dependencies alone. The library
/// of page tables needs no other crate.
pub(super) fn package() -> Result<()> {
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
    if !git(&root(), &["status", "--porcelain"])?.trim().is_empty() {
        println!("the work tree has changes: packaging them too (--allow-dirty)");
        command.arg("--allow-dirty");
    }
    let text = show(&command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    eprint!("{printed}");
    let status = output.status;
    ensure!(status.success(), "`{text}` failed ({status})");
    let warned = printed.lines().any(|line| line.starts_with("warning"));
    ensure!(!warned, "`{text}` warned");
    Ok(())
}
