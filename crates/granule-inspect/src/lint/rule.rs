//! Rules by name, and severities. No rule's code lives here.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        /// A fault or a waste that the check looks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = $about] $variant,)*
        }

        impl Rule {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub const fn consequence(self) -> &'static str {
                match self { $(Self::$variant => $consequence,)* }
            }

            /// Returns a description of the rule.
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
        "An address in a descriptor beyond the output size that TCR or VTCR sets.",
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
    HypervisorMemory "hypervisor-memory"
        "the guest, or the host below the hypervisor, can change what it is kept from, or read it"
        "Tables of EL2 or of stage 2, or code of EL2, that stage 2 maps.",
    NoMap "no-map"
        "its owner keeps it from the CPU, which may read cacheable memory speculatively"
        "Memory that must not be mapped, after a memory map, and is.",
    KeptShareability "kept-shareability"
        "the kernel may have set shareability in a descriptor that has none"
        "Outputs with bits 51:50 that no memory is at, under TCR.DS.",
    ContiguousState "contiguous-state"
        "a walker that does not update these bits, as that of an SMMU, may take any member's and fault again and again"
        "A contiguous group whose entries differ in access flag or dirty state, which hardware may leave behind.",
    MissedContiguous "missed-contiguous"
        "the TLB holds more entries than it would have to"
        "Leaves that could have the contiguous hint.",
    MissedBlock "missed-block"
        "the TLB and the tables hold more entries than they would have to"
        "Leaves that could be larger blocks.",
}

impl Rule {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }
}
