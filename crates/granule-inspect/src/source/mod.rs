//! Sources of the bytes of physical memory, and of facts about the machine. This module reads no
//! page tables.

pub mod bytes;
mod cache;
mod cpu;
pub mod elf_core;
mod gdb;
pub mod kdump;
mod memory;
pub mod qemu;
pub mod qmp;
pub mod raw;
mod socket;

pub use cpu::Registers;
pub use memory::{Facts, Memory, OpenError, ReadError};
pub use socket::Endpoint;

use bytes::{DumpFile, ReadAt};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where memory comes from, as a user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file: an ELF core, a kdump file, or with a base address a raw image.
    File(PathBuf),
    /// Raw images, each with the address of its first byte.
    Raw(Vec<(PathBuf, u64)>),
    /// The gdb socket of a QEMU, whose VM is paused while its memory is read and runs afterwards.
    Gdb(Endpoint),
    /// The QMP socket of a QEMU, whose VM is paused while its memory is read and does afterwards
    /// what it did before.
    Qmp(Endpoint),
}

impl FromStr for Source {
    type Err = OpenError;

    /// `gdb:` or `qmp:` and a socket, or the path of a file, or `FILE@ADDRESS`, also several with commas between.
    fn from_str(text: &str) -> Result<Self, OpenError> {
        if let Some(socket) = text.strip_prefix("gdb:") {
            return Ok(Self::Gdb(socket.parse()?));
        }
        if let Some(socket) = text.strip_prefix("qmp:") {
            return Ok(Self::Qmp(socket.parse()?));
        }
        // A file may have any name.
        if !text.contains('@') || Path::new(text).exists() {
            return Ok(Self::File(text.into()));
        }
        let image = |part: &str| {
            let (path, address) = part.rsplit_once('@')?;
            let digits = address.strip_prefix("0x").unwrap_or(address);
            let digits = Some(digits).filter(|digits| !digits.starts_with('+'));
            let address = u64::from_str_radix(digits?, 16).ok()?;
            (!path.is_empty()).then(|| (path.into(), address))
        };
        let images = text.split(',').map(|part| {
            image(part).ok_or_else(|| {
                OpenError(format!(
                    "{part:?} is neither a file nor FILE@ADDRESS, a raw image and the address of its first byte in \
                     hexadecimal"
                ))
            })
        });
        Ok(Self::Raw(images.collect::<Result<_, _>>()?))
    }
}

impl Source {
    /// One source of several, which must be raw images.
    pub fn together(sources: &[Self]) -> Result<Self, OpenError> {
        if let [one] = sources {
            return Ok(one.clone());
        }
        let images = sources.iter().map(|source| match source {
            Self::Raw(images) => Ok(images.as_slice()),
            _ => Err(OpenError(
                "several sources are the raw images of one memory: give each as FILE@ADDRESS"
                    .into(),
            )),
        });
        Ok(Self::Raw(images.collect::<Result<Vec<_>, _>>()?.concat()))
    }
}

/// The error of a file.
fn named(path: &Path, error: &dyn std::fmt::Display) -> OpenError {
    OpenError(format!("{}: {error}", path.display()))
}

fn dump_file(path: &Path) -> Result<DumpFile, OpenError> {
    let file = File::open(path).and_then(DumpFile::new);
    file.map_err(|error| named(path, &error))
}

/// Returns the memory of a source and its facts about the machine. `base` is the address of the first
/// byte of a raw image.
/// Fails if it cannot be opened, or is nothing that can be read.
pub fn open(source: &Source, base: Option<u64>) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    match source {
        Source::Gdb(socket) => qemu::by_gdb(socket),
        Source::Qmp(socket) => qemu::by_qmp(socket),
        Source::File(path) => {
            let named = |error: &dyn std::fmt::Display| named(path, error);
            let file = dump_file(path)?;
            let mut first = vec![0; file.bytes().min(18) as usize];
            file.read_at(0, &mut first).map_err(|error| named(&error))?;
            // Memory can begin with an ELF file, but not with a core.
            let core = first.get(16..18) == Some(&[4, 0]);
            let opened = if first.starts_with(b"\x7fELF") && (core || base.is_none()) {
                elf_core::open(file)
            } else if kdump::is_kdump(&first) {
                kdump::open(file)
            } else if let Some(base) = base {
                return Ok(raw::open(file, base));
            } else {
                Err(OpenError(match first.is_empty() {
                    true => "the file is empty".into(),
                    false => {
                        "neither an ELF core nor a kdump file; for a raw image of memory give the address of its \
                         first byte (--base)"
                            .into()
                    }
                }))
            };
            let (memory, mut facts) = opened.map_err(|error| named(&error))?;
            if base.is_some() {
                facts.say(format!(
                    "{}: ignoring the base address: the file gives its own addresses",
                    path.display()
                ));
            }
            Ok((memory, facts))
        }
        Source::Raw(images) => {
            let files = images
                .iter()
                .map(|(path, address)| Ok((dump_file(path)?, *address)));
            let (memory, mut facts) = raw::open_all(files.collect::<Result<_, OpenError>>()?)?;
            if base.is_some() {
                facts.say("ignoring the base address: each raw image has its own".into());
            }
            Ok((memory, facts))
        }
    }
}
