//! The state between runs of a soak: the finished cases, each with its result. A state is valid only for
//! the same files, image and seed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xtask::files;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) commit: String,
    pub(crate) image: String,
    pub(crate) seed: u64,
    /// The failure of each finished case by its name (`None`: it passed).
    pub(crate) done: BTreeMap<String, Option<String>>,
}

/// The finished part of a list of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) of: usize,
}

impl Progress {
    pub(crate) fn is_whole(self) -> bool {
        self.done == self.of
    }
}

impl State {
    fn same_soak(&self, other: &State) -> bool {
        (&self.commit, &self.image, self.seed) == (&other.commit, &other.image, other.seed)
    }

    /// Counts over `names`, the complete list: a state may have more cases, from a longer run.
    pub(crate) fn progress<'a>(&self, names: impl Iterator<Item = &'a str>) -> Progress {
        let mut progress = Progress::default();
        for name in names {
            progress.of += 1;
            if let Some(wrong) = self.done.get(name) {
                progress.done += 1;
                progress.failed += usize::from(wrong.is_some());
            }
        }
        progress
    }

    /// The soak's last line. Only a complete soak has a line in the form of a result.
    pub(crate) fn line(&self, progress: Progress) -> String {
        let Progress { done, failed, of } = progress;
        let State { seed, commit, .. } = self;
        if progress.is_whole() {
            format!("soak: {of} cases, {failed} failed, seed {seed}, commit {commit}")
        } else {
            format!(
                "soak: {done} of {of} cases so far, {failed} failed, seed {seed}, commit {commit}; \
                 run the same command again to go on"
            )
        }
    }
}

/// The state in the file if it belongs to the same soak, else the fresh one.
pub(crate) fn resume(file: &Path, fresh: State) -> Result<State> {
    if !file.exists() {
        return Ok(fresh);
    }
    let old: State = serde_json::from_str(&files::text(file)?).with_context(|| {
        format!(
            "{} is not a state of a soak; --restart forgets it",
            file.display()
        )
    })?;
    if old.same_soak(&fresh) {
        return Ok(old);
    }
    println!(
        "soak: the state is of commit {} with seed {}; beginning anew for {} with seed {}",
        old.commit, old.seed, fresh.commit, fresh.seed
    );
    Ok(fresh)
}

/// An interrupted run leaves the old state or the new one.
pub(crate) fn save(file: &Path, state: &State) -> Result<()> {
    let text = serde_json::to_string_pretty(state)?;
    files::replace(file, |to| files::write(to, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(commit: &str) -> State {
        State {
            commit: commit.to_owned(),
            image: "i".into(),
            seed: 3,
            done: BTreeMap::new(),
        }
    }

    #[test]
    fn only_a_whole_soak_has_the_line_of_a_result() {
        let mut state = state("abc");
        state.done.insert("one".into(), None);
        state.done.insert("two".into(), Some("timeout".into()));
        state.done.insert("of another run".into(), None);
        let line = |names: &[&str]| state.line(state.progress(names.iter().copied()));
        let whole = "soak: 2 cases, 1 failed, seed 3, commit abc";
        assert_eq!(line(&["one", "two"]), whole);
        let part = "soak: 2 of 3 cases so far, 1 failed, seed 3, commit abc;";
        assert!(line(&["one", "three", "two"]).starts_with(part));
    }

    #[test]
    fn a_run_goes_on_only_with_the_same_commit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("soak").join("state.json");
        assert_eq!(resume(&file, state("a")).unwrap(), state("a"));
        let mut done = state("a");
        done.done.insert("case".into(), Some("wrong".into()));
        save(&file, &done).unwrap();
        assert_eq!(resume(&file, state("a")).unwrap(), done);
        assert_eq!(resume(&file, state("b")).unwrap(), state("b"));
        std::fs::write(&file, "{").unwrap();
        let error = resume(&file, state("a")).unwrap_err().to_string();
        assert!(error.contains("--restart"), "{error}");
    }
}
