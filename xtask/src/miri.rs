//! The libraries' tests under Miri, which runs some hundred times as long as the processor: each run has the unit tests,
//! which stand beside the unsafe code, and a tenth of the others, which reach it through everything else. Tests that
//! Miri leaves out say so themselves.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::history::PARTS;
use crate::packages::{LIBRARIES, WITH_UNSAFE_MODULES, draws, package_named, targets};
use crate::programs::{Sum, run_command};
use crate::tools;
use xtask::workspace::{self, capture, metadata, root};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only this part, of ten, of the integration tests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..PARTS))]
    part: Option<u64>,
    /// Only the tests that are otherwise left out because each takes Miri minutes
    #[arg(long, conflicts_with = "part")]
    slow: bool,
}

/// Runs what the options choose, or all.
pub(crate) fn chore(options: &Options) -> Result<()> {
    let which = match options.part {
        Some(part) => Which::Part(part),
        None if options.slow => Which::Slow,
        None => Which::All,
    };
    run(which)
}

/// The tests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The unit tests.
    Unit,
    /// This part, of ten, of the integration tests.
    Part(u64),
    All,
    /// What all others leave out.
    Slow,
}

/// A test program.
struct Program {
    words: Vec<String>,
    /// The modules that are wanted of it, or all.
    modules: &'static [&'static str],
    is_unit: bool,
}

fn programs() -> Result<Vec<Program>> {
    let metadata = metadata()?;
    let program = |words: &[&str], modules| Program {
        words: words.iter().map(|&word| word.to_owned()).collect(),
        modules,
        is_unit: words.contains(&"--lib"),
    };
    let mut programs = Vec::new();
    for library in LIBRARIES {
        let tests = targets(package_named(&metadata, library)?, "test");
        let tests = tests
            .iter()
            .map(|test| program(&["-p", library, "--test", test], &[]));
        programs.extend(tests);
        programs.push(program(&["-p", library, "--lib"], &[]));
    }
    let others =
        WITH_UNSAFE_MODULES.map(|(package, modules)| program(&["-p", package, "--lib"], modules));
    programs.extend(others);
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

/// Runs tests. Each takes a second to begin, so those of a program share a process.
pub(crate) fn run(which: Which) -> Result<()> {
    let ignored: &[&str] = match which {
        Which::Slow => &["--ignored"],
        _ => &[],
    };
    let (mut sum, mut number) = (Sum::default(), 0);
    for program in programs()? {
        let mut words: Vec<_> = program.words.iter().map(String::as_str).collect();
        words.push("--");
        words.extend(ignored);
        let list = ["--list", "--format=terse"];
        let listed = capture(command(&[&words[..], &list, program.modules].concat())?)?;
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        let names = names.filter(|_| match which {
            Which::Unit => program.is_unit,
            Which::Part(_) if program.is_unit => false,
            Which::Part(part) => {
                // On with the number of the program before, so that small programs are dealt out too.
                number += 1;
                number % PARTS == part
            }
            Which::All | Which::Slow => true,
        });
        let names: Vec<_> = names.collect();
        if !names.is_empty() {
            words.extend(["--exact", "-Zunstable-options", "--report-time"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_program_of_the_libraries_is_there() {
        let programs = programs().unwrap();
        let is_unit = |text: &str| {
            let found = programs.iter().find(|it| it.words.join(" ") == text);
            found.map(|it| it.is_unit)
        };
        assert_eq!(is_unit("-p granule --lib"), Some(true));
        assert_eq!(is_unit("-p granule --test operations"), Some(false));
        assert_eq!(is_unit("-p granule-kcore --lib"), Some(true));
    }
}
