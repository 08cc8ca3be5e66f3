//! Page sizes as types and as values.
//!
//! Hot code is generic over [`Page`], or over [`PageChoice`] with [`AnyPage`] as the fourth choice. It
//! calls the `const` methods of [`PageSize`] on the size, which the compiler folds to constants for a
//! [`Page`]. Other code takes a [`PageSize`]. Only [`PageSize::dispatch`] turns the value chosen at
//! boot into the type. This file defines no page-size constant on purpose: a bound uses
//! [`PageSize::MIN`] or [`PageSize::MAX`].

use super::geometry::Geometry;
use core::fmt;

/// The base-2 logarithm of a descriptor's 8 bytes.
const DESCRIPTOR_SHIFT: u32 = 3;

/// A translation granule: the size of a page and of a full translation table.
// Each is its own shift, so that code for any size has it in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum PageSize {
    /// 4 KiB pages, 512 entries a table.
    K4 = 12,
    /// 16 KiB pages, 2048 entries a table.
    K16 = 14,
    /// 64 KiB pages, 8192 entries a table.
    K64 = 16,
}

impl PageSize {
    /// The architecture's smallest page size, for bounds of counts.
    pub const MIN: Self = Self::K4;
    /// The architecture's largest page size, for sizes and alignments of static storage.
    pub const MAX: Self = Self::K64;
    /// All page sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::K4, Self::K16, Self::K64];

    /// The base-2 logarithm of the size in bytes: 12, 14 or 16.
    #[must_use]
    #[inline]
    pub const fn shift(self) -> u32 {
        self as u32
    }

    /// The size in bytes: 4096, 16384 or 65536.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The page size of exactly `bytes` bytes, if there is one.
    #[must_use]
    #[inline]
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        match bytes {
            0x1000 => Some(Self::K4),
            0x4000 => Some(Self::K16),
            0x1_0000 => Some(Self::K64),
            _ => None,
        }
    }

    /// The address bits that one level of tables resolves: 9, 11 or 13.
    #[inline]
    pub(crate) const fn index_bits(self) -> u32 {
        self.shift() - DESCRIPTOR_SHIFT
    }

    /// The entries of a full table: 512, 2048 or 8192.
    #[must_use]
    #[inline]
    pub const fn entries(self) -> usize {
        1 << self.index_bits()
    }

    /// The base-2 logarithm of the bytes that one entry of `level` covers.
    #[must_use]
    #[inline]
    pub const fn level_shift(self, level: Level) -> u32 {
        self.shift() + (Level::L3.number() - level.number()) as u32 * self.index_bits()
    }

    /// The bytes that one entry of `level` covers.
    #[must_use]
    #[inline]
    pub const fn entry_bytes(self, level: Level) -> u64 {
        1 << self.level_shift(level)
    }

    /// The index, in its table of `level`, of the entry that translates `offset`.
    #[must_use]
    #[inline]
    pub const fn index(self, offset: u64, level: Level) -> usize {
        ((offset >> self.level_shift(level)) as usize) & (self.entries() - 1)
    }

    /// Whether a walk may start at level -1: with 4K pages and 52 bits of input address.
    #[inline]
    pub(crate) const fn has_minus1(self) -> bool {
        matches!(self, Self::K4)
    }

    /// The number of entries of `level` in a contiguous group; 1 where the hint is reserved (4K
    /// level 0, 16K level 1 and 64K level 1).
    #[must_use]
    #[inline]
    pub const fn contiguous_entries(self, level: Level) -> usize {
        match (self, level) {
            (Self::K4, Level::L1 | Level::L2 | Level::L3) => 16,
            (Self::K16, Level::L3) => 128,
            (Self::K16, Level::L2) => 32,
            (Self::K64, Level::L2 | Level::L3) => 32,
            _ => 1,
        }
    }

    /// The level at which a walk of `address_bits` bits of input address starts.
    ///
    /// The result is meaningful only for bits that the architecture has with this page size;
    /// [`Geometry::new`](super::Geometry::new) checks them.
    #[inline]
    pub(crate) const fn start_level(self, address_bits: u32) -> Level {
        let below_page = address_bits.saturating_sub(1 + self.shift());
        match below_page / self.index_bits() {
            0 => Level::L3,
            1 => Level::L2,
            2 => Level::L1,
            3 => Level::L0,
            _ => Level::Minus1,
        }
    }

    /// The name used on command lines: `4k`, `16k` or `64k`.
    #[must_use]
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            Self::K4 => "4k",
            Self::K16 => "16k",
            Self::K64 => "64k",
        }
    }

    /// Runs `what` with the type of this page size. This is the only place where a size chosen at
    /// boot selects code compiled for it.
    #[inline]
    pub fn dispatch<D: Dispatch>(self, what: D) -> D::Output {
        match self {
            Self::K4 => what.run::<Page4K>(),
            Self::K16 => what.run::<Page16K>(),
            Self::K64 => what.run::<Page64K>(),
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A computation generic over the page size, for [`PageSize::dispatch`].
pub trait Dispatch {
    /// The result, of the same type for every page size.
    type Output;
    /// The computation.
    fn run<P: Page>(self) -> Self::Output;
}

/// The page size of a tree, as its type says it: one of the three, which the compiler folds, or
/// [`AnyPage`].
///
/// Sealed: the architecture has three page sizes.
pub trait PageChoice: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The page size, if the type has one alone.
    const ONLY: Option<PageSize>;
}

/// A page size as a type, whose geometry the compiler folds.
pub trait Page: PageChoice {
    /// The same page size as a value; its `const` methods give the geometry.
    const SIZE: PageSize;
}

/// The page size of the tables with a geometry, which a type with one page size does not read.
#[inline(always)]
pub(crate) const fn size_of<P: PageChoice>(geometry: &Geometry) -> PageSize {
    match P::ONLY {
        Some(size) => size,
        None => geometry.page_size(),
    }
}

/// 4 KiB pages.
#[derive(Clone, Copy, Debug)]
pub struct Page4K;
/// 16 KiB pages.
#[derive(Clone, Copy, Debug)]
pub struct Page16K;
/// 64 KiB pages.
#[derive(Clone, Copy, Debug)]
pub struct Page64K;

/// The page size of the geometry: for a static, and for code that is compiled once for all sizes.
///
/// With one of the features `page-4k`, `page-16k` and `page-64k` alone it is that size and folds.
#[derive(Clone, Copy, Debug)]
pub struct AnyPage;

impl PageChoice for Page4K {
    const ONLY: Option<PageSize> = Some(PageSize::K4);
}
impl PageChoice for Page16K {
    const ONLY: Option<PageSize> = Some(PageSize::K16);
}
impl PageChoice for Page64K {
    const ONLY: Option<PageSize> = Some(PageSize::K64);
}
impl PageChoice for AnyPage {
    const ONLY: Option<PageSize> = match (
        cfg!(feature = "page-4k"),
        cfg!(feature = "page-16k"),
        cfg!(feature = "page-64k"),
    ) {
        (true, false, false) => Some(PageSize::K4),
        (false, true, false) => Some(PageSize::K16),
        (false, false, true) => Some(PageSize::K64),
        _ => None,
    };
}

impl Page for Page4K {
    const SIZE: PageSize = PageSize::K4;
}
impl Page for Page16K {
    const SIZE: PageSize = PageSize::K16;
}
impl Page for Page64K {
    const SIZE: PageSize = PageSize::K64;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Page4K {}
    impl Sealed for super::Page16K {}
    impl Sealed for super::Page64K {}
    impl Sealed for super::AnyPage {}
}

/// A level of translation tables. Level 3 holds pages; level -1 exists only for 52-bit input
/// addresses with 4K pages (FEAT_LPA2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// Level -1.
    Minus1,
    /// Level 0.
    L0,
    /// Level 1.
    L1,
    /// Level 2.
    L2,
    /// Level 3, the last one.
    L3,
}

