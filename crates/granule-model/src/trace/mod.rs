//! Traces: the events of `granule-trace` as text, one a line. The format is documented in
//! `docs/trace-format.md`.
//!
//! [`parse_line`] and [`write_event`] convert one line, [`TraceHeader`] is the first line,
//! [`Function`] names one of the recorded system, [`Reader`] reads a whole file. Nothing here
//! checks an event against the architecture; only its written form is known.
//!
//! A kernel's record, a trace and the model's input have this one type of event.

mod error;
mod function;
mod header;
mod parse;
mod read;
mod words;
mod write;

pub use error::{LineError, ReadError};
pub use function::Function;
pub use header::TraceHeader;
pub use parse::parse_line;
pub use read::Reader;
pub use write::write_event;
