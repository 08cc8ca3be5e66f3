//! `granule bench tlb`: the memory accesses of a workload, as the plugin records them, through models of
//! published TLBs.
//!
//! The models are `granule-tlb`, the table and the JSON are [`report`]. This file runs the guest.

pub mod args;
pub mod report;

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use granule_plugin::accesses::{Reader, What};
use granule_tlb::replay::{Counted, Replay};

use self::args::TlbArgs;
use crate::bench::progress::bar;
use crate::bench::user::lines;
use crate::boot::guest::temp_dir;
use crate::boot::qemu::{self, Start};
use crate::image;
use crate::initramfs::Initramfs;
use crate::request::Request;
use crate::sizes::show_size;
use crate::watch::command::{self, Ram};
use crate::watch::{API_VARIABLE, Outcome, Patient, ended, plugin, start};

/// The CPU that our own kernel runs on.
const CPU: &str = "neoverse-n1";
/// Where the machine `virt` has its RAM.
const RAM_BASE: u64 = 0x4000_0000;

/// A run that was counted.
#[derive(Debug)]
pub struct Ran {
    /// The workload, in words.
    pub workload: String,
    /// The version of QEMU.
    pub qemu: String,
    /// The end of the machine.
    pub outcome: Outcome,
    /// Whether the limit of instructions ended it.
    pub reached_most: bool,
    /// The counts.
    pub counted: Counted,
}

impl Ran {
    /// Whether the machine or the limit of instructions ended the run.
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ended
    }
}

/// A run to make.
struct Job {
    workload: String,
    qemu: PathBuf,
    options: Vec<OsString>,
    ram: Ram,
    /// The file for what the guest prints; `None` to show it.
    console: Option<PathBuf>,
    /// About how many instructions it has.
    instructions: u64,
    /// Whether it is the program of ours, which prints a line when it has done all.
    is_own: bool,
}

/// Runs the workload and replays its accesses. `note` receives lines for people before the guest
/// starts.
/// Fails with one line if nothing could be counted.
pub fn run(
    args: &TlbArgs,
    note: &mut dyn FnMut(&str),
    interrupt: &AtomicBool,
) -> Result<Ran, String> {
    let folder = temp_dir()?;
    let job = if args.command.is_empty() {
        ours(args, folder.path())?
    } else {
        theirs(args, note)?
    };
    let version = qemu::version(&job.qemu)?;
    let interface = command::interface(&version)?;
    let plugin = plugin(folder.path())?;
    let socket = folder.path().join("plugin");
    let listener = UnixListener::bind(&socket)
        .map_err(|error| format!("{}: {error}; set TMPDIR", socket.display()))?;
    let [word, mut value] = command::plugin_options(&plugin, &socket, &job.ram);
    value.push(",accesses=on");
    let mut process = Command::new(&job.qemu);
    process.args(&job.options).arg(word).arg(value);
    match &job.console {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            process.stdin(Stdio::null()).stdout(file);
        }
        // What the command prints is not the table or the object.
        None => drop(process.stdout(io::stderr())),
    }
    match interface {
        Some(interface) => process.env(API_VARIABLE, interface.to_string()),
        None => process.env_remove(API_VARIABLE),
    };
    let limit = Some(Duration::from_secs(args.timeout));
    let (mut guest, stream) = start(process, &plugin, &listener, limit, interrupt)?;
    let mut from = Patient {
        stream,
        guest: &mut guest,
        interrupt,
        stopped: None,
        progress: None,
    };
    let replayed = replay(&mut from, args.most, job.instructions);
    let stopped = from.stopped.take();
    // A guest that goes on finds nobody who reads.
    drop(from);
    let (counted, reached_most) = replayed?;
    if reached_most {
        guest.request_end();
    }
    let status = guest.wait();
    let outcome = match (stopped, status) {
        (Some(outcome), _) => outcome,
        _ if reached_most => Outcome::Ended,
        (None, Some(status)) if status.success() && counted.ended => Outcome::Ended,
        (None, status) => Outcome::Died(ended(status)),
    };
    let console = job.console.as_deref().map(read_console).transpose()?;
    if counted.page_size.is_none() {
        return Err(nothing(&outcome, console.as_deref()));
    }
    if job.is_own && outcome == Outcome::Ended && !reached_most {
        // A program that failed half-way did not do the work that the table describes.
        lines::read(&console.unwrap_or_default())?;
    }
    Ok(Ran {
        workload: job.workload,
        qemu: version,
        outcome,
        reached_most,
        counted,
    })
}

