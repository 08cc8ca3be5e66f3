//! A linear map to build.
//!
//! All assumptions about a machine that is not booted are here: the start of its RAM, and the size
//! of the kernel.

use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, CpuFeatures, Geometry, PageSize, Permissions, PhysicalAddress, Regime, VaRange,
    VirtualAddress,
};
use granule::linear::{Barriers, LeafStats, Placement, Strategy};
use granule::table::{Leaves, Piece};

use super::{Cost, periodic};
use crate::request::Rodata;
use crate::sizes::show_size;

/// The assumed start of RAM, in one bank, as on QEMU's `virt` machine.
const RAM_START: u64 = 1 << 30;
/// The assumed address and length of the kernel's text and constants, about those of this
/// repository's kernel, whose length changes from build to build. Any length below
/// [`MOST_IMAGE_BYTES`] gives the same counts.
const IMAGE_START: u64 = RAM_START + (2 << 20);
const IMAGE_BYTES: u64 = 768 << 10;
/// The assumed bound on the kernel's text and constants: the range that one table of 4K pages
/// translates.
pub const MOST_IMAGE_BYTES: u64 = 2 << 20;
/// Bytes of the kernel's static table pool.
const POOL: u64 = 1 << 20;

/// Pages of the pool that the boot takes before the linear map is built.
const fn taken_by_boot(page_size: PageSize) -> u64 {
    match page_size {
        PageSize::K4 => 11,
        PageSize::K16 => 8,
        _ => 7,
    }
}

/// A linear map to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Page size and address sizes.
    pub geometry: Geometry,
    /// The supported TLBIs.
    pub capabilities: TlbCapabilities,
    /// The pieces to map, ascending.
    pub pieces: Vec<Piece>,
    /// Table pages that exist before any RAM is mapped.
    pub pool_pages: u64,
}

impl Job {
    /// The map that this repository's kernel builds on a machine with `memory` bytes of RAM in one
    /// bank, with a CPU that has every page size and, for 52 bits, the formats they need.
    /// Fails with one line if this address size does not exist, or RAM does not fit it.
    pub fn assumed(
        memory: u64,
        page_size: PageSize,
        va_bits: u32,
        rodata: Rodata,
        bbm: BbmLevel,
        tlbi_range: bool,
    ) -> Result<Self, String> {
        let shape = (page_size, va_bits);
        Self::with_image(IMAGE_BYTES, memory, shape, rodata, bbm, tlbi_range)
    }

    /// The same map with this length of text and constants.
    fn with_image(
        image_bytes: u64,
        memory: u64,
        (page_size, va_bits): (PageSize, u32),
        rodata: Rodata,
        bbm: BbmLevel,
        tlbi_range: bool,
    ) -> Result<Self, String> {
        let geometry = geometry(page_size, va_bits)?;
        let end = RAM_START.saturating_add(memory & !(page_size.bytes() - 1));
        let placement = place(&geometry, RAM_START, end);
        let reaches = placement.origin.0.saturating_add(placement.span);
        let reaches = reaches.min(1 << geometry.pa_bits());
        if end > reaches {
            return Err(format!(
                "--memory {}: with {page_size} pages and {va_bits} bits of virtual address the linear \
                 map reaches {} of RAM; take more bits with --va-bits",
                show_size(memory),
                show_size(reaches.saturating_sub(RAM_START))
            ));
        }
        let cuts = match rodata {
            Rodata::Off => vec![RAM_START, end],
            _ => vec![RAM_START, IMAGE_START, IMAGE_START + image_bytes, end],
        };
        if cuts.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(format!(
                "--memory {}: RAM does not even hold the kernel; take at least 16M",
                show_size(memory)
            ));
        }
        let ranges = cuts.windows(2).map(|pair| (pair[0], pair[1] - pair[0]));
        Ok(Self::of(
            geometry,
            TlbCapabilities {
                range: tlbi_range,
                ..TlbCapabilities::BASIC
            },
            ranges,
            placement.distance(),
            leaves(rodata, bbm),
            POOL / page_size.bytes() - taken_by_boot(page_size),
        ))
    }

    /// The map of these physical ranges (first byte and bytes, ascending) at `distance`, with
    /// leaves no larger than `leaves` allows.
    pub fn of(
        geometry: Geometry,
        capabilities: TlbCapabilities,
        ranges: impl IntoIterator<Item = (u64, u64)>,
        distance: u64,
        leaves: Leaves,
        pool_pages: u64,
    ) -> Self {
        let pieces = ranges
            .into_iter()
            .map(|(first, bytes)| Piece {
                start: VirtualAddress(first.wrapping_add(distance)),
                output: PhysicalAddress(first),
                bytes,
                // The permissions do not change the cost.
                attributes: Attributes::normal(Permissions::READ_WRITE),
                leaves,
            })
            .collect();
        Self {
            geometry,
            capabilities,
            pieces,
            pool_pages,
        }
    }

    /// The leaves and tables of the map.
    pub fn stats(&self) -> LeafStats {
        LeafStats::new(&self.geometry, &self.pieces)
    }

    /// The counts of making it by a published strategy, or by `direct`, without instructions.
    /// Fails with one line if the library's code refuses the map.
    pub fn cost(&self, strategy: Option<Strategy>, barriers: Barriers) -> Result<Cost, String> {
        match strategy {
            None => periodic::direct(self).map_err(|error| format!("`direct`: {error}")),
            Some(published) => periodic::published(self, published, barriers)
                .map_err(|error| format!("`{published}`: {error}")),
        }
    }
}

