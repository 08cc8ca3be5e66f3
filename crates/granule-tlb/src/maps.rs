//! The maps that are compared: the leaf that translates a page in each.
//!
//! A map is a rule, not a tree of tables: wherever a page is, it lies in a leaf of the map's size that
//! is aligned and full. A real kernel reaches that only as far as memory and permissions allow.

use granule::arch::{Level, PageSize};
use granule_plugin::accesses::{Page, Region};

/// The shape of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Everything in pages.
    Pages,
    /// Everything in contiguous groups of pages.
    Contiguous,
    /// The kernel's linear map in last-level blocks, all else in pages.
    LinearBlocks,
    /// Everything in last-level blocks.
    Blocks,
    /// As the guest's own tables have it.
    Guest,
}

impl Shape {
    /// The shapes that there are for every page size, from small leaves to large ones.
    pub const RULES: [Self; 4] = [
        Self::Pages,
        Self::Contiguous,
        Self::LinearBlocks,
        Self::Blocks,
    ];

    /// The word in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Contiguous => "contiguous",
            Self::LinearBlocks => "linear-blocks",
            Self::Blocks => "blocks",
            Self::Guest => "guest",
        }
    }
}

/// A map: a page size and a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    /// The page size.
    pub page_size: PageSize,
    /// The shape.
    pub shape: Shape,
}

impl Map {
    /// The bits of an address below the leaf, or contiguous group, of a page.
    #[must_use]
    pub fn leaf_bits(self, page: &Page) -> u8 {
        let size = self.page_size;
        let pages = size.shift() as u8;
        let blocks = size.level_shift(Level::L2) as u8;
        match self.shape {
            Shape::Pages => pages,
            Shape::Contiguous => pages + size.contiguous_entries(Level::L3).ilog2() as u8,
            Shape::LinearBlocks if page.region == Region::Linear => blocks,
            Shape::LinearBlocks => pages,
            Shape::Blocks => blocks,
            // A leaf that could not be read is a page at least.
            Shape::Guest => page.leaf_bits.max(pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_the_sizes_of_the_architecture() {
        let page = |region| Page {
            address: 0,
            region,
            leaf_bits: 21,
        };
        let bits = |page_size, shape, region| Map { page_size, shape }.leaf_bits(&page(region));
        for (page_size, [pages, contiguous, blocks]) in [
            (PageSize::K4, [12, 16, 21]),
            (PageSize::K16, [14, 21, 25]),
            (PageSize::K64, [16, 21, 29]),
        ] {
            for region in [Region::Program, Region::Linear, Region::Kernel] {
                let linear = if region == Region::Linear {
                    blocks
                } else {
                    pages
                };
                let expected = [pages, contiguous, linear, blocks];
                let found = Shape::RULES.map(|shape| bits(page_size, shape, region));
                assert_eq!(found, expected, "{page_size:?} {region:?}");
                assert_eq!(bits(page_size, Shape::Guest, region), 21);
            }
        }
    }
}
