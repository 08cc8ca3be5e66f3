//! The linear map: all of RAM at one distance from its physical address.
//!
//! A [`Placement`] chooses the distance, and [`Places`] are the others at which the map is equal.
//! [`LeafStats`] count leaves and tables by arithmetic before anything is written. [`create`]
//! builds the map, and takes tables from memory that the map already covers. With the feature `published`,
//! `fixmap` reaches every table through a fixmap slot, as the published strategies do. The kernel decides
//! which pieces of RAM exist and which rights each has; no such decision belongs here.

mod direct;
#[cfg(feature = "published")]
pub mod fixmap;
mod leaf_stats;
mod placement;
#[cfg(feature = "published")]
mod strategy;

pub use direct::{Arena, create};
pub use leaf_stats::LeafStats;
pub use placement::{Placement, Places};
#[cfg(feature = "published")]
pub use strategy::{Barriers, Strategy};
