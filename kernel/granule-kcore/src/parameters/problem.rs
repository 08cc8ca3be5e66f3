//! A word that the kernel cannot use, as one line, with what was expected and what is done instead.

use thiserror::Error;

/// Why a word, of which the key is named, cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Problem<'a> {
    /// The word has an unknown key that looks like one of the kernel's.
    #[error("{key}: no such word; ignored", key = .0.escape_ascii())]
    UnknownWord(&'a [u8]),
    /// The word needs a value and has none.
    #[error("{key}: expected a value, {key}=VALUE; ignored", key = .0.escape_ascii())]
    NoValue(&'a [u8]),
    /// The value is not one that the key allows.
    #[error("{key}{}: expected {expected}; {instead}", .value.escape_ascii())]
    BadValue {
        /// The key, with its `=`.
        key: &'static str,
        /// The value, or the part of it that cannot be read.
        value: &'a [u8],
        /// The expected value.
        expected: &'static str,
        /// The action of the kernel instead.
        instead: Instead,
    },
    /// The word needs the test image.
    #[error("{key}=: known to the test image only; ignored", key = .0.escape_ascii())]
    TestImageOnly(&'a [u8]),
}

/// The kernel's reaction to a word that it cannot use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Instead {
    /// The kernel uses this value.
    #[error("taking {0}")]
    Takes(&'static str),
    /// The kernel ignores the word, or the part in question.
    #[error("ignored")]
    Ignores,
    /// The kernel stores nothing for the next boot.
    #[error("nothing is kept for the next boot")]
    KeepsNothing,
    /// The kernel reserves no memory for a crash kernel.
    #[error("there is no memory for a crash kernel")]
    NoCrashKernel,
}
