//! Performs a command, by the system calls that Linux has for it too.

use core::fmt::{self, Write};

use crate::core_file::{self, Failure};
use crate::files::{Errno, File, done, memory};
use crate::words::{Command, Core, Load, Text, Words};
use granule_programs::calls::{self, KEXEC_FILE_LOAD, REBOOT, StandardError, call};
use granule_programs::start::Start;

/// The numbers that `reboot` requires, so that nobody calls it by mistake, and the command.
const REBOOT_MAGIC: [u64; 2] = [0xfee1_dead, 672_274_793];
const REBOOT_KEXEC: u64 = 0x4558_4543;
const REBOOT_POWER_OFF: u64 = 0x4321_fedc;

const FILE_UNLOAD: u64 = 1;
const FILE_ON_CRASH: u64 = 2;
const FILE_NO_INITRAMFS: u64 = 4;
/// On Linux: no memory set aside beforehand; here: nothing is put where it goes at once.
const FILE_NO_CMA: u64 = 0x10;

const NO_FILE: u64 = -1_i64 as u64;

/// The file of commands for the first process without arguments.
const LINES: &[u8] = b"/etc/kexec";
/// Bytes of that file at most: lines with a command line each.
const LINES_BYTES: usize = 64 << 10;

/// The file of loaded segments, a line each.
const SEGMENTS: &[u8] = b"/sys/kernel/kexec_segments";

/// The file of requests to the kernel by their first letter.
const SYSRQ: &[u8] = b"/proc/sysrq-trigger";

const ENOENT: i64 = 2;

/// One line on standard error.
fn complain(what: fmt::Arguments<'_>) {
    // Never fails.
    let _ = writeln!(StandardError, "kexec: {what}");
}

/// The reason of a failure was printed.
struct Reported;

fn report(what: fmt::Arguments<'_>) -> Reported {
    complain(what);
    Reported
}

pub(crate) fn run(start: Start) -> i32 {
    let first = call(calls::GETPID, []) == 1;
    let done = if start.count() <= 1 && first {
        lines()
    } else {
        command(Words::Arguments(start, 1))
    };
    i32::from(done.is_err())
}

/// Performs the commands in the lines of the file, one after the other.
fn lines() -> Result<(), Reported> {
    let unread = |error| report(format_args!("{}: {error}", Text(LINES)));
    let room = memory(LINES_BYTES + 1).map_err(unread)?;
    let text = File::open(LINES)
        .and_then(|mut file| file.read_all(room))
        .map_err(unread)?;
    if text.len() > LINES_BYTES {
        return Err(report(format_args!(
            "{}: longer than {LINES_BYTES} bytes: a command a line is expected",
            Text(LINES)
        )));
    }
    text.split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .try_for_each(|line| command(Words::Line(line)))
}

fn command(words: Words<'_>) -> Result<(), Reported> {
    match Command::read(words).map_err(|wrong| report(format_args!("{wrong}")))? {
        Command::Load(what) => load(&what),
        Command::Unload => unload(),
        Command::Status => status(),
        Command::Exec => exec(),
        Command::Crash => crash(),
        Command::Core(what) => core(&what),
        Command::PowerOff => power_off(),
    }
}

fn load(what: &Load<'_>) -> Result<(), Reported> {
    let open =
        |path| File::open(path).map_err(|error| report(format_args!("{}: {error}", Text(path))));
    let image = open(what.image)?;
    let initrd = what.initrd.map(open).transpose()?;
    let unloaded = |error: Errno| {
        report(format_args!(
            "{} was not loaded: {error}; see the kernel's log",
            Text(what.image)
        ))
    };
    // The kernel requires the NUL and counts it.
    let append = memory(what.append.len() + 1).map_err(unloaded)?;
    append[..what.append.len()].copy_from_slice(what.append);
    let mut flags = 0;
    if initrd.is_none() {
        flags |= FILE_NO_INITRAMFS;
    }
    if what.copy {
        flags |= FILE_NO_CMA;
    }
    if what.crash {
        flags |= FILE_ON_CRASH;
    }
    let arguments = [
        image.descriptor,
        initrd.as_ref().map_or(NO_FILE, |file| file.descriptor),
        append.len() as u64,
        append.as_ptr() as u64,
        flags,
        0,
    ];
    done(call(KEXEC_FILE_LOAD, arguments))
        .map(drop)
        .map_err(unloaded)
}

fn unload() -> Result<(), Reported> {
    let arguments = [NO_FILE, NO_FILE, 0, 0, FILE_UNLOAD, 0];
    done(call(KEXEC_FILE_LOAD, arguments))
        .map(drop)
        .map_err(|error| report(format_args!("nothing was unloaded: {error}")))
}

fn status() -> Result<(), Reported> {
    show(b"/sys/kernel/kexec_loaded", "loaded ")?;
    // Linux has no such file.
    if File::open(SEGMENTS).is_err_and(|error| error.0 == ENOENT) {
        return Ok(());
    }
    show(SEGMENTS, "")
}

/// Prints what the kernel has in a file.
fn show(path: &[u8], before: &str) -> Result<(), Reported> {
    let unread = |error| report(format_args!("{}: {error}", Text(path)));
    let mut file = File::open(path).map_err(unread)?;
    calls::say(format_args!("{before}"));
    let mut piece = [0; 512];
    loop {
        match file.read(&mut piece).map_err(unread)? {
            0 => return Ok(()),
            length => drop(calls::write(&piece[..length])),
        }
    }
}

/// Does not return if it is done.
fn reboot(command: u64) -> Errno {
    let [first, second] = REBOOT_MAGIC;
    let result = call(REBOOT, [first, second, command]);
    done(result).err().unwrap_or(Errno(0))
}

fn power_off() -> Result<(), Reported> {
    let error = reboot(REBOOT_POWER_OFF);
    Err(report(format_args!(
        "the machine was not turned off: {error}"
    )))
}

/// Does not return if it is done.
fn crash() -> Result<(), Reported> {
    let done = File::open_to_write(SYSRQ).and_then(|mut file| file.write_at(0, b"c"));
    let error = done.err().unwrap_or(Errno(0));
    Err(report(format_args!(
        "{}: the kernel did not crash: {error}",
        Text(SYSRQ)
    )))
}

fn core(what: &Core<'_>) -> Result<(), Reported> {
    let failed = |path, error| report(format_args!("{}: {error}", Text(path)));
    let mut from = File::open(what.from).map_err(|error| failed(what.from, error))?;
    let mut to = File::open_to_write(what.to).map_err(|error| failed(what.to, error))?;
    let copied = core_file::copy(&mut from, &mut to, what.zeroed);
    let copied = copied.map_err(|failure| match failure {
        Failure::From(error) => failed(what.from, error),
        Failure::To(error) => failed(what.to, error),
    })?;
    calls::say(format_args!(
        "core {} bytes of {} to {}, {} of them written\n",
        copied.bytes,
        Text(what.from),
        Text(what.to),
        copied.written
    ));
    Ok(())
}

fn exec() -> Result<(), Reported> {
    let error = reboot(REBOOT_KEXEC);
    Err(report(format_args!(
        "the next kernel was not entered: {error}; see the kernel's log, and `kexec status` for \
         whether one is loaded"
    )))
}
