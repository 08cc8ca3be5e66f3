//! Rules by name, findings, and the list of findings. No rule's code lives here.

use super::Options;
use super::accepted::Accepted;
use crate::tree::Owner;
use std::collections::BTreeMap;
use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "as exit codes, 0 to 2")]
pub enum Severity {
    /// Something could be better.
    Info,
    /// Something is dangerous, or right only if it is meant so.
    Warning,
    /// Something is wrong.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

macro_rules! rules {
    ($($variant:ident $name:literal $consequence:literal $about:literal),* $(,)?) => {
        /// What can be wrong or wasteful.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = $about] $variant,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it leads to.
            #[must_use]
            pub const fn consequence(self) -> &'static str {
                match self { $(Self::$variant => $consequence,)* }
            }

            /// What it looks for.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about,)* }
            }
        }
    };
}

rules! {
    WritableExecutable "writable-executable"
        "whoever can make the owner store there can make it execute what was stored"
        "Memory that one privilege may both store to and execute.",
    Contiguous "contiguous"
        "a TLB may hold the group as one entry and translate wrongly, or the CPU may take a TLB conflict abort"
        "A contiguous group whose valid entries disagree, or whose output is not aligned to the group.",
    MemoryClash "memory-clash"
        "stores through one mapping may stay unseen through the other"
        "The same memory mapped with different memory types or shareability.",
    ReservedBits "reserved-bits"
        "the CPU may ignore them, fault, or give them a meaning of its own"
        "Reserved bits or reserved encodings in a descriptor.",
    OutputSize "output-size"
        "every access there is an address size fault"
        "An address beyond the CPU's physical addresses in a descriptor.",
    SharedTable "shared-table"
        "a change through one of the entries changes what the other maps"
        "A table that more than one entry leads to.",
    Loop "loop"
        "the tables themselves are mapped there, and a change of them changes their own mapping"
        "A table that leads to itself.",
    WritableText "writable-text"
        "the text can be changed in spite of its own permissions"
        "A writable mapping of text that the privileged level executes and cannot write.",
    UnreadableTable "unreadable-table"
        "a walk that needs the table ends in an external abort, or the source is not whole"
        "A table that the source does not have.",
    MissedContiguous "missed-contiguous"
        "the TLB holds more entries than it would have to"
        "Leaves that could have the contiguous hint.",
    MissedBlock "missed-block"
        "the TLB and the tables hold more entries than they would have to"
        "Leaves that could be larger blocks.",
}

impl Rule {
    /// The rule of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Whose tables they are.
    pub owner: Owner,
    /// The first address.
    pub address: u64,
    /// The bytes.
    pub bytes: u64,
    /// How bad it is.
    pub severity: Severity,
    /// What is there and what it leads to, in words.
    pub text: String,
}

impl Finding {
    /// The last address.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.address.wrapping_add(self.bytes.wrapping_sub(1))
    }
}

/// `error contiguous 0x…+64K kernel: text`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = crate::fields::size(self.bytes);
        write!(
            f,
            "{} {} {:#018x}+{size} {}: {}",
            self.severity,
            self.rule.name(),
            self.address,
            self.owner,
            self.text
        )
    }
}

/// Findings that were asked for and not accepted, of each rule and severity at most a given number; more
/// are counted.
#[derive(Clone, Debug)]
pub struct Findings {
    most: usize,
    rules: Vec<Rule>,
    /// What is accepted, with the number of findings that were.
    pub accepted: Accepted,
    /// Those that are kept, in the order in which they were found.
    pub list: Vec<Finding>,
    kept: BTreeMap<(Rule, Severity), usize>,
    /// The number of those that are not kept.
    pub more: BTreeMap<(Rule, Severity), u64>,
}

impl Findings {
    /// No findings yet, and those that `options` ask for.
    pub(super) fn new(options: &Options) -> Self {
        Self {
            most: options.most,
            rules: options.rules.clone(),
            accepted: options.accepted.clone(),
            list: Vec::new(),
            kept: BTreeMap::new(),
            more: BTreeMap::new(),
        }
    }

    /// Adds a finding, whose consequence is the rule's.
    pub(super) fn add(
        &mut self,
        (rule, severity): (Rule, Severity),
        owner: &Owner,
        (address, bytes): (u64, u64),
        what: impl FnOnce() -> String,
    ) {
        // Before any is counted: what nobody asked for takes no other's place in the list.
        let last = address.wrapping_add(bytes.wrapping_sub(1));
        if !self.rules.is_empty() && !self.rules.contains(&rule)
            || self.accepted.accepts(rule, address, last)
        {
            return;
        }
        let kept = self.kept.entry((rule, severity)).or_default();
        if *kept == self.most {
            *self.more.entry((rule, severity)).or_default() += 1;
            return;
        }
        *kept += 1;
        self.list.push(Finding {
            rule,
            owner: owner.clone(),
            address,
            bytes,
            severity,
            text: format!("{}: {}", what(), rule.consequence()),
        });
    }

    /// The worst severity, of those that are not kept too.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        let kept = self.list.iter().map(|finding| finding.severity);
        kept.chain(self.more.keys().map(|key| key.1)).max()
    }

    /// The worst first, then by address.
    pub(super) fn sort(&mut self) {
        self.list.sort_by_key(|finding| {
            (
                std::cmp::Reverse(finding.severity),
                finding.rule,
                finding.address,
            )
        });
    }
}
