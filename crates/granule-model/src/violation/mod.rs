//! Violations, and the rules that they break. [`report`] keeps the list of violations.
//!
//! Plain values only: the [`rules`](crate::rules) decide what is a violation.

pub(crate) mod report;

use std::fmt;

/// The broken rule. Where the Arm ARM (DDI 0487) names the rule, [`Rule::name`] is that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// A valid entry was changed into another valid one without break-before-make, or an entry was
    /// made valid while the entry it replaces may still be cached.
    BreakBeforeMake,
    /// A change of size, which the BBM level allows in place, together with another change.
    SizeWithOtherChange,
    /// A change of size that the BBM level allows, but which may raise a TLB conflict abort
    /// (strict).
    ConflictPossible,
    /// An entry was made valid again, unchanged, without an invalidation between (strict).
    Revalidated,
    /// Some valid members of a contiguous group have the contiguous bit and some do not.
    MixedContiguous,
    /// Members of a contiguous group do not map one aligned range with the same attributes.
    UnequalContiguous,
    /// A contiguous group reaches beyond the top table.
    ContiguousOutside,
    /// A block with the nT bit, on which a lookup may fault, is relied on.
    NoTranslation,
    /// A translation that the tables no longer hold may still be cached and is relied on.
    StaleTranslation,
    /// Memory was taken for something else while a translation that the tables no longer hold may
    /// still lead to it.
    StaleReuse,
    /// A walker may not yet see a store that is relied on: no DSB since.
    StoreNotVisible,
    /// A table was linked before the stores to it are sure to be visible: no DSB or store-release
    /// between.
    UnorderedLink,
    /// An ISB is missing between a change and its use.
    MissingIsb,
    /// A table was linked while some of its entries were never stored.
    UninitialisedTable,
    /// An entry leads to an address of more bits than the registers and the CPU allow.
    AddressSize,
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
    /// A field of TCR or MAIR that a TLB may hold was changed while in use, and is relied on
    /// without an invalidation.
    CachedField,
    /// A field of TCR was changed while in use; it may change only while nothing is translated by
    /// it: with the MMU off, or with walks of the half disabled (EPD) and that in effect.
    FieldInUse,
    /// An ASID is used with two granules, and what TLBs may hold of the first was not invalidated.
    AsidOfTwoSizes,
    /// A tree that was walked with one granule is walked with another one.
    TablesOfTwoSizes,
    /// Memory is read past the caches while the last store may still be in a cache only.
    NotCleaned,
    /// Memory is read through the caches while a cache may hold older data.
    NotInvalidated,
    /// A store past the caches to a line that a cache may yet write back.
    DirtyLineBehind,
    /// An invalidation of a line that may lose a store.
    StoreLost,
    /// Instructions are fetched while an instruction cache may hold older code.
    InstructionCache,
    /// A plain store replaced an entry that hardware may have updated since it was loaded: the
    /// access flag or the dirty state may be lost. An exchange or a change in one step is needed.
    LostUpdate,
    /// A descriptor was found that is not the last one stored there, nor what hardware makes of it:
    /// the trace lacks a store.
    NotRecorded,
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
            Self::StaleReuse => "stale-reuse",
            Self::StoreNotVisible => "store-not-visible",
            Self::UnorderedLink => "unordered-link",
            Self::MissingIsb => "missing-isb",
            Self::UninitialisedTable => "uninitialised-table",
            Self::AddressSize => "address-size",
            Self::NotTableMemory => "not-table-memory",
            Self::FreedInUse => "freed-in-use",
            Self::UnlinkedInUse => "unlinked-in-use",
            Self::RangeOperand => "range-operand",
            Self::UnknownTlb => "unknown-tlb",
            Self::CachedField => "RVNRFW",
            Self::FieldInUse => "field-in-use",
            Self::AsidOfTwoSizes => "asid-of-two-sizes",
            Self::TablesOfTwoSizes => "tables-of-two-sizes",
            Self::NotCleaned => "not-cleaned",
            Self::NotInvalidated => "not-invalidated",
            Self::DirtyLineBehind => "dirty-line-behind",
            Self::StoreLost => "store-lost",
            Self::InstructionCache => "instruction-cache",
            Self::LostUpdate => "RWLTNL",
            Self::NotRecorded => "not-recorded",
        }
    }
}

/// The reason why an invalidation did not remove an entry in its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Miss {
    /// Walkers could still read the old value when the TLBI was issued: no DSB followed the store
    /// that replaced the entry.
    StoreNotVisible,
    /// The same, but another CPU than that of the TLBI removed the entry, and the CPU of the TLBI executed a
    /// DSB in between. That DSB counts if something orders the store before it, such as a lock,
    /// which events do not show.
    StoreOfAnotherCpu,
    /// The register write that replaced the entry was not in effect: no ISB.
    RegisterNotInEffect,
    /// The operation removes the last level only, and the entry is a pointer to a table.
    LastLevelOnly,
    /// The entry has another level than the level hint (RSQXYZ).
    WrongLevel,
    /// The entry has another granule than the operand (RSQXYZ).
    WrongGranule,
    /// The entry has another ASID, or is global and the form leaves global entries alone.
    WrongAsid,
    /// The entry has another VMID.
    WrongVmid,
    /// The operation is by intermediate physical address, and the entry combines both stages.
    Stage2Only,
    /// The operation removes entries that combine both stages, but the entry of stage 2 itself was
    /// still cached when it was issued, so that a walk may combine it again.
    Stage2Cached,
    /// The entry still stood in its table, and a walker may have found it again through a cached
    /// pointer to that table, which the operation leaves.
    FoundAgain,
    /// The entry was a member of a contiguous group, and another member was still valid: by its hint it
    /// serves for all addresses of the group.
    GroupServes,
    /// The CPUs have an erratum by which a TLBI is complete only after another one, which did not follow.
    NotRepeated,
    /// The operation reaches its own CPU only.
    LocalOnly,
    /// No DSB completed the operation.
    NotComplete,
}

