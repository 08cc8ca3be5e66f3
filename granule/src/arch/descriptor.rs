//! Translation table descriptors of stage 1, bit for bit.
//!
//! A [`Descriptor`] is the 64-bit value in a table. Its meaning depends on the level that it stands at
//! and on the output format, so a [`Geometry`] decodes its address. [`Attributes`](super::Attributes)
//! decode its permissions.

use super::geometry::{Geometry, PhysicalAddress};
use super::page_size::{Level, PageSize};
use core::fmt;

/// A 64-bit translation table descriptor.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Descriptor(pub u64);

/// What a descriptor is at its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Translation fault: bit 0 clear, or a pattern that this level does not decode.
    Invalid,
    /// A pointer to a table of the next level.
    Table,
    /// A block, or at level 3 a page.
    Leaf,
    /// A leaf that was made invalid for a while ([`Descriptor::hidden`]): a translation fault to
    /// the CPU, but address and permissions are kept, and nothing else may be mapped there.
    Hidden,
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
    /// Bit 63 of an *invalid* descriptor, which hardware ignores: the entry is a leaf that was
    /// made invalid for a while.
    pub const HIDDEN: u64 = 1 << 63;
    /// Bit 59 of a table descriptor: no privileged execution below it.
    pub const PXN_TABLE: u64 = 1 << 59;
    /// Bit 60 of a table descriptor: no unprivileged execution below it (execute-never in
    /// regimes with one privilege).
    pub const UXN_TABLE: u64 = 1 << 60;
    /// Bits 62:61 of a table descriptor: access below it is restricted.
    pub const AP_TABLE: u64 = 0b11 << 61;
    /// Bit 63 of a table descriptor: what is below it is not secure.
    pub const NS_TABLE: u64 = 1 << 63;

    /// The bits of a table descriptor that take permissions from what is below it: a leaf in its
    /// place would be without.
    pub const RESTRICTIONS: u64 =
        Self::PXN_TABLE | Self::UXN_TABLE | Self::AP_TABLE | Self::NS_TABLE;

    /// A table descriptor that points to `table`, without hierarchical restrictions.
    #[must_use]
    pub const fn table(geometry: &Geometry, table: PhysicalAddress) -> Self {
        Self(geometry.address_bits(table) | Self::TABLE_OR_PAGE | Self::VALID)
    }

    /// A leaf descriptor of `level` whose output begins at `output`, with the encoded
    /// `attributes` (as [`Attributes::encode`](super::Attributes::encode) gives them).
    #[must_use]
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

    /// Bit 0. A valid bit alone does not make a leaf: see [`kind`](Self::kind).
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether this points to a table when it stands at `level`.
    #[must_use]
    pub const fn is_table(self, level: Level) -> bool {
        !level.is_last() && self.0 & 0b11 == 0b11
    }

    /// What this is when it stands at `level` of `geometry`.
    #[must_use]
    pub const fn kind(self, geometry: &Geometry, level: Level) -> Kind {
        match self.0 & 0b11 {
            0b00 | 0b10 if self.0 & Self::HIDDEN != 0 => Kind::Hidden,
            0b11 if level.is_last() => Kind::Leaf,
            0b11 => Kind::Table,
            0b01 if !level.is_last() && geometry.leaf_allowed(level) => Kind::Leaf,
            _ => Kind::Invalid,
        }
    }

    /// Whether hardware may change this leaf at any time: set the access flag (TCR.HA), or make a
    /// page that is writable but clean dirty by clearing AP\[2\] (TCR.HD and DBM). Software changes
    /// such an entry of a live table in one step (RWLTNL). In a table descriptor, which hardware
    /// leaves alone, the bits mean nothing.
    #[must_use]
    pub const fn may_be_updated(self) -> bool {
        let clean = Self::DIRTY_MODIFIER | Self::AP_READ_ONLY;
        self.is_valid() && (self.0 & Self::ACCESS_FLAG == 0 || self.0 & clean == clean)
    }

    /// This leaf made invalid, so that every access faults, with all else kept.
    #[must_use]
    pub const fn hidden(self) -> Self {
        Self((self.0 & !Self::VALID) | Self::HIDDEN)
    }

    /// The contiguous bit.
    #[must_use]
    pub const fn is_contiguous(self) -> bool {
        self.0 & Self::CONTIGUOUS != 0
    }
}

/// A geometry's formats for the addresses in descriptors. A geometry itself does not know descriptors.
impl Geometry {
    /// The bits of a leaf descriptor of `level` that are neither address nor contiguous hint nor
    /// say what kind of descriptor it is: attributes, permissions, and whatever else it holds.
    #[must_use]
    pub const fn attribute_bits(&self, leaf: Descriptor, level: Level) -> u64 {
        let address = self.address_bits(self.address_of(leaf, level));
        // Only larger leaves have room for these, above all for nT, and smaller ones have address
        // bits there.
        let below = (1 << self.page_size().level_shift(level)) - 1;
        let unused = below & !(PageSize::MIN.bytes() - 1);
        leaf.0
            & !(address
                | unused
                | Descriptor::VALID
                | Descriptor::TABLE_OR_PAGE
                | Descriptor::CONTIGUOUS
                | Descriptor::HIDDEN)
    }

    /// The address that a valid descriptor of `level` holds in this format: the next table's,
    /// or the first byte of the leaf's output.
    #[must_use]
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
