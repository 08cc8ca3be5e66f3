//! The `granule` command: reads its arguments, prints what the library found,
//! exits with the code that says so. All else is in the library.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use granule_cli::args::{BootArgs, Cli, Command};
use granule_cli::{Boot, boot, report};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Boot(args) => boot_command(&args),
    }
}

fn boot_command(args: &BootArgs) -> ExitCode {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&interrupt)) {
            eprintln!("granule: signals cannot be caught: {error}");
            return ExitCode::FAILURE;
        }
    }
    let request = args.request();
    let done = if args.json {
        boot::boot(&request, &mut io::stderr(), &interrupt)
    } else {
        boot::boot(&request, &mut io::stdout(), &interrupt)
    };
    let printed = if args.json {
        print_object(&done)
    } else {
        Ok(())
    };
    tell_people(&done);
    match printed {
        Ok(()) => ExitCode::from(done.exit_code()),
        // Whoever wanted the object did not get it: that is no success.
        Err(error) => {
            eprintln!("granule: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_object(done: &Boot) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", done.json())?;
    stdout.flush()
}

fn tell_people(done: &Boot) {
    let mut text = String::new();
    // The guest may have ended in the middle of a line.
    if done.console.last().is_some_and(|&byte| byte != b'\n') {
        text.push('\n');
    }
    // What is in the last line already need not be said twice.
    let reason = done.reason.as_deref().unwrap_or_default();
    for line in done
        .qemu_messages
        .lines()
        .filter(|line| !line.trim().is_empty())
    {
        let said = line.split_once(": ").map_or(line, |(_, rest)| rest);
        if !reason.contains(said) {
            text += &format!("{line}\n");
        }
    }
    for fault in done.record.faults() {
        text += &format!("granule: cannot understand {fault}\n");
    }
    text += &report::summary(done);
    text += &done.last_line();
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{text}");
}
