//! `cargo xtask api`: writes the library's public interface to `crates/granule/api.txt`, one item a
//! line, and what the feature `published` adds to `api-published.txt` beside it. The step `api`
//! compares, so that no change of the interface goes unnoticed.
//!
//! rustdoc writes the interface as JSON. The pinned toolchain does so only with `RUSTC_BOOTSTRAP`,
//! as if it were a nightly, and the pinned package `public-api` reads this format.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::packages::LIBRARY;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, cargo, package_dir, run, target_dir};

/// The files, each with its lines: the interface with the default features, and what more there is with
/// all.
fn lists() -> Result<[(PathBuf, String); 2]> {
    let (usual, all) = (list(&[])?, list(&["--all-features"])?);
    let known: BTreeSet<_> = usual.lines().collect();
    let more = all.lines().filter(|line| !known.contains(line));
    let more = more.map(|line| format!("{line}\n")).collect();
    let folder = package_dir(LIBRARY);
    Ok([
        (folder.join("api.txt"), usual),
        (folder.join("api-published.txt"), more),
    ])
}

pub(crate) fn write() -> Result<()> {
    for (file, lines) in lists()? {
        files::write(&file, lines)?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Compares the files with the sources.
pub(crate) fn check() -> Result<()> {
    let lists = lists()?;
    let all: String = lists.iter().map(|(_, lines)| lines.as_str()).collect();
    let twice = twice(&all);
    ensure!(
        twice.is_empty(),
        "each type has one public path and a name of its own, these have more: {}",
        twice.join(", ")
    );
    for (file, there) in lists {
        let differences = differences(&files::text(&file)?, &there);
        ensure!(
            differences.is_empty(),
            "the public interface differs from {}; if that is meant, run `cargo xtask api`:\n{differences}",
            file.display()
        );
        println!("{}: {} lines", file.display(), there.lines().count());
    }
    Ok(())
}

/// The public items with these features besides the default ones, for arm64, where `hw` is.
fn list(features: &[&str]) -> Result<String> {
    let folder = target_dir().join("api");
    let mut command = cargo(&["rustdoc", "--quiet", "-p", LIBRARY]);
    command.args(features);
    command.args(["--target", KERNEL_TARGET, "--"]);
    command.args([
        "-Zunstable-options",
        "--output-format=json",
        "--cap-lints=allow",
    ]);
    command.env("CARGO_TARGET_DIR", &folder);
    command.env("RUSTC_BOOTSTRAP", "1");
    run(command)?;
    let json = folder.join(format!("{KERNEL_TARGET}/doc/{LIBRARY}.json"));
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .with_context(|| format!("cannot read {}", json.display()))?;
    let items: String = api.items().map(|item| format!("{item}\n")).collect();
    ensure!(!items.is_empty(), "{} has no items", json.display());
    Ok(items)
}

/// The names of types that appear on more than one line.
fn twice(there: &str) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let names = there.lines().filter_map(|line| {
        let mut words = line
            .split([' ', '<', '(', ':'])
            .skip_while(|word| *word != "pub");
        let kinds = ["struct", "enum", "trait", "union"];
        words.find(|word| kinds.contains(word))?;
        let path = line.split(' ').find(|word| word.starts_with("granule::"))?;
        path.split(['<', '('])
            .next()?
            .trim_end_matches(':')
            .rsplit("::")
            .next()
    });
    names.filter(|name| !seen.insert(*name)).collect()
}

/// The lines that only one of the texts has, each with a sign: `-` for the first, `+` for the
/// second.
fn differences(listed: &str, there: &str) -> String {
    let (listed, there): (BTreeSet<_>, BTreeSet<_>) =
        (listed.lines().collect(), there.lines().collect());
    let mut text = String::new();
    for line in listed.symmetric_difference(&there) {
        let sign = if there.contains(line) { '+' } else { '-' };
        let _ = writeln!(text, "{sign} {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{differences, twice};

    #[test]
    fn a_second_path_is_found() {
        let once = "pub mod granule::a\n#[repr(transparent)] pub struct granule::a::X<T>(pub u64)\n\
                    pub fn granule::a::X::type_of(&self)\npub unsafe trait granule::b::Y: granule::b::Z\n";
        assert!(twice(once).is_empty());
        assert_eq!(
            twice(&format!("{once}pub struct granule::b::X<T>\n")),
            ["X"]
        );
        assert_eq!(twice(&format!("{once}pub enum granule::c::Y\n")), ["Y"]);
    }

    #[test]
    fn differing_lines_are_reported() {
        assert_eq!(differences("a\nb\n", "a\nb\n"), "");
        assert_eq!(differences("a\nb\nd\n", "a\nc\nd\n"), "- b\n+ c\n");
        assert_eq!(differences("", "a\n"), "+ a\n");
    }
}
