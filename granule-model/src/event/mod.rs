//! What a CPU does that the model has to know: the events of a trace.
//!
//! Plain values with no judgement in them. Names of instructions and registers are here in both
//! directions, so that a trace reader and writer need no second table of them. TLBIs have their
//! own file, [`tlbi`].

pub mod tlbi;

use tlbi::Tlbi;

/// One thing that one CPU did, in the order in which memory saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The CPU, counted from 0.
    pub cpu: u32,
    /// What it did.
    pub kind: EventKind,
}

/// How a descriptor is stored, as far as other observers can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// An ordinary store, relaxed atomic or not: nothing is ordered by it.
    Plain,
    /// A store-release: who sees it sees all stores that this CPU made before it.
    Release,
    /// In one step with loading what was there, so that an update by hardware comes before it, and
    /// is seen, or finds the new value. Nothing else is ordered by it.
    Exchange,
}

/// What the bytes are that an [`EventKind::OtherStore`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Data: read by loads.
    Data,
    /// Instructions: fetched, so the instruction caches matter too.
    Code,
}

/// What happened.
///
/// All addresses are physical. Sizes are in bytes, counts in descriptors of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// The CPU was powered on or reset: MMU off, the contents of its TLB unknown. Every CPU
    /// starts like that; the event is for one that comes back.
    Reset,
    /// MSR to a translation register.
    RegisterWrite {
        /// The register.
        register: Register,
        /// The value written.
        value: u64,
    },
    /// One descriptor stored.
    StoreDescriptor {
        /// The address of the descriptor, a multiple of 8.
        address: u64,
        /// The descriptor.
        value: u64,
        /// How it was stored.
        order: Order,
    },
    /// Descriptors that follow each other stored: `first`, `first + step`, and so on, wrapping.
    FillDescriptors {
        /// The address of the first descriptor, a multiple of 8.
        address: u64,
        /// How many.
        count: u64,
        /// The first descriptor.
        first: u64,
        /// What is added from one to the next.
        step: u64,
        /// How each was stored.
        order: Order,
    },
    /// Bits changed in some descriptors of a run; the others were not stored.
    UpdateDescriptors {
        /// The address of the first descriptor, a multiple of 8.
        address: u64,
        /// How many were looked at.
        count: u64,
        /// Those with any of these bits set were changed.
        of: u64,
        /// The bits cleared first.
        clear: u64,
        /// The bits set then.
        set: u64,
        /// How each was stored.
        order: Order,
    },
    /// A store to memory that is not a table, which matters because code with the MMU off (or
    /// another observer past the caches) reads or executes it later, or because it was made past
    /// the caches and is read through them later.
    OtherStore {
        /// The first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// Read or fetched later.
        purpose: Purpose,
    },
    /// A barrier or ISB.
    Barrier(Barrier),
    /// A TLB invalidation.
    Tlbi(Tlbi),
    /// Data cache maintenance by address for every line that the range touches.
    Cache {
        /// The instruction.
        op: CacheOp,
        /// The first byte, as a physical address.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// IC IALLU (local) or IC IALLUIS (inner shareable): all instruction caches invalidated.
    InstructionCache {
        /// Whether other CPUs are meant too.
        scope: Scope,
    },
    /// Memory becomes table memory: an allocator gave it out, or it is a static table.
    TableObtained {
        /// The first byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// Table memory given back; anything may be stored there from now on.
    TableFreed {
        /// The first byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// From here on the CPU relies on what the tables say about a range: every other CPU must
    /// translate it as they do now, and find what was stored past the caches where it leads to.
    Relied {
        /// The first virtual address.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// An operation has ended, and from here on all that the tables say is relied on, by every
    /// CPU: nothing stale that matters may be cached anywhere.
    Sync,
}

/// Whom an operation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The CPU that issues it.
    Local,
    /// All CPUs of the inner shareable domain, which here means all CPUs.
    Broadcast,
}

/// Implements a name table in both directions for an enum of unit variants.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name, in lower case, as an assembler knows it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),*
                }
            }

            /// The one with this name, in lower case.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

/// A register that says how addresses are translated.
///
/// With HCR_EL2.E2H the EL1 names reach the registers of the EL2&0 regime, which the model
/// treats as EL1&0: record the name that the instruction used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the architecture's names")]
pub enum Register {
    SctlrEl1,
    TcrEl1,
    Ttbr0El1,
    Ttbr1El1,
    MairEl1,
    SctlrEl2,
    TcrEl2,
    Ttbr0El2,
    MairEl2,
    SctlrEl3,
    TcrEl3,
    Ttbr0El3,
    MairEl3,
}

named!(Register {
    SctlrEl1 = "sctlr_el1",
    TcrEl1 = "tcr_el1",
    Ttbr0El1 = "ttbr0_el1",
    Ttbr1El1 = "ttbr1_el1",
    MairEl1 = "mair_el1",
    SctlrEl2 = "sctlr_el2",
    TcrEl2 = "tcr_el2",
    Ttbr0El2 = "ttbr0_el2",
    MairEl2 = "mair_el2",
    SctlrEl3 = "sctlr_el3",
    TcrEl3 = "tcr_el3",
    Ttbr0El3 = "ttbr0_el3",
    MairEl3 = "mair_el3",
});

/// A barrier. Those for the outer shareable domain are recorded as the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the architecture's names")]
pub enum Barrier {
    DsbNshst,
    DsbNsh,
    DsbIshst,
    DsbIsh,
    DsbSyst,
    DsbSy,
    DmbIshst,
    DmbIsh,
    DmbSyst,
    DmbSy,
    Isb,
}

named!(Barrier {
    DsbNshst = "dsb nshst",
    DsbNsh = "dsb nsh",
    DsbIshst = "dsb ishst",
    DsbIsh = "dsb ish",
    DsbSyst = "dsb st",
    DsbSy = "dsb sy",
    DmbIshst = "dmb ishst",
    DmbIsh = "dmb ish",
    DmbSyst = "dmb st",
    DmbSy = "dmb sy",
    Isb = "isb",
});

/// A data cache operation by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheOp {
    /// DC CVAC: memory gets what was stored.
    CleanToPoc,
    /// DC CIVAC: that, and nothing stays cached.
    CleanInvalidateToPoc,
    /// DC IVAC: nothing stays cached; what was not cleaned may be lost.
    InvalidateToPoc,
    /// DC CVAU: instruction fetches can get what was stored.
    CleanToPou,
}

named!(CacheOp {
    CleanToPoc = "cvac",
    CleanInvalidateToPoc = "civac",
    InvalidateToPoc = "ivac",
    CleanToPou = "cvau",
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for &register in Register::ALL {
            assert_eq!(Register::from_name(register.name()), Some(register));
        }
        for &barrier in Barrier::ALL {
            assert_eq!(Barrier::from_name(barrier.name()), Some(barrier));
        }
        for &op in CacheOp::ALL {
            assert_eq!(CacheOp::from_name(op.name()), Some(op));
        }
        assert_eq!(Register::from_name("TCR_EL1"), None);
        assert_eq!(Barrier::from_name("dsb"), None);
    }
}
