//! Page tables seen from outside: those of a memory dump or of a live virtual machine, of any arm64
//! kernel.
//!
//! [`source`] finds the bytes of physical memory and the data that a dump or a machine has about
//! itself. [`tree`] describes the trees of tables and their registers; [`registers`],
//! [`vmcoreinfo`], [`running`], [`linux`] and [`guess`] find them. [`open`](open()) does all of that. The other
//! modules read trees and do not depend on the source of their bytes.
//!
//! Nothing here trusts what it reads: whatever the bytes are, every call ends and none panics.

pub mod attributes;
pub mod diff;
pub mod explain;
pub mod fields;
pub mod guess;
pub mod lint;
pub mod linux;
pub mod map;
pub mod memory_map;
pub mod memory_type;
mod nested;
mod open;
pub mod ranges;
pub mod registers;
pub mod running;
mod scan;
pub mod source;
pub mod totals;
pub mod tree;
pub mod vmcoreinfo;
pub mod walk;

pub use open::{Opened, Options, open, open_telling};
