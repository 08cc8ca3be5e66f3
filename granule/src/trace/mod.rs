//! What a CPU does to its own translation, as records of a fixed size for memory: a kernel
//! leaves them there, and a host tool reads them from there.
//!
//! Pure, and usable with the MMU off: encoding is shifts and stores, and cannot fail. How records
//! get into the buffer (in which order, under which lock) is the kernel's; what they mean
//! together is the reader's.

mod buffer;
mod record;
mod system;

pub use buffer::{Header, HeaderError};
pub use record::{Barrier, BarrierKind, Event, RECORD_WORDS, Record, RecordError};
pub use system::System;
