//! The `granule` command: reads its arguments, prints the library's results and exits with the
//! matching code. Everything else is in the library.

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Parser;
use granule_cli::args::{BootArgs, Cli, Command};
use granule_cli::bench::args::What;
use granule_cli::bench::progress::Bar;
use granule_cli::bench::series::{self, Benchmark};
use granule_cli::bench::tlb::{self, args::TlbArgs};
use granule_cli::check::{self, args::CheckArgs};
use granule_cli::inspect::{self, Failure};
use granule_cli::plan::args::PlanArgs;
use granule_cli::result::console_record::RecordLines;
use granule_cli::result::report;
use granule_cli::watch::{self, args::WatchArgs};
use granule_cli::{Boot, boot, cost, schema, usage};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match usage::line(&error) {
            Some(line) => {
                let code = bad_usage(&line);
                // For dump and lint, 1 and 2 describe the tables.
                return match std::env::args().nth(1).as_deref() {
                    Some("dump" | "lint" | "report") => ExitCode::from(inspect::UNREADABLE),
                    _ => code,
                };
            }
            None => error.exit(),
        },
    };
    run(cli.command).unwrap_or_else(|code| code)
}

/// Runs a command; the error is the exit code of one that ended early.
fn run(command: Command) -> Result<ExitCode, ExitCode> {
    Ok(match command {
        Command::Boot(args) => boot_command(&args)?,
        Command::Check(args) => check_command(&args)?,
        Command::Watch(args) => watch_command(&args)?,
        Command::Bench(args) => match args.what {
            What::LinearMap(bench) => bench_command(&bench)?,
            What::Permissions(bench) => bench_command(&bench)?,
            What::User(bench) => bench_command(&bench)?,
            What::Kexec(bench) => bench_command(&bench)?,
            What::Tlb(args) => tlb_command(&args)?,
        },
        Command::Plan(args) => plan_command(&args),
        Command::Dump(args) => {
            inspect_command(args.is_live(), |out, notes, progress, interrupt| {
                inspect::dump::run(&args, out, notes, progress, interrupt)
            })
        }
        Command::Lint(args) => {
            inspect_command(args.is_live(), |out, notes, progress, interrupt| {
                inspect::lint::run(&args, out, notes, progress, interrupt)
            })
        }
        Command::Report(args) => {
            inspect_command(args.is_live(), |out, notes, progress, interrupt| {
                inspect::report::run(&args, out, notes, progress, interrupt)
            })
        }
        Command::Schema(args) => {
            let text = schema::text(&args).map_err(|line| bad_usage(&line))?;
            exit_code(true, print(text))
        }
    })
}

/// A flag that SIGINT, SIGTERM and SIGHUP set to true.
fn interrupt() -> Result<Arc<AtomicBool>, ExitCode> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&interrupt)) {
            print_message(format_args!("signals cannot be caught: {error}"));
            return Err(ExitCode::FAILURE);
        }
    }
    Ok(interrupt)
}

/// Prints a line for people. If standard error is closed, it is lost.
fn print_message(line: impl Display) {
    let _ = writeln!(
        io::stderr(),
        "granule: {}",
        usage::bounded(&line.to_string())
    );
}

fn bad_usage(line: &str) -> ExitCode {
    print_message(line);
    ExitCode::from(2)
}

/// Reports output that could not be printed, and returns the exit code. A reader that went away has what it
/// needs, as `head` does: then SIGPIPE ends the program without a message, as it ends other programs.
fn unprinted(error: &io::Error, code: u8) -> ExitCode {
    if error.kind() == io::ErrorKind::BrokenPipe {
        let _ = emulate_default_handler(SIGPIPE);
    }
    print_message(format_args!("standard output: {error}"));
    ExitCode::from(code)
}

/// The exit code for the result `ok`, and for a result that could not be printed.
fn exit_code(ok: bool, printed: io::Result<()>) -> ExitCode {
    match printed {
        Ok(()) if ok => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => unprinted(&error, FAILED),
    }
}

fn bench_command(bench: &impl Benchmark) -> Result<ExitCode, ExitCode> {
    let interrupt = interrupt()?;
    let done = bench.check().and_then(|files| {
        let mut bar = Bar::of(bench);
        series::run(bench, files, &mut bar, &interrupt)
    });
    let done = done.map_err(|line| bad_usage(&line))?;
    let table = series::table(bench, &done);
    let object = bench.run_args().json.then(|| bench.json(&done));
    Ok(exit_code(done.is_ok(), print_rows(&table, object)))
}

