//! One boot from a request to its outcome: read the files, lay them out, run
//! QEMU, judge what was seen.
//!
//! Whatever goes wrong on the way is an outcome with a reason, so that there is
//! always one object to report. What a finished run means is decided in `judge`.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use tempfile::TempDir;

use crate::bootrec::BootRecord;
use crate::guest::{self, Plan};
use crate::image::{Image, ImageError};
use crate::judge::Next;
use crate::kexec::figures::Figures;
use crate::kexec::prepare::prepare;
use crate::qemu::{self, Start};
use crate::qmp::{Place, Trace, Watch};
use crate::raw::{self, Layout, Pieces};
use crate::record::Record;
use crate::request::Request;
use crate::trace::{Destination, TraceFile};
use crate::trace_area::TraceArea;
use crate::{json, judge, tree};

/// How a boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel booted, checked itself and powered off.
    Ok,
    /// The kernel panicked.
    Panic,
    /// The kernel did not end in time.
    Timeout,
    /// QEMU, the kernel or this program would not go on with what it was given.
    Refused,
    /// A check the kernel made of its own tables failed.
    SelfCheckFailed,
    /// The guest went away without saying how it ended.
    GuestExit,
}

impl Outcome {
    /// The word in JSON and in the last line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::SelfCheckFailed => "self-check-failed",
            Self::GuestExit => "guest-exit",
        }
    }
}

/// All that is known about a boot that was tried.
#[derive(Debug)]
pub struct Boot {
    /// How it ended.
    pub outcome: Outcome,
    /// One line why, unless it ended well.
    pub reason: Option<String>,
    /// Whether the request itself was at fault.
    pub bad_usage: bool,
    /// The image, if it could be read.
    pub image: Option<Image>,
    /// The version of the QEMU that was run.
    pub qemu_version: Option<String>,
    /// QEMU's text for the CPU, as requested.
    pub cpu: String,
    /// The most host memory QEMU had resident.
    pub peak_resident_bytes: Option<u64>,
    /// What the kernel said in its `@granule` lines: the last one of ours, if there were several.
    pub record: Record,
    /// What each kernel said that said something, in their order.
    pub boots: Vec<Record>,
    /// What leaving for another kernel took, if one left or was to.
    pub kexec: Option<Figures>,
    /// The last boot record read from the guest.
    pub boot_record: Option<BootRecord>,
    /// The end (at least 4 MiB) of what the guest printed, without `@granule`
    /// lines.
    pub console: Vec<u8>,
    /// What QEMU said on standard error.
    pub qemu_messages: String,
    /// The trace that was written, if one was asked for.
    pub trace: Option<TraceFile>,
}

impl Boot {
    fn new(request: &Request) -> Self {
        Self {
            // What it stays if something on the way returns early.
            outcome: Outcome::Refused,
            reason: None,
            bad_usage: false,
            image: None,
            qemu_version: None,
            cpu: request.cpu.clone(),
            peak_resident_bytes: None,
            record: Record::default(),
            boots: Vec::new(),
            kexec: request.kexec.as_ref().map(|_| Figures::default()),
            boot_record: None,
            console: Vec::new(),
            qemu_messages: String::new(),
            trace: None,
        }
    }

    /// Whether the outcome is [`Outcome::Ok`].
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    /// The exit code of `granule boot`.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.outcome {
            Outcome::Ok => 0,
            _ if self.bad_usage => 2,
            _ => 1,
        }
    }

    /// The line that says which way it went.
    #[must_use]
    pub fn last_line(&self) -> String {
        match &self.reason {
            None => format!("granule: {}", self.outcome.word()),
            Some(reason) => format!("granule: {}: {reason}", self.outcome.word()),
        }
    }

    /// The JSON object, complete whatever the outcome.
    #[must_use]
    pub fn json(&self) -> Value {
        json::object(self)
    }

    /// What the guest printed, as text.
    #[must_use]
    pub fn console_text(&self) -> String {
        String::from_utf8_lossy(&self.console).into_owned()
    }
}

/// Something that stops a boot before QEMU runs.
struct Stop {
    bad_usage: bool,
    reason: String,
}

fn usage(reason: impl ToString) -> Stop {
    Stop {
        bad_usage: true,
        reason: reason.to_string(),
    }
}

fn environment(reason: impl ToString) -> Stop {
    Stop {
        bad_usage: false,
        reason: reason.to_string(),
    }
}

/// Boots, keeping the console for [`Boot::console`] only.
#[must_use]
pub fn run(request: &Request) -> Boot {
    boot(request, &mut std::io::sink(), &AtomicBool::new(false))
}

/// Boots; the console goes to `console` as it comes, and the guest is ended
/// early when `interrupt` becomes true.
#[must_use]
pub fn boot(request: &Request, console: &mut dyn Write, interrupt: &AtomicBool) -> Boot {
    let mut boot = Boot::new(request);
    if let Err(stop) = try_boot(request, console, interrupt, &mut boot) {
        boot.outcome = Outcome::Refused;
        boot.bad_usage = stop.bad_usage;
        boot.reason = Some(stop.reason);
    }
    boot
}

