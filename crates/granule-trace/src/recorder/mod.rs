//! Wrappers that record the actions of page tables: every store, table, barrier and TLBI, in order.
//!
//! [`Traced`] wraps the environment of page tables, and [`Counted`] one whose calls are only counted.
//! `TracedFixmap`, of the feature `published`, wraps the fixmap slots through which a linear map is made. Both make events of
//! this crate and give them to a [`Sink`], which may be a buffer, a file or a model. Encoding
//! and judging events do not belong here.
//!
//! The sink is a type parameter, so a wrapper with [`NoSink`] adds no code. A sink can also be on
//! or off at run time ([`Sink::is_active`]). One instance of the walker then serves both cases, at
//! the price of one test for each call, and one call stores a whole run of entries. The recording
//! code is out of line, which keeps the path without recording short.
//!
//! ```
//! use granule::table::Offset;
//! use granule_trace::recorder::{NoSink, Traced};
//!
//! // No event is recorded, and the wrapper takes no space.
//! assert_eq!(size_of::<Traced<Offset, NoSink>>(), size_of::<Offset>());
//! ```

mod counting;
#[cfg(feature = "published")]
mod fixmap;
mod sink;
mod table;

pub use counting::{Counted, Counter, Counters, Counts};
#[cfg(feature = "published")]
pub use fixmap::TracedFixmap;
pub use sink::{NoSink, Sink};
pub use table::Traced;
