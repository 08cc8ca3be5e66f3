//! Traces: the events of `granule-trace` as text, one a line. The format is documented in `docs/trace-format.md`.
//!
//! [`parse_line`] and [`write_event`] are the two directions for one line, [`Header`] is the first
//! line, [`Reader`] a whole file. Nothing here judges an event; it only knows how it is written.

mod error;
mod header;
mod parse;
mod read;
mod words;
mod write;

pub use error::{LineError, ReadError};
pub use header::Header;
pub use parse::parse_line;
pub use read::Reader;
pub use write::write_event;
