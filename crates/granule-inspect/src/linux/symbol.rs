//! A function, as every list of symbols gives it.

/// A function and the module that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u64,
    /// The end, exclusive.
    pub(super) end: u64,
    pub(super) name: String,
    /// `None` for the kernel itself.
    pub(super) module: Option<String>,
}