fn tlb_command(args: &TlbArgs) -> Result<ExitCode, ExitCode> {
    let interrupt = interrupt()?;
    let ran = tlb::run(args, &mut |line| print_message(line), &interrupt);
    let ran = ran.map_err(|line| bad_usage(&line))?;
    let table = tlb::report::table(&ran);
    let object = args.json.then(|| tlb::report::json(&ran));
    Ok(exit_code(ran.is_ok(), print_rows(&table, object)))
}

/// Prints the table to standard output, or with `--json` the object there and the table to standard
/// error.
fn print_rows(table: &str, object: Option<impl Display>) -> io::Result<()> {
    match object {
        Some(object) => {
            // If standard error is closed, no message can be printed.
            let _ = write!(io::stderr(), "{table}");
            print(object)
        }
        None => print(table.trim_end()),
    }
}

fn plan_command(args: &PlanArgs) -> ExitCode {
    let Some(plan) = args.plan() else {
        return exit_code(true, print(cost::check::table().trim_end()));
    };
    match plan.work_out() {
        Ok(planned) if args.json => exit_code(true, print(planned.json())),
        Ok(planned) => exit_code(true, print(planned.text().trim_end())),
        Err(line) => bad_usage(&line),
    }
}

/// A command that reads other kernels' tables: what it writes, its notes, its progress.
/// With a live machine a signal ends it only when that runs again.
fn inspect_command(
    live: bool,
    run: impl FnOnce(
        &mut dyn Write,
        &mut dyn FnMut(&str),
        inspect::Progress<'_>,
        &inspect::Interrupt,
    ) -> Result<u8, Failure>,
) -> ExitCode {
    let interrupt = match live {
        true => match interrupt() {
            Ok(interrupt) => interrupt,
            Err(_) => return ExitCode::from(inspect::UNREADABLE),
        },
        false => inspect::Interrupt::default(),
    };
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let progress = RefCell::new(Progress::new());
    let mut note = |note: &str| {
        progress.borrow_mut().hide();
        print_message(note);
    };
    let mut step = |step| progress.borrow_mut().at(step);
    let done = run(&mut out, &mut note, &mut step, &interrupt);
    progress.borrow_mut().hide();
    let done = done.and_then(|code| Ok(out.flush().map(|()| code)?));
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failure::Output(error)) => unprinted(&error, inspect::UNREADABLE),
        Err(error) => {
            print_message(&error);
            ExitCode::from(error.code())
        }
    }
}

fn boot_command(args: &BootArgs) -> Result<ExitCode, ExitCode> {
    let interrupt = interrupt()?;
    let request = args.request();
    let done = if args.json {
        boot::boot(&request, &mut io::stderr(), &interrupt)
    } else {
        boot::boot(&request, &mut io::stdout(), &interrupt)
    };
    let printed = if args.json {
        print(done.json())
    } else {
        Ok(())
    };
    print_end(&done, args.phases);
    Ok(match printed {
        Ok(()) => ExitCode::from(done.exit_code()),
        // The object could not be printed, so the command failed.
        Err(error) => unprinted(&error, FAILED),
    })
}

fn watch_command(args: &WatchArgs) -> Result<ExitCode, ExitCode> {
    let interrupt = interrupt()?;
    let done = watch::run(args, &mut |line| print_message(line), &interrupt);
    let done = done.map_err(|line| bad_usage(&line))?;
    let printed = if args.json {
        let _ = write!(io::stderr(), "{}", done.text());
        print(done.json())
    } else {
        print(done.text().trim_end())
    };
    // What is printed is all that is left of a run whose page cannot be written.
    let page = watch::write_page(args, &done);
    Ok(match (printed, page) {
        (Ok(()), Ok(())) => ExitCode::from(done.exit_code()),
        (Ok(()), Err(line)) => {
            print_message(line);
            ExitCode::from(match done.exit_code() {
                0 => NO_VERDICT,
                code => code,
            })
        }
        (Err(error), _) => unprinted(&error, NO_VERDICT),
    })
}

/// A command that has no exit codes of its own failed.
const FAILED: u8 = 1;

/// Bad usage, or a file that is not a trace.
const NO_VERDICT: u8 = 2;

