//! Memory types and permissions, and their encoding in leaf descriptors.
//!
//! A caller maps with [`Attributes`], and a query returns them. [`Permissions`] is the part of them
//! that may change on a live mapping without break-before-make (rule RWHZWS lists the rest).

use super::descriptor::Descriptor;
use super::geometry::{Geometry, OutputFormat};
use super::output_space::OutputSpace;
use super::regime::Regime;
use core::fmt;

/// The kinds of memory that [`Mair::STANDARD`](super::registers::Mair::STANDARD) provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryType {
    /// Normal memory, write-back, read and write allocate.
    Normal,
    /// Device-nGnRE: registers of devices.
    Device,
    /// Normal memory, not cached.
    NormalNonCacheable,
    /// Device-nGnRnE: registers whose writes must reach the device before they complete (PCI
    /// configuration).
    DeviceStrict,
    /// Normal write-back memory with allocation tags (FEAT_MTE2).
    NormalTagged,
    /// Any other index into the caller's MAIR; only the low three bits count.
    Index(u8),
}

impl MemoryType {
    /// The index into MAIR, 0 to 7.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::Device => 1,
            Self::NormalNonCacheable => 2,
            Self::DeviceStrict => 3,
            Self::NormalTagged => 4,
            Self::Index(index) => index & 0b111,
        }
    }

    /// The type at `index` of the standard MAIR.
    #[inline]
    pub(super) const fn from_index(index: u8) -> Self {
        match index & 0b111 {
            0 => Self::Normal,
            1 => Self::Device,
            2 => Self::NormalNonCacheable,
            3 => Self::DeviceStrict,
            4 => Self::NormalTagged,
            other => Self::Index(other),
        }
    }
}

/// The observers that share a coherent view of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum Shareability {
    /// This CPU only.
    None,
    /// The outer shareable domain.
    Outer,
    /// The inner shareable domain: all CPUs of one operating system.
    Inner,
}

impl Shareability {
    /// The two-bit encoding used in descriptors and in TCR.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::None => 0b00,
            Self::Outer => 0b10,
            Self::Inner => 0b11,
        }
    }

    /// The shareability of a leaf descriptor; [`Inner`](Self::Inner) where TCR.DS is set.
    #[inline]
    pub(super) const fn of_leaf(descriptor: Descriptor, geometry: &Geometry) -> Self {
        match (geometry.format(), descriptor.0 >> 8 & 0b11) {
            (OutputFormat::Lpa2, _) | (_, 0b11) => Self::Inner,
            (_, 0b10) => Self::Outer,
            _ => Self::None,
        }
    }
}

/// The allowed accesses of a mapping, and software's bits in it. All of these may change in place
/// on a live mapping, followed by a TLBI (rule RWHZWS lists the changes that may not).
///
/// Begin with a constant: `Permissions { user: true, ..Permissions::READ_WRITE }`. A further field
/// then breaks nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Whether stores are allowed (AP\[2\] clear).
    pub writable: bool,
    /// Whether EL0 may access (AP\[1\]); no effect in a regime with one privilege.
    pub user: bool,
    /// Whether the privileged level may execute (PXN clear; XN in a regime with one privilege).
    pub privileged_execute: bool,
    /// Whether EL0 may execute (UXN clear); no effect in a regime with one privilege.
    pub user_execute: bool,
    /// Guarded: indirect branches must land on BTI instructions (FEAT_BTI).
    pub guarded: bool,
    /// Writable-clean under hardware dirty management (DBM); see TCR.HD.
    pub dirty_modifier: bool,
    /// Four bits for software's own use (descriptor bits 58:55); the upper four are ignored.
    pub software: u8,
}

impl Permissions {
    /// Readable, never executed.
    pub const READ: Self = Self {
        writable: false,
        user: false,
        privileged_execute: false,
        user_execute: false,
        guarded: false,
        dirty_modifier: false,
        software: 0,
    };
    /// Readable and writable, never executed.
    pub const READ_WRITE: Self = Self {
        writable: true,
        ..Self::READ
    };
    /// Readable and executable by the privileged level.
    pub const READ_EXECUTE: Self = Self {
        privileged_execute: true,
        ..Self::READ
    };

    /// The descriptor bits that [`encode`](Self::encode) sets or clears.
    pub(crate) const MASK: u64 = Descriptor::AP_READ_ONLY
        | Descriptor::AP_USER
        | Descriptor::PXN
        | Descriptor::UXN
        | Descriptor::GUARDED
        | Descriptor::DIRTY_MODIFIER
        | Descriptor::SOFTWARE;

    /// Whether a page is both writable and executable at some privilege.
    #[must_use]
    #[inline]
    pub const fn writable_and_executable(self) -> bool {
        self.writable && (self.privileged_execute || self.user_execute)
    }

    /// These permissions as descriptor bits of `regime`.
    #[inline(always)]
    pub(crate) const fn encode(self, regime: Regime) -> u64 {
        let mut bits = ((self.software & 0b1111) as u64) << 55;
        if !self.writable {
            bits |= Descriptor::AP_READ_ONLY;
        }
        if regime.has_user() {
            if self.user {
                bits |= Descriptor::AP_USER;
            }
            if !self.privileged_execute {
                bits |= Descriptor::PXN;
            }
            if !self.user_execute {
                bits |= Descriptor::UXN;
            }
        } else {
            // One privilege: AP[1] is RES1, bit 53 is RES0 and bit 54 is XN.
            bits |= Descriptor::AP_USER;
            if !self.privileged_execute {
                bits |= Descriptor::UXN;
            }
        }
        if self.guarded {
            bits |= Descriptor::GUARDED;
        }
        if self.dirty_modifier {
            bits |= Descriptor::DIRTY_MODIFIER;
        }
        bits
    }

