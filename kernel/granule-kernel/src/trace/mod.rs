//! Records the kernel's actions on its own translation, if the command line requests a trace.
//!
//! `granule.trace=START,BYTES` names the RAM for the records, whose format is the library's
//! (`granule_trace`). [`early`] records with the MMU off. [`head`] records the entry code's actions before
//! the command line could be read. [`recorder`] records from the kernel's first instruction at a virtual
//! address on, on every CPU. [`bring_up`] records another CPU's actions where that CPU cannot record, and
//! [`leaving`] those of the last CPU when it leaves for the next kernel. The records themselves, and the
//! accesses that keep them, are not recorded, nor are ISBs that only order a read of a counter or of PAR: a
//! barrier that a checker does not see can make it stricter, never more lenient.

pub(crate) mod bring_up;
pub(crate) mod early;
pub(crate) mod head;
pub(crate) mod leaving;
pub(crate) mod recorder;
mod routine;
