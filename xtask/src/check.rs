//! `cargo xtask check`: the checks before every commit, in at most three minutes on two cores once things
//! are built. They are format, lints, the unit tests of the changed packages and of those that depend on
//! them, a short run of the model's harness, and one boot with each page size.
//!
//! This file has the steps, and finds the changed packages. Longer checks are in `steps`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::packages::{draws, packages};
use crate::programs::{self, Program};
use crate::steps::{self, Step, runs_on_host};
use crate::{ci, run};
use xtask::pool;
use xtask::workspace::{capture, metadata, root};

/// Operations of the model's harness; `make test` has 60 000.
const OPERATIONS: u64 = 6_000;

/// The module of the model's harness that plays random operations.
pub(crate) const HARNESS: &str = "every_shape::";

/// The test targets that are built: unit tests, and the harness.
const TARGETS: [&str; 4] = ["--lib", "--bins", "--test", "harness"];

const STEPS: [Step; 6] = [
    Step {
        name: "fmt",
        what: "rustfmt agrees with every file",
        long: false,
        run: steps::fmt,
    },
    Step {
        name: "clippy",
        what: "no warning in the host crates",
        long: false,
        run: steps::clippy,
    },
    Step {
        name: "clippy-kernel",
        what: "no warning in the kernel and the probe",
        long: false,
        run: steps::clippy_kernel,
    },
    Step {
        name: "unit",
        what: "unit tests of what changed and of what depends on it",
        long: false,
        run: unit,
    },
    Step {
        name: "model",
        what: "the library on the model of the MMU, briefly",
        long: false,
        run: model,
    },
    Step {
        name: "boots",
        what: "one boot with each page size",
        long: false,
        run: boots,
    },
];

/// Runs all steps. The last line is `N passed, N failed`.
pub(crate) fn check() -> ExitCode {
    ci::run(&STEPS)
}

fn unit() -> Result<()> {
    let (metadata, files) = (metadata()?, changed()?);
    let wanted = affected(&metadata, &root(), &files)?;
    println!("changed, or dependent on what did: {}", join(&wanted));
    let is_unit = |program: &Program| {
        program.kind != "test" && runs_on_host(program) && wanted.contains(&program.package)
    };
    let programs = programs::choose(programs::build(&TARGETS)?, "unit tests", is_unit)?;
    let draws: Vec<_> = draws().collect();
    programs::run(&programs, pool::parallel(), &[], &draws)
}

fn model() -> Result<()> {
    let harness = |program: &Program| program.kind == "test" && program.target == "harness";
    let programs = programs::choose(
        programs::build(&TARGETS)?,
        "test program `harness`",
        harness,
    )?;
    let mut variables: Vec<_> = draws().collect();
    variables.push(("GRANULE_HARNESS_OPERATIONS", OPERATIONS.to_string()));
    programs::run(&programs, 1, &[HARNESS], &variables)
}

fn boots() -> Result<()> {
    run::run(&[])
}

/// The files that differ from the commit at which this branch left `main`; on `main` itself, from the
/// commit before. All files if there is no commit before.
fn changed() -> Result<Vec<PathBuf>> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(root());
        capture(command)
    };
    let head = git(&["rev-parse", "HEAD"])?;
    let main = ["origin/main", "main"]
        .into_iter()
        .find(|name| git(&["rev-parse", "--quiet", "--verify", name]).is_ok());
    let left = main.map(|main| git(&["merge-base", "HEAD", main]));
    let since = match left {
        Some(Ok(commit)) if commit != head => commit,
        _ => git(&["rev-parse", "--quiet", "--verify", "HEAD~1"]).unwrap_or_default(),
    };
    let tracked = match since.trim() {
        "" => git(&["ls-files"])?,
        since => git(&["diff", "--name-only", since])?,
    };
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(tracked
        .lines()
        .chain(new.lines())
        .map(PathBuf::from)
        .collect())
}

/// The packages of these files, and all packages that depend on them. A file outside all packages may
/// change any of them. xtask is always included, because its tests read sources and documents of all.
fn affected(metadata: &Value, root: &Path, files: &[PathBuf]) -> Result<BTreeSet<String>> {
    let members: Vec<_> = packages(metadata)?
        .iter()
        .filter_map(|package| {
            let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
            Some((package["name"].as_str()?, folder, package))
        })
        .collect();
    let mut wanted = BTreeSet::from(["xtask".to_owned()]);
    for file in files.iter().filter(|file| is_built(file)) {
        let file = root.join(file);
        let owners: Vec<_> = members
            .iter()
            .filter(|(_, folder, _)| file.starts_with(folder))
            .map(|(name, _, _)| (*name).to_owned())
            .collect();
        if owners.is_empty() {
            wanted.extend(members.iter().map(|(name, _, _)| (*name).to_owned()));
        }
        wanted.extend(owners);
    }
    loop {
        let before = wanted.len();
        for (name, _, package) in &members {
            let uses = package["dependencies"].as_array().into_iter().flatten();
            let mut uses = uses.filter_map(|used| used["name"].as_str());
            if uses.any(|used| wanted.contains(used)) {
                wanted.insert((*name).to_owned());
            }
        }
        if wanted.len() == before {
            break;
        }
    }
    ensure!(
        wanted
            .iter()
            .all(|name| members.iter().any(|(member, _, _)| member == name)),
        "the workspace has no package {}",
        join(&wanted)
    );
    Ok(wanted)
}

/// Whether the file can affect a build or a test: documents for people cannot.
fn is_built(file: &Path) -> bool {
    let words = file.extension().is_some_and(|extension| extension == "md");
    !words && !file.starts_with("docs")
}

fn join(names: &BTreeSet<String>) -> String {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dependents_of_a_changed_package_are_tested_too() {
        let package = |name: &str, uses: &[&str]| {
            let uses: Vec<_> = uses.iter().map(|name| json!({"name": name})).collect();
            json!({
                "name": name, "manifest_path": format!("/w/{name}/Cargo.toml"), "dependencies": uses,
            })
        };
        let metadata = json!({"packages": [
            package("xtask", &["cli"]),
            package("library", &["proptest"]),
            package("model", &["library"]),
            package("cli", &["model"]),
            package("user", &[]),
        ]});
        let of = |files: &[&str]| {
            let files: Vec<_> = files.iter().map(PathBuf::from).collect();
            join(&affected(&metadata, Path::new("/w"), &files).unwrap())
        };
        assert_eq!(of(&[]), "xtask");
        assert_eq!(
            of(&["README.md", "docs/tables.txt", "library/README.md"]),
            "xtask"
        );
        assert_eq!(of(&["model/src/lib.rs"]), "cli, model, xtask");
        assert_eq!(of(&["user/src/main.rs"]), "user, xtask");
        assert_eq!(of(&["library/src/lib.rs"]), "cli, library, model, xtask");
        // Files that affect the build of all packages.
        assert_eq!(of(&["Cargo.lock"]), "cli, library, model, user, xtask");
    }

    #[test]
    fn changed_files_come_from_git() {
        // The commit before this one changed at least one file, unless this one is the first.
        assert!(changed().is_ok_and(|files| !files.is_empty()));
    }

    #[test]
    fn the_harness_has_the_tests_that_are_run() {
        let module = HARNESS.trim_end_matches("::");
        let file = root().join(format!("granule-model/tests/harness/{module}.rs"));
        let source = std::fs::read_to_string(file).unwrap();
        assert!(source.contains("#[test]") && source.contains("GRANULE_HARNESS_OPERATIONS"));
    }
}
