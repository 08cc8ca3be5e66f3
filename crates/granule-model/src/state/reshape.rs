//! The progress of a CPU since it changed the granule or the size of a half whose walks are
//! disabled. No rule is checked here.

/// The last step after the change. Each step needs the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: the register is written.
    #[default]
    Written,
    /// An ISB, before this event.
    InEffect(u64),
    /// A TLBI of all of the regime, with its DSB.
    Invalidated,
    /// An ISB after that: walks may begin.
    Done,
}

/// A change that walks have not begun by yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reshape {
    /// The event that changed the half.
    pub(crate) event: u64,
    pub(crate) step: Step,
}

impl Reshape {
    /// The CPU executes an ISB.
    pub(crate) const fn synchronise(&mut self, now: u64) {
        self.step = match self.step {
            Step::Written => Step::InEffect(now),
            Step::Invalidated => Step::Done,
            other => other,
        };
    }

    /// A TLBI of all of the regime, issued by an event, is complete for the CPU.
    pub(crate) const fn invalidate(&mut self, issued: u64) {
        if let Step::InEffect(since) = self.step
            && since < issued
        {
            self.step = Step::Invalidated;
        }
    }
}
