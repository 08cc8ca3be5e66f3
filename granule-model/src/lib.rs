//! The arm64 MMU, TLBs and caches at their most hostile.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod access;
mod barrier;
mod cache;
mod change;
mod config;
mod context;
mod control;
mod cpu;
mod descriptor;
pub mod event;
mod format;
mod frames;
mod groups;
mod invalidate;
mod link;
mod meet;
mod memory;
mod model;
mod relied;
mod run;
mod stale;
mod store;
mod tables;
pub mod tlbi;
mod violation;
mod walk;

pub use access::{Access, AccessKind, Outcome, Translation};
pub use config::Config;
pub use descriptor::Rights;
pub use event::{Barrier, CacheOp, Event, EventKind, Order, Purpose, Register, Scope};
pub use model::{EventError, Model};
pub use tlbi::{Regime, Target, Tlbi, TlbiScope};
pub use violation::{Miss, Rule, Violation};
pub use walk::FaultKind;
