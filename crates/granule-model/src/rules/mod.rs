//! The rules, one file for each family. A rule takes the parts of the state that it needs and
//! reports violations. A rule that has to check something again later keeps it in a type of its
//! own.
//!
//! No rule changes the state of the machine. Some rules mark what they have reported as repaired,
//! so that one mistake is reported once.

pub(crate) mod access;
pub(crate) mod address_size;
pub(crate) mod asid_sizes;
pub(crate) mod break_before_make;
pub(crate) mod cache_stores;
pub(crate) mod cache_visibility;
mod change;
pub(crate) mod contiguous;
mod evidence;
pub(crate) mod held_together;
pub(crate) mod lost_update;
pub(crate) mod no_translation;
pub(crate) mod ordering;
pub(crate) mod registers;
pub(crate) mod reuse;
pub(crate) mod shape;
pub(crate) mod stale_entries;
pub(crate) mod store_visibility;
pub(crate) mod table_memory;
pub(crate) mod tlbi_operand;
