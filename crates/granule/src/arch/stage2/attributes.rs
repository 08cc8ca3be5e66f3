//! Memory types and permissions of stage 2, and their encoding in leaf descriptors.
//!
//! [`Stage2Permissions`] is the part of [`Stage2Attributes`] that may change on a live mapping
//! without break-before-make (rule RWHZWS lists the rest). The bits of a descriptor that both
//! stages share are constants of [`Descriptor`].

use super::geometry::Stage2Geometry;
use crate::arch::attributes::Shareability;
use crate::arch::descriptor::Descriptor;
use crate::arch::geometry::{Geometry, OutputFormat};

/// The part of stage 2 in the memory type of a guest's page.
///
/// Without FEAT_S2FWB the CPU takes the stronger of both stages' types: a guest can make its page
/// less cacheable than stage 2 says, never more. With FEAT_S2FWB, which a [`Stage2Geometry`] uses
/// if the CPU has it, stage 2 can decide alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage2Memory {
    /// Normal memory, write-back. With FEAT_S2FWB the guest cannot make it non-cacheable, so the
    /// hypervisor needs no cache maintenance for pages that it shares with the guest.
    Normal,
    /// The type that the guest's tables say. Without FEAT_S2FWB this is the same encoding as
    /// [`Normal`](Self::Normal), and decodes as that.
    AsStage1,
    /// Normal memory, not cached.
    NormalNonCacheable,
    /// Device-nGnRE: a device that the guest uses directly.
    Device,
    /// Device-nGnRnE.
    DeviceStrict,
    /// Any other value of MemAttr: four bits, three with FEAT_S2FWB.
    Raw(u8),
}

impl Stage2Memory {
    /// The value of MemAttr, descriptor bits 5:2. `forced` says whether HCR_EL2.FWB is set.
    #[inline]
    pub(crate) const fn encode(self, forced: bool) -> u8 {
        match self {
            Self::Normal if forced => 0b0110,
            Self::AsStage1 if forced => 0b0111,
            Self::Normal | Self::AsStage1 => 0b1111,
            Self::NormalNonCacheable => 0b0101,
            Self::Device => 0b0001,
            Self::DeviceStrict => 0b0000,
            Self::Raw(bits) if forced => bits & 0b0111,
            Self::Raw(bits) => bits & 0b1111,
        }
    }

    /// The type that `bits` of MemAttr encode: the inverse of [`encode`](Self::encode).
    #[inline]
    const fn decode(bits: u8, forced: bool) -> Self {
        // Under FEAT_S2FWB bit 3 of MemAttr is RES0.
        match (bits & if forced { 0b0111 } else { 0b1111 }, forced) {
            (0b0110, true) | (0b1111, false) => Self::Normal,
            (0b0111, true) => Self::AsStage1,
            (0b0101, _) => Self::NormalNonCacheable,
            (0b0001, _) => Self::Device,
            (0b0000, _) => Self::DeviceStrict,
            (other, _) => Self::Raw(other),
        }
    }
}

/// The privileges of the guest that may execute a page: XN\[1:0\] with FEAT_XNX.
///
/// Without FEAT_XNX a descriptor has one bit for both privileges. [`Any`](Self::Any) then allows
/// execution, and every other value forbids it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "all values of a two-bit field")]
pub enum Execute {
    /// EL1 and EL0.
    Any,
    /// EL0 only.
    User,
    /// Neither.
    Never,
    /// EL1 only.
    Privileged,
}

impl Execute {
    /// The descriptor bits. `by_privilege` says whether the CPU has FEAT_XNX.
    #[inline]
    pub(crate) const fn encode(self, by_privilege: bool) -> u64 {
        let bits = match (self, by_privilege) {
            (Self::Any, _) => 0b00,
            (Self::User, true) => 0b01,
            (Self::Privileged, true) => 0b11,
            (Self::Never, _) | (_, false) => 0b10,
        };
        bits << 53
    }

    /// The privileges that a descriptor allows to execute.
    #[inline]
    const fn decode(descriptor: Descriptor, by_privilege: bool) -> Self {
        match (descriptor.0 >> 53 & 0b11, by_privilege) {
            (0b00, _) | (0b01, false) => Self::Any,
            (0b01, true) => Self::User,
            (0b11, true) => Self::Privileged,
            _ => Self::Never,
        }
    }
}

/// The accesses that stage 2 allows, and software's bits. The guest's own tables may allow less.
/// All of these may change in place on a live mapping, followed by TLBIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2Permissions {
    /// Whether loads are allowed (S2AP\[0\]).
    pub readable: bool,
    /// Whether stores are allowed (S2AP\[1\]).
    pub writable: bool,
    /// The privileges that may execute. Execution also needs [`readable`](Self::readable).
    pub execute: Execute,
    /// Under VTCR_EL2.HD, hardware manages the dirty state (DBM). A page that is not
    /// [`writable`](Self::writable) is then clean: the first store makes it writable, which means
    /// dirty.
    pub dirty_modifier: bool,
    /// Four bits for software's own use (descriptor bits 58:55); the upper four are ignored.
    pub software: u8,
}

