//! Developer chores of the Granule workspace: `cargo xtask COMMAND`.
//!
//! This file has the command line only; each command is a module of its own.

mod a64;
mod api;
mod audit;
mod bench;
mod boots;
mod browser;
mod byte_order;
mod cargo_tools;
mod check;
mod ci;
mod debian;
mod disk;
#[cfg(test)]
mod documents;
mod elf;
mod entry;
mod examples;
mod figures;
mod fuzz;
mod guest;
mod history;
mod hw_code;
mod image;
mod least_rust;
#[cfg(test)]
mod limits;
mod matrix;
mod miri;
mod mmu_off;
mod nextest;
mod pace;
mod packages;
#[cfg(test)]
mod page_constants;
mod pe;
mod peers;
mod probe;
mod programs;
mod published;
mod report;
mod results;
mod run;
mod size;
mod soak;
mod steps;
mod stop;
mod strict_align;
mod text;
#[cfg(test)]
mod tidy;
mod tools;
mod user;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::boot;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    about = "Developer chores of the Granule workspace"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what building and testing need, saying so first
    Setup,
    /// Build the kernel, check its MMU-off code and write the flat arm64 Image
    Image {
        /// Build for one page size only, into a file of its own: target/granule/Image-4k
        #[arg(long, value_name = "SIZE")]
        fixed: Option<image::Fixed>,
        /// Build the image with the hooks for tests: target/granule/Image-test
        #[arg(long, conflicts_with = "fixed")]
        test: bool,
        /// Take this page size where nothing else chooses one: target/granule/Image-default-16k
        #[arg(long, value_name = "SIZE", conflicts_with_all = ["fixed", "test"])]
        default: Option<image::Fixed>,
    },
    /// Build the user programs that tests run on the kernel
    User,
    /// Make a disk for firmware to boot from, with a boot loader that apt fetches: target/granule/disk.img
    Disk(disk::DiskOptions),
    /// Build the probe, a next kernel that only looks: target/granule/Image-probe
    Probe,
    /// Only check the kernel's MMU-off code
    CheckMmuOff {
        /// An ELF file to check instead of building the kernel
        #[arg(long)]
        elf: Option<PathBuf>,
    },
    /// Boot one image with 4K, 16K and 64K pages and print one table
    Run {
        /// Further arguments for each `granule boot`, after `--`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compare the image for every page size with those for a single size
    Size {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Measure the text that calls of the library take, without link-time optimization
    Text {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run the checks before a commit, in three minutes: format, lints, tests of what changed,
    /// three boots
    Check,
    /// Write the library's public interface to crates/granule/api.txt, which a step compares
    Api,
    /// Time the library beside other crates in several builds, the worst of which counts, or count its instructions on arm64
    Bench(bench::BenchOptions),
    /// Measure, store the results in docs/results and write the tables of docs/performance.md and README.md
    Figures(figures::FiguresOptions),
    /// Run the cheap commands of docs/published.json, and write docs/published.md
    Published(published::PublishedOptions),
    /// Make the page of `granule report` of this kernel with each page size
    Report(report::ReportOptions),
    /// Run every test, host and QEMU
    Test(ci::TestOptions),
    /// Add the summary of a run, target/ci/summary.json, to docs/results/ci.jsonl
    Record {
        /// The summary
        file: PathBuf,
    },
    /// Look up every lock file in the database of advisories; 1: there are some, 3: it cannot be
    /// reached
    Audit,
    /// Run one test for cargo-nextest
    #[command(hide = true)]
    RunTest {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Run the libraries' tests under Miri, all or a part
    Miri(miri::MiriOptions),
    /// Build the fuzz targets with the pinned nightly, and run each, guided by coverage
    Fuzz(fuzz::FuzzOptions),
    /// The long form of the tests, resumable, at most six hours
    Soak(soak::SoakOptions),
}

fn main() -> ExitCode {
    match dispatch(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Setup => tools::setup()?,
        Command::Image {
            fixed,
            test,
            default,
        } => {
            let build = match (test, default) {
                (true, _) => image::Build::Hooks,
                (_, Some(size)) => image::Build::Default(size),
                _ => image::Build::For(fixed),
            };
            build.image().map(drop)?;
        }
        Command::User => user::build()?,
        Command::Disk(options) => disk::make(&options)?,
        Command::Probe => probe::build().map(drop)?,
        Command::CheckMmuOff { elf } => {
            let elf = elf.map_or_else(|| image::Build::For(None).elf(), Ok)?;
            image::check_mmu_off(&elf)?;
        }
        Command::Run { arguments } => {
            tools::setup()?;
            run::run(&arguments)?;
        }
        Command::Fuzz(options) => fuzz::fuzz(&options)?,
        Command::Miri(options) => miri::chore(&options)?,
        Command::Size { json } => size::size(json)?,
        Command::Text { json } => text::text(json)?,
        Command::Api => api::write()?,
        Command::Check => return ci::check(),
        Command::Bench(options) => bench::bench(&options)?,
        Command::Figures(options) => return figures::figures(&options),
        Command::Published(options) => published::published(&options)?,
        Command::Report(options) => report::make(&options)?,
        Command::Test(options) => return ci::test(&options),
        Command::Record { file } => history::record(&file)?,
        Command::Audit => return audit::audit(),
        Command::RunTest { words } => return nextest::run_test(&words),
        Command::Soak(options) => return soak::soak(&options),
    }
    Ok(ExitCode::SUCCESS)
}
