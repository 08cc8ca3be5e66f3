//! A test of what a machine can see of the words and the size of the code, and of who links whom.

use std::collections::BTreeSet;

use crate::packages::{CLI, package_named, packages};
use xtask::workspace::{git, metadata, root};

/// Lines of a file at most, and columns of a line.
const MOST_LINES: usize = 500;
const MOST_COLUMNS: usize = 130;
/// Longer files, which may only become shorter: a file's name and its lines.
const LONGER: &str = include_str!("../long_files.txt");

/// Phrases that a native reader stumbles over, each with what to write.
const PHRASES: [(&str, &str); 4] = [
    (
        "told",
        "reported, recorded, expected: whatever is true there",
    ),
    (" is no ", "is not a"),
    ("/// What ", "a verb or a noun first"),
    ("//! What ", "a verb or a noun first"),
];

/// The phrase in a line that is not allowed there.
fn stumble(line: &str) -> Option<(&'static str, &'static str)> {
    let is_told = |word: &str| word.split('_').any(|part| part == "told");
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    PHRASES.into_iter().find(|(phrase, _)| match *phrase {
        "told" => words.any(is_told),
        " is no " => {
            let line = line.to_lowercase().replace("is no longer", "");
            let line = line.replace("there is no ", "");
            line.replace("there still is no ", "").contains(phrase)
        }
        _ => line.contains(phrase),
    })
}

fn sources() -> Vec<(String, String)> {
    let names = git(&root(), &["ls-files", "*.rs"]).unwrap();
    let sources = names.lines().map(|name| {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        (name.to_owned(), text)
    });
    sources.collect()
}

/// Where a module may be called `live`, by which steps recognize a test that chance may fail: guests and clocks in real
/// time. The library's module has tables that the hardware walks, and no tests.
const LIVE: [&str; 4] = [
    "crates/granule/src/table/mod.rs",
    "tools/granule-cli/src/boot/clock.rs",
    "tools/granule-cli/tests/qemu/",
    "tools/granule-cli/tests/watch/main.rs",
];

#[test]
fn words_lines_and_files_are_tidy() {
    let mut wrong = Vec::new();
    let mut longer = BTreeSet::new();
    for (name, text) in sources() {
        let is_live = |line: &str| {
            ["mod live;", "mod live {"]
                .iter()
                .any(|it| line.ends_with(it))
        };
        if text.lines().any(is_live) && !LIVE.iter().any(|start| name.starts_with(start)) {
            wrong.push(format!(
                "{name}: tests of its module `live` would count as live"
            ));
        }
        // The phrases stand here as data.
        let is_own = name.ends_with("xtask/src/tidy.rs");
        for (number, line) in text.lines().enumerate() {
            let place = format!("{name}:{}", number + 1);
            if let Some((phrase, instead)) = stumble(line).filter(|_| !is_own) {
                wrong.push(format!("{place}: {phrase:?}, better {instead}"));
            }
            // A row of a table has one line, and so has expected output.
            let is_row = ["//! |", "/// |"]
                .iter()
                .any(|head| line.trim_start().starts_with(head));
            let is_free = is_row || name.contains("/tests/");
            if line.chars().count() > MOST_COLUMNS && !is_free {
                wrong.push(format!("{place}: longer than {MOST_COLUMNS} columns"));
            }
        }
        let lines = text.lines().count();
        if lines > MOST_LINES {
            longer.insert(name.clone());
            let allowed = LONGER.lines().filter_map(|line| line.split_once(' '));
            let allowed = allowed.filter(|(file, _)| *file == name);
            let most = allowed
                .map(|(_, most)| most.parse().unwrap_or_default())
                .next();
            if most.unwrap_or(MOST_LINES) < lines {
                wrong.push(format!(
                    "{name}: {lines} lines; divide it, as one file is one concern"
                ));
            }
        }
    }
    for line in LONGER.lines() {
        let (name, _) = line.split_once(' ').unwrap();
        if !longer.contains(name) {
            wrong.push(format!(
                "{name}: has {MOST_LINES} lines or fewer; strike it from long_files.txt"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn phrases_are_recognised() {
    for line in [
        "/// What it is.",
        "so it told",
        "a_fault_is_told",
        "a table is no page",
        "//! What",
    ] {
        assert_eq!(stumble(line).is_some(), line != "//! What", "{line}");
    }
    for line in ["There is no table", "/// Whatever", "untold", "it is none"] {
        assert_eq!(stumble(line), None, "{line}");
    }
}

/// The packages of the workspace that a package links, itself included.
fn linked(metadata: &serde_json::Value, name: &str) -> BTreeSet<String> {
    let mut linked = BTreeSet::new();
    let mut open = vec![name.to_owned()];
    while let Some(name) = open.pop() {
        let Ok(package) = package_named(metadata, &name) else {
            continue;
        };
        let dependencies = package["dependencies"].as_array().unwrap();
        let normal = dependencies.iter().filter(|one| one["kind"].is_null());
        open.extend(normal.filter_map(|one| Some(one["name"].as_str()?.to_owned())));
        linked.insert(name);
    }
    linked
}

/// Packages below a folder.
fn below(metadata: &serde_json::Value, folder: &str) -> BTreeSet<String> {
    let folder = root().join(folder);
    let all = packages(metadata).unwrap().iter();
    let inside = all.filter(|one| {
        one["manifest_path"]
            .as_str()
            .unwrap()
            .starts_with(folder.to_str().unwrap())
    });
    inside
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_installed_program_links_nothing_of_the_kernel_and_the_libraries_nothing_of_the_tools() {
    let metadata = metadata().unwrap();
    let [crates, kernel, tools] =
        ["crates", "kernel", "tools"].map(|folder| below(&metadata, folder));
    assert!(!crates.is_empty() && !kernel.is_empty() && !tools.is_empty());
    let of_program = linked(&metadata, CLI);
    assert!(
        of_program.contains("granule") && of_program.is_disjoint(&kernel),
        "{of_program:?}"
    );
    for name in &crates {
        let linked = linked(&metadata, name);
        assert!(
            linked.is_disjoint(&kernel) && linked.is_disjoint(&tools),
            "{name}: {linked:?}"
        );
    }
    for name in &kernel {
        let linked = linked(&metadata, name);
        assert!(linked.is_disjoint(&tools), "{name}: {linked:?}");
    }
}
