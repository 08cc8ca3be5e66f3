//! Memory once the MMU is on: how tables are reached, the linear map, and what is given out.
//!
//! [`walker`] has the library's walker for each page size, and operations that know none; [`supply`] where
//! its pages come from.
//!
//! While the kernel boots: [`reach`] is where a table's physical address becomes a pointer;
//! [`window`] reaches tables through the fixmap; [`map`] makes the linear map and counts what it
//! took; [`rewrite`] splits all its blocks for a CPU that does not allow live splits; [`release`]
//! drops what only the boot needed.
//!
//! From then on: [`pages`] is the page allocator that took over from early memory, [`live`] the one
//! place through which the kernel's tables change. On that stand [`permissions`] (what each page
//! of the linear map allows), [`merge`] (large leaves again), [`hotplug`] (memory that comes and
//! goes), [`guard`] (pages made invalid from anywhere) and [`pagealloc`] (`debug_pagealloc=on`). [`put_off`] remembers
//! where a TLBI is still to come. [`transition`] makes the tables that lead out of it all.
//! [`fault`] says what all of them know of an address that faulted.

pub(crate) mod notes;
mod put_off;

#[cfg(target_os = "none")]
pub(crate) mod fault;
#[cfg(target_os = "none")]
pub(crate) mod guard;
#[cfg(target_os = "none")]
pub(crate) mod hook;
#[cfg(target_os = "none")]
pub(crate) mod hotplug;
#[cfg(target_os = "none")]
pub(crate) mod live;
#[cfg(target_os = "none")]
pub(crate) mod map;
#[cfg(target_os = "none")]
pub(crate) mod merge;
#[cfg(target_os = "none")]
pub(crate) mod pagealloc;
#[cfg(target_os = "none")]
pub(crate) mod pages;
#[cfg(target_os = "none")]
pub(crate) mod permissions;
#[cfg(target_os = "none")]
pub(crate) mod reach;
#[cfg(target_os = "none")]
pub(crate) mod release;
#[cfg(target_os = "none")]
pub(crate) mod rewrite;
#[cfg(target_os = "none")]
pub(crate) mod supply;
#[cfg(target_os = "none")]
pub(crate) mod table_pages;
#[cfg(target_os = "none")]
pub(crate) mod transition;
#[cfg(target_os = "none")]
pub(crate) mod walker;
#[cfg(target_os = "none")]
pub(crate) mod window;
