//! `granule watch`: runs a QEMU command with the plugin, judges the events that the plugin reports while
//! the guest runs, records them, and reports the findings.
//!
//! The plugin observes the guest, the model has the rules, `guest` has the process. This file has the run: the checks
//! before it starts, the path of each event, and the result at the end.

pub mod args;
pub(crate) mod command;
mod events;
mod guest;
mod linux;
mod output;
mod plant;
mod progress;
mod recording;
pub(crate) mod report;
mod tally;

use std::fs;
use std::io::{self, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use granule_model::trace::TraceHeader;
use granule_model::{Config, Event, Lacks, Policies, Policy};
use granule_plugin::stream::{Reader, Seen};

use crate::boot::guest::temp_dir;
use crate::boot::qemu;
use crate::findings::{self, Judge, Names};
use args::WatchArgs;
use events::TraceEvents;
pub(crate) use guest::{Patient, ended, start};
use output::Output;
use plant::Planting;
use progress::Progress;
use recording::Recording;
pub use report::{Outcome, Watched};
use tally::Tally;

/// The variable that passes the version of its interface to the plugin.
pub(crate) const API_VARIABLE: &str = "GRANULE_PLUGIN_API";

/// CPUs of QEMU with BBM level 2 and FEAT_TTL, by ID_AA64MMFR2_EL1; the others have neither.
const NEWER_CPUS: [&str; 4] = ["max", "neoverse-v1", "neoverse-n2", "cortex-a710"];

/// Runs the command. `note` receives lines for people before the guest starts.
/// Fails with one line if nothing could be watched.
pub fn run(
    args: &WatchArgs,
    note: &mut dyn FnMut(&str),
    interrupt: &AtomicBool,
) -> Result<Watched, String> {
    let line = match &args.linux {
        None => args.command.clone(),
        Some(image) => {
            linux::check(image, args.initrd.as_deref())?;
            let append = args.append.as_deref().unwrap_or_default();
            let initrd = args.initrd.as_deref();
            let cpu = args.cpu.as_deref().unwrap_or("max");
            linux::command(&args.qemu, image, initrd, cpu, append)
        }
    };
    let prepared = command::prepare(&line)?;
    let version =
        qemu::version(&prepared.qemu).map_err(|error| format!("{error}; {}", command::NEWER))?;
    let interface = command::interface(&version)?;
    let bbm_level = args.bbm.unwrap_or_else(|| bbm_level(&prepared.options));
    let mut names = Names::new(args.symbols.as_deref())?;
    let mut accepted = findings::accepted(args.accept.as_deref())?;
    let mut outputs = Vec::new();
    for (option, path) in [("--record", &args.record), ("--report", &args.report)] {
        if let Some(path) = path {
            outputs.push(Output::of(option, path)?);
        }
    }
    let folder = temp_dir()?;
    let plugin = plugin(folder.path())?;
    let socket = folder.path().join("plugin");
    let listener = UnixListener::bind(&socket)
        .map_err(|error| format!("{}: {error}; set TMPDIR", socket.display()))?;
    for added in &prepared.added {
        note(&format!("added: {added}"));
    }
    let mut unchecked: Vec<String> = prepared.unseen.iter().cloned().collect();

    let mut process = Command::new(&prepared.qemu);
    let mut planting = Planting::new(&args.plant, folder.path());
    process
        .args(&prepared.options)
        .args(planting.options(&prepared.options)?)
        .args(command::plugin_options(&plugin, &socket, &prepared.ram));
    if args.json {
        process.stdout(io::stderr());
    }
    match interface {
        Some(interface) => process.env(API_VARIABLE, interface.to_string()),
        None => process.env_remove(API_VARIABLE),
    };
    let limit = args.timeout.map(Duration::from_secs);
    let (mut guest, stream) = start(process, &plugin, &listener, limit, interrupt)?;
    let (id, ram) = (guest.child.id(), &prepared.ram);
    names.guest(id, &ram.name, ram.base, ram.bytes);

    let progress = match args.json {
        true => None,
        false => Progress::new(),
    };
    let mut from = Patient {
        stream,
        guest: &mut guest,
        interrupt,
        stopped: None,
        progress: progress.as_ref(),
    };
    let broken = |error: granule_plugin::stream::StreamError| error.to_string();
    let (mut reader, head) =
        Reader::new(BufReader::with_capacity(1 << 18, &mut from)).map_err(broken)?;
    let cpus = u32::from(head.cpus);
    let policies = args.allow.unwrap_or_else(Policies::all);
    let header = TraceHeader {
        page_bytes: 4096,
        cpus,
        bbm_level,
        policies,
        lazy: args.lazy,
        lacks: args.lacks.unwrap_or_else(|| lacks(&prepared.options)),
        complete: false,
        events: 0,
    };
    let mut recording = match &args.record {
        Some(path) => Some(Recording::new(path, header)?),
        None => None,
    };
    outputs.into_iter().for_each(Output::keep);
    let mut trace_events = TraceEvents::new(cpus);
    let mut tally = Tally::default();
    let config = header.lacks.of(Config {
        cpus,
        bbm_level,
        strict: args.strict,
        policies,
        lazy: args.lazy,
        caches_unknown_at_reset: args.strict,
        ..Config::default()
    });
    let mut judge = Judge::new(config, 0);
    if args.no_check {
        judge.stop("the beginning: --no-check");
    }
    let mut lazy = args.lazy;
    let mut is_lazy_known = lazy.is_some() || !policies.has(Policy::LazyUnmap);
    let mut planted = None;
    let mut early = Vec::new();
    // Whether the judge stopped before the end of the recorded events.
    let mut is_cut = false;
    let mut is_refused = false;
    loop {
        if interrupt.load(Ordering::Relaxed) {
            // What is still on its way is kept, and not waited for.
            judge.stop("the interruption");
            is_cut = true;
        }
        match reader.next_seen() {
            Ok(Some((cpu, pc, seen))) => {
                if planting.waits() && seen == Seen::Event(Event::User) {
                    planting.begin(id, &prepared.ram, args.symbols.as_deref());
                }
                planted = planted.or_else(|| planting.done(false));
                tally.add(&seen);
                for event in trace_events.of(cpu.into(), pc, &seen) {
                    if let Err(error) = judge.add(cpu.into(), event) {
                        judge.stop(&format!("an event that the model refuses: {error}"));
                        is_refused = true;
                    }
                    // `granule check` takes no trace with an event that the model refuses.
                    if let Some(recording) = recording.as_mut().filter(|_| !is_refused) {
                        recording.add(cpu.into(), &event);
                    }
                }
                let place = judge.new_place();
                if let Some(place) = place {
                    names.look_up(place);
                    early.push(place);
                }
                if let Some(progress) = &progress {
                    progress.seen(place.is_some(), tally.events.tables > 0);
                }
                // A Linux that runs a program has its list of functions where it can be read, and may have left
                // for another kernel at the end.
                if seen == Seen::Event(Event::User) {
                    if !std::mem::replace(&mut is_lazy_known, true) {
                        lazy = names.vmalloc();
                        judge.bound_lazy_unmap(lazy);
                    }
                    early.drain(..).for_each(|place| names.look_up(place));
                }
            }
            Ok(None) => break,
            Err(error) => {
                unchecked.push(error.to_string());
                break;
            }
        }
    }
    drop(reader);
    let stopped = from.stopped;
    drop(progress);
    let planted = planted.or_else(|| planting.done(true));
    let status = guest.wait();
    let outcome = match (stopped, status) {
        (Some(outcome), _) => outcome,
        (None, Some(status)) if status.success() => Outcome::Ended,
        (None, status) => Outcome::Died(ended(status)),
    };
    unchecked.extend(why_incomplete(&outcome, &tally));
    // What the model cannot judge, `granule check` finds in the recording again, and --no-check leaves nothing out of it.
    let whole = unchecked.is_empty() && !is_cut && !is_refused;
    let (mut judged, done) = judge.finish(whole);
    let is_complete = whole && done.is_ok();
    if let Err(error) = done {
        unchecked.push(format!("all that the guest relies on at its end: {error}"));
    }
    unchecked.extend(judged.unchecked.iter().map(ToString::to_string));
    if let Some(stopped) = &judged.stopped {
        unchecked.push(format!("what follows {stopped}"));
    }
    let (planted, is_unplanted) = match planted {
        None => (Vec::new(), false),
        Some(Ok(planted)) => (planted, false),
        Some(Err(why)) => {
            unchecked.push(why);
            (Vec::new(), true)
        }
    };
    let accept = args.accept.as_deref();
    let (findings, notes) = findings::of(&mut judged, &mut names, &mut accepted, accept);
    let record = recording.map(|recording| {
        let functions = names.functions(recording.places());
        let (events, failed) = recording.finish((judged.page_size, lazy), is_complete, &functions);
        unchecked.extend(failed);
        let path = args.record.as_deref().unwrap_or(Path::new(""));
        (path.display().to_string(), events)
    });
    Ok(Watched {
        outcome,
        qemu: version,
        api: head.api,
        cpus: head.cpus,
        bbm_level,
        policies,
        lazy,
        checks: !args.no_check,
        tally,
        judged,
        findings,
        planted,
        is_unplanted,
        notes,
        unchecked,
        record,
    })
}

/// Writes the page of `--report`, if there is to be one.
/// Fails with one line with the file.
pub fn write_page(args: &WatchArgs, watched: &Watched) -> Result<(), String> {
    match &args.report {
        Some(path) => findings::report::write(path, &watched.page()),
        None => Ok(()),
    }
}

/// Lists the parts of the run that were not seen, apart from those that the command does not allow.
fn why_incomplete(outcome: &Outcome, tally: &Tally) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(
        tally
            .missing
            .iter()
            .map(|what| format!("what happens with {what}")),
    );
    if *outcome != Outcome::Ended || tally.totals.is_none() {
        lines.push("what the guest relies on at its end".into());
    }
    if tally.events.tables == 0 {
        lines.push("any table: no MMU was turned on, or its tables cannot be seen".into());
    }
    lines
}

