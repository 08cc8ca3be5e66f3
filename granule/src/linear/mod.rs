//! The linear map: all of RAM at one distance from its physical address.
//!
//! [`placement`] chooses the distance, [`census`] counts leaves and tables by arithmetic before
//! anything is touched, and [`expected`](mod@expected) what a published way will take.
//! [`strategy`] names the ways of making the map, and there is a room for each kind: [`direct`],
//! which takes its tables from memory that the map already covers, and [`window`], which reaches
//! every table through a fixmap slot as the published ways do. Which pieces there are and what may
//! be done with each is the kernel's to say.

pub mod census;
pub mod direct;
pub mod expected;
pub mod placement;
pub mod strategy;
pub mod window;

pub use census::Census;
pub use direct::Arena;
pub use expected::{Expected, expected};
pub use placement::Placement;
pub use strategy::{Barriers, Published, Strategy};
