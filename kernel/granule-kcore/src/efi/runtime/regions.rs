//! The regions that runtime services need, and their parts by permissions, each in ascending order. Firmware's
//! lists are in no order, so each step looks for the next one.

use super::refusal::Refusal;
use super::{MOST, end};
use granule::arch::{MemoryType, Permissions};
use granule_boot::efi::{Descriptor, Map};
use granule_boot::tree::Range;

/// The types of memory for code, and of registers.
const CODE: u32 = 5;
const MMIO: [u32; 2] = [11, 12];

/// Cacheable by write-back; and by write-through, or combining writes.
const WB: u64 = 1 << 3;
const WT_WC: u64 = 1 << 2 | 1 << 1;

/// What Linux writes for the virtual address of each region after SetVirtualAddressMap failed: nobody knows then by
/// which addresses firmware goes.
const NOT_MOVED: u64 = u64::MAX;

/// A region of firmware's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) range: Range,
    /// Virtual minus physical address.
    pub(super) distance: u64,
    pub(super) memory: MemoryType,
    /// The permissions of what the memory attributes table does not mention.
    permissions: Permissions,
}

impl Region {
    fn of(one: &Descriptor) -> Result<Self, Refusal> {
        let start = one.start;
        let range = one.range().ok_or(Refusal::Range { start })?;
        let memory = if MMIO.contains(&one.kind) {
            MemoryType::DeviceStrict
        } else if one.attributes & WB != 0 {
            MemoryType::Normal
        } else if one.attributes & WT_WC != 0 {
            MemoryType::NormalNonCacheable
        } else {
            MemoryType::DeviceStrict
        };
        // Attributes of the memory map are what the memory can do; settings are in the other table alone. So data
        // and registers are written in any case. Only code that could be read-only, and not the other way about, is
        // taken as read-only; all other code may be written and executed.
        let is_code = one.kind == CODE;
        let is_fixed = is_code && one.is_read_only() && !one.is_never_executed();
        let permissions = Permissions::READ
            .writable(!is_fixed)
            .privileged_execute(is_code);
        let distance = match one.virtual_start {
            0 => 0,
            moved => moved.wrapping_sub(start),
        };
        Ok(Self {
            range,
            distance,
            memory,
            permissions,
        })
    }
}

/// What a descriptor of the memory attributes table says of its memory.
fn permissions(one: &Descriptor) -> Permissions {
    Permissions::READ
        .writable(!one.is_read_only())
        .privileged_execute(!one.is_never_executed())
}

/// A part of a region with one set of permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) region: Region,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) permissions: Permissions,
}

/// The descriptors of a list that have memory.
fn entries(list: Map<'_>) -> impl Iterator<Item = Descriptor> {
    list.filter(|one| one.pages != 0)
}

/// The descriptors of memory that runtime services need.
fn needed(map: Map<'_>) -> impl Iterator<Item = Descriptor> {
    entries(map).filter(Descriptor::is_for_runtime)
}

/// Whether there are registers in a range.
pub(super) fn meets_device(map: Map<'_>, start: u64, last: u64) -> bool {
    let ranges = map.filter(|one| MMIO.contains(&one.kind));
    let mut ranges = ranges.filter_map(|one| one.range());
    ranges.any(|range| range.start < last && start < end(range))
}

/// The regions in the order of the map, which [`check`] has seen.
pub(super) fn all(map: Map<'_>) -> impl Iterator<Item = Region> {
    needed(map).filter_map(|one| Region::of(&one).ok())
}

/// The descriptor with the least address from `from` on.
fn next(all: impl Iterator<Item = Descriptor>, from: u64) -> Option<Descriptor> {
    all.filter(|one| one.start >= from)
        .min_by_key(|one| one.start)
}

/// Checks that a list is in no two minds: every range is sane, and none overlaps another. Returns the number
/// of its descriptors.
fn check_list<'a, I: Iterator<Item = Descriptor>>(
    list: Map<'a>,
    entries: fn(Map<'a>) -> I,
) -> Result<usize, Refusal> {
    let count = entries(list).count();
    if count > MOST {
        return Err(Refusal::TooMany);
    }
    let (mut from, mut seen) = (0, 0_usize);
    while let Some(one) = next(entries(list), from) {
        let start = one.start;
        let range = one.range().ok_or(Refusal::Range { start })?;
        from = end(range);
        seen = seen.wrapping_add(1);
    }
    // Those that begin inside another were passed over.
    if seen == count {
        Ok(count)
    } else {
        Err(Refusal::Overlap)
    }
}

/// Checks the memory map and the memory attributes table. Returns the number of regions.
pub(super) fn check(map: Map<'_>, attributes: Option<Map<'_>>) -> Result<usize, Refusal> {
    let count = check_list(map, |map| needed(map))?;
    if count == 0 {
        return Err(Refusal::None);
    }
    if needed(map).any(|one| one.virtual_start == NOT_MOVED) {
        return Err(Refusal::NotMoved);
    }
    // An earlier kernel gives an address to all of them, or to none.
    let moved = needed(map).filter(|one| one.virtual_start != 0).count();
    let at_zero = needed(map).filter(|one| one.start == 0).count();
    if moved != 0 && moved.saturating_add(at_zero) < count {
        return Err(Refusal::SomeMoved);
    }
    for one in needed(map) {
        Region::of(&one)?;
    }
    let Some(attributes) = attributes else {
        return Ok(count);
    };
    check_list(attributes, |list| entries(list))?;
    for one in entries(attributes) {
        let start = one.start;
        let range = one.range().ok_or(Refusal::Range { start })?;
        let is_inside =
            |region: Region| region.range.start <= range.start && end(range) <= end(region.range);
        if !all(map).any(is_inside) {
            return Err(Refusal::Outside { start });
        }
    }
    Ok(count)
}

/// The parts of all regions by ascending addresses, of lists that [`check`] has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    map: Map<'a>,
    attributes: Option<Map<'a>>,
    region: Option<Region>,
    /// Where the next part, or a later region, begins.
    from: u64,
}

impl<'a> Parts<'a> {
    pub(super) const fn new(map: Map<'a>, attributes: Option<Map<'a>>) -> Self {
        Self {
            map,
            attributes,
            region: None,
            from: 0,
        }
    }
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let region = match self.region.filter(|region| self.from < end(region.range)) {
            Some(region) => region,
            None => {
                let one = next(needed(self.map), self.from)?;
                self.from = one.start;
                Region::of(&one).ok()?
            }
        };
        self.region = Some(region);
        let (start, last) = (self.from, end(region.range));
        let list = self.attributes;
        let entry = list.and_then(|list| next(entries(list), start));
        let entry = entry.filter(|one| one.start < last);
        let part = |end: u64, permissions: Permissions| Part {
            region,
            start,
            end,
            permissions,
        };
        let part = match entry {
            Some(one) if one.start == start => {
                part(one.range().map_or(last, end), permissions(&one))
            }
            Some(one) => part(one.start, region.permissions),
            None => part(last, region.permissions),
        };
        self.from = part.end;
        Some(part)
    }
}
