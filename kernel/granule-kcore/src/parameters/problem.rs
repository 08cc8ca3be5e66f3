//! A word that the kernel cannot use, as one line, with what was expected and what is done instead.

use thiserror::Error;

/// Why a word, of which the key is named, cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Problem<'a> {
    #[error("{key}: no such word; ignored", key = .0.escape_ascii())]
    UnknownWord(&'a [u8]),
    #[error("{key}: expected a value, {key}=VALUE; ignored", key = .0.escape_ascii())]
    NoValue(&'a [u8]),
    #[error("{key}{}: expected {expected}; {instead}", .value.escape_ascii())]
    BadValue {
        key: &'static str,
        value: &'a [u8],
        expected: &'static str,
        instead: Instead,
    },
    #[error("{key}=: known to the test image only; ignored", key = .0.escape_ascii())]
    TestImageOnly(&'a [u8]),
}

/// The kernel's reaction to a word that it cannot use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Instead {
    #[error("taking {0}")]
    Takes(&'static str),
    #[error("ignored")]
    Ignores,
    #[error("nothing is kept for the next boot")]
    KeepsNothing,
    #[error("there is no memory for a crash kernel")]
    NoCrashKernel,
}
