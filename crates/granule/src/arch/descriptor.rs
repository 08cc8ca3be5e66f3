//! Translation table descriptors, bit for bit. A bit means the same at both stages unless its
//! constant says otherwise.
//!
//! A [`Descriptor`] is the 64-bit value of a table entry. Its meaning depends on its level and on
//! the output format, so a [`Geometry`] decodes its address. [`Attributes`](super::Attributes)
//! decode its permissions.

use super::address::PhysicalAddress;
use super::geometry::Geometry;
use super::page_size::{Level, PageSize};
use super::regime::Regime;
use core::fmt;

/// A 64-bit translation table descriptor.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Descriptor(pub u64);

/// The kind of a descriptor at its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum Kind {
    /// An access faults: bit 0 is clear, or this level does not decode the pattern.
    Invalid,
    /// A pointer to a table of the next level.
    Table,
    /// A block, or at level 3 a page.
    Leaf,
    /// A leaf that is present but invalid ([`Descriptor::PRESENT_INVALID`]): an access faults, but
    /// the entry keeps its address and permissions, and nothing else may be mapped there.
    PresentInvalid,
}

impl Descriptor {
    /// The all-zero descriptor, which is invalid at every level.
    pub const INVALID: Self = Self(0);

    /// Bit 0: valid.
    pub const VALID: u64 = 1 << 0;
    /// Bit 1: a table at levels -1 to 2, a page at level 3.
    pub const TABLE_OR_PAGE: u64 = 1 << 1;
    /// Bits 4:2: index into MAIR.
    pub const ATTR_INDEX: u64 = 0b111 << 2;
    /// Bit 5, NS of stage 1: the output is Non-secure (Secure and Realm states, EL3).
    pub const NS: u64 = 1 << 5;
    /// Bit 6, S2AP\[0\] of stage 2: loads are allowed.
    pub const S2AP_READ: u64 = 1 << 6;
    /// Bit 7, S2AP\[1\] of stage 2: stores are allowed.
    pub const S2AP_WRITE: u64 = 1 << 7;
    /// Bits 54:53, XN\[1:0\] of stage 2: the privileges that must not execute.
    pub const STAGE2_XN: u64 = 0b11 << 53;
    /// Bit 6, AP\[1\]: EL0 may access.
    pub const AP_USER: u64 = 1 << 6;
    /// Bit 7, AP\[2\]: read-only.
    pub const AP_READ_ONLY: u64 = 1 << 7;
    /// Bits 9:8: shareability; address bits 51:50 where TCR.DS is set.
    pub const SHAREABILITY: u64 = 0b11 << 8;
    /// Bit 10: access flag.
    pub const ACCESS_FLAG: u64 = 1 << 10;
    /// Bit 11: not global.
    pub const NOT_GLOBAL: u64 = 1 << 11;
    /// Bit 11 of the EL3 regime with FEAT_RME, NSE: with [`NS`](Self::NS), the output's physical
    /// address space.
    pub const NSE: u64 = 1 << 11;
    /// Bit 16: nT, block descriptors with FEAT_BBM level 1 and up.
    pub const NT: u64 = 1 << 16;
    /// Bit 50: guarded page (FEAT_BTI).
    pub const GUARDED: u64 = 1 << 50;
    /// Bit 51: dirty bit modifier.
    pub const DIRTY_MODIFIER: u64 = 1 << 51;
    /// Bit 52: contiguous hint.
    pub const CONTIGUOUS: u64 = 1 << 52;
    /// Bit 53: privileged execute-never.
    pub const PXN: u64 = 1 << 53;
    /// Bit 54: unprivileged execute-never; execute-never in regimes with one privilege.
    pub const UXN: u64 = 1 << 54;
    /// Bits 58:55: left to software.
    pub const SOFTWARE: u64 = 0b1111 << 55;
    /// Bit 63 of an *invalid* descriptor, which hardware ignores: the entry is a present-invalid
    /// leaf.
    pub const PRESENT_INVALID: u64 = 1 << 63;
    /// Bit 59 of a table descriptor: no privileged execution below it.
    pub const PXN_TABLE: u64 = 1 << 59;
    /// Bit 60 of a table descriptor: no unprivileged execution below it (execute-never in
    /// regimes with one privilege).
    pub const UXN_TABLE: u64 = 1 << 60;
    /// Bits 62:61 of a table descriptor: limits on access below it.
    pub const AP_TABLE: u64 = 0b11 << 61;
    /// Bit 63 of a table descriptor: the tables and outputs below it are non-secure.
    pub const NS_TABLE: u64 = 1 << 63;

