//! The device trees of Debian's kernel packages, over a thousand boards: what this kernel's readers find in each of
//! them is what is read out of `dtc`'s text of the same file, and no tree is refused.
//!
//! This file has the order; what is compared is in `facts`, `ours` asks this kernel's readers, `text` reads what `dtc`
//! writes, and `theirs` finds the same facts in it. `text` and `theirs` share no code with this kernel.

mod facts;
mod ours;
mod text;
mod theirs;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use xtask::graph;

use self::facts::{Facts, Totals, difference};
use crate::check::Check;
use crate::deb;
use crate::emulator;
use crate::machine::Files;
use crate::peers::{Peers, TREES};
use crate::store;

/// The package of `dtc`, and its suite: the form of its text is that of one version.
const DTC: emulator::Program<'_> = emulator::Program {
    package: "device-tree-compiler",
    path: "usr/bin/dtc",
    suites: &["bookworm"],
};

/// The differences that are told of one package.
const MOST_TOLD: usize = 8;

/// The fewest trees of a package. A package of which none is found is no success.
const FEWEST: usize = 500;

/// A tree of a package.
struct Tree {
    /// Its path below the folder of all trees.
    name: String,
    bytes: Vec<u8>,
}

/// What came of one tree.
enum Outcome {
    /// Both readings are the same.
    Same(Totals),
    /// A line of the first difference.
    Differs(String),
    /// Why our readers refuse it.
    Refused(String),
}

/// A check for each package with trees.
pub(crate) fn all(
    peers: &Peers<'_>,
    files: &Files,
    folder: &Path,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let dtc = emulator::program(&DTC, &folder.join("dtc"), fresh);
    for wanted in TREES {
        let name = format!("trees of {} ({})", wanted.package, wanted.suite);
        let result = match &dtc {
            Ok(dtc) => peers
                .bytes(&wanted)
                .and_then(|package| package_s(&package, dtc, files)),
            Err(error) => bail!("{error:#}"),
        };
        add(Check::new(name, result));
    }
    Ok(())
}

fn package_s(package: &[u8], dtc: &Path, files: &Files) -> Result<String> {
    let trees: Vec<Tree> = deb::files(package, |path| path.ends_with(".dtb"))?
        .into_iter()
        .map(|(path, bytes)| Tree {
            name: below(&path).to_owned(),
            bytes,
        })
        .collect();
    ensure!(
        trees.len() >= FEWEST,
        "{} trees are in it, and {FEWEST} at least are expected",
        trees.len()
    );
    let folder = files.folder("trees")?;
    let mut outcomes = Vec::new();
    graph::all(
        trees.len(),
        |at| compare(&trees[at], &folder.join(format!("{at}.dtb")), dtc),
        |done| {
            outcomes.push((done.job, done.result));
        },
    );
    outcomes.sort_by_key(|(at, _)| *at);
    let mut totals = Totals::default();
    let (mut refused, mut differing) = (0, 0);
    let mut told = Vec::new();
    for (at, outcome) in outcomes {
        let mut tell = |line: String| {
            if told.len() < MOST_TOLD {
                told.push(format!("{}: {line}", trees[at].name));
            }
        };
        match outcome? {
            Outcome::Same(one) => totals += one,
            Outcome::Differs(line) => {
                differing += 1;
                tell(line);
            }
            Outcome::Refused(line) => {
                refused += 1;
                tell(line);
            }
        }
    }
    let count = trees.len();
    let line =
        format!("{count} trees, {refused} refused, {differing} that differ from dtc's reading");
    if !told.is_empty() {
        bail!("{line}: {}", told.join("; "));
    }
    Ok(format!("{line}, {totals}"))
}

/// The path of a tree below the folder of all trees of its package.
fn below(path: &str) -> &str {
    let folder = ["usr/lib/linux-image-", "usr/lib/modules/", "usr/lib/linux-"];
    let rest = folder.iter().find_map(|folder| path.strip_prefix(folder));
    let rest = rest.and_then(|rest| rest.split_once('/'));
    rest.map_or(path, |(_, rest)| rest.strip_prefix("dtb/").unwrap_or(rest))
}

fn compare(tree: &Tree, file: &PathBuf, dtc: &Path) -> Result<Outcome> {
    std::fs::write(file, &tree.bytes)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let written = Command::new(dtc)
        .args(["-q", "-q", "-I", "dtb", "-O", "dts"])
        .arg(file)
        .output()
        .context("cannot start dtc")?;
    std::fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    ensure!(
        written.status.success(),
        "{}: dtc refuses it: {}",
        tree.name,
        String::from_utf8_lossy(&written.stderr).trim()
    );
    let text = String::from_utf8_lossy(&written.stdout);
    let source = text::read(&text).with_context(|| format!("{}: what dtc writes", tree.name))?;
    let theirs: Facts = theirs::facts(&source);
    let ours = match ours::facts(&tree.bytes, theirs.boot_cpu) {
        Ok(ours) => ours,
        Err(why) => return Ok(Outcome::Refused(why)),
    };
    Ok(match difference(&ours, &theirs) {
        Some(line) => Outcome::Differs(line),
        None => Outcome::Same(theirs.totals(store::hash(&tree.bytes))),
    })
}

#[cfg(test)]
mod tests;
