//! Early memory: the banks of RAM, the reserved parts, and a first allocator.
//!
//! There are three lists of address ranges, each sorted and merged: the banks of RAM, the reserved
//! ranges (the image, the device tree, firmware memory, allocations) and the ranges that must never
//! be mapped (no-map). The lists are exact to the byte. Only results are rounded: banks inward to
//! whole pages, because a page that is only partly RAM must not be mapped, and no-map ranges
//! outward, because a mapped page must not reach into them. Rounding comes last because two banks
//! that meet in the middle of a page make one whole page.
//!
//! No code here accesses the memory that it describes or allocates memory of its own. Each list has
//! room for `N` ranges and reports when that is too few. No input causes a panic, because the
//! ranges come from firmware. The kernel's page allocator takes over with [`Memblock::free_pages`].

mod error;
mod pieces;
mod regions;

pub use error::{Error, RangeList};
pub use pieces::Pieces;
pub use regions::Region;

use granule::arch::PageSize;
pub(crate) use regions::Regions;

/// The end of memory from which an allocation is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// The lowest address that fits.
    BottomUp,
    /// The highest address that fits.
    TopDown,
}

/// Why RAM is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftOut {
    /// It lies beyond the physical addresses of the CPU.
    BeyondPhysical,
    /// It lies beyond the virtual addresses of the linear map.
    BeyondVirtual,
}

/// An account of all bytes of RAM. `ram = edges + no_map + mapped` and `mapped = reserved + free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// RAM of all banks, without the RAM left out; overlaps count once.
    pub ram: u64,
    /// RAM that does not fill a page.
    pub edges: u64,
    /// RAM in no-map ranges, rounded outward to pages.
    pub no_map: u64,
    /// RAM that is to be mapped.
    pub mapped: u64,
    /// The reserved part of `mapped`.
    pub reserved: u64,
    /// The part of `mapped` that can still be allocated.
    pub free: u64,
    /// Bytes that more than one bank contains.
    pub overlapping: u64,
    /// Bytes of reserved ranges outside RAM.
    pub reserved_outside_ram: u64,
    /// RAM left out because the CPU cannot address it.
    pub beyond_physical: u64,
    /// RAM left out because the linear map has no virtual addresses for it.
    pub beyond_virtual: u64,
}

/// Banks, reserved ranges and no-map ranges, up to `N` of each.
#[derive(Clone, Debug)]
pub struct Memblock<const N: usize = 128> {
    page_size: PageSize,
    banks: Regions<N>,
    reserved: Regions<N>,
    no_map: Regions<N>,
    overlapping: u64,
    beyond_physical: u64,
    beyond_virtual: u64,
}

impl<const N: usize> Memblock<N> {
    /// Empty lists, for pages of `page_size`.
    #[must_use]
    pub const fn new(page_size: PageSize) -> Self {
        Self {
            page_size,
            banks: Regions::EMPTY,
            reserved: Regions::EMPTY,
            no_map: Regions::EMPTY,
            overlapping: 0,
            beyond_physical: 0,
            beyond_virtual: 0,
        }
    }

    /// The page size to which ranges are rounded.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Adds a bank of RAM. Returns how many of its bytes earlier banks contained already. Banks
    /// that overlap or touch become one. An empty bank adds nothing.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overflow`] and [`Error::TooManyRegions`]. Nothing has changed then.
    pub fn add_bank(&mut self, start: u64, size: u64) -> Result<u64, Error> {
        let overlap = insert(&mut self.banks, RangeList::Banks, start, size)?;
        self.overlapping = self.overlapping.saturating_add(overlap);
        Ok(overlap)
    }

