//! Compares the device trees of Debian's kernel packages, for over a thousand boards: this kernel's
//! readers and another reader must find the same facts in each, and no tree may be refused.
//!
//! The machines and cores that a tree names are in this project's tables, or judged ([`cores`]).
//!
//! `facts` defines the compared facts, `ours` finds them with this kernel's readers, and `theirs`
//! with the crate dtoolkit.

mod cores;
mod facts;
mod ours;
mod theirs;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use granule_boot::machines::{self, Identity};
use granule_boot::tree::Tree;
use xtask::graph;

use self::facts::{Totals, difference};
use crate::peers::{Peers, TREES};
use crate::{deb, store};

/// The most differences that are reported of one package.
const MOST_REPORTED: usize = 8;

/// The least number of trees in a package, so that a package without any is a failure.
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
        "it has {count} trees; at least {FEWEST} are expected"
    );
    let mut totals = Totals::default();
    let (mut refused, mut differing) = (0, 0);
    let mut lines = Vec::new();
    let outcomes = graph::map(count, |at| compare(&trees[at].1));
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
        if lines.len() < MOST_REPORTED {
            lines.push(format!("{path}: {why}"));
        }
    }
    let line = format!(
        "{count} trees, {refused} refused, {differing} that differ from dtoolkit's reading"
    );
    if !lines.is_empty() {
        bail!("{line}: {}", lines.join("; "));
    }
    Ok(format!("{line}, {totals}"))
}

/// Compares both readings of a tree. Returns its sums or the first difference, or the reason why
/// our readers refuse it.
fn compare(bytes: &[u8]) -> Result<Result<Totals, String>, String> {
    let tree = ours::sound(bytes)?;
    listed(&tree)?;
    cores::judged(&tree)?;
    let theirs = theirs::facts(bytes);
    let ours = ours::facts(bytes, theirs.boot_cpu)?;
    Ok(match difference(&ours, &theirs) {
        Some(line) => Err(line),
        None => Ok(theirs.totals(store::hash(bytes))),
    })
}

/// Checks that the table of machines has the tree's machine, if it is one of a maker whose IOMMUs need a page size.
/// The trees grow with each kernel, and the table must with them.
fn listed(tree: &Tree<'_>) -> Result<(), String> {
    let compatible = tree.peek().compatible;
    let mut of_apple = compatible.filter(|name| name.starts_with(b"apple,"));
    let identity = Identity {
        compatible,
        ..Identity::default()
    };
    match of_apple.next() {
        Some(name) if machines::find(&identity).is_none() => Err(format!(
            "{} is in no row of crates/granule-boot/src/machines.rs: add it, with the page sizes of its IOMMU",
            name.escape_ascii()
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