fn check_command(args: &CheckArgs) -> Result<ExitCode, ExitCode> {
    let options = check::CheckOptions {
        strict: args.strict,
        policies: args.allow,
        lacks: args.lacks,
        lazy: args.lazy,
        bbm_level: args.bbm,
        most_violations: args.most,
    };
    let name = args.file.display();
    let (from, bytes): (Box<dyn Read>, _) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(&args.file).map_err(|error| {
            print_message(format_args!("{name}: line 1, column 1: {error}"));
            ExitCode::from(NO_VERDICT)
        })?;
        let bytes = file.metadata().ok().filter(|it| it.is_file());
        (Box::new(file), bytes.map(|it| it.len()))
    };
    let page = args.report.as_deref();
    if let Some(path) = page {
        check::write_page(path, "").map_err(|line| bad_usage(&line))?;
    }
    let about = check::About {
        symbols: args.symbols.clone(),
        accept: args.accept.clone(),
    };
    let mut progress = Progress::new();
    let from = BufReader::with_capacity(1 << 20, from);
    let checked = check::check_any(from, &options, &about, &mut |read| {
        progress.bytes(read, bytes);
    });
    progress.hide();
    let checked = checked.map_err(|error| match error {
        check::CheckError::About(line) => bad_usage(&line),
        error => {
            print_message(format_args!("{name}: {error}"));
            ExitCode::from(NO_VERDICT)
        }
    })?;
    let page = page.map_or(Ok(()), |path| {
        check::write_page(path, &checked.page(&args.file.display().to_string()))
    });
    let mut stdout = anstream::stdout().lock();
    let printed = if args.json {
        writeln!(stdout, "{}", checked.json())
    } else {
        write!(stdout, "{}", checked.text())
    };
    Ok(match printed.and_then(|()| stdout.flush()) {
        Ok(()) if page.is_err() => bad_usage(&page.err().unwrap_or_default()),
        Ok(()) => ExitCode::from(checked.exit_code()),
        Err(error) => unprinted(&error, NO_VERDICT),
    })
}

/// A progress bar on standard error for work that takes longer than two seconds; hidden if standard
/// error is not a terminal.
struct Progress {
    begun: Instant,
    bar: Option<(ProgressBar, &'static str)>,
}

/// Where the end is known, and where it is not.
const BYTES: &str = "{bar:24} {binary_bytes} of {binary_total_bytes}  {elapsed} gone, {eta} left";
const TABLES: &str = "{human_pos} tables read  {elapsed} gone";

impl Progress {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            bar: None,
        }
    }

    fn at(&mut self, step: inspect::Step) {
        if self.begun.elapsed() < Duration::from_secs(2) {
            return;
        }
        let (at, all, style) = match step {
            inspect::Step::Searched(done, all) => (done, Some(all), BYTES),
            inspect::Step::Tables(tables) => (tables, None, TABLES),
        };
        self.show(at, all, style);
    }

    fn bytes(&mut self, at: u64, all: Option<u64>) {
        if self.begun.elapsed() > Duration::from_secs(2) {
            let style = all.map_or("{binary_bytes} read  {elapsed} gone", |_| BYTES);
            self.show(at, all, style);
        }
    }

    fn show(&mut self, at: u64, all: Option<u64>, style: &'static str) {
        if self.bar.as_ref().is_none_or(|(_, shown)| *shown != style) {
            self.hide();
            let bar = all.map_or_else(ProgressBar::no_length, ProgressBar::new);
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            self.bar = Some((bar.with_elapsed(self.begun.elapsed()), style));
        }
        if let Some((bar, _)) = &self.bar {
            bar.set_position(at);
        }
    }

    /// Before anything else is written to the terminal.
    fn hide(&mut self) {
        if let Some((bar, _)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn print(what: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{what}")?;
    stdout.flush()
}

fn print_end(done: &Boot, phases: bool) {
    let mut text = String::new();
    // The guest may have ended in the middle of a line.
    if done.console.last().is_some_and(|&byte| byte != b'\n') {
        text.push('\n');
    }
    // The last line may already hold the reason.
    let reason = done.reason.as_deref().unwrap_or_default();
    for line in done
        .qemu_messages
        .lines()
        .filter(|line| !line.trim().is_empty())
    {
        let message = line.split_once(": ").map_or(line, |(_, rest)| rest);
        if !reason.contains(message) {
            text += &format!("{line}\n");
        }
    }
    for fault in done.boots.iter().flat_map(RecordLines::faults) {
        text += &format!("granule: cannot understand {fault}\n");
    }
    text += &report::summary(done);
    if phases {
        text += &report::phases(&done.record);
    }
    text += &done.last_line();
    for line in text.lines() {
        // If standard error is closed, no message can be printed.
        let _ = writeln!(io::stderr(), "{}", usage::bounded(line));
    }
}
