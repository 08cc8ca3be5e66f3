//! The interface of all sources: memory that can be read, facts and notes beside it, and errors. No
//! source is named here.

use super::cpu::Registers;
use granule::arch::PhysicalAddress;
use std::io;
use std::ops::Range;

/// Physical memory that can be read and not changed.
pub trait Memory {
    /// Fills `buffer` with the bytes from `address` on.
    /// Fails if any of these bytes is not in the source, or cannot be had; `buffer` may then hold
    /// anything.
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError>;

    /// The physical ranges that the source has, in ascending order, which do not overlap.
    fn ranges(&self) -> Vec<Range<u64>>;

    /// The ranges among these in which a search of all memory may find something: nothing of a live
    /// machine, where it would take hours.
    fn searchable(&self) -> Vec<Range<u64>> {
        self.ranges()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No memory of the source is there.
    #[error("no memory at {0:#x}")]
    Absent(PhysicalAddress),
    /// The machine has memory there, which was left out when it was dumped.
    #[error("the memory at {0:#x} is not in the dump")]
    LeftOut(PhysicalAddress),
    /// The machine has memory there for the secure state alone, which the source does not reach.
    #[error("the memory at {0:#x} is secure RAM, which QEMU's gdb socket does not read")]
    Secure(PhysicalAddress),
    /// The tables of stage 2 do not have the intermediate address.
    #[error("stage 2 with its root at {root} does not map {address:#x}: {why}")]
    NotInStage2 {
        root: PhysicalAddress,
        address: PhysicalAddress,
        why: String,
    },
    /// The source should have these bytes, but they are damaged.
    #[error("the memory at {address:#x} cannot be read: {why}")]
    Damaged {
        /// The first of them.
        address: PhysicalAddress,
        /// The damage, in one line.
        why: String,
    },
}

/// Why a source cannot be used, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);

impl OpenError {
    /// The error of `part` of `what` that cannot be read. Bytes that are not there are damage; a limit of ours
    /// and an error of the disk are not.
    pub(super) fn unread(what: &str, part: &str, error: &io::Error) -> Self {
        let verdict = match error.kind() {
            io::ErrorKind::UnexpectedEof => "is damaged",
            _ => "cannot be read",
        };
        Self(format!("{what} {verdict}: {part}: {error}"))
    }
}

/// The facts about its machine that a source contains.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The registers of its CPUs, in their order.
    pub cpus: Vec<Registers>,
    /// A Linux kernel's description of itself (VMCOREINFO): lines `KEY=VALUE`.
    pub vmcoreinfo: Option<String>,
    /// Notes for the user about the source, a line each.
    pub notes: Vec<String>,
    /// The note about what the source lacks before anything else.
    pub missing: Option<String>,
}

impl Facts {
    /// Adds a line, once.
    pub(super) fn say(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }

    /// Adds a line about something that the source should have and has not.
    pub(super) fn lacks(&mut self, line: String) {
        self.missing.get_or_insert_with(|| line.clone());
        self.say(line);
    }

    pub(super) fn set_vmcoreinfo(&mut self, text: &[u8]) {
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        if !text.is_empty() {
            self.vmcoreinfo = Some(String::from_utf8_lossy(text).into_owned());
        }
    }
}
