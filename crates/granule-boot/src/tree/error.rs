//! Errors in a device tree: one line and one code for each. Where they are found does not belong
//! here.

use core::fmt;

/// An error in a device tree. `at` is its place, as an offset from the start of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "all fields are alike")]
pub enum TreeError {
    /// The bytes are fewer than a header has, or than the header states.
    TooShort,
    /// The bytes do not start with the magic number.
    BadMagic,
    /// The size in the header is smaller than a header or larger than 2 MiB.
    BadSize,
    /// The tree is neither of version 16 or 17 nor compatible with them.
    BadVersion,
    /// The header's blocks lie outside the tree or are misaligned.
    BadLayout,
    /// The structure block ends before the tree does.
    Truncated { at: u32 },
    /// The word is not a token.
    BadToken { at: u32 },
    /// A property whose name is empty or lies outside the tree.
    BadName { at: u32 },
    /// A node ends that never began, or a token lies outside the root.
    BadNesting { at: u32 },
    /// The nodes are nested too deeply.
    TooDeep { at: u32 },
    /// The memory reservation block does not end inside the tree.
    BadReservations { at: u32 },
}

impl TreeError {
    /// The reason code for the boot record; it never changes its meaning.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::TooShort => 0x0101,
            Self::BadMagic => 0x0102,
            Self::BadSize => 0x0103,
            Self::BadVersion => 0x0104,
            Self::BadLayout => 0x0105,
            Self::Truncated { .. } => 0x0106,
            Self::BadToken { .. } => 0x0107,
            Self::BadName { .. } => 0x0108,
            Self::BadNesting { .. } => 0x0109,
            Self::TooDeep { .. } => 0x010a,
            Self::BadReservations { .. } => 0x010b,
        }
    }

    /// The error as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::TooShort => "device tree: shorter than its header states",
            Self::BadMagic => "device tree: bad magic at the address in x0, expected d00dfeed",
            Self::BadSize => "device tree: total size out of range, expected 40 bytes to 2 MiB",
            Self::BadVersion => "device tree: unsupported version, expected 16 or 17",
            Self::BadLayout => "device tree: the header's blocks do not lie inside the tree",
            Self::Truncated { .. } => "device tree: cut off before its end",
            Self::BadToken { .. } => "device tree: bad token, the tree is damaged or cut off",
            Self::BadName { .. } => "device tree: property without a name, damaged or cut off",
            Self::BadNesting { .. } => "device tree: nodes do not nest",
            Self::TooDeep { .. } => "device tree: nodes nested more than 64 deep",
            Self::BadReservations { .. } => {
                "device tree: the memory reservations do not end inside the tree"
            }
        }
    }

    /// The place of the error, as an offset from the start of the tree.
    #[must_use]
    pub const fn at(self) -> Option<u32> {
        match self {
            Self::Truncated { at }
            | Self::BadToken { at }
            | Self::BadName { at }
            | Self::BadNesting { at }
            | Self::TooDeep { at }
            | Self::BadReservations { at } => Some(at),
            _ => None,
        }
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self.at() {
            Some(at) => write!(f, " (at offset {at:#x})"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for TreeError {}
