//! A range of addresses that is relied on.

use super::tables::Root;
use crate::arch::context::Space;

/// Addresses of one half, in the address space that each CPU is in, or in one that an ASID names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relied {
    pub(crate) space: Space,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Only entries and trees of this ASID, which no CPU need be in.
    pub(crate) asid: Option<u16>,
    /// Only entries that this CPU's task replaced: it is done, others may still be at work.
    pub(crate) by: Option<u32>,
}

impl Relied {
    /// All addresses of a half.
    pub(crate) const fn whole(space: Space) -> Self {
        Self {
            space,
            first: 0,
            last: u64::MAX,
            asid: None,
            by: None,
        }
    }

    /// Whether a tree is concerned.
    pub(crate) fn concerns(&self, root: &Root) -> bool {
        root.key.context.space == self.space && (self.asid.is_none() || root.key.asid == self.asid)
    }
}
