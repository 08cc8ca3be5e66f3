//! The reasons to refuse a next kernel: one line for people, one error for the program that
//! requested it.

use super::messages::Subject;
use crate::mm::pages::NoMemory;
use granule_kcore::kexec::MOST_COMMAND_LINE;
use granule_kcore::kexec::next_tree::NextTreeError;
use granule_kcore::kexec::segments::SegmentsError;
use granule_kexec::{ImageError, ListError, Refusal, TransitionError};
use granule_linux_abi::abi::Errno;
use thiserror::Error;

/// A fault of the call itself.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Call {
    #[error(
        "the command line has {bytes} bytes with its NUL: expected a NUL as the last one, and at \
         most {MOST_COMMAND_LINE}"
    )]
    Line { bytes: u64 },
    #[error("the {what}'s {bytes} bytes at {at:#x} cannot be read: expected memory of the program")]
    Address {
        what: &'static str,
        at: u64,
        bytes: u64,
        error: Errno,
    },
    #[error(
        "descriptor {} of the {what} is not a file that can be read: expected a regular file, \
         opened for reading",
        *descriptor as i32
    )]
    File {
        what: &'static str,
        descriptor: u64,
        error: Errno,
    },
    #[error(
        "kexec_file_load has flags {flags:#x}, of which only 0x1 (unload), 0x2 (crash kernel), \
         0x4 (no initramfs), 0x8 (debug) and 0x10 (copy all) are there: leave the others out"
    )]
    Flags { flags: u64 },
    #[error(
        "no memory is reserved for a crash kernel: boot with crashkernel=SIZE, as in crashkernel=256M"
    )]
    NoCrashMemory,
    /// The numbers do not confirm each other, or name another command.
    #[error(
        "reboot has magic {magic:#x}, {second:#x} and command {command:#x}: expected 0xfee1dead, \
         0x28121969 and 0x4321fedc (power off) or 0x45584543 (leave for the next kernel)"
    )]
    Reboot {
        magic: u32,
        second: u32,
        command: u32,
    },
}

/// Why a next kernel is refused. The running kernel and an earlier loaded kernel are unchanged.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Refused {
    /// The file is not an image that can boot here.
    #[error("the kernel {0}")]
    Image(#[from] ImageError),
    /// A segment, or a page of the transition, cannot have its place.
    #[error("{0}")]
    Segment(#[from] Refusal),
    /// The transitional tables cannot be made.
    #[error("{0}")]
    Transition(#[from] TransitionError),
    /// The device tree for the next kernel cannot be made.
    #[error("{0}")]
    Tree(#[from] NextTreeError),
    /// The machine could not be recorded at boot.
    #[error("{0}: this machine cannot be left for another kernel")]
    Machine(&'static str),
    /// No memory for bookkeeping.
    #[error("out of memory for the {what}: free memory, or take a smaller one")]
    Memory { what: &'static str },
    #[error("{0}")]
    Call(#[from] Call),
    /// The segments of a program cannot be a kernel.
    #[error("{0}")]
    Segments(#[from] SegmentsError),
    #[error("another process is loading a kernel, or leaving for one: try again")]
    Busy,
    /// The list changed while it was completed.
    #[error("{0}")]
    RelocationList(#[from] ListError),
}

impl Refused {
    /// The error that the program gets.
    pub(crate) const fn errno(&self) -> Errno {
        match self {
            Self::Image(ImageError::NotAnImage(_) | ImageError::Short { .. }) => Errno::ENOEXEC,
            Self::Segment(
                Refusal::TooBig { .. } | Refusal::OutsideRam { .. } | Refusal::Reserved { .. },
            ) => Errno::EADDRNOTAVAIL,
            Self::Segments(why) if why.is_about_addresses() => Errno::EADDRNOTAVAIL,
            Self::Segment(Refusal::OutOfPages { .. })
            | Self::Transition(TransitionError::Refused(Refusal::OutOfPages { .. }))
            | Self::Memory { .. } => Errno::ENOMEM,
            Self::Call(Call::NoCrashMemory) => Errno::EADDRNOTAVAIL,
            Self::Machine(_) => Errno::EOPNOTSUPP,
            Self::Busy => Errno::EBUSY,
            Self::Call(Call::Address { error, .. } | Call::File { error, .. }) => *error,
            _ => Errno::EINVAL,
        }
    }

    /// The kind of its console line.
    pub(crate) fn kind(&self) -> Subject {
        match self {
            Self::Call(_) | Self::Segments(_) => Subject::Call,
            Self::Image(_) => Subject::Image,
            Self::Segment(Refusal::OutOfPages { .. }) | Self::Transition(_) => Subject::Over,
            Self::Segment(_) => Subject::Place,
            Self::Memory { what: PAGES } => Subject::Pages,
            Self::Memory { .. } => Subject::Memory,
            Self::Tree(_) | Self::Machine(_) | Self::RelocationList(_) => Subject::Machine,
            Self::Busy => Subject::Busy,
        }
    }

    /// Whether a page of a table lies in a segment's place.
    pub(super) const fn in_the_way(&self) -> bool {
        matches!(
            self,
            Self::Transition(TransitionError::Refused(Refusal::PageInTheWay { .. }))
        )
    }

    /// Whether a retry with a smaller need for memory may succeed.
    pub(super) const fn wants_memory(&self) -> bool {
        matches!(self.errno(), Errno::ENOMEM | Errno::EADDRNOTAVAIL)
    }
}

const PAGES: &str = "next kernel's pages";

impl From<NoMemory> for Refused {
    fn from(_: NoMemory) -> Self {
        Self::Memory { what: PAGES }
    }
}
