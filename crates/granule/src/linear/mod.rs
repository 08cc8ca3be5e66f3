//! The linear map: all of RAM at one distance from its physical address.
//!
//! A [`Placement`] chooses the distance, and [`Places`] are the others at which the map is equal.
//! [`LeafStats`] count leaves and tables by arithmetic before anything is written, and
//! [`expected`](fn@expected) predicts the cost of each published [`Strategy`]. There are two ways to build
//! the map: [`create`] takes tables from memory that the map already covers, and [`fixmap`] reaches every
//! table through a fixmap slot, as the published strategies do. The kernel decides which pieces of RAM exist
//! and which rights each has; no such decision belongs here.
//!
//! The cost of a map is known without building it, from the tables, spans and entries that a range touches.
//! Tests show that this arithmetic equals the counts of the library's code and of the kernel. The builder of
//! the published strategies counts entries one run at a time, because counting each would be a good part of
//! the measured cost.

mod direct;
mod expected;
pub mod fixmap;
mod leaf_stats;
mod placement;
mod strategy;

pub use direct::{Arena, HasArena, arena_pages, create};
pub use expected::{Expected, expected};
pub use leaf_stats::LeafStats;
pub use placement::{Placement, Places};
pub use strategy::{Barriers, Published, Strategy};
