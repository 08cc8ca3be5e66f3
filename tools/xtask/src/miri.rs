//! The libraries' tests under Miri, which runs some hundred times as long as the processor: each
//! run has the unit tests, which stand beside the unsafe code, and a tenth of the others, which
//! reach it through everything else. Tests that Miri leaves out are marked in their source.

use std::process::Command;

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::history::PARTS;
use crate::packages::{LIBRARIES, WITH_UNSAFE_MODULES, draws};
use crate::programs::{Sum, run_command};
use crate::{nextest, tools};
use xtask::workspace;

#[derive(Debug, clap::Args)]
pub(crate) struct MiriOptions {
    /// Only this part, of ten, of the integration tests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..PARTS))]
    part: Option<u64>,
    /// Only the tests that are otherwise left out because each takes Miri minutes
    #[arg(long, conflicts_with = "part")]
    slow: bool,
}

/// Runs what the options choose, or all.
pub(crate) fn chore(options: &MiriOptions) -> Result<()> {
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
    /// The tests that all others leave out.
    Slow,
}

/// The words that choose the programs of unit tests, each with the modules that are wanted of it, or all.
fn unit_programs() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let libraries = LIBRARIES.map(|library| (library, &[][..]));
    libraries.into_iter().chain(WITH_UNSAFE_MODULES)
}

/// The integration tests of the libraries: package, program and names. The host's programs list them, because a program
/// under Miri takes ten seconds for it.
fn integration_tests() -> Result<Vec<(String, String, Vec<String>)>> {
    let libraries = LIBRARIES.map(|library| format!("package(={library})"));
    nextest::list(&format!("kind(test) & ({})", libraries.join(" + ")))
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

/// The part of a test: always the same, whatever other tests there are.
fn part_of(name: &str) -> u64 {
    let hash = Sha256::digest(name);
    let number = hash
        .iter()
        .take(4)
        .fold(0, |number, byte| number << 8 | u64::from(*byte));
    number % PARTS
}

/// Runs tests. Each takes a second to begin, so those of a program share a process.
pub(crate) fn run(which: Which) -> Result<()> {
    let mut sum = Sum::default();
    if !matches!(which, Which::Part(_)) {
        for (package, modules) in unit_programs() {
            // Those that the kernel's libraries leave out write gigabytes.
            if which == Which::Slow && !modules.is_empty() {
                continue;
            }
            let ran = tests(&["-p", package, "--lib"], which, modules)?;
            // A module of another name would be a program without a test.
            if !modules.is_empty() {
                ran.result()?;
            }
            sum.add(ran);
        }
    }
    if which != Which::Unit {
        for (package, program, mut names) in integration_tests()? {
            if let Which::Part(part) = which {
                names.retain(|name| part_of(&format!("{package} {program} {name}")) == part);
            }
            if !names.is_empty() {
                let names: Vec<_> = ["--exact"]
                    .into_iter()
                    .chain(names.iter().map(String::as_str))
                    .collect();
                let program = ["-p", &package, "--test", &program];
                sum.add(tests(&program, which, &names)?);
            }
        }
    }
    sum.result()
}

/// Runs tests of a program, with the time of each.
fn tests(program: &[&str], which: Which, names: &[&str]) -> Result<Sum> {
    let ignored: &[&str] = match which {
        Which::Slow => &["--ignored"],
        _ => &[],
    };
    let times = ["--", "-Zunstable-options", "--report-time"];
    run_command(command(&[program, &times, ignored, names].concat())?)
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
    let mut command = tools::on(&nightly, &["cargo", "miri", "test", "--all-features"]);
    command.args(arguments);
    // A program under Miri sees no variable of the host, only those that the flags set.
    let mut flags = std::env::var("MIRIFLAGS").unwrap_or_default();
    for (name, seed) in draws() {
        flags.push_str(&format!(" -Zmiri-env-set={name}={seed}"));
    }
    command.env("MIRIFLAGS", flags);
    Ok(command)
}
