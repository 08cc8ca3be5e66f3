//! A VMA: a range of a space that has memory, and the rights a program has there. How a space finds and
//! changes its VMAs is in `vmas`.

use super::rights::Rights;
use crate::arch::VirtualAddress;

/// A program's request about the size of the leaves of a VMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a program has no other request")]
pub enum Advice {
    /// Nothing: the [policy](super::LargeLeaves) decides.
    #[default]
    None,
    /// Blocks too, where the [policy](super::LargeLeaves) has large leaves and within its limit.
    Large,
    /// Pages alone.
    Pages,
}

/// A range with uniform rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The first address.
    pub start: VirtualAddress,
    /// The first address behind the VMA.
    pub end: VirtualAddress,
    /// The rights of a program in it.
    pub rights: Rights,
    /// A tag that the kernel gives VMAs (a heap, a stack). Neighbours with the same rights, label
    /// and advice become one VMA.
    pub label: u8,
    /// The size of the leaves that its pages are first mapped by.
    pub advice: Advice,
}

impl Vma {
    /// An empty VMA.
    pub const EMPTY: Self = Self {
        start: VirtualAddress(0),
        end: VirtualAddress(0),
        rights: Rights::NONE,
        label: 0,
        advice: Advice::None,
    };

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether `address` lies in the VMA.
    #[must_use]
    pub fn contains(&self, address: VirtualAddress) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether `next` can be merged into this VMA.
    pub(super) fn continues_in(&self, next: &Self) -> bool {
        self.end == next.start
            && self.rights == next.rights
            && self.label == next.label
            && self.advice == next.advice
    }
}
