//! Rights of a VMA, and the accesses that need them. VMAs and frames do not belong here.

use core::fmt;

/// The rights of a program in a VMA. Any right includes reading: EL0 has no memory that it can
/// write but not read, and execute-only memory does not exist on all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Fetches.
    pub execute: bool,
}

impl Rights {
    /// No rights: a guard, or reserved addresses.
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

    /// Whether any access is allowed.
    #[must_use]
    pub const fn any(self) -> bool {
        self.read || self.write || self.execute
    }

    /// Whether `access` is allowed.
    #[must_use]
    pub const fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => self.any(),
            Access::Write => self.write,
            Access::Execute => self.execute,
        }
    }
}

/// An access by a program, or by the kernel on its behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
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
