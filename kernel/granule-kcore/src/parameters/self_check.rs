//! `granule.selfcheck=`: the values. What is checked does not belong here.

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
