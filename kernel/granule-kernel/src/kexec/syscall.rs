//! The system calls that load a next kernel and leave for it.

use super::machine::{MachineFacts, machine};
use super::messages::{self, Subject};
use super::refused::{Call, Refused};
use super::{Busy, Request, crash, leave, load as load_kernel, segments, unload, with_loaded};
use crate::dev::console::println;
use crate::task::next_kernel::{Arguments, CallResult, NextKernel};
use crate::task::owned::Array;
use crate::task::task_table::Current;
use crate::task::{process, process_table};
use core::fmt::Display;
use granule_kcore::kexec::MOST_COMMAND_LINE;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::env::Env;
use granule_linux_abi::files::kexec::Kexec as Shown;
use granule_linux_abi::files::open::What;

const UNLOAD: u64 = 1;
const ON_CRASH: u64 = 2;
const NO_INITRAMFS: u64 = 4;
/// The flag of Linux for more messages. This kernel always prints them, so the flag changes nothing.
const DEBUG: u64 = 8;
/// The flag of Linux that forbids memory of contiguous areas (CMA). Here the flag puts no segment in its
/// place directly, so that every byte is copied.
const NO_CMA: u64 = 0x10;

/// The functions by which user space loads a next kernel and leaves for it.
pub(crate) const NEXT_KERNEL: NextKernel = NextKernel {
    load,
    load_segments: segments::kexec_load,
    reboot,
    is_asked: leave::is_asked,
    serve: leave::serve,
    tree: || {
        let tree = machine().and_then(MachineFacts::tree);
        tree.map_or(&[], |(_, bytes)| bytes)
    },
    forget: || {
        if let Some(busy) = Busy::take() {
            unload(&busy);
        }
    },
};

/// `kexec_file_load`.
fn load(
    current: &mut Current<'_>,
    [kernel, initrd, line_bytes, line, flags, _]: Arguments,
) -> CallResult {
    if flags & !(UNLOAD | ON_CRASH | NO_INITRAMFS | DEBUG | NO_CMA) != 0 {
        return Err(refuse(&Call::Flags { flags }.into()));
    }
    let Some(busy) = Busy::take() else {
        return Err(refuse(&Refused::Busy));
    };
    if flags & UNLOAD != 0 {
        if flags & ON_CRASH != 0 {
            crash::unload(&busy);
        } else {
            unload(&busy);
        }
        publish(current);
        return Ok(0);
    }
    let kernel = content(current, "kernel", kernel)?;
    let initrd = match flags & NO_INITRAMFS {
        0 => Some(content(current, "initrd", initrd)?),
        _ => None,
    };
    let text = command_line(current, line, line_bytes)?;
    let request = Request {
        kernel,
        initrd,
        command_line: text.split_last().map_or(&[], |(_, line)| line),
        copy: flags & NO_CMA != 0,
    };
    let loaded = if flags & ON_CRASH != 0 {
        crash::load(&busy, || crash::load::load(&request))
    } else {
        load_kernel(&busy, &request)
    };
    publish(current);
    loaded.map_err(|why| refuse(&why))?;
    Ok(0)
}

/// The content of a descriptor's file: bytes of the archive, which never move.
fn content(
    current: &Current<'_>,
    what: &'static str,
    descriptor: u64,
) -> Result<&'static [u8], Errno> {
    let content = process_table::with(|processes| {
        let open = processes
            .get(current.task.place())?
            .descriptors
            .get(descriptor as u32)?;
        let file = processes.files.get(open)?;
        match file.what {
            What::File(node) if file.may_read() => Ok(processes.files.tree.content(node)),
            _ => Err(Errno::EBADF),
        }
    });
    content.map_err(|error| {
        let why = Call::File {
            what,
            descriptor,
            error,
        };
        refuse(&why.into())
    })
}

/// The command line; a non-empty one must end with a NUL.
fn command_line(current: &mut Current<'_>, at: u64, bytes: u64) -> Result<Array<u8>, Errno> {
    let refused = Call::Line { bytes }.into();
    if bytes > MOST_COMMAND_LINE as u64 {
        return Err(refuse(&refused));
    }
    let what = "command line";
    let line = Array::new(bytes as usize, |_| 0);
    let mut line = line.ok_or_else(|| refuse(&Refused::Memory { what }))?;
    current.read(at, &mut line).map_err(|error| {
        let why = Call::Address {
            what,
            at,
            bytes,
            error,
        };
        refuse(&why.into())
    })?;
    match line.last() {
        None | Some(0) => Ok(line),
        _ => Err(refuse(&refused)),
    }
}

/// Publishes the loaded kernel as a file for programs.
pub(super) fn publish(current: &mut Current<'_>) {
    let text = with_loaded(|loaded| loaded.map_or(Shown::NONE, Shown::of));
    current.with(|processes, _| processes.files.kexec = text);
}

pub(super) fn refuse(why: &Refused) -> Errno {
    say(why.kind(), why);
    why.errno()
}

fn say(kind: Subject, why: &impl Display) {
    messages::say(kind, || {
        println!("granule: kexec refused: {why}\n@granule kexec.refused={why}");
    });
}

const MAGIC: u64 = 0xfee1_dead;
const MAGICS: [u64; 4] = [0x2812_1969, 0x0512_1996, 0x1604_1998, 0x2011_2000];
const KEXEC: u64 = 0x4558_4543;
const POWER_OFF: u64 = 0x4321_fedc;
/// Ctrl-Alt-Del restarts the machine, or signals the first process. No console has that key, so both hold.
const CAD: [u64; 2] = [0x89ab_cdef, 0];

/// `reboot`: powers off, or leaves for the next kernel.
fn reboot(current: &mut Current<'_>, [magic, second, command, ..]: Arguments) -> CallResult {
    let word = |value: u64| u64::from(value as u32);
    let is_meant = word(magic) == MAGIC && MAGICS.contains(&word(second));
    let command = word(command);
    if is_meant && command == POWER_OFF {
        process::power_off(current);
    }
    if is_meant && CAD.contains(&command) {
        return Ok(0);
    }
    if !is_meant || command != KEXEC {
        let [magic, second, command] = [magic, second, command].map(|value| value as u32);
        let why = Call::Reboot {
            magic,
            second,
            command,
        };
        return Err(refuse(&why.into()));
    }
    let Some(busy) = Busy::take() else {
        return Err(refuse(&Refused::Busy));
    };
    let why = leave::execute(&busy);
    say(Subject::Stays, &why);
    Err(why.errno())
}