/// The image that the request names, or the one it means by naming none.
fn open_image(request: &Request) -> Result<Image, ImageError> {
    match &request.image {
        None if request.test_image => Image::open_test(),
        path => Image::open(path.as_deref()),
    }
}

fn try_boot(
    request: &Request,
    console: &mut dyn Write,
    interrupt: &AtomicBool,
    boot: &mut Boot,
) -> Result<(), Stop> {
    request.check().map_err(usage)?;
    let image = boot.image.insert(open_image(request).map_err(usage)?);
    boot.qemu_version = Some(qemu::version(&request.qemu).map_err(environment)?);
    let dir = guest::temp_dir().map_err(environment)?;
    let destination = match &request.trace {
        Some(path) => Some(Destination::new(path).map_err(usage)?),
        None => None,
    };

    let image_path = qemu::plain_path(&image.path);
    let archive = dir.path().join("initramfs");
    let given = match &request.kexec {
        Some(kexec) => Some(prepare(kexec, image, request, &archive).map_err(usage)?),
        None => None,
    };
    // From here on as if it had been given by hand.
    let with_archive;
    let request = match &given {
        Some(_) => {
            with_archive = Request {
                initrd: Some(archive),
                ..request.clone()
            };
            &with_archive
        }
        None => request,
    };
    let bootargs = request.bootargs();
    let raw = request
        .is_raw()
        .then(|| prepare_raw(request, image, &dir))
        .transpose()?;
    let initrd = match &request.initrd {
        Some(path) if raw.is_none() => {
            length(path, "--initrd")?;
            Some(qemu::plain_path(path))
        }
        _ => None,
    };
    let start = match &raw {
        Some(raw) => raw.start(&image_path),
        None => Start::Kernel {
            image: &image_path,
            initrd: initrd.as_deref(),
            bootargs: &bootargs,
        },
    };
    let load_address = raw
        .as_ref()
        .map_or_else(|| image.header.qemu_load_address(), |raw| raw.layout.image);

    let socket = dir.path().join("qmp");
    let trace = match &raw {
        Some(raw) => raw.trace,
        None => request.trace_area(),
    };
    let saved = dir.path().join("trace");
    let next_boot_record = given.as_ref().and_then(|given| given.boot_record);
    let watch = match (image.boot_record, trace) {
        (None, None) if next_boot_record.is_none() => None,
        (offset, trace) => {
            let listener = UnixListener::bind(&socket).map_err(|e| {
                environment(format!("socket {}: {e}; set TMPDIR", socket.display()))
            })?;
            Some((
                listener,
                Watch {
                    boot_record: Place::new(
                        offset.map(|offset| load_address.saturating_add(offset)),
                    ),
                    trace: trace.map(|area| Trace {
                        area,
                        file: saved.clone(),
                    }),
                    scratch: dir.path().join("record"),
                },
            ))
        }
    };
    let options = qemu::boot_options(request, &start, watch.is_some().then_some(&socket));
    let plan = Plan {
        qemu: &request.qemu,
        options,
        watch,
        next_boot_record,
        timeout: request.timeout,
    };
    let run = guest::run(plan, console, interrupt)
        .map_err(|error| environment(qemu::cannot_start(&request.qemu, &error)))?;

    let next = given.as_ref().map(|given| match given.is_ours() {
        true => Next::Ours,
        false => Next::Other,
    });
    let (outcome, reason) = judge::judge(&run, next, request.timeout);
    boot.outcome = outcome;
    boot.reason = reason;
    boot.peak_resident_bytes = run.peak_resident_bytes;
    boot.record = run.records.ours().clone();
    boot.boots = run.records.into_boots();
    boot.kexec = Figures::of(&boot.boots, given.as_ref(), request.icount);
    if boot.is_ok()
        && let Some(differs) = boot.kexec.as_ref().and_then(|kexec| kexec.differs.clone())
    {
        boot.outcome = Outcome::SelfCheckFailed;
        boot.reason = Some(format!(
            "what the next kernel was given is not what arrived: {differs}"
        ));
    }
    boot.boot_record = run.boot_record;
    boot.console = run.console;
    boot.qemu_messages = run.stderr;
    if let Some(destination) = destination {
        let written = match run.trace {
            Some(Ok(head)) => destination.write(&head, &saved),
            Some(Err(error)) => Err(error),
            None => Err("QEMU ended before the trace could be read out".into()),
        };
        match written {
            Ok(trace) => boot.trace = Some(trace),
            // Only a boot that was well is not well because of its trace.
            Err(error) if boot.is_ok() => {
                boot.outcome = Outcome::Refused;
                boot.reason = Some(format!(
                    "the kernel said ok, but there is no trace: {error}"
                ));
            }
            Err(_) => (),
        }
    }
    Ok(())
}

/// The files of a raw boot and where they go.
struct Raw {
    flash: PathBuf,
    tree: Option<PathBuf>,
    initrd: Option<PathBuf>,
    layout: Layout,
    trace: Option<TraceArea>,
}

