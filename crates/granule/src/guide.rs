//! A guide for kernel authors: the names that most code needs, which call does what, and how to write
//! code that assumes no page size. This module holds only text and examples.
//!
//! # The ten names that most code needs
//!
//! | name | meaning |
//! | --- | --- |
//! | [`PageSize`](crate::arch::PageSize) | 4K, 16K or 64K as a value; [`Page`](crate::arch::Page) is the same as a type |
//! | [`Geometry`](crate::arch::Geometry) | the shape of an address space: page size, bits, half, regime |
//! | [`PhysicalAddress`](crate::arch::PhysicalAddress), [`VirtualAddress`](crate::arch::VirtualAddress) | the addresses; the field is public |
//! | [`Attributes`](crate::arch::Attributes) | a leaf besides its address: memory type, [`Permissions`](crate::arch::Permissions), flags |
//! | [`TableEnvironment`](crate::table::TableEnvironment) | the trait that a kernel implements |
//! | [`PageTables`](crate::table::PageTables) | a tree of tables; [`AnyPageTables`](crate::table::AnyPageTables) has the page size as a value |
//! | [`Live`](crate::table::Live) | such a tree once CPUs may walk it |
//! | [`Leaves`](crate::table::Leaves) | the largest leaves that a mapping may use |
//! | [`Holes`](crate::table::Holes) | whether a range may have unmapped addresses |
//! | [`TableError`](crate::table::TableError) | why nothing was changed |
//!
//! # Which call does what
//!
//! | task | call |
//! | --- | --- |
//! | find out what the CPU has | `hw::cpu_features`, [`CpuFeatures`](crate::arch::CpuFeatures) |
//! | shape an address space | [`Geometry::new`](crate::arch::Geometry::new) |
//! | run code for the page size chosen at boot | [`PageSize::dispatch`](crate::arch::PageSize::dispatch) |
//! | make a tree | [`PageTables::new`](crate::table::PageTables::new) |
//! | map a range | [`map`](crate::table::PageTables::map); several at once or none: [`map_pieces`](crate::table::PageTables::map_pieces) |
//! | map frames that lie apart | [`map_frames`](crate::table::PageTables::map_frames) |
//! | look up one address | [`query`](crate::table::PageTables::query) |
//! | go through the leaves of a range | [`for_each`](crate::table::PageTables::for_each); tables too, or with an early end: [`visit`](crate::table::PageTables::visit) |
//! | change permissions | [`protect`](crate::table::PageTables::protect) |
//! | change any attribute | [`modify`](crate::table::PageTables::modify) |
//! | take pages away for a time | [`set_invalid`](crate::table::PageTables::set_invalid), [`set_valid`](crate::table::PageTables::set_valid); without the lock: [`lock_free`](crate::table::lock_free) |
//! | unmap a range | [`unmap`](crate::table::PageTables::unmap); with the tables kept: [`unmap_keeping_tables`](crate::table::PageTables::unmap_keeping_tables) |
//! | work page by page | [`cursor`](crate::table::PageTables::cursor) |
//! | find and clear accessed or dirty leaves | [`harvest`](crate::table::PageTables::harvest) |
//! | give a tree to CPUs | [`make_live`](crate::table::PageTables::make_live), [`Live::ttbr`](crate::table::Live::ttbr) |
//! | turn the MMU on | `hw::enable`; the values for code of its own: [`Translation::new`](crate::arch::Translation::new) |
//! | change a tree that CPUs walk | [`Live::changes`](crate::table::Live::changes), then the calls above |
//! | allow live leaves to be split | [`SystemLimits::decide`](crate::arch::bbm_policy::SystemLimits::decide), [`set_bbm`](crate::table::PageTables::set_bbm) |
//! | make leaves larger or smaller | [`merge`](crate::table::PageTables::merge), [`limit_leaves`](crate::table::PageTables::limit_leaves) |
//! | map all RAM | [`linear::create`](crate::linear::create) |
//! | map a guest's memory | [`PageTables`](crate::table::PageTables) of [`Stage2`](crate::table::Stage2), `hw::enable_stage2` |
//! | read tables of somebody else | [`TableView`](crate::table::TableView) |
//! | free a tree | [`destroy`](crate::table::PageTables::destroy); of a live one first [`retire`](crate::table::Live::retire) |
//!
//! # Code that assumes no page size
//!
//! A kernel built for one page size has a constant, and every driver uses it. Once the size is
//! chosen at boot, each of those uses is a bug, and most of them compile. This library has no such
//! constant. The compiler rejects most wrong assumptions, and checks find the others. The
//! documentation tests try each example below that must not compile; the codes are the compiler's.
//!
//! ## A page size is a type or a value, never a constant
//!
//! There is nothing to import:
//!
//! ```compile_fail,E0432
//! use granule::arch::PAGE_SIZE;
//! ```
//!
//! Hot code is generic over [`Page`](crate::arch::Page), whose geometry the compiler folds. Other
//! code takes a [`PageSize`](crate::arch::PageSize) or a [`Geometry`](crate::arch::Geometry):
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
//! A page size does not convert to a number implicitly. Code requests bytes, shift or entries by
//! name:
//!
//! ```compile_fail,E0308
//! let bytes: u64 = granule::arch::PageSize::K4;
//! ```
//!
//! ## Objects of different page sizes do not mix
//!
//! Tables, spaces and all other objects generic over the size carry the size in their type:
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
//! Only [`PageSize::dispatch`](crate::arch::PageSize::dispatch) turns a value into a type, and it
//! takes code that works for all sizes. The architecture has three, and code cannot add a fourth:
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
//! Code may not rely on exactly three sizes either:
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
//! ## Storage and tables of fixed size
//!
//! The compiler fixes an array's length, so an array cannot be "one page" long:
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
//! Storage must name the largest or the smallest size. Sizes and alignments use
//! [`PageSize::MAX`](crate::arch::PageSize::MAX). Bounds of counts use
//! [`PageSize::MIN`](crate::arch::PageSize::MIN), which gives the most pages.
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
//! ## What the compiler cannot check
//!
//! - A plain number: `address >> 12` compiles. A test of this project reads all code that the page
//!   sizes share (`tools/xtask/src/page_constants.rs`). It rejects constants named like a page size, and
//!   numbers that are the bytes, mask or shift of one. A list holds the exceptions, each with its
//!   reason. A kernel with its own drivers should have the same test.
//! - Data that another kernel left behind under another page size: `granule_boot::stamp`.
//! - The abilities of a device, its firmware and its driver: the kernel calls
//!   `granule_boot::driver` when it probes the device.
