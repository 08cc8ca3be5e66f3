//! An operation on tables, the tables before and after, and the recorded events: the input of the checks.

use super::host::Event;
use super::walk::{Arch, Tree};

/// The operation that made the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Map,
    Unmap,
    Protect,
    SetInvalid,
    SetValid,
    Merge,
    /// A change of attributes, by break-before-make where it is needed.
    Attributes,
    /// A change without the invalidation that it would need to be relied on.
    Unflushed,
}

/// One operation as it was performed.
pub struct Performed<'a> {
    pub arch: Arch,
    pub operation: Operation,
    pub live: bool,
    pub repeat: bool,
    pub asid: Option<u16>,
    /// The FEAT_BBM level that the tables were given.
    pub bbm: u32,
    pub before: &'a Tree,
    pub after: &'a Tree,
    pub events: &'a [Event],
}
