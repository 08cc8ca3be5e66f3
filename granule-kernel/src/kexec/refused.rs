//! Why a next kernel is refused: one line for people, one error for the program that asked.

use super::tree::TreeError;
use crate::memory::pages::NoMemory;
use crate::user::abi::Errno;
use core::fmt;
use granule::kexec::{ImageError, ListError, Refusal, TransitionError};

/// See the module. The running kernel is as it was, and so is what was loaded before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    /// The file is no image that can be booted here.
    Image(ImageError),
    /// A segment, or a page of the transition, cannot be where it is to be.
    Segment(Refusal),
    /// There are no transitional tables.
    Transition(TransitionError),
    /// There is no tree to give to it.
    Tree(TreeError),
    /// The machine could not be noted when it was booted.
    Machine(&'static str),
    /// There is no memory for what is to be known of it.
    Memory { what: &'static str },
    /// The command line is too long, or has a NUL in it.
    CommandLine { bytes: u64 },
    /// Somebody else is loading, or leaving.
    Busy,
    /// The list changed as it was completed.
    List(ListError),
}

impl Refused {
    /// What the program is told.
    pub(crate) const fn errno(&self) -> Errno {
        match self {
            Self::Image(ImageError::NotAnImage(_) | ImageError::Short { .. }) => Errno::ENOEXEC,
            Self::Segment(Refusal::TooBig { .. } | Refusal::OutsideRam { .. }) => {
                Errno::EADDRNOTAVAIL
            }
            Self::Segment(Refusal::OutOfPages { .. })
            | Self::Transition(TransitionError::Refused(Refusal::OutOfPages { .. }))
            | Self::Memory { .. } => Errno::ENOMEM,
            Self::Machine(_) => Errno::EOPNOTSUPP,
            Self::Busy => Errno::EBUSY,
            _ => Errno::EINVAL,
        }
    }

    /// Whether more memory would help, so that it is worth trying where less of it is needed.
    pub(super) const fn wants_memory(&self) -> bool {
        matches!(self.errno(), Errno::ENOMEM | Errno::EADDRNOTAVAIL)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(why) => write!(f, "the kernel {why}"),
            Self::Segment(why) => why.fmt(f),
            Self::Transition(why) => why.fmt(f),
            Self::Tree(why) => why.fmt(f),
            Self::Machine(why) => {
                write!(f, "{why}: this machine cannot be left for another kernel")
            }
            Self::Memory { what } => write!(
                f,
                "out of memory for the {what}: free memory, or take a smaller one"
            ),
            Self::CommandLine { bytes } => write!(
                f,
                "the command line has {bytes} bytes with its NUL: expected a NUL as the last one, and at most {}",
                super::MOST_COMMAND_LINE
            ),
            Self::Busy => {
                f.write_str("another process is loading a kernel, or leaving for one: try again")
            }
            Self::List(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for Refused {}

impl From<ImageError> for Refused {
    fn from(why: ImageError) -> Self {
        Self::Image(why)
    }
}

impl From<Refusal> for Refused {
    fn from(why: Refusal) -> Self {
        Self::Segment(why)
    }
}

impl From<TransitionError> for Refused {
    fn from(why: TransitionError) -> Self {
        Self::Transition(why)
    }
}

impl From<TreeError> for Refused {
    fn from(why: TreeError) -> Self {
        Self::Tree(why)
    }
}

impl From<ListError> for Refused {
    fn from(why: ListError) -> Self {
        Self::List(why)
    }
}

impl From<NoMemory> for Refused {
    fn from(_: NoMemory) -> Self {
        Self::Memory {
            what: "next kernel's pages",
        }
    }
}
