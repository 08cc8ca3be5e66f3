//! The libraries' tests under Miri. Each test takes a second to begin there, so several share a process: the tests of
//! all programs are dealt out to the steps in turn. Tests that Miri leaves out say so themselves.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::packages::{LIBRARIES, WITH_UNSAFE_MODULES, draws, package_named, targets};
use crate::programs::{Sum, run_command};
use crate::tools;
use xtask::workspace::{self, capture, metadata, root};

/// The test programs: the words that choose each, and the modules that are wanted of it, or all.
fn programs() -> Result<Vec<(Vec<String>, &'static [&'static str])>> {
    let metadata = metadata()?;
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let mut programs: Vec<(Vec<String>, &[&str])> = Vec::new();
    for library in LIBRARIES {
        let tests = targets(package_named(&metadata, library)?, "test");
        programs.extend(
            tests
                .iter()
                .map(|test| (words(&["-p", library, "--test", test]), &[][..])),
        );
        programs.push((words(&["-p", library, "--lib"]), &[]));
    }
    programs.extend(
        WITH_UNSAFE_MODULES.map(|(package, modules)| (words(&["-p", package, "--lib"]), modules)),
    );
    Ok(programs)
}

/// Builds all programs: steps that run beside each other would wait for each other's build.
pub(crate) fn build() -> Result<()> {
    let mut all = vec!["--lib", "--tests", "--no-run"];
    let others = WITH_UNSAFE_MODULES.iter().map(|(package, _)| package);
    all.extend(
        LIBRARIES
            .iter()
            .chain(others)
            .flat_map(|package| ["-p", package]),
    );
    workspace::run(command(&all)?)
}

/// Runs the tests of one part of `of`, or, with `GRANULE_MIRI=slow`, those of it that each take minutes.
pub(crate) fn run(part: usize, of: usize) -> Result<()> {
    let slow = is_slow(std::env::var("GRANULE_MIRI").ok().as_deref())?;
    let ignored: &[&str] = if slow { &["--ignored"] } else { &[] };
    let (mut sum, mut number) = (Sum::default(), 0);
    for (words, modules) in programs()? {
        let mut words: Vec<_> = words.iter().map(String::as_str).collect();
        words.push("--");
        words.extend(ignored);
        let listed = capture(command(
            &[&words[..], &["--list", "--format=terse"], modules].concat(),
        )?)?;
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        // On with the number of the program before, so that small programs are dealt out too.
        let names: Vec<_> = names
            .filter(|_| {
                number += 1;
                number % of == part % of
            })
            .collect();
        if !names.is_empty() {
            words.push("--exact");
            words.extend(names);
            sum.add(run_command(command(&words)?)?);
        }
    }
    sum.result()
}

/// Runs the examples in the documentation of the libraries.
pub(crate) fn doc() -> Result<()> {
    let packages: Vec<_> = LIBRARIES
        .iter()
        .flat_map(|package| ["-p", package])
        .collect();
    run_command(command(&[&["--doc"], &packages[..]].concat())?)?.result()
}

fn command(arguments: &[&str]) -> Result<Command> {
    let nightly = tools::nightly()?;
    let mut command = Command::new("rustup");
    command
        .args(["run", &nightly, "cargo", "miri", "test", "--all-features"])
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null())
        // Cargo reports its compiler to its children; the nightly must find its own.
        .env_remove("CARGO")
        .env_remove("RUSTC");
    // A program under Miri sees no variable of the host, only those that the flags set.
    let mut flags = std::env::var("MIRIFLAGS").unwrap_or_default();
    for (name, seed) in draws() {
        flags.push_str(&format!(" -Zmiri-env-set={name}={seed}"));
    }
    command.env("MIRIFLAGS", flags);
    Ok(command)
}

/// `GRANULE_MIRI=slow` selects the tests that are otherwise left out because each takes minutes.
fn is_slow(which: Option<&str>) -> Result<bool> {
    match which {
        None | Some("") => Ok(false),
        Some("slow") => Ok(true),
        Some(other) => bail!("GRANULE_MIRI={other}: expected nothing or slow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_program_of_the_libraries_is_there() {
        let programs = programs().unwrap();
        let has = |text: &str| programs.iter().any(|(words, _)| words.join(" ") == text);
        assert!(has("-p granule --lib") && has("-p granule --test operations"));
        assert!(has("-p granule-kcore --lib"));
        assert!(!is_slow(None).unwrap() && is_slow(Some("slow")).unwrap());
        assert!(is_slow(Some("all")).is_err());
    }
}
