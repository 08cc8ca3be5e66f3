//! Numbers by which parts of the state name one another: pages, tables, trees, contexts.

/// The bits of an offset in a page of the model's memory, whatever the granule of the tables.
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Descriptors in such a page.
pub(crate) const PER_PAGE: usize = 512;

/// A table that a walker can reach.
pub(crate) type TableId = u32;
/// A tree of tables, by its top table, context and ASID.
pub(crate) type RootId = u32;
/// A context that some tree was ever read in.
pub(crate) type ContextId = u32;

/// The entries (first, count) of a page that a range of bytes touches.
pub(crate) fn entries_in(number: u64, address: u64, bytes: u64) -> (usize, usize) {
    let start = number << PAGE_SHIFT;
    let from = address.max(start);
    let to = address.saturating_add(bytes).min(start + (1 << PAGE_SHIFT));
    let first = ((from - start) / 8) as usize;
    (
        first,
        ((to - start).div_ceil(8) as usize).saturating_sub(first),
    )
}

/// The numbers of the pages that `bytes` bytes from `address` touch.
pub(crate) fn pages_of(address: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
    let last = address.saturating_add(bytes.saturating_sub(1));
    address >> PAGE_SHIFT..=last >> PAGE_SHIFT
}
