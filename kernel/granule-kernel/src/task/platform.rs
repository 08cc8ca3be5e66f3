//! Facts that the address spaces of all programs share: the page sizes that they may have, the
//! shape of the lower half and TCR for each, and the features of all CPUs. Set once, before the
//! first program.

use granule::arch::registers::Tcr;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Geometry, PageSize};
use granule::space::Settings;
use granule_boot::sizes::SizeSet;

/// The properties of one page size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The shape of the lower half. All have the same bits of virtual address.
    pub(super) lower: Geometry,
    /// TCR of a CPU that is in a space of this size. Only the fields of the lower half differ.
    pub(super) tcr: Tcr,
}

/// Properties common to all spaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Platform {
    /// One for each page size that programs may have, the smallest first.
    pub(super) shapes: [Option<Shape>; PageSize::ALL.len()],
    /// The TLB capabilities of all CPUs.
    pub(super) capabilities: TlbCapabilities,
    pub(super) settings: Settings,
    /// The end of user addresses.
    pub(super) end: u64,
    /// The page size for programs that request none themselves.
    pub(super) command_line: Option<PageSize>,
}

static PLATFORM: spin::Once<Platform> = spin::Once::new();

pub(super) fn prepare(platform: Platform) {
    PLATFORM.call_once(|| platform);
}

/// The properties; `None` before [`prepare`].
pub(super) fn get() -> Option<&'static Platform> {
    PLATFORM.get()
}

impl Platform {
    /// The shape for a page size; `None` if programs cannot have it.
    pub(super) fn shape(&self, size: PageSize) -> Option<&Shape> {
        let mut shapes = self.shapes.iter().flatten();
        shapes.find(|shape| shape.lower.page_size() == size)
    }

    /// The page sizes that programs may have.
    pub(super) fn page_sizes(&self) -> SizeSet {
        let shapes = self.shapes.iter().flatten();
        shapes.map(|shape| shape.lower.page_size()).collect()
    }
}

/// The page sizes that programs may have.
pub(super) fn page_sizes() -> SizeSet {
    get().map_or(SizeSet::NONE, Platform::page_sizes)
}

/// The page size of the command line, for programs that request none themselves.
pub(super) fn command_line() -> Option<PageSize> {
    get()?.command_line
}

/// The end of user addresses, which is the same for every page size.
pub(crate) fn end() -> u64 {
    get().map_or(0, |platform| platform.end)
}
