//! `granule-bench`: the library's tables on the host, beside other crates and plain stores.
//!
//! Only what one CPU does with memory is timed: no barrier and no TLBI is executed, whoever would
//! issue it. What is compared and how is in `README.md`.

mod clock;
mod memory;
mod report;
mod rounds;
mod stats;

/// Code that is never called, for `cargo xtask bench`.
mod unrelated {
    include!(concat!(env!("OUT_DIR"), "/unrelated.rs"));
}

use anyhow::Result;
use clap::Parser;
use granule_bench::job::{Job, jobs};
use granule_bench::subjects;
use indicatif::{ProgressBar, ProgressStyle};
use memory::HostArena;
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
    let jobs: Vec<Job> = jobs(arguments.quick).collect();
    let bytes = jobs.iter().map(Job::table_bytes).max();
    let arena = HostArena::new(bytes.unwrap_or(0))?;
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

/// A bar on standard error; indicatif shows none where that is not a terminal.
fn progress(job: &Job, turns: usize) -> ProgressBar {
    let bar = ProgressBar::new(turns as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(job.to_string());
    bar
}
