//! One boot from a request to its outcome: reads the files, places them in memory, runs QEMU, and
//! evaluates the run.
//!
//! Every failure on the way is an outcome with a reason, so that there is always one object to
//! report. `outcome` decides the meaning of a finished run; the object is in the lower module
//! [`result`](crate::result).

pub mod clock;
mod console;
mod crash;
mod firmware;
pub(crate) mod guest;
mod kexec_archive;
mod outcome;
pub mod prompt;
pub(crate) mod qemu;
mod qmp;
pub mod raw;
pub mod tree;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tempfile::TempDir;

use self::guest::Plan;
use self::outcome::Next;
use self::qemu::Start;
use self::qmp::{RecordPlace, Trace, Watch};
use self::raw::{Layout, Pieces};
use crate::image::{Image, ImageError};
use crate::request::Request;
use crate::result::crash::Crashed;
use crate::result::{Boot, Figures, Outcome};
use crate::trace::Destination;
use crate::trace_area::TraceArea;

/// An error that stops a boot before QEMU runs.
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

/// Boots and keeps the console in [`Boot::console`] only.
#[must_use]
pub fn run(request: &Request) -> Boot {
    boot(request, &mut std::io::sink(), &AtomicBool::new(false))
}

/// Boots; the console is written to `console` as it arrives, and the guest is ended early when
/// `interrupt` becomes true.
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

