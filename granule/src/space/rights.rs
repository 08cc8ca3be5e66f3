//! Rights of an area, and the accesses that need them. Areas and frames are not known here.

use core::fmt;

/// What a program may do with an area. Whoever may do anything may read: EL0 has no memory that
/// it can write or, on all CPUs, execute but not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Fetches.
    pub execute: bool,
}

impl Rights {
    /// Nothing at all: a guard, or memory set aside.
    pub const NONE: Self = Self {
        read: false,
        write: false,
        execute: false,
    };
    /// Reading.
    pub const READ: Self = Self {
        read: true,
        ..Self::NONE
    };
    /// Reading and writing.
    pub const READ_WRITE: Self = Self {
        write: true,
        ..Self::READ
    };
    /// Reading and executing.
    pub const READ_EXECUTE: Self = Self {
        execute: true,
        ..Self::READ
    };

    /// Whether anything is allowed.
    #[must_use]
    pub const fn any(self) -> bool {
        self.read || self.write || self.execute
    }

    /// Whether an access is allowed.
    #[must_use]
    pub const fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => self.any(),
            Access::Write => self.write,
            Access::Execute => self.execute,
        }
    }
}

/// What a program, or the kernel for it, wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "execute",
        })
    }
}
