//! A test that the files and places exist which the documents name.

use std::collections::BTreeSet;
use std::path::Path;

use crate::steps::STEPS;
use xtask::workspace::{git, root};

/// The documents: those in the root folder, all of `docs`, and that of the benchmark.
fn documents() -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["", "docs/", "tools/granule-bench/"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                names.push(format!("{folder}{name}"));
            }
        }
    }
    names
}

/// A heading in the form of a link's anchor: lower case, words joined by `-`, without other characters.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

/// Targets of links within the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !target.starts_with("http"))
}

/// Text in backquotes that looks like a file or folder of one of the crates.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| {
        let crates = ["crates/", "kernel/", "tools/"]
            .iter()
            .any(|group| word.starts_with(group));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        // Names in capitals are placeholders.
        crates && word.chars().all(plain) && !word.contains("NAME")
    })
}

#[test]
fn links_and_paths_lead_somewhere() {
    let mut wrong = Vec::new();
    for name in documents() {
        let text = std::fs::read_to_string(root().join(&name)).unwrap();
        let folder = Path::new(&name).parent().unwrap();
        for link in links(&text) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() {
                root().join(&name)
            } else {
                root().join(folder).join(file)
            };
            let there = place.is_empty()
                || std::fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(place));
            if !file.exists() || !there {
                wrong.push(format!("{name}: link to {link}"));
            }
        }
        for path in paths(&text).filter(|path| !root().join(path).exists()) {
            wrong.push(format!("{name}: `{path}`"));
        }
    }
    assert!(wrong.is_empty(), "lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn headings_links_and_paths_are_recognised() {
    assert_eq!(
        anchor(" Page size at boot, at `no` cost"),
        "page-size-at-boot-at-no-cost"
    );
    let text =
        "a [b](docs/c.md#d) [e](https://f) `crates/granule/src/lib.rs`, `granule boot`, `x/y`";
    assert_eq!(links(text).collect::<Vec<_>>(), ["docs/c.md#d"]);
    assert_eq!(
        paths(text).collect::<Vec<_>>(),
        ["crates/granule/src/lib.rs"]
    );
}

/// Each name in the list of who finds planted faults is that of a step or of a test.
#[test]
fn who_finds_planted_faults_is_there() {
    let text = std::fs::read_to_string(root().join("docs/planted-faults.md")).unwrap();
    let (_, list) = text.split_once("## Who finds what").unwrap();
    let names = git(
        &root(),
        &["grep", "-hoE", "fn [a-z0-9_]+\\(\\)", "--", "*.rs"],
    )
    .unwrap();
    let tests: BTreeSet<_> = names.lines().map(|line| &line[3..line.len() - 2]).collect();
    let is_step = |name| STEPS.iter().any(|step| step.name == name);
    let is_part = |name| ["faults-all", "sensitivity"].contains(&name);
    let items = list.lines().filter(|line| line.starts_with(['-', ' ']));
    let quoted = items.flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_name = |name: &&str| {
        name.bytes().all(|byte| {
            byte == b'_' || byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit()
        })
    };
    let (mut count, mut wrong) = (0, Vec::new());
    for name in quoted
        .filter(is_name)
        .filter(|name| *name != "granule-peers")
    {
        count += 1;
        if !(tests.contains(name) || is_step(name) || is_part(name)) {
            wrong.push(name);
        }
    }
    assert!(
        count > 40 && wrong.is_empty(),
        "{count} names, of which nothing is called {wrong:?}"
    );
}
