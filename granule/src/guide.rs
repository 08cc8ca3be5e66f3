//! For who writes a kernel on this library: how a page size that is chosen at boot is kept from
//! being assumed. Nothing but text and examples.
//!
//! A kernel that is built for one page size has a constant, and every driver in the world uses it.
//! Once the size is chosen at boot each of those uses is a bug, and most of them compile. Here
//! there is no such constant, so what would be wrong is refused, by the compiler where it can be
//! and by a check where it cannot. Each example below that must not compile is tried when the
//! documentation is tested; the codes are those that the compiler gives.
//!
//! # A page size is a type, or a value, and no constant
//!
//! There is nothing to import:
//!
//! ```compile_fail,E0432
//! use granule::arch::PAGE_SIZE;
//! ```
//!
//! Hot code is generic over [`Page`](crate::arch::Page), whose geometry folds; code that is not
//! hot takes a [`PageSize`](crate::arch::PageSize) or a [`Geometry`](crate::arch::Geometry):
//!
//! ```
//! use granule::arch::{Page, Page4K, Page64K, PageSize};
//!
//! fn pages<P: Page>(bytes: u64) -> u64 {
//!     bytes.div_ceil(P::SIZE.bytes())
//! }
//! fn pages_of(size: PageSize, bytes: u64) -> u64 {
//!     bytes.div_ceil(size.bytes())
//! }
//!
//! assert_eq!(pages::<Page4K>(70_000), 18);
//! assert_eq!(pages::<Page64K>(70_000), pages_of(PageSize::K64, 70_000));
//! ```
//!
//! A size is no number by accident; who wants bytes, a shift or entries says which:
//!
//! ```compile_fail,E0308
//! let bytes: u64 = granule::arch::PageSize::K4;
//! ```
//!
//! # What is made for one size does not meet what is made for another
//!
//! Tables, spaces and whatever else is generic over the size have it in their type:
//!
//! ```compile_fail,E0308
//! use granule::arch::{Page, Page4K, Page64K};
//! use core::marker::PhantomData;
//!
//! struct Ring<P: Page>(u64, PhantomData<P>);
//! fn join<P: Page>(_: Ring<P>, _: Ring<P>) {}
//!
//! join(Ring::<Page4K>(0, PhantomData), Ring::<Page64K>(0, PhantomData));
//! ```
//!
//! The one way from a value to a type is [`PageSize::dispatch`](crate::arch::PageSize::dispatch),
//! and it takes code that works for all of them. There are the architecture's three, and no fourth
//! can be made up:
//!
//! ```compile_fail,E0277
//! use granule::arch::{Page, PageSize};
//!
//! #[derive(Clone, Copy, Debug)]
//! struct Page8K;
//! impl Page for Page8K {
//!     const SIZE: PageSize = PageSize::K4;
//! }
//! ```
//!
//! Nor may code rely on there being three for ever:
//!
//! ```compile_fail,E0004
//! use granule::arch::PageSize;
//!
//! fn shift(size: PageSize) -> u32 {
//!     match size {
//!         PageSize::K4 => 12,
//!         PageSize::K16 => 14,
//!         PageSize::K64 => 16,
//!     }
//! }
//! ```
//!
//! # Storage and tables of fixed size
//!
//! An array has its length when it is compiled, so it cannot be "a page":
//!
//! ```compile_fail,E0401
//! use granule::arch::Page;
//!
//! fn clear<P: Page>() {
//!     static ENTRIES: [u64; P::SIZE.entries()] = [0; P::SIZE.entries()];
//! }
//! ```
//!
//! ```compile_fail,E0435
//! let size = granule::arch::PageSize::from_bytes(16384).unwrap();
//! let entries = [0u64; size.entries()];
//! ```
//!
//! It must say whether it means the most or the least there may be: sizes and alignments are those
//! of [`PageSize::MAX`](crate::arch::PageSize::MAX), bounds of counts those of
//! [`PageSize::MIN`](crate::arch::PageSize::MIN), where there are most pages.
//!
//! ```
//! use granule::arch::PageSize;
//!
//! /// Room for one page, whatever its size.
//! static ROOM: [u8; PageSize::MAX.bytes() as usize] = [0; PageSize::MAX.bytes() as usize];
//! /// Pages of 2 MiB at most.
//! const MOST_PAGES: usize = ((2 << 20) / PageSize::MIN.bytes()) as usize;
//!
//! assert!(PageSize::ALL.iter().all(|size| size.bytes() <= ROOM.len() as u64));
//! assert_eq!(MOST_PAGES, 512);
//! // What must fit a page must fit the smallest; this is checked when it is compiled.
//! const _: () = assert!(size_of::<[u64; 64]>() as u64 <= PageSize::MIN.bytes());
//! ```
//!
//! # What the compiler cannot see
//!
//! - A number. `address >> 12` compiles. In this project a test reads all code that every page size
//!   shares (`xtask/src/page_constants.rs`): no constant named like a page size, no number that is
//!   the bytes, mask or shift of one, but for a list in which each has its reason. A kernel that has
//!   drivers of its own does well to have the same.
//! - What another kernel left behind, under another size: `granule_boot::stamp`.
//! - What a device, its firmware or its driver can do: `granule_boot::driver`, asked when
//!   it is probed.
