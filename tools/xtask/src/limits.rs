//! A test that `docs/limits.md` has each limit of the crates that read what others wrote, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use xtask::workspace::root;

/// Words that names of limits have.
const WORDS: [&str; 6] = ["MOST", "MAX_B", "MAX_D", "CAPACITY", "REPEATED", "PATIENCE"];

/// Adds the limits of the Rust files below `folder`, up to the tests of each: file and name.
fn limits(src: &Path, folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            limits(src, &path, found);
            continue;
        }
        let name = path.strip_prefix(src).unwrap().display().to_string();
        if name.ends_with("tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let constants = code.lines().filter_map(|line| {
            let (_, rest) = line
                .split_once("const ")
                .filter(|(before, _)| !before.contains("//"))?;
            let (constant, _) = rest.split_once(": ")?;
            (constant.to_uppercase() == constant
                && WORDS.iter().any(|word| constant.contains(word)))
            .then(|| constant.to_owned())
        });
        found.extend(constants.map(|constant| (name.clone(), constant)));
    }
}

#[test]
fn each_limit_is_in_its_document() {
    let text = std::fs::read_to_string(root().join("docs/limits.md")).unwrap();
    let mut parts = text.split("\n## ").skip(1);
    for part in parts.by_ref() {
        let (folder, rows) = part.split_once(": ").unwrap();
        let src = root().join(folder);
        let mut found = BTreeSet::new();
        limits(&src, &src, &mut found);
        let rows = rows.lines().filter(|line| line.starts_with("| `"));
        let documented: BTreeSet<_> = rows
            .map(|row| {
                let words: Vec<&str> = row.split('`').collect();
                assert_eq!(row.split('|').count(), 7, "a row has five columns: {row}");
                (words[1].to_owned(), words[3].to_owned())
            })
            .collect();
        let missing: Vec<_> = found.difference(&documented).collect();
        let gone: Vec<_> = documented.difference(&found).collect();
        assert!(
            missing.is_empty() && gone.is_empty(),
            "docs/limits.md, {folder}: without a row {missing:?}, without a constant {gone:?}"
        );
        assert!(found.len() > 10, "{folder}");
    }
}
