//! The work of steps that is more than a call of cargo or of one module.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::nextest::{self, Selection};
use crate::packages::{CLI, KERNEL, LIBRARIES, LIBRARY, draws, in_guests, on_host, package_named};
use crate::programs::run_command;
use crate::{boot, boots, cargo_tools, image, matrix, probe, user};
use xtask::graph;
use xtask::workspace::{
    KERNEL_TARGET, MUSL_TARGET, capture, cargo, metadata, root, run, show, target_dir,
};

/// The programs too, so that no step that runs one builds it.
pub(super) fn build() -> Result<()> {
    nextest::build(&[])?;
    run(cargo(&["build", "--workspace", "--bins"]))
}

/// The libraries run without std, so they are checked for the kernel's target; on the host for their users' tests.
pub(super) fn features() -> Result<()> {
    for target in [&["--target", KERNEL_TARGET][..], &[]] {
        let mut check = cargo_tools::tool(
            "hack",
            &["check", "--each-feature", "--exclude-all-features"],
        )?;
        check
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
    let libraries: Vec<_> = LIBRARIES
        .iter()
        .flat_map(|library| ["-p", library])
        .collect();
    let others: Vec<_> = LIBRARIES
        .iter()
        .flat_map(|library| ["--exclude", library])
        .collect();
    let (private, target) = ("--document-private-items", ["--target", KERNEL_TARGET]);
    let without = ["--exclude", KERNEL, "--exclude", CLI];
    for words in [
        [&["--all-features"][..], &libraries].concat(),
        [&["--all-features"][..], &target, &libraries].concat(),
        [
            &["--all-features", "--workspace", private][..],
            &without,
            &others,
        ]
        .concat(),
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
        let path = root().join(manifest);
        let path = path.to_string_lossy();
        // Defaults are of the folder from which it is called: deny.toml is the workspace's.
        let words = [
            "--manifest-path",
            &path,
            "check",
            "licenses",
            "sources",
            "bans",
        ];
        let check = cargo_tools::tool("deny", &words)?;
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

pub(super) fn tests_on_host() -> Result<Selection> {
    let filter = on_host();
    Ok(Selection {
        filter,
        ..Selection::default()
    })
}

pub(super) fn tests_in_guests() -> Result<Selection> {
    let filter = in_guests();
    Ok(Selection {
        filter,
        ..Selection::default()
    })
}

pub(super) fn doc_tests() -> Result<()> {
    let mut examples = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    // Only as a nightly does rustdoc compare the numbers of errors behind `compile_fail`.
    examples.envs(draws()).env("RUSTC_BOOTSTRAP", "1");
    run_command(examples)?.result()
}

pub(super) fn fixed_images() -> Result<()> {
    image::Fixed::ALL
        .into_iter()
        .map(|size| image::Build::For(Some(size)))
        .chain([image::Build::Default(image::Fixed::K16)])
        .try_for_each(|build| build.build().map(drop))
}

pub(super) fn programs() -> Result<()> {
    user::build()?;
    probe::build().map(drop)
}

/// Properties that tests prove of the test image must also hold for the shipped image: each is in part of the boots.
pub(super) fn qemu_matrix() -> Result<()> {
    let granule = boot::build_cli()?;
    let images = [image::image(None)?, image::Build::Hooks.image()?];
    let cases = matrix::covering();
    let mut failed = 0;
    graph::all(
        cases.len(),
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
        },
    );
    println!("qemu-matrix: {} boots run, {failed} failed", cases.len());
    ensure!(failed == 0, "{failed} of {} boots failed", cases.len());
    Ok(())
}

pub(super) fn firmware_matrix() -> Result<()> {
    boots::through_firmware(&boot::build_cli()?, &image::image(None)?)
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
    let printed = String::from_utf8_lossy(&output.stderr);
    eprint!("{printed}");
    ensure!(
        output.status.success(),
        "`{text}` failed ({})",
        output.status
    );
    ensure!(
        !printed.lines().any(|line| line.starts_with("warning")),
        "`{text}` warned"
    );
    Ok(())
}
