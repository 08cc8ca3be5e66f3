//! How a kernel says that it ended: the words of `@granule outcome=`.

/// How the kernel says that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelOutcome {
    /// All went well.
    Ok,
    /// The kernel panicked.
    Panic,
    /// The kernel would not go on with what it was given.
    Refused,
    /// A check the kernel made of its own tables failed.
    SelfCheckFailed,
    /// The programs on it did not end well.
    GuestExit,
}

impl KernelOutcome {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Ok,
        Self::Panic,
        Self::Refused,
        Self::SelfCheckFailed,
        Self::GuestExit,
    ];

    /// The word that says it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Panic => "panic",
            Self::Refused => "refused",
            Self::SelfCheckFailed => "self-check-failed",
            Self::GuestExit => "guest-exit",
        }
    }
}
