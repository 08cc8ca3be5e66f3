//! The TLBs of CPUs whose manuals are public, each figure with its source.
//!
//! Facts that a manual leaves open are assumptions, named in [`Cpu::assumed`]. [`ASSUMED`] has the
//! assumptions that are the same for all CPUs.

use granule::arch::PageSize;

/// A TLB: the number of its entries, its associativity, and the sizes of its entries.
#[derive(Debug)]
pub struct Tlb {
    /// The number of entries.
    pub entries: usize,
    /// The number of entries in a set; all for a fully associative TLB.
    pub ways: usize,
    /// The sizes of entries with 4K, 16K and 64K pages, as bits of an address, ascending. None for
    /// pages that the CPU does not have.
    pub sizes: [&'static [u8]; 3],
}

impl Tlb {
    /// The sizes of entries with pages of a size.
    #[must_use]
    pub const fn sizes_with(&self, page_size: PageSize) -> &'static [u8] {
        let [k4, k16, k64] = self.sizes;
        match page_size {
            PageSize::K4 => k4,
            PageSize::K16 => k16,
            PageSize::K64 => k64,
            _ => &[],
        }
    }
}

/// The TLBs of a CPU.
#[derive(Debug)]
pub struct Cpu {
    /// Its name, in QEMU's words.
    pub name: &'static str,
    /// The first level, for fetching instructions.
    pub fetch: Tlb,
    /// The first level, for loads and stores.
    pub data: Tlb,
    /// The second level, for both.
    pub second: Tlb,
    /// The manuals that have the figures.
    pub source: &'static str,
    /// The assumptions where the source leaves something open.
    pub assumed: &'static str,
}

/// The assumptions about every CPU, because no manual specifies them.
pub const ASSUMED: &str = "The entry that was not used for longest is replaced; the lowest bits of an entry's number \
     choose its set; a contiguous group is one entry where the TLB has entries of its size; larger \
     leaves take the largest entry that fits. Walk caches, prefetching and speculation are left out, \
     as is coalescing of neighbours without the contiguous bit.";

const fn fully(entries: usize, sizes: [&'static [u8]; 3]) -> Tlb {
    Tlb {
        entries,
        ways: entries,
        sizes,
    }
}

/// 4K, 64K, 2M and 512M: all of VMSAv8 for 4K and 64K pages but 1G, which is split.
const A53: [&[u8]; 3] = [&[12, 16, 21, 29], &[], &[16, 21, 29]];
/// 4K, 64K and 1M.
const A57_FIRST: [&[u8]; 3] = [&[12, 16, 20], &[], &[16, 20]];
/// 4K and 64K; 2M and 1G with 4K pages, 512M with 64K pages.
const A57_SECOND: [&[u8]; 3] = [&[12, 16, 21, 30], &[], &[16, 29]];
/// All sizes.
const A55: [&[u8]; 3] = [&[12, 16, 21, 25, 29, 30], &[14, 21, 25], &[16, 21, 29]];
/// 4K, 16K, 64K, 2M and 32M.
const A76_FETCH: [&[u8]; 3] = [&[12, 14, 16, 21, 25], &[14, 16, 21, 25], &[16, 21, 25]];
/// 4K, 16K, 64K, 2M and 512M.
const A76_DATA: [&[u8]; 3] = [&[12, 14, 16, 21, 29], &[14, 16, 21], &[16, 21, 29]];
/// 4K, 16K, 64K, 2M, 32M, 512M and 1G.
const A76_SECOND: [&[u8]; 3] = [
    &[12, 14, 16, 21, 25, 29, 30],
    &[14, 16, 21, 25],
    &[16, 21, 25, 29],
];

/// The CPUs.
pub const CPUS: &[Cpu] = &[
    Cpu {
        name: "cortex-a53",
        fetch: fully(10, A53),
        data: fully(10, A53),
        second: Tlb {
            entries: 512,
            ways: 4,
            sizes: A53,
        },
        source: "Arm Cortex-A53 MPCore Processor Technical Reference Manual, DDI 0500, 5.1 and 5.2",
        assumed: "The manual does not name the entry sizes of the micro TLBs: they are taken to be \
                  those of the main TLB.",
    },
    Cpu {
        name: "cortex-a55",
        fetch: fully(15, A55),
        data: fully(16, A55),
        second: Tlb {
            entries: 1024,
            ways: 4,
            sizes: A55,
        },
        source: "Intel Agilex 5 Hard Processor System Technical Reference Manual, 814346, 3.6.3.4.1; Arm \
                 Cortex-A55 Core Technical Reference Manual, 100442, Encoding for the L2 TLB",
        assumed: "The manuals do not name the entry sizes of the first level: they are taken to be \
                  those of the second, which has all.",
    },
    Cpu {
        name: "cortex-a57",
        fetch: fully(48, A57_FIRST),
        data: fully(32, A57_FIRST),
        second: Tlb {
            entries: 1024,
            ways: 4,
            sizes: A57_SECOND,
        },
        source: "Arm Cortex-A57 MPCore Processor Technical Reference Manual, DDI 0488, 5.2",
        assumed: "",
    },
    Cpu {
        name: "cortex-a72",
        fetch: fully(48, A57_FIRST),
        data: fully(32, A57_FIRST),
        second: Tlb {
            entries: 1024,
            ways: 4,
            sizes: A57_SECOND,
        },
        source: "Arm Cortex-A72 MPCore Processor Technical Reference Manual, 100095, 5.2",
        assumed: "",
    },
    Cpu {
        name: "cortex-a76",
        fetch: fully(48, A76_FETCH),
        data: fully(48, A76_DATA),
        second: Tlb {
            entries: 1280,
            ways: 5,
            sizes: A76_SECOND,
        },
        source: "Arm Cortex-A76 Core Technical Reference Manual, 100798, A5.1 and A5.2; WikiChip calls the \
                 core of Neoverse N1 almost identical",
        assumed: "",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use granule_plugin::accesses::KEPT;

    #[test]
    fn every_cpu_is_a_shape_that_the_stream_and_the_model_allow() {
        for cpu in CPUS {
            let name = cpu.name;
            // Accesses to the pages that the stream keeps hit in the first level only then.
            for first in [&cpu.fetch, &cpu.data] {
                assert!(
                    first.ways == first.entries && first.entries >= KEPT,
                    "{name}"
                );
            }
            for tlb in [&cpu.fetch, &cpu.data, &cpu.second] {
                assert_eq!(tlb.entries % tlb.ways, 0, "{name}");
                for page_size in PageSize::ALL {
                    let (sizes, page) = (tlb.sizes_with(page_size), page_size.shift());
                    assert!(sizes.is_sorted(), "{name}");
                    // A leaf of any size has an entry that fits.
                    assert!(
                        sizes.first().is_none_or(|first| u32::from(*first) == page),
                        "{name}"
                    );
                }
            }
            let pages = |tlb: &Tlb| tlb.sizes.map(<[u8]>::is_empty);
            assert_eq!(pages(&cpu.fetch), pages(&cpu.second), "{name}");
            assert_eq!(pages(&cpu.data), pages(&cpu.second), "{name}");
            assert!(!cpu.source.is_empty(), "{name}");
        }
    }
}