impl Level {
    /// All levels, first to last.
    pub const ALL: [Self; 5] = [Self::Minus1, Self::L0, Self::L1, Self::L2, Self::L3];

    /// The architecture's number of the level, -1 to 3.
    #[must_use]
    #[inline]
    pub const fn number(self) -> i32 {
        match self {
            Self::Minus1 => -1,
            Self::L0 => 0,
            Self::L1 => 1,
            Self::L2 => 2,
            Self::L3 => 3,
        }
    }

    /// The level of the tables that this level's table descriptors point to. Level 3 has no next
    /// level and returns itself.
    #[must_use]
    #[inline]
    pub const fn next(self) -> Self {
        match self {
            Self::Minus1 => Self::L0,
            Self::L0 => Self::L1,
            Self::L1 => Self::L2,
            Self::L2 | Self::L3 => Self::L3,
        }
    }

    /// The level of the tables that lead to tables of this level. The first level has no level above
    /// and returns itself.
    #[inline]
    pub(crate) const fn above(self) -> Self {
        match self {
            Self::Minus1 | Self::L0 => Self::Minus1,
            Self::L1 => Self::L0,
            Self::L2 => Self::L1,
            Self::L3 => Self::L2,
        }
    }

    /// The level with this place in [`ALL`](Self::ALL); level 3 behind its end.
    #[inline]
    pub(crate) const fn from_place(place: u32) -> Self {
        match place {
            0 => Self::Minus1,
            1 => Self::L0,
            2 => Self::L1,
            3 => Self::L2,
            _ => Self::L3,
        }
    }

    /// Whether this is level 3, whose entries are pages.
    #[inline]
    pub(crate) const fn is_last(self) -> bool {
        matches!(self, Self::L3)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}
