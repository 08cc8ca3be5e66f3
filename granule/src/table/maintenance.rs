//! Barriers and TLBIs: the third of the three traits the walker stands on.
//!
//! One method an instruction, so that an implementation is either the instruction
//! (`arch::hw`) or an observer of it (a counter, a trace, a model).

use crate::arch::tlbi::{TlbCapabilities, TlbiOp};

/// Issues barriers and TLBIs.
pub trait Maintenance {
    /// What the CPUs that use the tables can be asked.
    fn capabilities(&self) -> &TlbCapabilities;
    /// DSB ISHST.
    fn dsb_ishst(&mut self);
    /// DSB ISH.
    fn dsb_ish(&mut self);
    /// ISB.
    fn isb(&mut self);
    /// One broadcast TLBI.
    fn tlbi(&mut self, op: TlbiOp);
}