/// The largest leaves of a map on CPUs that are trusted with BBM level `bbm`: where single pages
/// must be able to change, blocks are allowed only if they can be split live.
pub const fn leaves(rodata: Rodata, bbm: BbmLevel) -> Leaves {
    match rodata {
        Rodata::On | Rodata::Full if (bbm as u32) < BbmLevel::Level2 as u32 => Leaves::PAGES,
        _ => Leaves::LARGEST,
    }
}

fn geometry(page_size: PageSize, va_bits: u32) -> Result<Geometry, String> {
    // TGran4 0 and 1 (bits 31:28), TGran16 1 and 2 (bits 23:20): the page size, without and with
    // 52 bits. PARange 5 and 6: 48 and 52 bits. VARange 1: 52 bits with 64K pages.
    let (mmfr0, mmfr2) = if va_bits > 48 {
        (1 << 28 | 2 << 20 | 6, 1 << 16)
    } else {
        (1 << 20 | 5, 0)
    };
    let cpu = CpuFeatures {
        mmfr0,
        mmfr2,
        ..CpuFeatures::NONE
    };
    Geometry::new(&cpu, page_size, va_bits, VaRange::Upper, Regime::El1And0)
        .map_err(|error| format!("--va-bits {va_bits}: {error}"))
}

/// The address of the kernel's linear map: in the lower half of its half of the space.
fn place(geometry: &Geometry, start: u64, end: u64) -> Placement {
    Placement::choose(
        geometry,
        geometry.base(),
        geometry.span() / 2,
        PhysicalAddress(start),
        PhysicalAddress(end),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::LinearMap;

    #[test]
    fn how_long_the_image_is_changes_no_count() {
        for (page_size, va_bits) in [
            (PageSize::K4, 48),
            (PageSize::K16, 48),
            (PageSize::K16, 52),
            (PageSize::K64, 48),
        ] {
            for bbm in [BbmLevel::Level0, BbmLevel::Level2] {
                for way in LinearMap::ALL {
                    let counts = |image_bytes| {
                        let shape = (page_size, va_bits);
                        let job =
                            Job::with_image(image_bytes, 4 << 30, shape, Rodata::Full, bbm, false)
                                .unwrap();
                        let cost = job.cost(way.strategy(), way.barriers().value()).unwrap();
                        let leaves: Vec<_> = job.stats().leaves().collect();
                        (cost.counts, leaves)
                    };
                    let usual = counts(IMAGE_BYTES);
                    for image_bytes in [64 << 10, 704 << 10, MOST_IMAGE_BYTES - (64 << 10)] {
                        assert_eq!(
                            counts(image_bytes),
                            usual,
                            "{image_bytes:#x} bytes, {page_size} {va_bits} {bbm:?} {way:?}"
                        );
                    }
                }
            }
        }
    }
}
