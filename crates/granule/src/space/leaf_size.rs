//! The size of the leaf that a first touch maps: a pure function, with its policy.
//!
//! A group or block that is mapped at once needs no TLBI, because its entries were invalid before
//! (IWZCBG). It is chosen only where one VMA covers all of it and nothing in it is mapped. Whether
//! memory has frames for it is not decided here: the caller goes on with the next smaller leaf.
//!
//! Where an empty last-level table is, groups come and no block, because unlinking the table would take a
//! TLBI. A block that was split becomes one again, by break-before-make, once all of its table is alike and
//! its frames are still one aligned run: where the rights of all of it change at once, and where a program
//! wrote its last group after the other owners are gone. One invalidation serves up to 32 tables. A change of
//! a part merges nothing: a page that changes back and forth would split and merge each time, with a TLBI for
//! each page of the table on CPUs without TLBI by range. So a block of which a part changed, there and back,
//! stays groups and pages until all of it becomes writable, or, if it is whole groups, until any rights of
//! all of it change.

use super::vma::Advice;
use crate::arch::page_size::{Level, PageSize};

/// The leaves that a first touch of anonymous memory may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeLeaves {
    /// The largest kind. A program that requested more by [`Advice::Large`] gets blocks too, unless this
    /// is a page.
    pub largest: LargestLeaf,
    /// The most bytes that one touch maps, and so zeroes, or one write after a fork copies, whatever a
    /// program requested by [`Advice::Large`]. A page is mapped whatever the limit.
    ///
    /// The default is 2 MiB, which every page size has a leaf of: a block of 4K pages, a group of
    /// 16K and of 64K pages. Blocks of larger pages (32 MiB, 512 MiB) would let the write of one
    /// byte take milliseconds under the space's lock, and that much memory.
    pub most_bytes: u64,
}

/// A kind of leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "a space has no other leaves")]
pub enum LargestLeaf {
    /// A page. Nothing ever gets the contiguous hint, whatever a program requests.
    Page,
    /// A contiguous group of pages: 64 KiB of 4K pages, 2 MiB of 16K and of 64K pages.
    Group,
    /// A block of level 2: 2 MiB with 4K pages, 32 MiB with 16K, 512 MiB with 64K.
    Block,
}

impl LargeLeaves {
    /// Pages alone.
    pub const OFF: Self = Self {
        largest: LargestLeaf::Page,
        most_bytes: 0,
    };
    /// Pages and groups of up to 2 MiB.
    pub const GROUPS: Self = Self {
        largest: LargestLeaf::Group,
        most_bytes: 2 << 20,
    };
    /// Pages, groups and blocks of up to 2 MiB.
    pub const BLOCKS: Self = Self {
        largest: LargestLeaf::Block,
        most_bytes: 2 << 20,
    };

    /// Whether groups get the contiguous hint.
    pub(super) const fn has_groups(self) -> bool {
        !matches!(self.largest, LargestLeaf::Page)
    }
}

impl LargestLeaf {
    /// The bytes of such a leaf.
    pub(super) const fn bytes(self, size: PageSize) -> u64 {
        match self {
            Self::Page => size.bytes(),
            Self::Group => size.bytes() * size.contiguous_entries(Level::L3) as u64,
            Self::Block => size.entry_bytes(Level::L2),
        }
    }
}

/// A first touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) page_size: PageSize,
    pub(super) policy: LargeLeaves,
    pub(super) advice: Advice,
    /// The first address of the VMA, and the one behind it.
    pub(super) vma: (u64, u64),
    pub(super) address: u64,
    /// The largest leaf to consider: the format may have no blocks, or memory had no frames for one.
    pub(super) at_most: LargestLeaf,
}