/// The image that the request names, or its default image.
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
    let payload = match &request.kexec {
        Some(kexec) => Some(kexec_archive::write(kexec, image, request, &archive).map_err(usage)?),
        None => None,
    };
    let crash = match &request.crash {
        Some(crash) => {
            let ours = kexec_archive::write_for_crash(crash, image, request, &archive);
            let ours = ours.map_err(usage)?;
            Some((ours, crash::Disk::new(crash, request).map_err(usage)?))
        }
        None => None,
    };
    // From here on the archive counts as an initial RAM disk given by the user.
    let with_archive;
    let request = match payload.is_some() || crash.is_some() {
        true => {
            with_archive = Request {
                virtio_disk: match &crash {
                    Some((_, disk)) => Some(disk.path().to_owned()),
                    None => request.virtio_disk.clone(),
                },
                ..request.clone().initrd(archive)
            };
            &with_archive
        }
        false => request,
    };
    let bootargs = request.bootargs();
    let raw = request
        .is_raw()
        .then(|| prepare_raw(request, image, &dir))
        .transpose()?;
    let firmware = firmware::prepare(request, image, dir.path())?;
    let initrd = match &request.initrd {
        Some(path) if raw.is_none() => {
            length(path, "--initrd")?;
            Some(qemu::plain_path(path))
        }
        _ => None,
    };
    let seeded = match request.kaslr_seed.number() {
        Some(_) if raw.is_none() && firmware.is_none() => {
            let path = dir.path().join("dtb");
            // QEMU adds the initial RAM disk to the tree that it is given.
            let machine = Request {
                initrd: None,
                ..request.clone()
            };
            let tree = tree::dump(&machine).map_err(environment)?;
            let seed = request.kaslr_seed.number();
            let bytes = tree::with_chosen(&tree, "", None, seed).map_err(environment)?;
            fs::write(&path, bytes)
                .map_err(|e| environment(format!("{}: {e}; set TMPDIR", path.display())))?;
            Some(path)
        }
        _ => None,
    };
    let disk = firmware.as_ref().and_then(|it| it.disk.as_ref());
    let start = match (&raw, &firmware) {
        (Some(raw), _) => raw.start(&image_path),
        (None, Some(firmware)) if let Some((disk, bus)) = disk => Start::Disk {
            firmware: &firmware.file,
            disk,
            bus: *bus,
        },
        (None, firmware) => Start::Kernel {
            image: &image_path,
            tree: seeded.as_deref(),
            initrd: initrd.as_deref(),
            bootargs: &bootargs,
            firmware: firmware.as_ref().map(|firmware| firmware.file.as_path()),
        },
    };
    // Firmware places the image where it likes.
    let load_address = match (&raw, &firmware) {
        (Some(raw), _) => Some(raw.layout.image),
        (None, None) => Some(image.header.qemu_load_address()),
        (None, Some(_)) => None,
    };
    let boot_record = image
        .boot_record
        .and_then(|offset| Some(load_address?.saturating_add(offset)));

    let socket = dir.path().join("qmp");
    let trace = match &raw {
        Some(raw) => raw.trace,
        None => request.trace_area(),
    };
    let saved = dir.path().join("trace");
    let next_boot_record = payload.as_ref().and_then(|payload| payload.boot_record);
    let watch = match (boot_record, trace) {
        (None, None) if next_boot_record.is_none() => None,
        (boot_record, trace) => {
            let listener = UnixListener::bind(&socket).map_err(|e| {
                environment(format!("socket {}: {e}; set TMPDIR", socket.display()))
            })?;
            Some((
                listener,
                Watch {
                    boot_record: RecordPlace::new(boot_record),
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
        lines: firmware.map_or_else(Vec::new, |firmware| firmware.lines),
        timeout: request.timeout,
    };
    let run = guest::run(plan, console, interrupt)
        .map_err(|error| environment(qemu::cannot_start(&request.qemu, &error)))?;

    let next = payload.as_ref().map(|payload| match payload.is_ours() {
        true => Next::Ours,
        false => Next::Other,
    });
    (boot.outcome, boot.reason) = match crash {
        None => outcome::of(&run, next, request.timeout),
        Some((ours, disk)) => match crash::of(&run, ours, request.timeout) {
            Err((outcome, reason)) => (outcome, Some(reason)),
            Ok(reason) => {
                let core = disk.keep();
                let crashed = boot.crash.insert(Crashed { reason, core: None });
                match core {
                    Ok(core) => {
                        crashed.core = Some(core);
                        (Outcome::Ok, None)
                    }
                    Err(why) => {
                        let line = format!("{why}; the kernel had crashed: {}", crashed.reason);
                        (Outcome::Panic, Some(line))
                    }
                }
            }
        },
    };
    boot.peak_resident_bytes = run.peak_resident_bytes;
    boot.record = run.records.ours().clone();
    boot.boots = run.records.into_boots();
    boot.kexec = Figures::of(&boot.boots, payload.as_ref(), request.icount);
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
            // A failed trace changes the outcome only of a boot that was ok.
            Err(error) if boot.is_ok() => {
                boot.outcome = Outcome::Refused;
                boot.reason = Some(format!(
                    "the kernel reported ok, but there is no trace: {error}"
                ));
            }
            Err(_) => (),
        }
    }
    Ok(())
}

/// The files of a raw boot and their addresses.
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
    // The words for /chosen need the disk's address, and the disk's address needs the tree's
    // length: the tree is sized with room for both properties.
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
        (None, Some(tree)) => {
            tree::with_chosen(&tree, &bootargs, place, request.kaslr_seed.number())
                .map_err(environment)?
        }
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

/// The trace area in an exact tree's bootargs; the error suggests `usual`.
fn exact_tree_trace(tree: &[u8], usual: TraceArea) -> Result<TraceArea, Stop> {
    tree::trace_area(tree).ok_or_else(|| {
        usage(format!(
            "--trace would add {word} to /chosen/bootargs, but --dtb hands the kernel exactly that \
             tree: write {word}, or another place in RAM, into the tree's bootargs",
            word = usual.word()
        ))
    })
}

/// The length of a file, which must be readable. QEMU leaves an initramfs without bytes out silently.
fn length(path: &Path, option: &str) -> Result<u64, Stop> {
    let complain = |what: String| usage(format!("{option} {}: {what}", path.display()));
    let metadata = fs::File::open(path)
        .and_then(|file| file.metadata())
        .map_err(|error| complain(error.to_string()))?;
    match metadata.len() {
        _ if !metadata.is_file() => Err(complain("is not a regular file".into())),
        0 => Err(complain("has no bytes".into())),
        bytes => Ok(bytes),
    }
}
