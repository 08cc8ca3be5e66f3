//! `rodata=`: the values. What they do does not belong here.

use super::{Problem, Reader};

/// The extent of read-only memory in the linear map after the kernel is placed, and whether single
/// pages may change later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rodata {
    /// Nothing is read-only in the linear map. In the image no page is ever writable and executable.
    Off,
    /// The kernel's text and constants, and their alias in the linear map, are read-only.
    NoAlias,
    /// As `noalias`; in addition the permissions of any page can change later.
    On,
    /// The same as `on`.
    Full,
}

impl Rodata {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoAlias => "noalias",
            Self::On => "on",
            Self::Full => "full",
        }
    }

    /// Whether text and constants are read-only.
    pub const fn protects_image(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Whether single pages of the linear map must be able to change.
    pub const fn changes_pages(self) -> bool {
        matches!(self, Self::On | Self::Full)
    }
}

impl<'a, P: FnMut(Problem<'a>)> Reader<'a, '_, P> {
    pub(super) fn rodata(&mut self) -> Rodata {
        let all = [Rodata::Off, Rodata::NoAlias, Rodata::On, Rodata::Full];
        let choices = all.map(|choice| (choice.name(), choice));
        self.one_of("rodata=", choices, "off, noalias, on or full", Rodata::On)
    }
}