impl Miss {
    /// Returns the result of the invalidation with the reason: `has no effect`, or `may have no
    /// effect` where it may have removed the entry after all.
    #[must_use]
    pub fn verdict(self) -> String {
        let certainty = match self {
            Self::StoreOfAnotherCpu => "may have",
            _ => "has",
        };
        format!("{certainty} no effect: {}", self.text())
    }

    /// The reason in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::StoreNotVisible => "the new value was not yet visible to walkers (no DSB)",
            Self::StoreOfAnotherCpu => {
                "another CPU removed the entry and executed no DSB before it; the DSB of the \
                 TLBI's CPU counts if a lock orders it after the store"
            }
            Self::RegisterNotInEffect => "the register write was not yet in effect (no ISB)",
            Self::LastLevelOnly => "a last-level operation leaves pointers to tables",
            Self::WrongLevel => "its level hint names another level",
            Self::WrongGranule => "its operand names another granule",
            Self::WrongAsid => "it does not reach entries of this ASID, or global ones",
            Self::WrongVmid => "it does not reach entries of this VMID",
            Self::Stage2Only => "it leaves entries that combine both stages",
            Self::Stage2Cached => {
                "the entry of stage 2 was still cached (no TLBI by address with its DSB before)"
            }
            Self::FoundAgain => {
                "it leaves a cached pointer to the old table, through which the entry is found again"
            }
            Self::GroupServes => {
                "another member of its contiguous group was still valid, and may be cached for all of the group"
            }
            Self::NotRepeated => {
                "by an erratum of the CPUs it has to be followed by another TLBI and DSB"
            }
            Self::LocalOnly => "it reaches its own CPU only",
            Self::NotComplete => "no DSB completed it",
        }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The event that broke it, counted from 0.
    pub event: u64,
    /// The virtual address of the instruction that the event comes from, if the trace has it.
    pub origin: Option<u64>,
    /// The earlier event that it conflicts with.
    pub earlier: Option<u64>,
    /// An invalidation that was meant to prevent it, and the reason why it did not.
    pub missed: Option<(u64, Miss)>,
    /// A CPU that could observe it.
    pub cpu: u32,
    /// The addresses concerned, first and last: physical ones for the rules of caches and table
    /// memory, virtual ones for all others.
    pub range: (u64, u64),
    /// Whether the addresses are virtual.
    pub is_virtual: bool,
    /// Whether the virtual addresses are a guest's intermediate physical ones, which stage 2
    /// translates.
    pub is_intermediate: bool,
    /// The physical address of the descriptor concerned.
    pub location: Option<u64>,
    /// The effect that a CPU could observe.
    pub observation: String,
    /// The number of times that the event broke the rule in the same way.
    pub times: u64,
}

impl Violation {
    /// The violation in words, without its rule and the event that broke it. `place` names an event
    /// by its number or by its line in a file; an event that it returns `None` for is left out.
    pub fn describe(&self, place: impl Fn(u64) -> Option<String>) -> String {
        let (first, last) = self.range;
        let space = match (self.is_virtual, self.is_intermediate) {
            (true, true) => "IPA",
            (true, false) => "VA",
            (false, _) => "PA",
        };
        let mut text = format!(
            "CPU {} {}, {space} {first:#x} to {last:#x}",
            self.cpu, self.observation
        );
        if let Some(location) = self.location {
            text += &format!(", descriptor at {location:#x}");
        }
        // An event that conflicts with itself has no earlier event to name.
        let earlier = self.earlier.filter(|event| *event != self.event);
        if let Some(earlier) = earlier.and_then(&place) {
            text += &format!(", because of {earlier}");
        }
        if let Some((event, miss)) = self.missed
            && let Some(missed) = place(event)
        {
            text += &format!("; the TLBI of {missed} {}", miss.verdict());
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

#[cfg(test)]
mod tests {
    /// The strings in `Rule::name`, in its order. The compiler sees to it that each rule is there.
    fn names() -> Vec<&'static str> {
        let arms = include_str!("mod.rs").lines();
        arms.skip_while(|line| !line.contains("pub const fn name("))
            .take_while(|line| *line != "    }")
            .filter_map(|line| line.split_once(" => \"")?.1.strip_suffix("\","))
            .collect()
    }

    #[test]
    fn the_document_has_every_rule_once() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");
        let text = match std::fs::read_to_string(document) {
            Ok(text) => text,
            Err(error) => panic!("{document}: {error}"),
        };
        let rows: Vec<&str> = text
            .lines()
            .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0))
            .collect();
        assert_eq!(rows, names());
        assert_eq!(rows.first(), Some(&super::Rule::BreakBeforeMake.name()));
        assert_eq!(rows.last(), Some(&super::Rule::NotRecorded.name()));
    }
}
