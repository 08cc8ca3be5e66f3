//! Violations, and the rules that they break. [`report`] is the list that violations are kept in.
//!
//! Plain values: what is a violation is decided by the [`rules`](crate::rules).

pub(crate) mod report;

use std::fmt;

/// What was broken. Where the Arm ARM (DDI 0487) names the rule, [`Rule::name`] is that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// A valid entry was changed into another valid one without break-before-make, or made
    /// while what it replaces may still be cached.
    BreakBeforeMake,
    /// A change of size, which the BBM level allows in place, together with another change.
    SizeWithOtherChange,
    /// A change of size that the BBM level allows, but a TLB conflict abort may be taken
    /// (strict).
    ConflictPossible,
    /// An entry was made valid again, as it was, without an invalidation between (strict).
    Revalidated,
    /// Some valid members of a contiguous group have the contiguous bit and some do not.
    MixedContiguous,
    /// Members of a contiguous group do not map one aligned range with the same attributes.
    UnequalContiguous,
    /// A contiguous group reaches beyond the top table.
    ContiguousOutside,
    /// A block with the nT bit is relied on, which a lookup may fault on.
    NoTranslation,
    /// Something that the tables no longer say may still be cached and is relied on.
    StaleTranslation,
    /// A walker may not yet see a store that is relied on: no DSB since.
    StoreNotVisible,
    /// A table was linked before what was stored in it is sure to be seen: no DSB or
    /// store-release between.
    UnorderedLink,
    /// An ISB is missing between a change and its use.
    MissingIsb,
    /// A table was linked of which some entries were never stored.
    UninitialisedTable,
    /// An entry or TTBR points to memory that is not, or no longer, table memory.
    NotTableMemory,
    /// Table memory was given back while a walker may reach it.
    FreedInUse,
    /// A valid entry was stored in an unlinked table that may still be walked.
    UnlinkedInUse,
    /// A TLBI by range with an operand that makes it UNPREDICTABLE.
    RangeOperand,
    /// The MMU was turned on with a TLB that was never invalidated.
    UnknownTlb,
    /// A field of TCR or MAIR that may be cached in a TLB was changed while in use, and is
    /// relied on without an invalidation.
    CachedField,
    /// A field of TCR was changed that may only be changed while nothing is translated by it.
    FieldInUse,
    /// Memory is read past the caches, and a store may still be in a cache only.
    NotCleaned,
    /// Memory is read through the caches, and a cache may hold something older.
    NotInvalidated,
    /// A store past the caches to a line that a cache may yet write back.
    DirtyLineBehind,
    /// An invalidation of a line that may lose a store.
    StoreLost,
    /// Instructions are fetched, and an instruction cache may hold something older.
    InstructionCache,
    /// An entry that hardware may have updated since it was loaded was stored over, not exchanged or
    /// changed in one step: the access flag or the dirty state may be lost.
    LostUpdate,
}

impl Rule {
    /// The name of the rule.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BreakBeforeMake => "RWHZWS",
            Self::SizeWithOtherChange => "RPVTFW",
            Self::ConflictPossible => "IHYQMB",
            Self::Revalidated => "IWZCBG",
            Self::MixedContiguous => "RQTRPM",
            Self::UnequalContiguous => "RJQQTC",
            Self::ContiguousOutside => "RWMNPV",
            Self::NoTranslation => "RMRRPW",
            Self::StaleTranslation => "stale-translation",
            Self::StoreNotVisible => "store-not-visible",
            Self::UnorderedLink => "unordered-link",
            Self::MissingIsb => "missing-isb",
            Self::UninitialisedTable => "uninitialised-table",
            Self::NotTableMemory => "not-table-memory",
            Self::FreedInUse => "freed-in-use",
            Self::UnlinkedInUse => "unlinked-in-use",
            Self::RangeOperand => "range-operand",
            Self::UnknownTlb => "unknown-tlb",
            Self::CachedField => "RVNRFW",
            Self::FieldInUse => "field-in-use",
            Self::NotCleaned => "not-cleaned",
            Self::NotInvalidated => "not-invalidated",
            Self::DirtyLineBehind => "dirty-line-behind",
            Self::StoreLost => "store-lost",
            Self::InstructionCache => "instruction-cache",
            Self::LostUpdate => "RWLTNL",
        }
    }
}

/// Why an invalidation did not remove an entry of the range it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Miss {
    /// The store that replaced the entry was not sure to be seen by walkers (no DSB) when the
    /// TLBI was issued, so the old value could be read again.
    StoreNotVisible,
    /// The register write that replaced the entry was not in effect (no ISB).
    RegisterNotInEffect,
    /// A last-level operation, and the entry is a pointer to a table.
    LastLevelOnly,
    /// Another level than the level hint's (RSQXYZ).
    WrongLevel,
    /// Another granule than the operand's (RSQXYZ).
    WrongGranule,
    /// Another ASID, or a form that leaves global entries alone.
    WrongAsid,
    /// The operation reaches its own CPU only.
    LocalOnly,
    /// No DSB completed the operation.
    NotComplete,
}

impl Miss {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::StoreNotVisible => "the new value was not yet visible to walkers (no DSB)",
            Self::RegisterNotInEffect => "the register write was not yet in effect (no ISB)",
            Self::LastLevelOnly => "a last-level operation leaves pointers to tables",
            Self::WrongLevel => "its level hint names another level",
            Self::WrongGranule => "its operand names another granule",
            Self::WrongAsid => "it does not reach entries of this ASID, or global ones",
            Self::LocalOnly => "it reaches its own CPU only",
            Self::NotComplete => "no DSB completed it",
        }
    }
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What was broken.
    pub rule: Rule,
    /// The event that broke it, counted from 0.
    pub event: u64,
    /// The earlier event that it conflicts with.
    pub earlier: Option<u64>,
    /// An invalidation that was meant to prevent it, and why it did not.
    pub missed: Option<(u64, Miss)>,
    /// A CPU that could observe it.
    pub cpu: u32,
    /// The addresses concerned, first and last: virtual ones, or for the cache rules and those
    /// of table memory physical ones.
    pub range: (u64, u64),
    /// Whether the addresses are virtual.
    pub is_virtual: bool,
    /// The physical address of the descriptor concerned.
    pub location: Option<u64>,
    /// What a CPU could observe.
    pub observation: String,
    /// How often the event broke the rule in the same way.
    pub times: u64,
}

impl Violation {
    /// What was found in words, but for the rule and the event that broke it. `place` names an
    /// event: by its number, by its line in a file; one that it names nothing for is left out.
    pub fn describe(&self, place: impl Fn(u64) -> Option<String>) -> String {
        let (first, last) = self.range;
        let space = if self.is_virtual { "VA" } else { "PA" };
        let mut text = format!(
            "CPU {} {}, {space} {first:#x} to {last:#x}",
            self.cpu, self.observation
        );
        if let Some(location) = self.location {
            text += &format!(", descriptor at {location:#x}");
        }
        // Where the event conflicts with what it does itself, there is no earlier one to tell.
        let earlier = self.earlier.filter(|event| *event != self.event);
        if let Some(earlier) = earlier.and_then(&place) {
            text += &format!(", because of {earlier}");
        }
        if let Some((event, miss)) = self.missed
            && let Some(missed) = place(event)
        {
            text += &format!("; the TLBI of {missed} is in vain: {}", miss.text());
        }
        if self.times > 1 {
            text += &format!(" ({} times)", self.times);
        }
        text
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |event: u64| Some(format!("event {event}"));
        let (rule, text) = (self.rule.name(), self.describe(place));
        write!(f, "event {}: {rule}: {text}", self.event)
    }
}