impl Raw {
    fn start<'a>(&'a self, image: &'a Path) -> Start<'a> {
        Start::Raw {
            flash: &self.flash,
            image,
            tree: self.tree.as_deref(),
            initrd: self.initrd.as_deref(),
            layout: self.layout,
        }
    }
}

fn prepare_raw(request: &Request, image: &Image, dir: &TempDir) -> Result<Raw, Stop> {
    let initrd_bytes = request
        .initrd
        .as_deref()
        .map_or(Ok(0), |path| length(path, "--initrd"))?;
    let exact = match &request.dtb {
        Some(path) => Some(read_exact_tree(path, request)?),
        None => None,
    };
    let trace = match (request.trace_area(), &exact) {
        (Some(area), Some(tree)) => Some(exact_tree_trace(tree, area)?),
        (area, _) => area,
    };
    let own = match exact {
        Some(_) => None,
        None => Some(tree::dump(request).map_err(environment)?),
    };
    let initrd_address = match &exact {
        Some(tree) if initrd_bytes > 0 => Some(tree::initrd_start(tree).ok_or_else(|| {
            usage(
                "--initrd with --dtb: the tree's /chosen has no readable linux,initrd-start, so where \
                 the disk is to lie is unknown; write it into the tree",
            )
        })?),
        _ => None,
    };
    // The words for /chosen need the disk's address and the disk's address the
    // tree's length: the tree is sized with room to spare for both properties.
    const CHOSEN_BYTES: u64 = 256;
    let bootargs = request.bootargs();
    let tree_bytes = match (&exact, &own) {
        (Some(tree), _) => tree.len() as u64,
        (None, Some(tree)) => tree.len() as u64 + bootargs.len() as u64 + CHOSEN_BYTES,
        (None, None) => 0,
    };
    let layout = raw::lay_out(&Pieces {
        ram_bytes: request.memory,
        load_address: request
            .load_address
            .unwrap_or_else(|| image.header.qemu_load_address()),
        image_span: image.span(),
        tree_bytes,
        tree_address: request.dtb_address,
        initrd_bytes,
        initrd_address,
    })
    .map_err(usage)?;
    let place =
        (initrd_bytes > 0).then(|| (layout.initrd, layout.initrd.saturating_add(initrd_bytes)));
    let bytes = match (exact, own) {
        (Some(tree), _) => tree,
        (None, Some(tree)) => tree::with_chosen(&tree, &bootargs, place).map_err(environment)?,
        (None, None) => Vec::new(),
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes)
            .map(|()| path.clone())
            .map_err(|error| environment(format!("{}: {error}; set TMPDIR", path.display())))
    };
    Ok(Raw {
        trace,
        flash: write("flash", &raw::flash_stub(&layout))?,
        tree: if bytes.is_empty() {
            None
        } else {
            Some(write("dtb", &bytes)?)
        },
        initrd: request
            .initrd
            .as_deref()
            .filter(|_| initrd_bytes > 0)
            .map(qemu::plain_path),
        layout,
    })
}

fn read_exact_tree(path: &Path, request: &Request) -> Result<Vec<u8>, Stop> {
    let bytes = fs::read(path).map_err(|e| usage(format!("--dtb {}: {e}", path.display())))?;
    if request.icount && !tree::counts_instructions(&bytes) {
        return Err(usage(format!(
            "--icount would add {word} to /chosen/bootargs, but --dtb hands the kernel exactly that \
             tree: write {word} into the tree's bootargs",
            word = crate::request::COUNT_INSTRUCTIONS
        )));
    }
    Ok(bytes)
}

/// Where an exact tree has the kernel leave its trace; `usual` is where else it would.
fn exact_tree_trace(tree: &[u8], usual: TraceArea) -> Result<TraceArea, Stop> {
    tree::trace_area(tree).ok_or_else(|| {
        usage(format!(
            "--trace would add {word} to /chosen/bootargs, but --dtb hands the kernel exactly that \
             tree: write {word}, or another place in RAM, into the tree's bootargs",
            word = usual.word()
        ))
    })
}

/// A file's length, having seen that it can be read.
fn length(path: &Path, option: &str) -> Result<u64, Stop> {
    let complain = |what: String| usage(format!("{option} {}: {what}", path.display()));
    let metadata = fs::File::open(path)
        .and_then(|file| file.metadata())
        .map_err(|error| complain(error.to_string()))?;
    if metadata.is_file() {
        Ok(metadata.len())
    } else {
        Err(complain("is no regular file".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ok_exits_with_0_and_only_bad_usage_with_2() {
        let mut boot = Boot::new(&Request::default());
        for (outcome, code) in [
            (Outcome::Ok, 0),
            (Outcome::Panic, 1),
            (Outcome::Timeout, 1),
            (Outcome::Refused, 1),
            (Outcome::SelfCheckFailed, 1),
            (Outcome::GuestExit, 1),
        ] {
            boot.outcome = outcome;
            assert_eq!(boot.exit_code(), code);
        }
        boot.bad_usage = true;
        assert_eq!(boot.exit_code(), 2);
    }
}
