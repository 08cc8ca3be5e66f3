//! Accesses and their results, as plain values. How results come about is
//! [`state::lookup`](crate::state::lookup).

use crate::arch::descriptor::Rights;
use crate::arch::regime::Regime;

/// What kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// An access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The regime it is translated in.
    pub regime: Regime,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// By EL0.
    pub user: bool,
}

impl Access {
    /// A load by EL1.
    pub const READ: Self = Self::kernel(AccessKind::Read);
    /// A store by EL1.
    pub const WRITE: Self = Self::kernel(AccessKind::Write);
    /// A fetch by EL1.
    pub const FETCH: Self = Self::kernel(AccessKind::Fetch);

    const fn kernel(kind: AccessKind) -> Self {
        Self {
            regime: Regime::El10,
            kind,
            user: false,
        }
    }

    pub(crate) const fn allowed(self, rights: Rights) -> bool {
        match self.kind {
            AccessKind::Read => rights.read,
            AccessKind::Write => rights.write,
            AccessKind::Fetch => rights.execute,
        }
    }
}

/// Where an access goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// The physical address.
    pub address: u64,
    /// The byte of MAIR: 0 is Device-nGnRnE.
    pub memory: u8,
    /// 0 not, 2 outer, 3 inner shareable.
    pub shareability: u8,
    /// What EL1 (or EL2, EL3) may do there.
    pub privileged: Rights,
    /// What EL0 may do there.
    pub user: Rights,
}

/// Why an address does not translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// No valid entry, or an address outside of the half.
    Translation,
    /// The access flag is clear.
    AccessFlag,
    /// The permissions do not allow the access.
    Permission,
    /// An address in a descriptor or TTBR has more bits than there are.
    AddressSize,
}

/// One result that an access may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Memory is accessed.
    Memory(Translation),
    /// A fault.
    Fault(FaultKind),
    /// A TLB conflict abort: entries of different sizes match.
    Conflict,
}
