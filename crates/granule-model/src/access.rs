//! Accesses and their results, as plain values. [`state::lookup`](crate::state::lookup) computes
//! the results.

use crate::arch::descriptor::Rights;
use crate::arch::regime::Regime;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// An access: its regime, kind and privilege.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The regime that translates it.
    pub regime: Regime,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// Made by EL0.
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

/// The physical address and the attributes that a translation gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// The physical address.
    pub address: u64,
    /// The memory attribute byte of MAIR: 0 is Device-nGnRnE.
    pub memory: u8,
    /// Shareability: 0 none, 2 outer, 3 inner shareable.
    pub shareability: u8,
    /// The rights of EL1 (or EL2, EL3).
    pub privileged: Rights,
    /// The rights of EL0.
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
    /// A descriptor or TTBR holds an address with more bits than the machine has.
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
