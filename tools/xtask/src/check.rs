//! Selects the tests of `cargo xtask check`, the checks before every commit. It takes at most three
//! minutes on two cores once things are built: format, lints, the unit tests of the changed
//! packages and of those that depend on them, a short run of the model's harness, and one boot with
//! each page size.
//!
//! The steps themselves are in `steps`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use crate::nextest::Selection;
use crate::packages::{on_host, packages};
use xtask::workspace::{git, metadata, root};

/// Operations of the model's harness; `make test` has 30 000.
const OPERATIONS: u64 = 6_000;

/// The module of the model's harness that plays random operations.
pub(crate) const HARNESS: &str = "every_shape::";

/// The test targets that are built: unit tests, and the harness.
pub(crate) const TARGETS: [&str; 4] = ["--lib", "--bins", "--test", "harness"];

/// The unit tests of the changed packages, and of all that depend on them. xtask's are always among them, because they
/// read sources and documents of all.
pub(crate) fn unit() -> Result<Selection> {
    let wanted = match changed_packages(&metadata()?, &root(), &changed()?) {
        Some(packages) => packages
            .iter()
            .map(|name| format!(" + rdeps(={name})"))
            .collect(),
        None => " + all()".to_owned(),
    };
    let filter = format!("{} & not kind(test) & (package(=xtask){wanted})", on_host());
    println!("{filter}");
    Ok(filter.into())
}

pub(crate) fn model() -> Result<Selection> {
    Ok(Selection {
        filter: format!("binary(=harness) & test(/^{HARNESS}/)"),
        variables: vec![("GRANULE_HARNESS_OPERATIONS", OPERATIONS.to_string())],
        ..Selection::default()
    })
}

/// The files that differ from the commit at which this branch left `main`; on `main` itself, from the
/// commit before. All files if there is no commit before.
fn changed() -> Result<Vec<PathBuf>> {
    let git = |arguments: &[&str]| git(&root(), arguments);
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

/// The packages of these files; none if one is outside all packages, which may change any of them.
fn changed_packages(metadata: &Value, root: &Path, files: &[PathBuf]) -> Option<BTreeSet<String>> {
    let packages = packages(metadata).ok()?;
    let owner = |file: &PathBuf| {
        let file = root.join(file);
        let mut owners = packages.iter().filter_map(|package| {
            let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
            file.starts_with(folder)
                .then(|| package["name"].as_str())
                .flatten()
        });
        owners.next().map(str::to_owned)
    };
    files
        .iter()
        .filter(|file| is_built(file))
        .map(owner)
        .collect()
}

/// Whether the file can affect a build or a test: documents for people cannot.
fn is_built(file: &Path) -> bool {
    let words = file.extension().is_some_and(|extension| extension == "md");
    !words && !file.starts_with("docs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_packages_of_changed_files_are_found() {
        let package =
            |name: &str| json!({"name": name, "manifest_path": format!("/w/{name}/Cargo.toml")});
        let metadata = json!({"packages": [package("library"), package("model")]});
        let of = |files: &[&str]| {
            let files: Vec<_> = files.iter().map(PathBuf::from).collect();
            let packages = changed_packages(&metadata, Path::new("/w"), &files)?;
            Some(packages.into_iter().collect::<Vec<_>>().join(", "))
        };
        assert_eq!(of(&[]).unwrap(), "");
        assert_eq!(
            of(&["README.md", "docs/tables.txt", "library/README.md"]).unwrap(),
            ""
        );
        assert_eq!(
            of(&["model/src/lib.rs", "library/build.rs", "model/a.rs"]).unwrap(),
            "library, model"
        );
        // A file that affects the build of all packages.
        assert_eq!(of(&["Cargo.lock", "model/src/lib.rs"]), None);
    }

    #[test]
    fn changed_files_come_from_git() {
        // The commit before this one changed at least one file, unless this one is the first.
        assert!(changed().is_ok_and(|files| !files.is_empty()));
    }

    #[test]
    fn the_harness_has_the_tests_that_are_run() {
        let module = HARNESS.trim_end_matches("::");
        let file = root().join(format!("crates/granule-model/tests/harness/{module}.rs"));
        let source = std::fs::read_to_string(file).unwrap();
        assert!(source.contains("#[test]") && source.contains("GRANULE_HARNESS_OPERATIONS"));
    }
}
