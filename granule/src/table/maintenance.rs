//! Barriers and TLBIs: the third of the three traits the walker stands on.
//!
//! One method an instruction, so that an implementation is either the instruction
//! (`hw`) or an observer of it (a counter, a trace, a model).

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

/// The barriers and TLBIs of no CPU: none is issued.
///
/// For tables that no CPU walks while they are changed: an image of them, a test, a count of what
/// a map would take. The capabilities still decide which instructions would have been issued, as
/// [`Counted`](super::Counted) tells.
#[derive(Clone, Copy, Debug)]
pub struct NoCpu(pub TlbCapabilities);

impl Maintenance for NoCpu {
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
    fn tlbi(&mut self, _op: TlbiOp) {}
}