/// The plugin, as a file in a folder of this run. It is part of this program, so that both are always of
/// one version.
pub(crate) fn plugin(folder: &Path) -> Result<PathBuf, String> {
    const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugin.so"));
    if PLUGIN.is_empty() {
        return Err(
            "only a granule that was built for Linux with glibc has the plugin for QEMU".into(),
        );
    }
    let path = folder.join("granule-plugin.so");
    match fs::write(&path, PLUGIN) {
        Ok(()) => Ok(path),
        Err(error) => Err(format!("{}: {error}; set TMPDIR", path.display())),
    }
}

/// The name of the CPU in a command.
fn cpu(options: &[std::ffi::OsString]) -> String {
    let mut words = options.iter().map(|word| word.to_string_lossy());
    let mut cpu = String::new();
    while let Some(word) = words.next() {
        if matches!(&*word, "-cpu" | "--cpu") {
            cpu = words.next().unwrap_or_default().into_owned();
        }
    }
    cpu.split(',').next().unwrap_or_default().to_owned()
}

/// The BBM level of the CPU that a command names.
fn bbm_level(options: &[std::ffi::OsString]) -> u8 {
    if NEWER_CPUS.contains(&&*cpu(options)) {
        2
    } else {
        0
    }
}

/// The features that the CPU of a command lacks: Armv8.4, with FEAT_TTL, is older than FEAT_BBM.
fn lacks(options: &[std::ffi::OsString]) -> Lacks {
    let all = Lacks::from_names("ttl").unwrap_or_default();
    let cpu = cpu(options);
    if cpu.is_empty() || NEWER_CPUS.contains(&&*cpu) {
        Lacks::NONE
    } else {
        all
    }
}
