//! `granule.selfcheck=`: the values. What is checked does not belong here.

use super::{Problem, Reader};

/// The extent of the kernel's check of its own tables at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfCheck {
    /// Nothing.
    Off,
    /// Every table, the edges of each region, and of other pages one in [`SHARE`](Self::SHARE).
    Sample,
    /// Every leaf.
    Full,
}

impl SelfCheck {
    /// Of so many pages one is sampled.
    pub const SHARE: u64 = 64;

    /// The least bytes in maps of pages that are sampled without a word: checked in full they cost four fifths of the
    /// boot.
    const LARGE: u64 = 64 << 30;

    /// The choice for a linear map with so many bytes in pages, whose command line has none.
    pub const fn for_pages(bytes: u64) -> Self {
        if bytes < Self::LARGE {
            Self::Full
        } else {
            Self::Sample
        }
    }
}

impl<'a, P: FnMut(Problem<'a>)> Reader<'a, '_, P> {
    pub(super) fn self_check(&mut self) -> Option<SelfCheck> {
        let key = "granule.selfcheck=";
        let choices = [
            ("off", SelfCheck::Off),
            ("sample", SelfCheck::Sample),
            ("full", SelfCheck::Full),
        ];
        self.value(key)?;
        Some(self.one_of(key, choices, "off, sample or full", SelfCheck::Full))
    }
}
