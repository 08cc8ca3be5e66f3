//! Making a live split look as if it raised a TLB conflict abort, which no emulator raises.
//!
//! `arm64.inject_conflict=N` chooses the Nth change of the size of a live leaf: a table in the place
//! of a block, or a contiguous group without its hint. [`Injection`] stores what was to be stored
//! there, but not valid, and empties all TLBs. Software that reads the entries through it sees them
//! valid; walkers fault. The first CPU that does so makes the entries valid ([`mend`]) and deals
//! with a TLB conflict abort, and so does each other one that faulted before they were.
//!
//! The abort handler calls [`stands_for`] and [`mend`]. They touch statics of the image, and the
//! entries through a slot of the fixmap, since the linear map of the table itself may be what faults.

mod memory;
mod pending;

pub(crate) use memory::Injection;
pub(crate) use pending::{arm, disarm, init, is_mended, is_pending, mend, prepare};
pub(crate) use pending::{probe, set_probe, splits, stands_for};
