//! The shape of one half of an address space: page size, input and output address sizes, and their
//! descriptor format.
//!
//! A [`Geometry`] is a value chosen at boot, not a type. Hot loops add a constant step to a
//! descriptor that was encoded before the loop, so they never look at the output format and are
//! generic over the page size alone: three instances and one for any size, not six.

mod address_bits;

use super::address::VirtualAddress;
use super::features::{CpuFeatures, Support};
use super::geometry_error::GeometryError;
use super::page_size::{Level, PageSize};
use super::regime::Regime;
use address_bits::AddressBits;

/// The half of the address space, and so its translation table base register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum VaRange {
    /// TTBR0: addresses from zero up.
    Lower,
    /// TTBR1: addresses whose upper bits are all ones, down from the top.
    Upper,
}

/// The position of address bits 51 to 48 in a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum OutputFormat {
    /// Addresses of at most 48 bits.
    Bits48,
    /// FEAT_LPA2 with TCR.DS set (4K and 16K pages): bits 49:48 in place, 51:50 in descriptor
    /// bits 9:8, and shareability from TCR.
    Lpa2,
    /// FEAT_LPA (64K pages): bits 51:48 in descriptor bits 15:12.
    Lpa,
}

/// The shape of one half of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    page_size: PageSize,
    va_bits: u32,
    pa_bits: u32,
    format: OutputFormat,
    va_range: VaRange,
    regime: Regime,
    start_level: Level,
    /// Stage 2: MemAttr has the encoding of FEAT_S2FWB.
    forced_write_back: bool,
    /// Stage 2: XN has the encoding of FEAT_XNX.
    execute_by_privilege: bool,
    /// The first address and the bytes of the half, which every operation needs.
    base: VirtualAddress,
    span: u64,
    /// The format's place for address bits, so that no operation branches on the format.
    address: AddressBits,
    /// The highest level at which hardware decodes a leaf.
    top_leaf: Level,
}

impl Geometry {
    /// The most address bits without the 52-bit extensions.
    pub(super) const MOST_PLAIN_BITS: u32 = 48;

    /// The geometry of `va_bits` bits of input address with `page_size` pages on `cpu`.
    ///
    /// LPA2 (TCR.DS) is chosen if and only if the input address needs it (52 bits with 4K or 16K
    /// pages) or `cpu` has more than 48 bits of physical address in that format. LPA2 also allows
    /// larger blocks. The 52-bit output format of 64K pages needs no control bit and is used
    /// whenever `cpu` has 52 bits of physical address.
    ///
    /// # Errors
    ///
    /// When the CPU lacks the page size or does not support that number of input address bits, or
    /// when the regime lacks the half.
    pub fn new(
        cpu: &CpuFeatures,
        page_size: PageSize,
        va_bits: u32,
        va_range: VaRange,
        regime: Regime,
    ) -> Result<Self, GeometryError> {
        if regime == Regime::Stage2 {
            return Err(GeometryError::NotStage1);
        }
        if va_range == VaRange::Upper && !regime.has_user() {
            return Err(GeometryError::NoUpperHalf(regime));
        }
        let support = cpu.page_size(page_size);
        if support == Support::No {
            return Err(GeometryError::PageSize(page_size));
        }
        let most = cpu.most_va_bits(page_size);
        let least = cpu.least_va_bits(page_size);
        if va_bits < least || va_bits > most {
            return Err(GeometryError::AddressBits {
                page_size,
                va_bits,
                least,
                most,
            });
        }
        let format = match page_size {
            PageSize::K64 if cpu.pa_bits() >= 52 => OutputFormat::Lpa,
            PageSize::K4 | PageSize::K16
                if support == Support::With52Bits
                    && (va_bits > Self::MOST_PLAIN_BITS
                        || cpu.pa_bits() > Self::MOST_PLAIN_BITS) =>
            {
                OutputFormat::Lpa2
            }
            _ => OutputFormat::Bits48,
        };
        let format_bits = if matches!(format, OutputFormat::Bits48) {
            Self::MOST_PLAIN_BITS
        } else {
            52
        };
        let pa_bits = if cpu.pa_bits() < format_bits {
            cpu.pa_bits()
        } else {
            format_bits
        };
        Ok(Self::stage1(
            page_size, va_bits, pa_bits, format, va_range, regime,
        ))
    }

