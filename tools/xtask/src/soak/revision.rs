//! The identity of the files that a soak tests: the commit, and the changes on top of it. The soak
//! compares it before it counts a case, because one result must not cover two trees.

use std::path::Path;

use anyhow::Result;
use sha2::{Digest, Sha256};

use super::record;
use xtask::files;
use xtask::workspace::{git, root};

/// The commit, and, if the work tree differs from it, `+changes.` with a hash of the difference. The
/// document that receives the last line is ignored.
pub(crate) fn commit() -> Result<String> {
    of(&root())
}

/// Whether an identity stands for files that are in a commit.
pub(crate) fn is_clean(commit: &str) -> bool {
    !commit.contains('+')
}

fn of(folder: &Path) -> Result<String> {
    let git = |arguments: &[&str]| git(folder, arguments);
    let but_the_record = format!(":(exclude){}", record::FILE);
    let scope = ["--", ".", &but_the_record];
    let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    let status = git(&[&["status", "--porcelain"], &scope[..]].concat())?;
    if status.trim().is_empty() {
        return Ok(commit);
    }
    let mut hash = Sha256::new();
    hash.update(git(&[&["diff", "--binary", "HEAD"], &scope[..]].concat())?);
    let others = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    for name in others.split('\0').filter(|name| !name.is_empty()) {
        hash.update(name);
        hash.update(files::read(&folder.join(name))?);
    }
    commit.push_str("+changes.");
    for byte in &hash.finalize()[..4] {
        commit.push_str(&format!("{byte:02x}"));
    }
    Ok(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_but_the_recorded_line_is_another_commit() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let git = |arguments: &[&str]| {
            let own = [
                "user.name=x",
                "user.email=x@example.org",
                "commit.gpgsign=false",
            ];
            let own = own.into_iter().flat_map(|setting| ["-c", setting]);
            super::git(
                folder,
                &own.chain(arguments.iter().copied()).collect::<Vec<_>>(),
            )
            .unwrap()
        };
        std::fs::create_dir(folder.join("docs")).unwrap();
        std::fs::write(folder.join(record::FILE), "soak\n").unwrap();
        std::fs::write(folder.join("code"), "1").unwrap();
        git(&["init", "--quiet"]);
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "x"]);
        let clean = of(folder).unwrap();
        assert!(is_clean(&clean) && clean.len() == 12, "{clean}");
        std::fs::write(folder.join(record::FILE), "soak: 1 cases\n").unwrap();
        assert_eq!(of(folder).unwrap(), clean);
        let mut seen = vec![clean.clone()];
        for (file, text) in [("code", "2"), ("code", "3"), ("new", "1"), ("new", "2")] {
            std::fs::write(folder.join(file), text).unwrap();
            let changed = of(folder).unwrap();
            assert!(!is_clean(&changed) && changed.starts_with(&clean));
            assert!(!seen.contains(&changed), "{changed}");
            seen.push(changed);
        }
    }
}
