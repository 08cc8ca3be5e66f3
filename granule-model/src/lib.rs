//! The arm64 MMU, TLBs and caches at their most hostile.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod event;
pub mod tlbi;

pub use event::{Barrier, CacheOp, Event, EventKind, Order, Purpose, Register, Scope};
pub use tlbi::{Regime, Target, Tlbi, TlbiScope};