    /// The permissions of a leaf descriptor of `regime`.
    #[inline]
    const fn decode(descriptor: Descriptor, regime: Regime) -> Self {
        let bits = descriptor.0;
        let user = regime.has_user();
        let privileged_never = if user {
            Descriptor::PXN
        } else {
            Descriptor::UXN
        };
        Self {
            writable: bits & Descriptor::AP_READ_ONLY == 0,
            user: user && bits & Descriptor::AP_USER != 0,
            privileged_execute: bits & privileged_never == 0,
            user_execute: user && bits & Descriptor::UXN == 0,
            guarded: bits & Descriptor::GUARDED != 0,
            dirty_modifier: bits & Descriptor::DIRTY_MODIFIER != 0,
            software: ((bits >> 55) & 0b1111) as u8,
        }
    }
}

/// `rw-/r-x`: what the privileged level may do, then EL0. The words `guarded` and `dbm` and the
/// value of the software bits (`software=3`) follow where they are set.
impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |there, letter| if there { letter } else { '-' };
        write!(
            f,
            "r{}{}/{}{}{}",
            letter(self.writable, 'w'),
            letter(self.privileged_execute, 'x'),
            letter(self.user, 'r'),
            letter(self.user && self.writable, 'w'),
            letter(self.user_execute, 'x'),
        )?;
        if self.guarded {
            f.write_str(" guarded")?;
        }
        if self.dirty_modifier {
            f.write_str(" dbm")?;
        }
        match self.software {
            0 => Ok(()),
            bits => write!(f, " software={bits}"),
        }
    }
}

/// Everything in a leaf besides its address.
///
/// [`normal`](Self::normal) and [`device`](Self::device) give the usual ones. Others begin with one of
/// them, as in `Attributes { global: false, ..Attributes::normal(permissions) }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The kind of memory.
    pub memory: MemoryType,
    /// The shareability. Where TCR.DS is set, TCR gives it for every leaf: encoding ignores this
    /// field, and decoding gives [`Shareability::Inner`].
    pub shareability: Shareability,
    /// The allowed accesses.
    pub permissions: Permissions,
    /// The access flag. While it is clear, the first access faults, or hardware sets it (TCR.HA).
    pub accessed: bool,
    /// Whether the translation is the same in every address space (nG clear); always so in a regime
    /// with one privilege.
    pub global: bool,
    /// The physical address space of the output, which firmware and the Secure and Realm states
    /// choose.
    pub output_space: OutputSpace,
}

impl Attributes {
    /// Normal, inner shareable, accessed, global memory: a kernel's attributes for RAM.
    #[must_use]
    #[inline]
    pub const fn normal(permissions: Permissions) -> Self {
        Self {
            memory: MemoryType::Normal,
            shareability: Shareability::Inner,
            permissions,
            accessed: true,
            global: true,
            output_space: OutputSpace::Unmarked,
        }
    }

    /// Device registers, readable and writable, never executed.
    #[must_use]
    #[inline]
    pub const fn device() -> Self {
        Self {
            memory: MemoryType::Device,
            // Device memory is always outer shareable; the same value in every descriptor keeps
            // aliases alike.
            shareability: Shareability::Outer,
            permissions: Permissions::READ_WRITE,
            accessed: true,
            global: true,
            output_space: OutputSpace::Unmarked,
        }
    }

    /// These attributes as bits of a leaf descriptor of `geometry`, without the address, the
    /// contiguous bit and the two low bits.
    #[must_use]
    #[inline(always)]
    pub const fn encode(&self, geometry: &Geometry) -> u64 {
        let regime = geometry.regime();
        let mut bits = self.permissions.encode(regime) | (self.memory.index() as u64) << 2;
        // With TCR.DS bits 9:8 are address bits 51:50, and TCR.SH0/SH1 hold for every leaf.
        if !matches!(geometry.format(), OutputFormat::Lpa2) {
            bits |= self.shareability.bits() << 8;
        }
        if self.accessed {
            bits |= Descriptor::ACCESS_FLAG;
        }
        bits |= self.output_space.bits(regime);
        // A regime with one privilege has no ASIDs, and bit 11 is RES0, or NSE at EL3.
        if !self.global && regime.has_user() {
            bits |= Descriptor::NOT_GLOBAL;
        }
        bits
    }

    /// The attributes of a leaf descriptor of `geometry`.
    #[must_use]
    #[inline]
    pub const fn decode(descriptor: Descriptor, geometry: &Geometry) -> Self {
        let bits = descriptor.0;
        let regime = geometry.regime();
        Self {
            memory: MemoryType::from_index(((bits >> 2) & 0b111) as u8),
            shareability: Shareability::of_leaf(descriptor, geometry),
            permissions: Permissions::decode(descriptor, regime),
            accessed: bits & Descriptor::ACCESS_FLAG != 0,
            global: !regime.has_user() || bits & Descriptor::NOT_GLOBAL == 0,
            output_space: OutputSpace::of_leaf(descriptor, regime),
        }
    }
}
