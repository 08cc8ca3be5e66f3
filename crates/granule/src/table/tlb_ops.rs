//! The trait that issues barriers and TLBIs: the third of the three traits of
//! [`PageTables`](super::PageTables).
//!
//! It has one method for each instruction, so an implementation either issues the instruction
//! (`hw`) or observes it (a counter, a trace, a model).

use crate::arch::Regime;
use crate::arch::tlbi::{TlbCapabilities, TlbiOp};

/// Issues barriers and TLBIs.
pub trait TlbOps {
    /// The TLBI features of the CPUs that use the tables.
    fn capabilities(&self) -> &TlbCapabilities;
    /// DSB ISHST.
    fn dsb_ishst(&mut self);
    /// DSB ISH.
    fn dsb_ish(&mut self);
    /// ISB.
    fn isb(&mut self);
    /// One broadcast TLBI of the tables' regime.
    fn tlbi(&mut self, regime: Regime, op: TlbiOp);
}

/// A [`TlbOps`] that issues no instruction.
///
/// It serves tables that no CPU walks while they change: the first tables of a kernel, written
/// before any CPU uses them, an image of tables, a test, a count of the cost of a map. The
/// capabilities still decide which instructions a CPU would get, and [`Counted`](super::Counted)
/// counts them.
#[derive(Clone, Copy, Debug)]
pub struct NoCpu(pub TlbCapabilities);

impl TlbOps for NoCpu {
    #[inline(always)]
    fn capabilities(&self) -> &TlbCapabilities {
        &self.0
    }
    #[inline(always)]
    fn dsb_ishst(&mut self) {}
    #[inline(always)]
    fn dsb_ish(&mut self) {}
    #[inline(always)]
    fn isb(&mut self) {}
    #[inline(always)]
    fn tlbi(&mut self, _regime: Regime, _op: TlbiOp) {}
}
