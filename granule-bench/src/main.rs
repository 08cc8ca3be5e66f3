//! `granule-bench`: the library's tables on the host, beside other crates and plain stores.
//!
//! Only what one CPU does with memory is timed: no barrier and no TLBI is executed, whoever would
//! issue it. What is compared and how is in `docs/host-benchmarks.md`.

mod arena;
mod clock;
mod job;
mod report;
mod rounds;
mod stats;
mod subjects;

use anyhow::Result;
use arena::Arena;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use job::{Calls, Job, Leaf};
use std::process::ExitCode;

/// Time mapping, protecting and unmapping on this machine, beside other crates and plain stores
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Smaller ranges and fewer rounds, to see that it works; decides no goal
    #[arg(long)]
    quick: bool,
    /// Timed rounds; fewer than 31 decide no goal [default: 31, with --quick 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// The CPU to run on [default: the one that the program starts on]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Trees to each job so that the fastest step is far above the clock's own time.
fn jobs(quick: bool) -> [Job; 7] {
    let large = if quick { 4 << 30 } else { 64 << 30 };
    let small = if quick { 256 << 20 } else { 1 << 30 };
    let job = |bytes, leaf, trees| Job {
        bytes,
        leaf,
        trees,
        calls: Calls::Range,
    };
    let by_page = |calls| Job {
        calls,
        ..job(64 << 20, Leaf::Page4K, 1)
    };
    [
        by_page(Calls::Page),
        by_page(Calls::PageAndTables),
        job(small, Leaf::Page4K, 1),
        job(large, Leaf::Page4K, 1),
        job(small, Leaf::Block2M, 64),
        job(large, Leaf::Block2M, 8),
        job(64 << 30, Leaf::Block1G, 64),
    ]
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("granule-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    clock::pin(arguments.cpu.unwrap_or_else(clock::current_cpu))?;
    let rounds = arguments
        .rounds
        .unwrap_or(if arguments.quick { 7 } else { rounds::ROUNDS });
    let jobs = jobs(arguments.quick);
    let tables = jobs.iter().map(|job| job.trees * job.tables()).max();
    let arena = Arena::new(tables.unwrap_or(0))?;
    let mut subjects = subjects::all()?;
    let mut outcomes = Vec::new();
    for job in jobs {
        let takers = subjects
            .iter()
            .filter(|subject| subject.takes(&job))
            .count();
        let progress = progress(&job, (usize::from(rounds) + 1) * takers);
        let outcome = rounds::run(job, &mut subjects, rounds.into(), &arena, &|| {
            progress.inc(1);
        });
        progress.finish_and_clear();
        outcomes.push(outcome?);
    }
    if arguments.json {
        println!("{:#}", report::json(&outcomes));
    } else {
        print!("{}", report::text(&outcomes));
    }
    if let Some(fault) = report::fault(&outcomes) {
        eprintln!("granule-bench: {fault}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// A bar on standard error; indicatif shows none where that is no terminal.
fn progress(job: &Job, turns: usize) -> ProgressBar {
    let bar = ProgressBar::new(turns as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(job.to_string());
    bar
}