/// Replays the stream to its end or to the limit of instructions. Returns whether it was the limit.
fn replay(from: &mut Patient<'_>, most: u64, about: u64) -> Result<(Counted, bool), String> {
    let mut reader =
        Reader::new(BufReader::with_capacity(1 << 18, from)).map_err(|error| error.to_string())?;
    let mut replay = Replay::default();
    let bar = bar(about.min(most));
    let mut shown = 0;
    let mut reached_most = false;
    while let Some(record) = reader.next_record().map_err(|error| error.to_string())? {
        replay.add(&record);
        let done = replay.instructions();
        if done - shown >= 1 << 20 {
            shown = done;
            bar.set_position(done.min(about.min(most)));
        }
        if matches!(record.what, What::End { .. }) {
            break;
        }
        if done >= most {
            reached_most = true;
            break;
        }
    }
    bar.finish_and_clear();
    Ok((replay.finish(), reached_most))
}

fn read_console(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Why nothing was counted.
fn nothing(outcome: &Outcome, console: Option<&str>) -> String {
    let how = match outcome {
        Outcome::Ended => "the machine ended".into(),
        Outcome::Died(how) => format!("QEMU crashed ({how})"),
        Outcome::TimedOut => "the time limit was reached".into(),
        Outcome::Interrupted => "the run was interrupted".into(),
    };
    let last = console.and_then(|text| text.lines().rfind(|line| !line.trim().is_empty()));
    let tail = last.map_or(String::new(), |line| {
        format!("; its last line: {}", line.trim())
    });
    format!("{how} before a program ran at EL0 with the MMU on{tail}")
}

/// Our kernel with a program of ours, or with an initramfs.
fn ours(args: &TlbArgs, folder: &Path) -> Result<Job, String> {
    let files = match &args.folder {
        Some(files) => files.clone(),
        None => image::default_folder().map_err(|error| error.to_string())?,
    };
    let there = |path: PathBuf, command: &str| {
        if path.is_file() {
            return Ok(path);
        }
        let path = path.display();
        Err(format!("{path} is not there: build it with `{command}`"))
    };
    let image = there(files.join("Image"), "cargo xtask image")?;
    let page = args.page_size.bytes();
    let (workload, initrd, append, instructions) = match &args.initrd {
        Some(path) => {
            let bytes = path.metadata().ok().filter(Metadata::is_file);
            let why = match bytes.map(|file| file.len()) {
                None => "there is no such file",
                Some(0) => "it has no bytes",
                Some(_) => "",
            };
            if !why.is_empty() {
                return Err(format!("--initrd {}: {why}", path.display()));
            }
            (path.display().to_string(), path.clone(), None, args.most)
        }
        None => {
            let (bytes, rounds) = (args.bytes, args.rounds);
            if bytes == 0 || !bytes.is_multiple_of(page) {
                let page = show_size(page);
                return Err(format!(
                    "--bytes {}: expected whole pages, a multiple of {page}",
                    show_size(bytes)
                ));
            }
            // A child needs as much memory again while the parent writes.
            if bytes > args.memory / 2 - args.memory / 16 {
                return Err(format!(
                    "--bytes {} needs more than twice as much RAM, with --memory {} there is not so much",
                    show_size(bytes),
                    show_size(args.memory)
                ));
            }
            let path = there(files.join("granule-user-bench"), "cargo xtask user")?;
            let program =
                std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let initrd = folder.join("initrd");
            Initramfs::new()
                .program("/init", &program)
                .write(&initrd)
                .map_err(|error| format!("{}: {error}; set TMPDIR", initrd.display()))?;
            let workload = format!("granule-user-bench {bytes} {rounds}");
            let append = format!("-- {bytes} {rounds}");
            // Some instructions for each page, and some for its bytes, which are cleared and copied.
            let instructions = u64::from(rounds) * (bytes / page * 3500 + bytes / 4);
            (workload, initrd, Some(append), instructions)
        }
    };
    let request = Request {
        page_size: Some(args.page_size),
        memory: args.memory,
        cpu: CPU.into(),
        icount: true,
        append,
        ..Request::default()
    };
    request.check()?;
    let bootargs = request.bootargs();
    let start = Start::Kernel {
        image: &image,
        tree: None,
        initrd: Some(&initrd),
        bootargs: &bootargs,
        firmware: None,
    };
    let mut options = qemu::boot_options(&request, &start, None);
    let ram = command::in_memory_file(&mut options, RAM_BASE, args.memory);
    Ok(Job {
        workload,
        qemu: args.qemu.clone(),
        options,
        ram,
        console: Some(folder.join("console")),
        instructions,
        is_own: args.initrd.is_none(),
    })
}

/// A command of the user's.
fn theirs(args: &TlbArgs, note: &mut dyn FnMut(&str)) -> Result<Job, String> {
    let prepared = command::prepare(&args.command)?;
    for added in &prepared.added {
        note(&format!("added: {added}"));
    }
    if let Some(unseen) = &prepared.unseen {
        note(&format!(
            "the guest's own leaves are taken for pages: {unseen}"
        ));
    }
    let words: Vec<_> = args.command.iter().map(|it| it.to_string_lossy()).collect();
    Ok(Job {
        workload: words.join(" "),
        qemu: prepared.qemu,
        options: prepared.options,
        ram: prepared.ram,
        console: None,
        instructions: args.most,
        is_own: false,
    })
}
