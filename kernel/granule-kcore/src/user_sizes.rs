//! The page sizes that programs may have on this boot, and the shape of their half with each.
//!
//! TCR.TG0 may follow the program. DS and IPS cannot: they are one field for both halves, and the kernel's
//! half decides them. So a size is usable if the build has code for it, every CPU has it in the format that
//! the kernel's fields give it, and that format reaches all RAM. Pure; which of the usable sizes a program
//! gets is chosen by `granule_linux_abi::program`.

use crate::cpus::common::Common;
use crate::sizes::BUILT;
use granule::arch::{CpuFeatures, Geometry, GeometryError, OutputFormat, PageSize, VaRange};
use granule_boot::sizes::SizeSet;
use thiserror::Error;

/// Why programs cannot have a page size on this boot.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Unusable {
    #[error("this build has no code for it")]
    NotBuilt,
    #[error("not every CPU has it")]
    Cpus,
    #[error(
        "the kernel's tables have 52-bit descriptors (TCR.DS), which not every CPU has with this size"
    )]
    Wide,
    #[error("{0}")]
    Shape(GeometryError),
    #[error(
        "beside the kernel's tables its descriptors have {bits} bits of address, and RAM ends at {ram_end:#x}"
    )]
    Reach { bits: u32, ram_end: u64 },
}

/// The shape of the lower half with `va_bits` bits of address for programs of `size`, beside the kernel's
/// half `upper`. Errors: why programs cannot have the size.
pub fn shape(
    size: PageSize,
    upper: &Geometry,
    va_bits: u32,
    boot_cpu: &CpuFeatures,
    common: &Common,
    ram_end: u64,
) -> Result<Geometry, Unusable> {
    if !BUILT.has(size) {
        return Err(Unusable::NotBuilt);
    }
    if !common.page_sizes.has(size) {
        return Err(Unusable::Cpus);
    }
    let lower = upper
        .with_va_range(boot_cpu, VaRange::Lower, va_bits, size)
        .map_err(Unusable::Shape)?;
    if lower.format() == OutputFormat::Lpa2 && !common.wide_sizes.has(size) {
        return Err(Unusable::Wide);
    }
    let bits = lower.pa_bits();
    if ram_end > 1 << bits {
        return Err(Unusable::Reach { bits, ram_end });
    }
    Ok(lower)
}

/// The bytes of the largest root table of programs of `usable` sizes. A page of zeros of this size and
/// alignment is an empty root whatever size TCR.TG0 selects: a root is aligned to its own bytes,
/// and to 64 where TTBR0 holds address bits 51 to 48.
pub fn largest_root(usable: impl Iterator<Item = Geometry>) -> u64 {
    let bytes = usable.map(|lower| 8 * lower.root_entries() as u64);
    bytes.fold(64, u64::max)
}

/// The sizes in `usable`.
pub fn set(usable: impl Iterator<Item = Geometry>) -> SizeSet {
    usable.map(|lower| lower.page_size()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use PageSize::{K4, K16, K64};
    use granule::arch::errata::Errata;
    use granule_testing::shape::{Cpu, LARGE, PLAIN};

    const RAM_END: u64 = 0x1_4000_0000;

    fn of(
        (boot, other): (Cpu, Cpu),
        kernel: PageSize,
        size: PageSize,
        ram_end: u64,
    ) -> Result<Geometry, Unusable> {
        let cpu = boot.features();
        let upper = boot.geometry(kernel, 48, VaRange::Upper);
        let common = Common::of_boot_cpu(&cpu, Errata::NONE).and(&other.features());
        shape(size, &upper, 48, &cpu, &common, ram_end)
    }

    #[test]
    fn the_kernel_size_is_as_it_was() {
        for cpu in [PLAIN, LARGE] {
            for kernel in PageSize::ALL {
                let upper = cpu.geometry(kernel, 48, VaRange::Upper);
                let lower = upper.with_va_range(&cpu.features(), VaRange::Lower, 48, kernel);
                assert_eq!(of((cpu, cpu), kernel, kernel, RAM_END), Ok(lower.unwrap()));
            }
        }
    }

    #[test]
    fn every_cpu_must_have_a_size_in_the_format_of_the_kernel() {
        for kernel in PageSize::ALL {
            for size in PageSize::ALL {
                assert!(of((PLAIN, PLAIN), kernel, size, RAM_END).is_ok());
                assert!(of((LARGE, LARGE), kernel, size, RAM_END).is_ok());
            }
        }
        let without = Cpu {
            tgran4: 15,
            ..PLAIN
        };
        for both in [(PLAIN, without), (without, PLAIN)] {
            assert_eq!(of(both, K64, K4, RAM_END), Err(Unusable::Cpus));
            assert!(of(both, K64, K16, RAM_END).is_ok());
        }
        // Only one CPU has 16K pages with 52 bits, which the kernel's DS requires.
        let narrow = Cpu {
            tgran16: 1,
            ..LARGE
        };
        assert_eq!(of((LARGE, narrow), K4, K16, RAM_END), Err(Unusable::Wide));
        let error = Unusable::Shape(GeometryError::OtherFormat(K16));
        assert_eq!(of((narrow, LARGE), K4, K16, RAM_END), Err(error));
        assert!(of((LARGE, narrow), K4, K64, RAM_END).is_ok());
        assert!(of((LARGE, narrow), K64, K16, RAM_END).is_ok());
    }

    #[test]
    fn a_size_must_reach_all_ram() {
        let high = 1 << 49;
        let (bits, ram_end) = (48, high);
        let error = Unusable::Reach { bits, ram_end };
        for size in [K4, K16] {
            assert_eq!(of((LARGE, LARGE), K64, size, high), Err(error));
            assert!(of((LARGE, LARGE), K64, size, 1 << 48).is_ok());
        }
        assert!(of((LARGE, LARGE), K64, K64, high).is_ok());
        for kernel in [K4, K16] {
            for size in PageSize::ALL {
                assert!(of((LARGE, LARGE), kernel, size, high).is_ok());
            }
        }
        for why in [Unusable::NotBuilt, Unusable::Cpus, Unusable::Wide, error] {
            let line = why.to_string();
            assert!(!line.is_empty() && !line.contains('\n'), "{line}");
        }
    }

    /// Bits of address, and the largest root table of the three sizes, from the levels of a walk: with 39 bits
    /// 4K pages start at level 1 with 2^9 entries, 16K pages at level 1 with 2^3, 64K pages at level 2 with 2^10.
    #[test]
    fn an_empty_root_is_large_enough_for_every_size() {
        for (bits, bytes) in [
            (48, 4096),
            (47, 16384),
            (42, 65536),
            (39, 8192),
            (36, 16384),
        ] {
            let upper = PLAIN.geometry(K64, bits, VaRange::Upper);
            let cpu = PLAIN.features();
            let common = Common::of_boot_cpu(&cpu, Errata::NONE);
            let all = PageSize::ALL
                .into_iter()
                .filter_map(|size| shape(size, &upper, bits, &cpu, &common, RAM_END).ok());
            assert_eq!(set(all.clone()), SizeSet::ALL);
            assert_eq!(largest_root(all), bytes, "{bits}");
        }
    }
}
