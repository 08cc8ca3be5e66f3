//! The rules, a file for each family. A rule reads the parts of the state that it is handed, and
//! reports what breaks it.

pub(crate) mod break_before_make;
pub(crate) mod cache_visibility;
pub(crate) mod change;
pub(crate) mod contiguous;
pub(crate) mod lost_update;
pub(crate) mod reachable;
pub(crate) mod relied;
