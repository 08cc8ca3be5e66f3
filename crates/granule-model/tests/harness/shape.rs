//! The machines that the harness runs on: page sizes, sizes of address spaces, formats, halves.

use granule::arch::{CpuFeatures, Geometry, Page, Regime, VaRange};

/// The shape of an address space, and the features of its machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) va_bits: u32,
    /// 52-bit addresses: LPA2 for 4K and 16K pages, LPA for 64K.
    pub(crate) wide: bool,
    /// The lower half, with an address space number; else the upper half, with global leaves.
    pub(crate) asid: Option<u16>,
    pub(crate) cpus: u32,
    pub(crate) bbm_level: u8,
    /// FEAT_TLBIRANGE and FEAT_TTL.
    pub(crate) tlbi_range: bool,
    /// Every TLBI twice, as an erratum requires.
    pub(crate) repeat: bool,
    /// The model reports what is legal but careless too.
    pub(crate) strict: bool,
    /// TCR.HA and TCR.HD: hardware sets the access flag and the dirty state.
    pub(crate) hardware: bool,
    /// FEAT_S2FWB and FEAT_XNX, at stage 2.
    pub(crate) guest_features: bool,
}

impl Shape {
    /// The usual kernel: upper half, two CPUs.
    pub(crate) const fn kernel(va_bits: u32) -> Self {
        Self {
            va_bits,
            wide: false,
            asid: None,
            cpus: 2,
            bbm_level: 0,
            tlbi_range: false,
            repeat: false,
            strict: false,
            hardware: false,
            guest_features: false,
        }
    }

    /// Programs' half, under this number.
    pub(crate) const fn asid(mut self, asid: u16) -> Self {
        self.asid = Some(asid);
        self
    }

    pub(crate) const fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    pub(crate) const fn bbm_level(self, bbm_level: u8) -> Self {
        Self { bbm_level, ..self }
    }

    pub(crate) const fn tlbi_range(self, tlbi_range: bool) -> Self {
        Self { tlbi_range, ..self }
    }

    pub(crate) const fn repeat(self, repeat: bool) -> Self {
        Self { repeat, ..self }
    }

    pub(crate) const fn hardware(self, hardware: bool) -> Self {
        Self { hardware, ..self }
    }

    pub(crate) const fn pa_bits(&self) -> u32 {
        if self.wide { 52 } else { 48 }
    }

    pub(crate) fn features(&self) -> CpuFeatures {
        // PARange, ASIDBits, TGran16, TGran4; TGran64 is 0, which means that it is there.
        let wide = 6 | 0b10 << 4 | 2 << 20 | 1 << 28;
        let plain = 5 | 0b10 << 4 | 1 << 20;
        CpuFeatures {
            midr: 0x410f_d034,
            mmfr0: if self.wide { wide } else { plain },
            // HAFDBS, VMIDBits, XNX.
            mmfr1: if self.hardware { 2 } else { 0 }
                | 2 << 4
                | u64::from(self.guest_features) << 28,
            // VARange, ST, FWB, BBM.
            mmfr2: u64::from(self.wide) << 16
                | 1 << 28
                | u64::from(self.guest_features) << 40
                | u64::from(self.bbm_level.min(2)) << 52,
            isar0: if self.tlbi_range { 2 << 56 } else { 0 },
        }
    }

    pub(crate) fn geometry<P: Page>(&self) -> Geometry {
        let va_range = if self.asid.is_some() {
            VaRange::Lower
        } else {
            VaRange::Upper
        };
        let geometry = Geometry::new(
            &self.features(),
            P::SIZE,
            self.va_bits,
            va_range,
            Regime::El1And0,
        );
        match geometry {
            Ok(geometry) => geometry,
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

/// The sizes in which operations are requested: the existing leaves and groups, and a
/// whole table of pages.
pub(crate) fn units(geometry: &Geometry) -> Vec<u64> {
    let page = geometry.page_size().bytes();
    let mut units: Vec<u64> = geometry.leaf_sizes().map(|leaf| leaf.bytes).collect();
    units.push(page * geometry.page_size().entries() as u64);
    units.retain(|&unit| unit <= geometry.span() / 2);
    units.sort_unstable();
    units.dedup();
    units
}
