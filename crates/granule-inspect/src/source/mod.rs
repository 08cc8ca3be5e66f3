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
use std::path::PathBuf;
use std::str::FromStr;

/// Where memory comes from, as a user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file: an ELF core, a kdump file, or with a base address a raw image.
    File(PathBuf),
    /// The gdb socket of a QEMU, whose machine stands still while it is read and runs afterwards.
    Gdb(Endpoint),
    /// The QMP socket of a QEMU, whose machine stands still while it is read and does afterwards
    /// what it did before.
    Qmp(Endpoint),
}

impl FromStr for Source {
    type Err = OpenError;

    /// `gdb:` or `qmp:` and a socket, or the path of a file.
    fn from_str(text: &str) -> Result<Self, OpenError> {
        if let Some(socket) = text.strip_prefix("gdb:") {
            return Ok(Self::Gdb(socket.parse()?));
        }
        if let Some(socket) = text.strip_prefix("qmp:") {
            return Ok(Self::Qmp(socket.parse()?));
        }
        Ok(Self::File(text.into()))
    }
}

/// Returns the memory of a source and its facts about the machine. `base` is the address of the first
/// byte of a raw image.
/// Fails if it cannot be opened, or is nothing that can be read.
pub fn open(source: &Source, base: Option<u64>) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    match source {
        Source::Gdb(socket) => qemu::by_gdb(socket),
        Source::Qmp(socket) => qemu::by_qmp(socket),
        Source::File(path) => {
            let named =
                |error: &dyn std::fmt::Display| OpenError(format!("{}: {error}", path.display()));
            let file = File::open(path).map_err(|error| named(&error))?;
            let file = DumpFile::new(file).map_err(|error| named(&error))?;
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
                Err(OpenError(
                    "neither an ELF core nor a kdump file; for a raw image of memory give the address of its first byte (--base)"
                        .into(),
                ))
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
    }
}
