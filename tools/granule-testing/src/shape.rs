//! Shapes of address spaces to test, and the ID registers that allow them.
//!
//! The register fields are placed by hand from the architecture's tables: a test that took the
//! place of TGran4 from the library would repeat the library's mistakes.

use granule::arch::{CpuFeatures, Geometry, PageSize, Regime, Stage2Geometry, VaRange};

/// The fields of the ID registers that matter here.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    /// PARange: 0 to 7.
    pub parange: u64,
    /// TGran4, TGran16 and TGran64, as encoded.
    pub tgran4: u64,
    pub tgran16: u64,
    pub tgran64: u64,
    /// VARange: 1 for 52-bit input addresses with 64K pages.
    pub varange: u64,
    /// ST: 1 for small translation tables.
    pub st: u64,
}

/// Everything that the architecture has except 56-bit addresses: the CPU `max` of QEMU.
pub const LARGE: Cpu = Cpu {
    parange: 6,
    tgran4: 1,
    tgran16: 2,
    tgran64: 0,
    varange: 1,
    st: 1,
};

/// 48-bit input and output addresses.
pub const PLAIN: Cpu = Cpu {
    parange: 5,
    tgran4: 0,
    tgran16: 1,
    tgran64: 0,
    varange: 0,
    st: 0,
};

/// 52-bit input addresses with 48-bit output addresses.
pub const WIDE_INPUT: Cpu = Cpu {
    parange: 5,
    ..LARGE
};

impl Cpu {
    pub fn features(&self) -> CpuFeatures {
        CpuFeatures {
            midr: 0x410f_d034,
            mmfr0: self.parange
                | 0b10 << 4
                | self.tgran16 << 20
                | self.tgran64 << 24
                | self.tgran4 << 28,
            mmfr1: 0,
            mmfr2: self.varange << 16 | self.st << 28,
            isar0: 0,
        }
    }

    pub fn geometry(&self, size: PageSize, va_bits: u32, va_range: VaRange) -> Geometry {
        Geometry::new(&self.features(), size, va_bits, va_range, Regime::El1And0).unwrap()
    }

    pub fn single(&self, size: PageSize, va_bits: u32, regime: Regime) -> Geometry {
        Geometry::new(&self.features(), size, va_bits, VaRange::Lower, regime).unwrap()
    }
}

/// Every shape of stage 2 that operations are tested on: each page size, with one root table and
/// with several, all start levels, the formats of output addresses, and with and without the
/// features that change the bits of a leaf.
pub fn stage2() -> Vec<Stage2Geometry> {
    use PageSize::{K4, K16, K64};
    let mut shapes = Vec::new();
    for (cpu, size, ipa_bits) in [
        (PLAIN, K4, 32),
        (PLAIN, K4, 39),
        (PLAIN, K4, 40),
        (PLAIN, K4, 48),
        (PLAIN, K16, 36),
        (PLAIN, K16, 40),
        (PLAIN, K16, 48),
        (PLAIN, K64, 36),
        (PLAIN, K64, 42),
        (PLAIN, K64, 48),
        (LARGE, K4, 25),
        (LARGE, K4, 52),
        (LARGE, K16, 29),
        (LARGE, K16, 51),
        (LARGE, K16, 52),
        (LARGE, K64, 33),
        (LARGE, K64, 46),
        (LARGE, K64, 52),
    ] {
        // FEAT_S2FWB is MMFR2 43:40, FEAT_XNX MMFR1 31:28.
        for features in [false, true] {
            let mut cpu = cpu.features();
            if features {
                cpu.mmfr1 |= 1 << 28;
                cpu.mmfr2 |= 1 << 40;
            }
            shapes.push(Stage2Geometry::new(&cpu, size, ipa_bits).unwrap());
        }
    }
    shapes
}

/// Every shape that operations are tested on: each page size, both halves, the formats of output
/// addresses, all start levels, and a regime with one privilege level.
pub fn all() -> Vec<Geometry> {
    use PageSize::{K4, K16, K64};
    let mut shapes = Vec::new();
    for (size, va_bits) in [
        (K4, 39),
        (K4, 48),
        (K16, 36),
        (K16, 48),
        (K64, 42),
        (K64, 48),
    ] {
        shapes.push(PLAIN.geometry(size, va_bits, VaRange::Upper));
    }
    for size in [K4, K16, K64] {
        shapes.push(LARGE.geometry(size, 52, VaRange::Upper));
        shapes.push(LARGE.geometry(size, 52, VaRange::Lower));
        shapes.push(LARGE.geometry(size, 47, VaRange::Lower));
        // The smallest shapes: one level, or two.
        shapes.push(LARGE.geometry(size, 25, VaRange::Upper));
        shapes.push(WIDE_INPUT.geometry(size, 52, VaRange::Upper));
    }
    shapes.push(PLAIN.single(K4, 48, Regime::El2));
    shapes.push(LARGE.single(K16, 42, Regime::El3));
    shapes
}
