//! A function, as every list of symbols gives it.

/// A function and the module that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u64,
    /// The end, exclusive; `None` if the next symbol is the end.
    pub(super) end: Option<u64>,
    pub(super) name: String,
    pub(super) module: Option<String>,
}
