//! Compares the device trees of Debian's kernel packages, over a thousand boards: what this kernel's readers find in each
//! of them is what another reader finds in the same bytes, and no tree is refused.
//!
//! This file has the order; what is compared is in `facts`, `ours` asks this kernel's readers, and `theirs` finds the same
//! facts with the crate dtoolkit.

mod facts;
mod ours;
mod theirs;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use xtask::graph;

use self::facts::{Totals, difference};
use crate::deb;
use crate::peers::{Peers, TREES};
use crate::store;

/// The differences that are told of one package.
const MOST_TOLD: usize = 8;

/// The fewest trees of a package. A package of which none is found is no success.
const FEWEST: usize = 500;

/// Adds a check for each package with trees.
pub(crate) fn all(peers: &Peers<'_>) -> Result<()> {
    for wanted in TREES {
        let name = format!("trees of {} ({})", wanted.package, wanted.suite);
        let package = peers.path(&wanted);
        peers.add(name, package.and_then(|package| of_package(&package)));
    }
    Ok(())
}

fn of_package(package: &Path) -> Result<String> {
    let trees = deb::files(package, |path| path.ends_with(".dtb"))?;
    let count = trees.len();
    ensure!(
        count >= FEWEST,
        "{count} trees are in it, and {FEWEST} at least are expected"
    );
    let mut totals = Totals::default();
    let (mut refused, mut differing) = (0, 0);
    let mut told = Vec::new();
    let mut outcomes = vec![Err("it was not read".to_owned()); count];
    graph::all(
        count,
        |at| compare(&trees[at].1),
        |done| outcomes[done.job] = done.result,
    );
    for ((path, _), outcome) in trees.iter().zip(outcomes) {
        let why = match outcome {
            Ok(Ok(one)) => {
                totals += one;
                continue;
            }
            Ok(Err(difference)) => {
                differing += 1;
                difference
            }
            Err(why) => {
                refused += 1;
                why
            }
        };
        if told.len() < MOST_TOLD {
            told.push(format!("{path}: {why}"));
        }
    }
    let line = format!(
        "{count} trees, {refused} refused, {differing} that differ from dtoolkit's reading"
    );
    if !told.is_empty() {
        bail!("{line}: {}", told.join("; "));
    }
    Ok(format!("{line}, {totals}"))
}

/// Compares both readings of a tree: its sums, or the first difference; or why our readers refuse it.
fn compare(bytes: &[u8]) -> Result<Result<Totals, String>, String> {
    ours::sound(bytes)?;
    let theirs = theirs::facts(bytes);
    let ours = ours::facts(bytes, theirs.boot_cpu)?;
    Ok(match difference(&ours, &theirs) {
        Some(line) => Err(line),
        None => Ok(theirs.totals(store::hash(bytes))),
    })
}

#[cfg(test)]
mod tests;
