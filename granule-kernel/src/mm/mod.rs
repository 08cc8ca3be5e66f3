//! Memory once the MMU is on: how tables are reached, the linear map, and what is given out.
//!
//! [`walker`] has the library's walker for each page size, and operations that know none; [`supply`] where
//! its pages come from.
//!
//! While the kernel boots: [`firmware`] reads the device tree in its window; [`reach`] is where a table's physical address becomes a pointer;
//! [`window`] reaches tables through the fixmap; [`map`] makes the linear map and counts what it
//! took; [`rewrite`] splits all its blocks for a CPU that does not allow live splits; [`release`]
//! drops what only the boot needed.
//!
//! From then on: [`pages`] is the page allocator that took over from early memory, [`live`] the one
//! place through which the kernel's tables change. On that stand [`permissions`] (what each page
//! of the linear map allows), [`merge`] (large leaves again), [`hotplug`] (memory that comes and
//! goes), [`guard`] (pages made invalid from anywhere) and [`pagealloc`] (`debug_pagealloc=on`). `granule_kcore` remembers
//! what may be merged again, and where a TLBI is still to come. [`transition`] makes the tables that lead out of it all.
//! [`fault`] says what all of them know of an address that faulted.

pub(crate) mod early_tables;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod firmware;
pub(crate) mod guard;
pub(crate) mod hook;
pub(crate) mod hotplug;
mod kernel;
pub(crate) mod live;
pub(crate) mod map;
pub(crate) mod merge;
pub(crate) mod pagealloc;
pub(crate) mod pages;
pub(crate) mod permissions;
pub(crate) mod reach;
pub(crate) mod release;
pub(crate) mod rewrite;
pub(crate) mod selfcheck;
pub(crate) mod supply;
pub(crate) mod table_pages;
pub(crate) mod transition;
pub(crate) mod walker;
pub(crate) mod window;