    /// The bits of a table descriptor that restrict everything below it. A leaf has no such bits,
    /// so a leaf in the table's place would lose the restrictions.
    pub const RESTRICTIONS: u64 =
        Self::PXN_TABLE | Self::UXN_TABLE | Self::AP_TABLE | Self::NS_TABLE;

    /// A table descriptor that points to `table`, without hierarchical restrictions.
    #[inline]
    pub(crate) const fn table(geometry: &Geometry, table: PhysicalAddress) -> Self {
        Self(geometry.address_bits(table) | Self::TABLE_OR_PAGE | Self::VALID)
    }

    /// A leaf descriptor of `level` whose output begins at `output`, with `attributes` as encoded
    /// by [`Attributes::encode`](super::Attributes::encode).
    #[must_use]
    #[inline]
    pub const fn leaf(
        geometry: &Geometry,
        level: Level,
        output: PhysicalAddress,
        attributes: u64,
    ) -> Self {
        let kind = if level.is_last() {
            Self::TABLE_OR_PAGE | Self::VALID
        } else {
            Self::VALID
        };
        Self(geometry.address_bits(output) | attributes | kind)
    }

    /// Whether bit 0 is set. The valid bit alone does not make a leaf: see [`kind`](Self::kind).
    #[must_use]
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether this descriptor points to a table at `level`.
    #[inline]
    pub(crate) const fn is_table(self, level: Level) -> bool {
        !level.is_last() && self.0 & 0b11 == 0b11
    }

    /// The kind of this descriptor at `level` of `geometry`.
    #[must_use]
    #[inline]
    pub const fn kind(self, geometry: &Geometry, level: Level) -> Kind {
        match self.0 & 0b11 {
            0b00 | 0b10 if self.0 & Self::PRESENT_INVALID != 0 => Kind::PresentInvalid,
            0b11 if level.is_last() => Kind::Leaf,
            0b11 => Kind::Table,
            0b01 if !level.is_last() && geometry.leaf_allowed(level) => Kind::Leaf,
            _ => Kind::Invalid,
        }
    }

    /// Whether hardware may change this leaf of stage 1 at any time. Hardware sets the access flag (TCR.HA),
    /// and it marks a writable clean page dirty by clearing AP\[2\] (TCR.HD and DBM). Software must
    /// change such an entry of a live table atomically (RWLTNL). The result means nothing for a
    /// table descriptor, which hardware does not change.
    #[cfg(any(test, feature = "space"))]
    #[inline]
    pub(crate) const fn may_be_updated(self) -> bool {
        let clean = Self::DIRTY_MODIFIER | Self::AP_READ_ONLY;
        self.is_valid() && (self.0 & Self::ACCESS_FLAG == 0 || self.0 & clean == clean)
    }

    /// Whether software must change this leaf of a live table atomically, at either stage: hardware
    /// may set the access flag, or change the dirty state of a page with the dirty modifier. A set
    /// bit 7 means clean at stage 1 and dirty at stage 2, so this asks for the modifier alone.
    #[inline]
    pub(crate) const fn changes_atomically(self) -> bool {
        let flags = Self::ACCESS_FLAG | Self::DIRTY_MODIFIER;
        self.is_valid() && self.0 & flags != Self::ACCESS_FLAG
    }