impl Stage2Permissions {
    /// Readable, not writable, never executed.
    pub const READ: Self = Self {
        readable: true,
        writable: false,
        execute: Execute::Never,
        dirty_modifier: false,
        software: 0,
    };
    /// Readable and writable, never executed: a device, or memory for data alone.
    pub const READ_WRITE: Self = Self {
        writable: true,
        ..Self::READ
    };
    /// All accesses: a guest's RAM, in which the guest's own tables set the permissions.
    pub const ALL: Self = Self {
        execute: Execute::Any,
        ..Self::READ_WRITE
    };

    /// The descriptor bits that [`encode`](Self::encode) sets or clears.
    pub(crate) const MASK: u64 = Descriptor::S2AP_READ
        | Descriptor::S2AP_WRITE
        | Descriptor::DIRTY_MODIFIER
        | Descriptor::STAGE2_XN
        | Descriptor::SOFTWARE;

    /// These permissions as descriptor bits. `by_privilege` says whether the CPU has FEAT_XNX.
    #[inline]
    const fn encode(self, by_privilege: bool) -> u64 {
        let mut bits = self.execute.encode(by_privilege) | ((self.software & 0b1111) as u64) << 55;
        if self.readable {
            bits |= Descriptor::S2AP_READ;
        }
        if self.writable {
            bits |= Descriptor::S2AP_WRITE;
        }
        if self.dirty_modifier {
            bits |= Descriptor::DIRTY_MODIFIER;
        }
        bits
    }

    /// The permissions of a leaf descriptor of stage 2.
    #[inline]
    const fn decode(descriptor: Descriptor, by_privilege: bool) -> Self {
        let bits = descriptor.0;
        Self {
            readable: bits & Descriptor::S2AP_READ != 0,
            writable: bits & Descriptor::S2AP_WRITE != 0,
            execute: Execute::decode(descriptor, by_privilege),
            dirty_modifier: bits & Descriptor::DIRTY_MODIFIER != 0,
            software: ((bits >> 55) & 0b1111) as u8,
        }
    }
}

/// Everything in a leaf of stage 2 besides its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage2Attributes {
    /// The kind of memory.
    pub memory: Stage2Memory,
    /// The shareability, combined with that of the guest's tables. Where VTCR_EL2.DS is set,
    /// VTCR_EL2 gives it for every leaf: encoding ignores this field, and decoding gives
    /// [`Shareability::Inner`].
    pub shareability: Shareability,
    /// The allowed accesses.
    pub permissions: Stage2Permissions,
    /// The access flag. While it is clear, the first access faults, or hardware sets it
    /// (VTCR_EL2.HA).
    pub accessed: bool,
}

impl Stage2Attributes {
    /// Normal, inner shareable, accessed memory: a guest's RAM.
    #[must_use]
    #[inline]
    pub const fn normal(permissions: Stage2Permissions) -> Self {
        Self {
            memory: Stage2Memory::Normal,
            shareability: Shareability::Inner,
            permissions,
            accessed: true,
        }
    }

    /// Registers of a device that the guest uses directly.
    #[must_use]
    #[inline]
    pub const fn device() -> Self {
        Self {
            memory: Stage2Memory::Device,
            // Device memory is always outer shareable, whatever the descriptor says.
            shareability: Shareability::Outer,
            permissions: Stage2Permissions::READ_WRITE,
            accessed: true,
        }
    }

    /// These attributes as bits of a leaf descriptor of `geometry`, without the address, the
    /// contiguous bit and the two low bits.
    #[must_use]
    #[inline]
    pub const fn encode(&self, geometry: &Stage2Geometry) -> u64 {
        self.encode_in(geometry.shape())
    }

    /// The attributes of a leaf descriptor of `geometry`.
    #[must_use]
    #[inline]
    pub const fn decode(descriptor: Descriptor, geometry: &Stage2Geometry) -> Self {
        Self::decode_in(descriptor, geometry.shape())
    }

    /// As [`encode`](Self::encode), for the shape of a [`Stage2Geometry`].
    #[inline]
    pub(crate) const fn encode_in(&self, shape: &Geometry) -> u64 {
        let memory = self.memory.encode(shape.forced_write_back()) as u64;
        let mut bits = self.permissions.encode(shape.execute_by_privilege()) | memory << 2;
        // With VTCR_EL2.DS bits 9:8 are address bits 51:50, and VTCR_EL2.SH0 holds for every leaf.
        if !matches!(shape.format(), OutputFormat::Lpa2) {
            bits |= self.shareability.bits() << 8;
        }
        if self.accessed {
            bits |= Descriptor::ACCESS_FLAG;
        }
        bits
    }

    /// As [`decode`](Self::decode), for the shape of a [`Stage2Geometry`].
    #[inline]
    pub(crate) const fn decode_in(descriptor: Descriptor, shape: &Geometry) -> Self {
        let bits = descriptor.0;
        let memory = (bits >> 2 & 0b1111) as u8;
        Self {
            memory: Stage2Memory::decode(memory, shape.forced_write_back()),
            shareability: Shareability::of_leaf(descriptor, shape),
            permissions: Stage2Permissions::decode(descriptor, shape.execute_by_privilege()),
            accessed: bits & Descriptor::ACCESS_FLAG != 0,
        }
    }
}
