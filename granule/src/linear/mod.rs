//! The linear map: all of RAM at one distance from its physical address.
//!
//! [`placement`] chooses the distance, [`census`] counts leaves and tables by arithmetic before
//! anything is touched, and there is a file for each way of making the map: [`direct`], which
//! takes its tables from memory that the map already covers, and [`window`], which reaches every
//! table through a fixmap slot as the published strategies do. Which pieces there are and what
//! may be done with each is the kernel's to say.

pub mod census;
pub mod direct;
pub mod placement;
mod traced;
pub mod window;

pub use census::Census;
pub use direct::Arena;
pub use placement::Placement;
pub use traced::TracedWindows;
