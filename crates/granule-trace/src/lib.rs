//! Fixed-size memory records of a CPU's actions on its own translation.
//!
//! A kernel writes the records, and a tool on another machine reads them from the kernel's memory.
//! This crate defines the events ([`Event`]), their encoding in four words ([`EncodedEvent`]), the
//! head of the buffer that holds them ([`BufferHeader`]), and the encodings of system registers and
//! instructions ([`System`]). It has no dependencies, so a writer and a reader need only this crate
//! to agree. The feature `recorder` adds wrappers that record what the tables of the crate `granule` do.
//!
//! Encoding is shifts and stores. It cannot fail, and code that runs with the MMU off can use it.
//! The kernel writes the words into a buffer, in one order for all CPUs. The reader interprets a
//! sequence of events. Neither belongs here.
//!
//! ```
//! use granule_trace::{EncodedEvent, Event, System};
//!
//! // CPU 1 wrote TTBR0_EL1.
//! let event = Event::System(System::TTBR0_EL1, 0x4000_0000);
//! let record = EncodedEvent::new(1, event);
//! assert_eq!(record.event(), Ok((1, event)));
//! ```

#![no_std]
#![deny(missing_docs)]
// A program that uses the library must still compile after a case is added.
#![deny(clippy::exhaustive_enums)]

mod buffer;
mod encoded_event;
mod event;
#[cfg(feature = "recorder")]
pub mod recorder;
mod system;

pub use buffer::{BufferHeader, HeaderError};
pub use encoded_event::{EncodedEvent, RECORD_WORDS, RecordError};
pub use event::{Barrier, BarrierKind, BitChange, Event, Text, Visibility};
pub use system::System;
