//! Simulates TLB conflict aborts during live splits, because no emulator raises them.
//!
//! `arm64.inject_conflict=N` chooses the Nth change of the size of a live leaf: a table replaces a block, or
//! a contiguous group loses its hint. [`Injection`] stores the new entries as invalid and empties all TLBs.
//! Software that reads the entries through the hook sees them valid, but walkers fault. The first CPU that
//! faults makes the entries valid ([`mend`]) and handles the fault as a TLB conflict abort. So does each
//! other CPU that faulted before that.
//!
//! The abort handler calls [`stands_for`] and [`mend`]. They access statics of the image, and the entries
//! through a slot of the fixmap, because the linear map of the table itself may be the cause of the fault.

mod memory;
mod pending;

pub(crate) use memory::Injection;
pub(crate) use pending::{arm, disarm, init, is_mended, is_pending, mend, prepare};
pub(crate) use pending::{probe, set_probe, splits, stands_for};
