//! Memory types as hardware encodes them: the bytes of MAIR and MemAttr of stage 2. This module
//! uses neither descriptors nor trees.

use granule::arch::registers::Mair;
use std::fmt;

/// The memory type of a leaf, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryType {
    /// Device memory: gathering, reordering and early acknowledgement, from the strictest on.
    Device(Device),
    /// Normal memory that these caches may hold.
    Normal {
        outer: Cache,
        inner: Cache,
        /// Whether it has allocation tags (FEAT_MTE2).
        tagged: bool,
    },
    /// Stage 2 with FEAT_S2FWB: the type in the guest's own tables.
    AsStage1,
    /// An encoding that the architecture reserves.
    Reserved(u8),
    /// The index of a MAIR that is not known.
    Index(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the Arm ARM's names")]
#[allow(missing_docs, reason = "the Arm ARM's names")]
pub enum Device {
    nGnRnE,
    nGnRE,
    nGRE,
    GRE,
}

/// The cacheability of Normal memory at a level of caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cache {
    /// Not.
    NonCacheable,
    /// Stores go on to memory.
    WriteThrough,
    /// Stores stay in the cache.
    WriteBack,
}

impl Device {
    const fn of(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::nGnRnE,
            0b01 => Self::nGnRE,
            0b10 => Self::nGRE,
            _ => Self::GRE,
        }
    }
}

impl MemoryType {
    /// The type at an index of MAIR. Left out is what changes neither the type nor the caches: allocation hints,
    /// whether DVM operations wait for it (FEAT_XS), and that tags are not looked at (FEAT_MTE_PERM).
    pub const fn of_stage1(index: u8, mair: Option<Mair>) -> Self {
        let Some(mair) = mair else {
            return Self::Index(index);
        };
        let byte = (mair.0 >> (8 * (index & 0b111))) as u8;
        match (byte >> 4, byte & 0b1111) {
            // Bit 0: without the XS attribute.
            (0, low) if low & 0b10 == 0 => Self::Device(Device::of(low >> 2)),
            // Three encodings that are not two halves.
            (0b0100, 0) => Self::normal(Cache::NonCacheable, Cache::NonCacheable),
            (0b1010, 0) => Self::normal(Cache::WriteThrough, Cache::WriteThrough),
            (0b1110, 0) => Self::normal(Cache::WriteBack, Cache::WriteBack),
            (0b1111, 0) => Self::Normal {
                outer: Cache::WriteBack,
                inner: Cache::WriteBack,
                tagged: true,
            },
            (0, _) | (_, 0) => Self::Reserved(byte),
            (outer, inner) => Self::Normal {
                outer: Self::cache(outer),
                inner: Self::cache(inner),
                tagged: false,
            },
        }
    }

    /// One half of a byte of MAIR. Transient and other write-back memory are alike here.
    const fn cache(half: u8) -> Cache {
        match half {
            0b0100 => Cache::NonCacheable,
            0b0001..=0b0011 | 0b1000..=0b1011 => Cache::WriteThrough,
            _ => Cache::WriteBack,
        }
    }

    /// Returns the type that MemAttr of stage 2 encodes. `forced` is HCR_EL2.FWB.
    pub const fn of_stage2(bits: u8, forced: bool) -> Self {
        if forced {
            return match bits & 0b0111 {
                device @ 0b000..=0b011 => Self::Device(Device::of(device)),
                0b101 => Self::normal(Cache::NonCacheable, Cache::NonCacheable),
                0b110 => Self::normal(Cache::WriteBack, Cache::WriteBack),
                0b111 => Self::AsStage1,
                _ => Self::Reserved(bits),
            };
        }
        match (bits >> 2 & 0b11, bits & 0b11) {
            (0b00, device) => Self::Device(Device::of(device)),
            (_, 0b00) => Self::Reserved(bits),
            (outer, inner) => Self::normal(Self::cache2(outer), Self::cache2(inner)),
        }
    }

    const fn normal(outer: Cache, inner: Cache) -> Self {
        Self::Normal {
            outer,
            inner,
            tagged: false,
        }
    }