/// The leaf for a touch. `is_empty` returns whether nothing is mapped in the naturally aligned range
/// round the address that a leaf of a kind would map.
pub(super) fn choose(touch: &Touch, is_empty: impl Fn(LargestLeaf) -> bool) -> LargestLeaf {
    let Touch { policy, advice, .. } = *touch;
    let (largest, most) = match advice {
        _ if policy.largest == LargestLeaf::Page => return LargestLeaf::Page,
        Advice::Pages => return LargestLeaf::Page,
        Advice::Large => (LargestLeaf::Block, policy.most_bytes),
        Advice::None => (policy.largest, policy.most_bytes),
    };
    for leaf in [LargestLeaf::Block, LargestLeaf::Group] {
        let bytes = leaf.bytes(touch.page_size);
        let start = touch.address & !(bytes - 1);
        let (from, to) = touch.vma;
        if leaf <= largest
            && leaf <= touch.at_most
            && bytes <= most
            && from <= start
            && bytes <= to - start
            && is_empty(leaf)
        {
            return leaf;
        }
    }
    LargestLeaf::Page
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn touch(page_size: PageSize, vma: (u64, u64), address: u64) -> Touch {
        Touch {
            page_size,
            policy: LargeLeaves::BLOCKS,
            advice: Advice::None,
            vma,
            address,
            at_most: LargestLeaf::Block,
        }
    }

    fn of(touch: &Touch) -> LargestLeaf {
        choose(touch, |_| true)
    }

    /// Sizes from the table of blocks and contiguous entries of VMSAv8-64.
    #[test]
    fn by_default_a_touch_maps_two_mebibytes_with_every_page_size() {
        for (size, expected) in [
            (PageSize::K4, LargestLeaf::Block),
            (PageSize::K16, LargestLeaf::Group),
            (PageSize::K64, LargestLeaf::Group),
        ] {
            let leaf = of(&touch(size, (0, 1 << 30), 5 * MIB));
            assert_eq!((leaf, leaf.bytes(size)), (expected, 2 * MIB));
        }
        assert_eq!(LargestLeaf::Block.bytes(PageSize::K16), 32 * MIB);
        assert_eq!(LargestLeaf::Block.bytes(PageSize::K64), 512 * MIB);
        assert_eq!(LargestLeaf::Group.bytes(PageSize::K4), 64 << 10);
    }

    #[test]
    fn all_of_a_leaf_lies_in_the_vma() {
        let whole = (4 * MIB, 6 * MIB);
        for address in [4 * MIB, 5 * MIB, 6 * MIB - 1] {
            assert_eq!(of(&touch(PageSize::K4, whole, address)), LargestLeaf::Block);
        }
        for vma in [(4 * MIB + 4096, 6 * MIB), (4 * MIB, 6 * MIB - 4096)] {
            let leaf = of(&touch(PageSize::K4, vma, 5 * MIB));
            assert_eq!(leaf, LargestLeaf::Group, "{vma:x?}");
        }
        let short = (4 * MIB + 4096, 4 * MIB + (64 << 10));
        let leaf = of(&touch(PageSize::K4, short, 4 * MIB + 8192));
        assert_eq!(leaf, LargestLeaf::Page);
    }

    #[test]
    fn nothing_is_mapped_where_a_leaf_comes() {
        let touch = touch(PageSize::K4, (0, 1 << 30), 0);
        let group = choose(&touch, |leaf| leaf != LargestLeaf::Block);
        assert_eq!(group, LargestLeaf::Group);
        assert_eq!(choose(&touch, |_| false), LargestLeaf::Page);
    }

    #[test]
    fn policy_limit_and_advice_decide() {
        let plain = touch(PageSize::K16, (0, 1 << 30), 0);
        let with = |policy, advice| {
            of(&Touch {
                policy,
                advice,
                ..plain
            })
        };
        let capped = |most_bytes| LargeLeaves {
            most_bytes,
            ..LargeLeaves::BLOCKS
        };
        let groups_to = |most_bytes| LargeLeaves {
            most_bytes,
            ..LargeLeaves::GROUPS
        };
        for (policy, advice, expected) in [
            (LargeLeaves::BLOCKS, Advice::None, LargestLeaf::Group),
            (LargeLeaves::BLOCKS, Advice::Large, LargestLeaf::Group),
            (LargeLeaves::BLOCKS, Advice::Pages, LargestLeaf::Page),
            (LargeLeaves::GROUPS, Advice::None, LargestLeaf::Group),
            (LargeLeaves::GROUPS, Advice::Large, LargestLeaf::Group),
            (groups_to(32 * MIB), Advice::None, LargestLeaf::Group),
            (groups_to(32 * MIB), Advice::Large, LargestLeaf::Block),
            (groups_to(32 * MIB - 1), Advice::Large, LargestLeaf::Group),
            (LargeLeaves::OFF, Advice::None, LargestLeaf::Page),
            (LargeLeaves::OFF, Advice::Large, LargestLeaf::Page),
            (capped(32 * MIB), Advice::None, LargestLeaf::Block),
            (capped(32 * MIB - 1), Advice::None, LargestLeaf::Group),
            (capped(MIB), Advice::None, LargestLeaf::Page),
        ] {
            assert_eq!(with(policy, advice), expected, "{policy:?} {advice:?}");
        }
    }

    #[test]
    fn no_leaf_is_larger_than_the_caller_allows() {
        for at_most in [LargestLeaf::Page, LargestLeaf::Group, LargestLeaf::Block] {
            let plain = touch(PageSize::K4, (0, 1 << 30), 0);
            assert_eq!(of(&Touch { at_most, ..plain }), at_most);
        }
    }
}