    /// This leaf as a present-invalid one: every access faults, and all other bits stay.
    #[cfg(any(test, feature = "space"))]
    #[inline]
    pub(crate) const fn present_invalid(self) -> Self {
        Self((self.0 & !Self::VALID) | Self::PRESENT_INVALID)
    }

    /// Whether the contiguous hint is set.
    #[must_use]
    #[inline]
    pub const fn is_contiguous(self) -> bool {
        self.0 & Self::CONTIGUOUS != 0
    }
}

/// The decoding of descriptors by a geometry. This `impl` is in this file because `geometry` does
/// not import descriptors.
impl Geometry {
    /// Whether hardware may change this leaf at any time, at the stage of this geometry: as
    /// [`Descriptor::may_be_updated`], but at stage 2 a store makes a clean page dirty by *setting*
    /// bit 7.
    #[inline]
    pub(crate) const fn may_be_updated(&self, leaf: Descriptor) -> bool {
        leaf.is_valid() && (leaf.0 & Descriptor::ACCESS_FLAG == 0 || self.is_clean(leaf))
    }

    /// Whether hardware manages the dirty state of this leaf (DBM), and it is clean.
    #[inline]
    pub(crate) const fn is_clean(&self, leaf: Descriptor) -> bool {
        self.is_managed(leaf) && !self.is_writable(leaf)
    }

    /// Whether hardware manages the dirty state of this leaf (DBM), and it is dirty.
    #[inline]
    pub(crate) const fn is_dirty(&self, leaf: Descriptor) -> bool {
        self.is_managed(leaf) && self.is_writable(leaf)
    }

    /// The bits to clear and to set in a leaf whose dirty state hardware manages, to make it dirty
    /// or clean.
    #[inline]
    pub(crate) const fn dirty_state(&self, dirty: bool) -> (u64, u64) {
        match (self.regime(), dirty) {
            (Regime::Stage2, true) => (0, Descriptor::S2AP_WRITE),
            (Regime::Stage2, false) => (Descriptor::S2AP_WRITE, 0),
            (_, true) => (Descriptor::AP_READ_ONLY, 0),
            (_, false) => (0, Descriptor::AP_READ_ONLY),
        }
    }

    #[inline]
    const fn is_managed(&self, leaf: Descriptor) -> bool {
        leaf.0 & Descriptor::DIRTY_MODIFIER != 0
    }

    #[inline]
    const fn is_writable(&self, leaf: Descriptor) -> bool {
        match self.regime() {
            Regime::Stage2 => leaf.0 & Descriptor::S2AP_WRITE != 0,
            _ => leaf.0 & Descriptor::AP_READ_ONLY == 0,
        }
    }

    /// The bits of a leaf descriptor of `level` besides its address, its contiguous hint and its
    /// kind: attributes, permissions and all other bits.
    #[must_use]
    #[inline]
    pub const fn attribute_bits(&self, leaf: Descriptor, level: Level) -> u64 {
        let address = self.address_bits(self.address_of(leaf, level));
        // Only larger leaves have control bits here, above all nT; smaller ones have address bits.
        let below = (1 << self.page_size().level_shift(level)) - 1;
        let unused = below & !(PageSize::MIN.bytes() - 1);
        leaf.0
            & !(address
                | unused
                | Descriptor::VALID
                | Descriptor::TABLE_OR_PAGE
                | Descriptor::CONTIGUOUS
                | Descriptor::PRESENT_INVALID)
    }

    /// The address that a valid descriptor of `level` holds in this format: the next table's,
    /// or the first byte of the leaf's output.
    #[must_use]
    #[inline]
    pub const fn address_of(&self, descriptor: Descriptor, level: Level) -> PhysicalAddress {
        let low = if descriptor.is_table(level) {
            self.page_size().shift()
        } else {
            self.page_size().level_shift(level)
        };
        self.address_in(descriptor.0, low)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({:#018x})", self.0)
    }
}