    /// The shape of stage 1 with these sizes, which the caller checked.
    pub(super) const fn stage1(
        page_size: PageSize,
        va_bits: u32,
        pa_bits: u32,
        format: OutputFormat,
        va_range: VaRange,
        regime: Regime,
    ) -> Self {
        Self {
            page_size,
            va_bits,
            pa_bits,
            format,
            va_range,
            regime,
            start_level: page_size.start_level(va_bits),
            forced_write_back: false,
            execute_by_privilege: false,
            base: match va_range {
                VaRange::Lower => VirtualAddress(0),
                VaRange::Upper => VirtualAddress(u64::MAX << va_bits),
            },
            span: 1 << va_bits,
            address: AddressBits::of(format, page_size, pa_bits),
            top_leaf: top_leaf(page_size, format),
        }
    }

    /// The shape of stage 2 with these sizes, which [`super::stage2`] checked.
    #[inline]
    pub(super) const fn stage2(
        page_size: PageSize,
        ipa_bits: u32,
        pa_bits: u32,
        format: OutputFormat,
        start_level: Level,
        forced_write_back: bool,
        execute_by_privilege: bool,
    ) -> Self {
        Self {
            start_level,
            forced_write_back,
            execute_by_privilege,
            ..Self::stage1(
                page_size,
                ipa_bits,
                pa_bits,
                format,
                VaRange::Lower,
                Regime::Stage2,
            )
        }
    }

    /// The same shape with a walk that starts at `start_level`.
    #[inline]
    pub(super) const fn starting_at(self, start_level: Level) -> Self {
        Self {
            start_level,
            ..self
        }
    }

    /// Whether descriptors have the memory types of FEAT_S2FWB; false at stage 1.
    #[must_use]
    #[inline]
    pub const fn forced_write_back(&self) -> bool {
        self.forced_write_back
    }

    /// Whether descriptors have the execute permissions of FEAT_XNX; false at stage 1.
    #[must_use]
    #[inline]
    pub const fn execute_by_privilege(&self) -> bool {
        self.execute_by_privilege
    }

    /// The page size.
    #[must_use]
    #[inline]
    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The bits of input address.
    #[must_use]
    #[inline]
    pub const fn va_bits(&self) -> u32 {
        self.va_bits
    }

    /// The usable bits of output address: the smaller of the CPU's and the descriptor format's.
    #[must_use]
    #[inline]
    pub const fn pa_bits(&self) -> u32 {
        self.pa_bits
    }

    /// The position of the address bits above 47 in descriptors.
    #[must_use]
    #[inline]
    pub const fn format(&self) -> OutputFormat {
        self.format
    }

    /// Whether TCR.DS is set.
    #[inline]
    pub(crate) const fn lpa2(&self) -> bool {
        matches!(self.format, OutputFormat::Lpa2)
    }

    /// TTBR0 or TTBR1.
    #[must_use]
    #[inline]
    pub const fn va_range(&self) -> VaRange {
        self.va_range
    }

    /// The translation regime, which gives the permission bits their meaning.
    #[must_use]
    #[inline]
    pub const fn regime(&self) -> Regime {
        self.regime
    }

    /// A shape of the other half with pages of `page_size`, which may differ from this half's: TG0
    /// and TG1 are fields of their own. DS and IPS of TCR are one for both halves, and this half's
    /// decide. So the other half's descriptors have the format that those two give its page size,
    /// which may hold fewer bits of output address ([`pa_bits`](Self::pa_bits)).
    ///
    /// # Errors
    ///
    /// When the CPU does not have the page size, does not support that number of input address bits
    /// with it, or supports it only in a format that this half does not use;
    /// [`GeometryError::OtherFormat`] when this half's TCR.DS asks for descriptors that the CPU does
    /// not have with that page size.
    pub fn with_va_range(
        &self,
        cpu: &CpuFeatures,
        va_range: VaRange,
        va_bits: u32,
        page_size: PageSize,
    ) -> Result<Self, GeometryError> {
        Self::new(cpu, page_size, va_bits, va_range, self.regime)?;
        // Without DS, 4K and 16K pages have no 52-bit input addresses.
        if needs_ds(page_size, va_bits) && !self.lpa2() {
            return Err(GeometryError::AddressBits {
                page_size,
                va_bits,
                least: cpu.least_va_bits(page_size),
                most: Self::MOST_PLAIN_BITS,
            });
        }
        let format = match page_size {
            // DS means nothing to 64K pages; more than 48 bits of IPS do.
            PageSize::K64 if self.pa_bits > Self::MOST_PLAIN_BITS => OutputFormat::Lpa,
            PageSize::K64 => OutputFormat::Bits48,
            _ if !self.lpa2() => OutputFormat::Bits48,
            _ if cpu.page_size(page_size) == Support::With52Bits => OutputFormat::Lpa2,
            _ => return Err(GeometryError::OtherFormat(page_size)),
        };
        let most = match format {
            OutputFormat::Bits48 => Self::MOST_PLAIN_BITS,
            OutputFormat::Lpa2 | OutputFormat::Lpa => 52,
        };
        let pa_bits = self.pa_bits.min(most);
        Ok(Self::stage1(
            page_size,
            va_bits,
            pa_bits,
            format,
            va_range,
            self.regime,
        ))
    }

