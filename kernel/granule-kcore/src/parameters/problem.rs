//! A word that the kernel cannot use, as one line, with what was expected and what is done instead.

use core::fmt;

/// Why a word, of which the key is named, cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// The word has an unknown key that looks like one of the kernel's.
    UnknownWord(&'a [u8]),
    /// The word needs a value and has none.
    NoValue(&'a [u8]),
    /// The value is not one that the key allows.
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
    TestImageOnly(&'a [u8]),
}

/// The kernel's reaction to a word that it cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The kernel uses this value.
    Takes(&'static str),
    /// The kernel ignores the word, or the part in question.
    Ignores,
    /// The kernel stores nothing for the next boot.
    KeepsNothing,
    /// The kernel reserves no memory for a crash kernel.
    NoCrashKernel,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownWord(key) => {
                write!(f, "{}: no such word; ignored", key.escape_ascii())
            }
            Self::NoValue(key) => {
                let key = key.escape_ascii();
                write!(f, "{key}: expected a value, {key}=VALUE; ignored")
            }
            Self::BadValue {
                key,
                value,
                expected,
                instead,
            } => write!(
                f,
                "{key}{}: expected {expected}; {instead}",
                value.escape_ascii()
            ),
            Self::TestImageOnly(key) => write!(
                f,
                "{}=: known to the test image only; ignored",
                key.escape_ascii()
            ),
        }
    }
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Takes(value) => write!(f, "taking {value}"),
            Self::Ignores => f.write_str("ignored"),
            Self::KeepsNothing => f.write_str("nothing is kept for the next boot"),
            Self::NoCrashKernel => f.write_str("there is no memory for a crash kernel"),
        }
    }
}
