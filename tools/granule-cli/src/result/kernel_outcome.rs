//! The outcome that a kernel reports: the words of `@granule outcome=`.

/// The outcome that a kernel reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelOutcome {
    /// The boot succeeded.
    Ok,
    /// The kernel panicked.
    Panic,
    /// The kernel refused its input.
    Refused,
    /// The kernel's check of its own tables failed.
    SelfCheckFailed,
    /// The programs that ran on the kernel failed.
    GuestExit,
}

impl KernelOutcome {
    /// All outcomes.
    pub(crate) const ALL: [Self; 5] = [
        Self::Ok,
        Self::Panic,
        Self::Refused,
        Self::SelfCheckFailed,
        Self::GuestExit,
    ];

    /// The word for the outcome.
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
