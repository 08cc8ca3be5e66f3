//! The rules, a file for each family. A rule takes the parts of the state that it needs, and
//! reports what breaks it. A rule that has to look at something again later keeps that itself.
//!
//! No rule changes what the machine does. Some change what they have reported, so that one mistake
//! is reported once: it counts as mended from then on.

pub(crate) mod access;
pub(crate) mod break_before_make;
pub(crate) mod cache_stores;
pub(crate) mod cache_visibility;
mod change;
pub(crate) mod contiguous;
mod evidence;
pub(crate) mod lost_update;
pub(crate) mod no_translation;
pub(crate) mod ordering;
pub(crate) mod registers;
pub(crate) mod stale_entries;
pub(crate) mod store_visibility;
pub(crate) mod table_memory;
pub(crate) mod tlbi_operand;
