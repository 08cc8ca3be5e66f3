//! The linear map: all of RAM at one distance from its physical address.
//!
//! [`placement`] chooses the distance. [`census`] counts leaves and tables by arithmetic before
//! anything is written, and [`expected`](mod@expected) predicts the cost of each published
//! strategy. [`strategy`] names the strategies. Two modules build the map: [`direct`] takes tables
//! from memory that the map already covers, and [`window`] reaches every table through a fixmap
//! slot, as the published strategies do. The kernel decides which pieces of RAM exist and which
//! rights each has; no such decision belongs here.

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
