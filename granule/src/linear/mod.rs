//! The linear map: all of RAM at one distance from its physical address.
//!
//! [`placement`] chooses the distance. [`leaf_stats`] counts leaves and tables by arithmetic before
//! anything is written, and [`expected`](mod@expected) predicts the cost of each published
//! strategy. [`strategy`] names the strategies. Two modules build the map: [`direct`] takes tables
//! from memory that the map already covers, and [`fixmap`] reaches every table through a fixmap
//! slot, as the published strategies do. The kernel decides which pieces of RAM exist and which
//! rights each has; no such decision belongs here.

pub mod direct;
pub mod expected;
pub mod fixmap;
pub mod leaf_stats;
pub mod placement;
pub mod strategy;

pub use direct::Arena;
pub use expected::{Expected, expected};
pub use leaf_stats::LeafStats;
pub use placement::Placement;
pub use strategy::{Barriers, Published, Strategy};
