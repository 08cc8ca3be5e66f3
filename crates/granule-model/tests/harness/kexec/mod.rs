//! Leaving one kernel for another on the model: the steps of the relocation code, as
//! `granule_kexec::steps` has them, with the transitional tables, the switch to them, and caches.
//!
//! [`leaving`] is what is left, for what is [`loaded`]; [`cpu`] executes the steps, with the data
//! they move, and what is done beside them are [`events`]. [`faults`] has what goes wrong without
//! breaking a rule of the model: accesses to what is not mapped, and bytes that are not those that
//! were wanted. Faults that break one are in [`planted`](crate::planted).

mod cpu;
mod events;
mod faults;
pub(crate) mod leaving;
mod loaded;
