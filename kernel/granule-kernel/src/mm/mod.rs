//! Memory management once the MMU is on: the linear map, the kernel's live tables, and the page allocator.
//!
//! [`walker`] opens the kernel's tables as the library's tree of any page size, whose type has no page size.
//! [`environment`] is what it needs of the kernel, and [`table_allocator`] where its tables come from.
//!
//! During the boot: [`firmware`] reads the device tree. [`phys_to_virt`] turns a table's physical address into
//! a pointer. [`fixmap`] accesses tables through its slots. [`map`] builds the linear map and counts the cost.
//! [`split_to_pages`] splits all its blocks for a CPU that does not allow live splits. [`free_initmem`] drops
//! the mappings that only the boot needed.
//!
//! After the boot: [`pages`] is the page allocator, which took over from early memory. [`sized`] has pages of
//! other sizes for programs, and [`sized_tables`] their table pages. Every change of the
//! kernel's tables goes through [`kernel_tables`]. Its users are [`pageattr`] (page attributes of the linear
//! map), [`merge`] (large leaves again), [`hotplug`] (adding and removing memory), [`guard`] (guard pages,
//! changed from any context), [`vmalloc`] (areas of pages beside the image) and [`pagealloc`]
//! (`debug_pagealloc=on`). `granule_kcore` keeps the merge candidates and the ranges whose TLBI is deferred.
//! [`transition`] builds the tables for leaving this kernel. [`fault`] explains a faulting address.
//!
//! # Page sizes
//!
//! Code has the page size as a value, and is compiled once: [`walker`] has the library's tree of any page size,
//! for the boot tables, the kernel's tables and those that lead out of this kernel ([`transition`]). All use few
//! kinds of environment: recording, counting and conflict injection are switched at run time and tested once a
//! call, and the source of table pages is a value. Loops over entries add a step that was computed before. Two
//! parts are compiled per page size: the spaces of programs that have the kernel's (`task::address_space`), for
//! their page faults, and the published strategies of the linear map ([`map`]). `cargo xtask size` lists them by
//! symbol; docs/performance.md has the cost of an image for every size.

pub(crate) mod early_tables;
pub(crate) mod environment;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod firmware;
pub(crate) mod fixmap;
pub(crate) mod free_initmem;
pub(crate) mod guard;
pub(crate) mod hook;
#[cfg_attr(
    not(feature = "test-image"),
    allow(
        dead_code,
        reason = "its users are self-tests until a driver adds memory"
    )
)]
pub(crate) mod hotplug;
mod kernel;
pub(crate) mod kernel_tables;
pub(crate) mod map;
pub(crate) mod merge;
pub(crate) mod pagealloc;
pub(crate) mod pageattr;
pub(crate) mod pages;
pub(crate) mod phys_to_virt;
pub(crate) mod selfcheck;
pub(crate) mod sized;
pub(crate) mod sized_tables;
pub(crate) mod split_to_pages;
pub(crate) mod table_allocator;
pub(crate) mod table_pages;
pub(crate) mod transition;
pub(crate) mod vmalloc;
pub(crate) mod walker;