    /// The level of the root table.
    #[must_use]
    #[inline]
    pub const fn start_level(&self) -> Level {
        self.start_level
    }

    /// The number of root table entries that input addresses reach. At stage 2 several root tables
    /// may follow each other in memory.
    #[must_use]
    #[inline]
    pub const fn root_entries(&self) -> usize {
        1 << (self.va_bits - self.page_size.level_shift(self.start_level()))
    }

    /// The number of root tables: 1, or at stage 2 up to 16.
    #[must_use]
    #[inline]
    pub const fn root_tables(&self) -> usize {
        self.root_entries().div_ceil(self.page_size.entries())
    }

    /// The lowest virtual address of this half.
    #[must_use]
    #[inline]
    pub const fn base(&self) -> VirtualAddress {
        self.base
    }

    /// The bytes of input address in this half.
    #[must_use]
    #[inline]
    pub const fn span(&self) -> u64 {
        self.span
    }

    /// The offset of `address` from [`base`](Self::base), if it lies in this half.
    #[must_use]
    #[inline]
    pub const fn offset(&self, address: VirtualAddress) -> Option<u64> {
        let offset = address.0.wrapping_sub(self.base().0);
        if offset < self.span() {
            Some(offset)
        } else {
            None
        }
    }

    /// Whether hardware decodes a block descriptor at `level`, or a page at level 3.
    ///
    /// 4K: level 0 only with DS, levels 1 and 2 always. 16K: level 1 only with DS, level 2 always.
    /// 64K: level 1 only with 52-bit physical addresses, level 2 always. At other levels a block
    /// pattern is an invalid descriptor.
    #[inline]
    pub(crate) const fn leaf_allowed(&self, level: Level) -> bool {
        level as u8 >= self.top_leaf as u8
    }

    /// The leaf sizes of this geometry, largest first: blocks, contiguous groups and pages. A group
    /// larger than the whole space is left out, because an implementation may fault on it (RWMNPV).
    #[inline]
    pub fn leaf_sizes(&self) -> impl Iterator<Item = LeafSize> + use<> {
        let geometry = *self;
        Level::ALL
            .into_iter()
            .filter(move |&level| level >= geometry.start_level() && geometry.leaf_allowed(level))
            .flat_map(move |level| {
                let entry = geometry.page_size.entry_bytes(level);
                let group = geometry.page_size.contiguous_entries(level) as u64;
                let whole = LeafSize {
                    level,
                    contiguous: true,
                    bytes: entry * group,
                };
                let single = LeafSize {
                    level,
                    contiguous: false,
                    bytes: entry,
                };
                (group > 1 && whole.bytes <= geometry.span())
                    .then_some(whole)
                    .into_iter()
                    .chain(Some(single))
            })
    }
}

/// The highest level at which hardware decodes a leaf.
const fn top_leaf(size: PageSize, format: OutputFormat) -> Level {
    match (size, format) {
        (PageSize::K4, OutputFormat::Lpa2) => Level::L0,
        (PageSize::K4, _) => Level::L1,
        (PageSize::K16, OutputFormat::Lpa2) | (PageSize::K64, OutputFormat::Lpa) => Level::L1,
        (PageSize::K16 | PageSize::K64, _) => Level::L2,
    }
}

/// Whether `va_bits` bits of input address need TCR.DS.
#[inline]
const fn needs_ds(size: PageSize, va_bits: u32) -> bool {
    va_bits > Geometry::MOST_PLAIN_BITS && !matches!(size, PageSize::K64)
}

/// One leaf size of a [`Geometry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSize {
    /// The level of the entries.
    pub level: Level,
    /// Whether the leaf is a whole contiguous group of entries.
    pub contiguous: bool,
    /// The size in bytes: of the group if it is one, else of the entry.
    pub bytes: u64,
}
