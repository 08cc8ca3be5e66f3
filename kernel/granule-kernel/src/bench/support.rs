//! Shared by benchmarks and self-tests of the linear map: a snapshot of the map, blocks of memory to change,
//! and pseudo-random numbers.

use crate::mm::kernel_tables::{self, Kernel};
use crate::mm::pages::{self, Pages};
use granule::arch::{Descriptor, Kind, PageSize, PhysicalAddress, VirtualAddress};
use granule::table::Visit;
use granule_kcore::frames::Frame;
use granule_kcore::frames::tables::Source;

/// The facts about the kernel's tables, which tests and benchmarks run after.
pub(crate) fn kernel() -> &'static Kernel {
    let Some(kernel) = kernel_tables::kernel() else {
        panic!("the tables do not change yet");
    };
    kernel
}

/// A summary of the linear map: all leaves and the memory used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Digest of every leaf's address and descriptor, in order.
    pub(crate) digest: u64,
    pub(crate) leaves: u64,
    pub(crate) present_invalid: u64,
    /// The number of leaves in contiguous groups.
    pub(crate) grouped: u64,
    pub(crate) tables: u64,
    /// Bytes mapped, present-invalid ones included.
    pub(crate) bytes: u64,
    /// Free frames of the page allocator.
    pub(crate) free: u64,
}

impl Snapshot {
    pub(crate) fn take() -> Self {
        let mut seen = Self {
            digest: 0xcbf2_9ce4_8422_2325,
            leaves: 0,
            present_invalid: 0,
            grouped: 0,
            tables: 0,
            bytes: 0,
            free: Pages.with(|frames| frames.free_frames()),
        };
        kernel_tables::look(|kernel, _, tree| {
            // Each allocation of a table page changes which pages are free, and so which are invalid.
            let kept = if kernel.debug_pagealloc {
                !(Descriptor::VALID | Descriptor::PRESENT_INVALID)
            } else {
                u64::MAX
            };
            let (start, bytes) = (kernel.geometry.base(), kernel.geometry.span() / 2);
            tree.visit(start, bytes, |entry| {
                match entry.kind {
                    Kind::Table => seen.tables += 1,
                    Kind::PresentInvalid => seen.present_invalid += 1,
                    _ => seen.leaves += 1,
                }
                if entry.kind != Kind::Table {
                    seen.bytes += entry.bytes;
                    seen.grouped += u64::from(entry.descriptor.is_contiguous());
                    for word in [entry.start.0, entry.bytes, entry.descriptor.0 & kept] {
                        // FNV-1a, one word at a time.
                        seen.digest = (seen.digest ^ word).wrapping_mul(0x100_0000_01b3);
                    }
                }
                Visit::EVERYTHING
            })
        });
        seen
    }
}

#[cfg(feature = "test-image")]
impl Snapshot {
    /// The number of free frames if all tables of the linear map were freed.
    pub(crate) const fn frames(&self) -> u64 {
        self.free + self.tables
    }
}

/// Panics unless the map equals `before`.
#[track_caller]
pub(crate) fn assert_as(before: &Snapshot, what: &str) {
    let now = Snapshot::take();
    assert!(now == *before, "{what}: {now:?}, expected {before:?}");
}

/// Panics with the name of the call if `result` is an error.
#[track_caller]
pub(crate) fn ok<T, E: core::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// A block of memory from the page allocator, for a test.
pub(crate) struct Block {
    pub(crate) frame: Frame,
    pub(crate) order: u32,
    pub(crate) start: u64,
    pub(crate) page: u64,
}

impl Block {
    /// Allocates `bytes` bytes, a power of two of pages, naturally aligned.
    pub(crate) fn new(bytes: u64) -> Self {
        let page = kernel().page();
        let order = (bytes / page).ilog2();
        let Some(frame) = pages::allocate(order) else {
            panic!("no free block of {bytes:#x} bytes: the machine is too small for this test");
        };
        Self::of(frame, order)
    }

    /// Wraps `2^order` pages that were allocated.
    pub(crate) fn of(frame: Frame, order: u32) -> Self {
        Self {
            frame,
            order,
            start: in_linear_map(frame.address(size())).0,
            page: kernel().page(),
        }
    }

    pub(crate) fn at(&self, page: u64) -> VirtualAddress {
        VirtualAddress(self.start + page * self.page)
    }

    #[cfg(feature = "test-image")]
    pub(crate) fn physical(&self) -> PhysicalAddress {
        self.frame.address(size())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.page << self.order
    }

    pub(crate) fn free(self) {
        ok(
            "freeing a test's block",
            pages::free(self.frame, self.order),
        );
    }
}

/// Where the linear map shows a physical address; 0 if it does not.
pub(crate) fn in_linear_map(physical: PhysicalAddress) -> VirtualAddress {
    let address = kernel().placement.virtual_address(physical);
    address.unwrap_or(VirtualAddress(0))
}

pub(crate) fn size() -> PageSize {
    kernel().geometry.page_size()
}

/// xorshift64*: any even spread serves, and the seed is in the boot record.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end.max(1)
    }

    /// A number from 1 to `most`. Each power of two is about equally likely.
    #[cfg(feature = "test-image")]
    pub(crate) fn length(&mut self, most: u64) -> u64 {
        let bits = u64::from(most.max(1).ilog2()) + 1;
        let end = 1u64 << (self.below(bits) + 1);
        let length = end / 2 + self.below(end / 2);
        length.clamp(1, most.max(1))
    }
}
