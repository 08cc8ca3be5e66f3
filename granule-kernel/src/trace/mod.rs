//! Recording what the kernel does to its own translation, when the command line asks for it.
//!
//! `granule.trace=START,BYTES` names RAM that whoever starts the kernel wants the records in; the
//! library has their format (`granule_trace`). [`early`] records with the MMU off, [`head`] what
//! the entry code did before anyone could ask, [`recorder`] from the kernel's first instruction
//! at a virtual address on, by every CPU; [`bring_up`] what another CPU does where it cannot record,
//! [`leaving`] what the last one does when it leaves for the next kernel.
//! The records themselves, and what it takes to keep them, are not
//! recorded; nor are ISBs that only order a reading of a counter or of PAR: a barrier that a
//! checker does not see can make it stricter, never more lenient.

pub(crate) mod bring_up;
pub(crate) mod early;
pub(crate) mod head;
pub(crate) mod leaving;
pub(crate) mod recorder;
mod routine;