    /// Adds a bank as [`add_bank`](Memblock::add_bank) does, however many there are: where there are too many, the
    /// smallest is left out. Returns the number of its bytes.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overflow`]. Nothing has changed then.
    pub fn add_bank_or_leave_out(&mut self, start: u64, size: u64) -> Result<u64, Error> {
        match self.add_bank(start, size) {
            Err(Error::TooManyRegions { .. }) => {}
            other => return other.map(|_| 0),
        }
        let smallest = self.banks().iter().map(|bank| bank.len()).min();
        if smallest.is_none_or(|smallest| smallest >= size) {
            return Ok(size);
        }
        let smallest = self.banks.take_smallest();
        self.add_bank(start, size)?;
        Ok(smallest.map_or(0, Region::len))
    }

    /// Reserves a range: it is mapped like other RAM, but never allocated. A range may be reserved
    /// twice, and may lie outside RAM; see [`Memblock::reserved_outside_ram`].
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overflow`] and [`Error::TooManyRegions`]. Nothing has changed then.
    pub fn reserve(&mut self, start: u64, size: u64) -> Result<(), Error> {
        insert(&mut self.reserved, RangeList::Reserved, start, size).map(|_| ())
    }

    /// Reserves a range as [`reserve`](Memblock::reserve) does, however many there are, and keeps room for a quarter
    /// of all ranges: where there are more, those that are nearest to each other become one, with the memory
    /// between them. Returns the number of these bytes.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overflow`]. Nothing has changed then.
    pub fn reserve_coarsely(&mut self, start: u64, size: u64) -> Result<u64, Error> {
        self.reserve(start, size)?;
        Ok(self.reserved.make_room(N >> 2, &[]))
    }

    /// Marks a range that must never be mapped or allocated.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overflow`] and [`Error::TooManyRegions`]. Nothing has changed then.
    pub fn mark_no_map(&mut self, start: u64, size: u64) -> Result<(), Error> {
        insert(&mut self.no_map, RangeList::NoMap, start, size).map(|_| ())
    }

    /// Marks a range as [`mark_no_map`](Memblock::mark_no_map) does, however many there are: where there are too many,
    /// those that are nearest to each other become one, with the memory between them. That is memory without a
    /// reservation as long as there is any. Returns the number of these bytes.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Overflow`]. Nothing has changed then.
    pub fn mark_no_map_coarsely(&mut self, start: u64, size: u64) -> Result<u64, Error> {
        match self.mark_no_map(start, size) {
            Err(Error::TooManyRegions { .. }) => {}
            other => return other.map(|()| 0),
        }
        let joined = self.no_map.make_room(1, self.reserved.as_slice());
        self.mark_no_map(start, size)?;
        Ok(joined)
    }

    /// Frees a reserved range, whether it comes from `allocate` or from
    /// [`reserve`](Memblock::reserve). An empty range changes nothing.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::NotReserved`] unless all of the range is reserved, [`Error::Overflow`], and
    /// [`Error::TooManyRegions`] where a range would be split in two. Nothing has changed then.
    pub fn free(&mut self, start: u64, size: u64) -> Result<(), Error> {
        let Some(region) = Region::of(start, size)? else {
            return Ok(());
        };
        if !self.reserved.covers(region) {
            return Err(Error::NotReserved { start, size });
        }
        let removed = self.reserved.remove(region);
        removed.map_err(|full| full.of(RangeList::Reserved))
    }

    /// Leaves out all RAM at and above `limit`. Returns the number of bytes left out.
    pub fn truncate(&mut self, limit: u64, why: LeftOut) -> u64 {
        self.keep_only(0, limit, why)
    }

    /// Leaves out all RAM below `start` and at and above `end`. Returns the number of bytes left
    /// out.
    pub fn keep_only(&mut self, start: u64, end: u64, why: LeftOut) -> u64 {
        let removed = self.banks.clip(start, end);
        let total = match why {
            LeftOut::BeyondPhysical => &mut self.beyond_physical,
            LeftOut::BeyondVirtual => &mut self.beyond_virtual,
        };
        *total = total.saturating_add(removed);
        removed
    }

    /// Allocates `size` bytes of free RAM, aligned to `align`, inside `start..end`, and reserves
    /// them.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::OutOfMemory`] if nothing is free there, [`Error::BadRequest`] if `size` is zero or
    /// `align` is not a power of two, and [`Error::TooManyRegions`]. Nothing has changed then.
    pub fn allocate(
        &mut self,
        size: u64,
        align: u64,
        within: core::ops::Range<u64>,
        direction: Direction,
    ) -> Result<u64, Error> {
        if size == 0 || !align.is_power_of_two() {
            return Err(Error::BadRequest { size, align });
        }
        let mut place = None;
        for piece in self.free_ranges() {
            let Some(piece) = piece.inside(within.start, within.end) else {
                continue;
            };
            match direction {
                Direction::BottomUp => {
                    place = piece.lowest(size, align);
                    if place.is_some() {
                        break;
                    }
                }
                Direction::TopDown => place = piece.highest(size, align).or(place),
            }
        }
        let start = place.ok_or(Error::OutOfMemory { size, align })?;
        self.reserve(start, size)?;
        Ok(start)
    }

    /// The banks, exact to the byte and merged.
    #[must_use]
    pub fn banks(&self) -> &[Region] {
        self.banks.as_slice()
    }

    /// The reserved ranges, exact to the byte and merged.
    #[must_use]
    pub fn reserved(&self) -> &[Region] {
        self.reserved.as_slice()
    }

    /// The no-map ranges, exact to the byte and merged.
    #[must_use]
    pub fn no_map(&self) -> &[Region] {
        self.no_map.as_slice()
    }

    /// The RAM to map, in whole pages and ascending: the banks rounded inward, without the no-map
    /// ranges rounded outward.
    #[must_use]
    pub fn mapped(&self) -> Pieces<'_> {
        let page = self.page_size.bytes();
        Pieces::of(self.banks())
            .whole(page)
            .without_pages_of(self.no_map(), page)
    }

    /// The RAM that can be allocated, exact to the byte and ascending: [`mapped`](Memblock::mapped)
    /// RAM that is not reserved.
    #[must_use]
    pub fn free_ranges(&self) -> Pieces<'_> {
        self.mapped().without(self.reserved())
    }

    /// The free RAM in whole pages, for the page allocator that takes over.
    pub fn free_pages(&self) -> impl Iterator<Item = Region> {
        let page = self.page_size.bytes();
        self.free_ranges()
            .filter_map(move |piece| piece.rounded_inward(page))
    }

    /// Reserved ranges outside RAM: a harmless mistake in a device tree.
    #[must_use]
    pub fn reserved_outside_ram(&self) -> Pieces<'_> {
        Pieces::of(self.reserved()).without(self.banks())
    }

    /// An account of all bytes.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let ram = bytes(self.banks().iter().copied());
        let whole = bytes(Pieces::of(self.banks()).whole(self.page_size.bytes()));
        let mapped = bytes(self.mapped());
        let free = bytes(self.free_ranges());
        Totals {
            ram,
            edges: ram.saturating_sub(whole),
            no_map: whole.saturating_sub(mapped),
            mapped,
            reserved: mapped.saturating_sub(free),
            free,
            overlapping: self.overlapping,
            reserved_outside_ram: bytes(self.reserved_outside_ram()),
            beyond_physical: self.beyond_physical,
            beyond_virtual: self.beyond_virtual,
        }
    }
}

/// Adds a range to a list. Returns how many of its bytes the list already contained.
fn insert<const N: usize>(
    regions: &mut Regions<N>,
    list: RangeList,
    start: u64,
    size: u64,
) -> Result<u64, Error> {
    match Region::of(start, size)? {
        Some(region) => regions.insert(region).map_err(|full| full.of(list)),
        None => Ok(0),
    }
}

fn bytes(regions: impl Iterator<Item = Region>) -> u64 {
    regions.fold(0, |sum, region| sum.saturating_add(region.len()))
}