    const fn cache2(bits: u8) -> Cache {
        match bits {
            0b01 => Cache::NonCacheable,
            0b10 => Cache::WriteThrough,
            _ => Cache::WriteBack,
        }
    }

    /// Every type that has a name, and no number.
    pub fn named() -> impl Iterator<Item = Self> {
        let bytes = (0..=u8::MAX).map(|byte| Self::of_stage1(0, Some(Mair(byte.into()))));
        let known = bytes.filter(|memory| !matches!(memory, Self::Reserved(_)));
        known.chain([Self::AsStage1])
    }

    /// Returns the type as far as mappings of one memory must agree: without tags.
    pub const fn untagged(self) -> Self {
        match self {
            Self::Normal { outer, inner, .. } => Self::normal(outer, inner),
            other => other,
        }
    }

    /// Whether the memory is outer shareable whatever its descriptor encodes: Device memory and memory
    /// that no cache may hold.
    pub const fn always_outer(self) -> bool {
        matches!(
            self,
            Self::Device(_)
                | Self::Normal {
                    outer: Cache::NonCacheable,
                    inner: Cache::NonCacheable,
                    ..
                }
        )
    }
}

/// One word.
impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = |cache| match cache {
            Cache::NonCacheable => "NC",
            Cache::WriteThrough => "WT",
            Cache::WriteBack => "WB",
        };
        match *self {
            Self::Device(kind) => write!(f, "device-{kind:?}"),
            Self::Normal { tagged: true, .. } => f.write_str("normal-tagged"),
            Self::Normal { outer, inner, .. } if outer == inner => {
                write!(f, "normal-{}", cache(outer))
            }
            Self::Normal { outer, inner, .. } => {
                write!(f, "normal-outer-{}-inner-{}", cache(outer), cache(inner))
            }
            Self::AsStage1 => f.write_str("as-stage-1"),
            Self::Reserved(bits) => write!(f, "reserved-{bits:#04x}"),
            Self::Index(index) => write!(f, "index-{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_mair_have_the_manuals_names() {
        // The bytes from MAIR_EL1's table in the Arm ARM.
        for (byte, name) in [
            (0x00, "device-nGnRnE"),
            (0x04, "device-nGnRE"),
            (0x08, "device-nGRE"),
            (0x0c, "device-GRE"),
            // FEAT_XS has one more bit for Device memory and two bytes of its own.
            (0x01, "device-nGnRnE"),
            (0x0d, "device-GRE"),
            (0x02, "reserved-0x02"),
            (0x0f, "reserved-0x0f"),
            (0x40, "normal-NC"),
            (0xa0, "normal-WT"),
            (0x44, "normal-NC"),
            (0xbb, "normal-WT"),
            (0x33, "normal-WT"),
            (0x77, "normal-WB"),
            (0xff, "normal-WB"),
            (0xee, "normal-WB"),
            (0xf0, "normal-tagged"),
            // Normal memory whose tags are not looked at (FEAT_MTE_PERM).
            (0xe0, "normal-WB"),
            (0x50, "reserved-0x50"),
            (0x4f, "normal-outer-NC-inner-WB"),
        ] {
            let mair = Mair(byte << 24);
            assert_eq!(
                MemoryType::of_stage1(3, Some(mair)).to_string(),
                name,
                "{byte:#x}"
            );
        }
        assert_eq!(MemoryType::of_stage1(3, None).to_string(), "index-3");
    }

    #[test]
    fn memattr_has_two_encodings() {
        for (bits, plain, forced) in [
            (0b0000, "device-nGnRnE", "device-nGnRnE"),
            (0b0001, "device-nGnRE", "device-nGnRE"),
            (0b0100, "reserved-0x04", "reserved-0x04"),
            (0b0101, "normal-NC", "normal-NC"),
            (0b0110, "normal-outer-NC-inner-WT", "normal-WB"),
            (0b0111, "normal-outer-NC-inner-WB", "as-stage-1"),
            (0b1111, "normal-WB", "as-stage-1"),
        ] {
            assert_eq!(MemoryType::of_stage2(bits, false).to_string(), plain);
            assert_eq!(MemoryType::of_stage2(bits, true).to_string(), forced);
        }
    }
}
