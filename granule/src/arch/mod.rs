//! Arm VMSAv8-64 as values.
//!
//! Everything in here but `hw` is pure: page sizes, levels, descriptors, attributes, the
//! translation registers, what the ID registers say, which changes need break-before-make, which
//! CPUs are trusted to need it less, and what operand a TLBI takes. No memory is touched and no instruction issued, so all of it runs
//! and is tested on any host. `hw` is the one place that issues TLBIs, barriers and cache
//! operations, and exists only where the target is arm64.
//!
//! Rule names such as RWHZWS are those of the Arm Architecture Reference Manual (DDI 0487),
//! chapter D8.

pub mod attributes;
pub mod bbm;
pub mod descriptor;
pub mod errata;
pub mod features;
pub mod geometry;
#[cfg(target_arch = "aarch64")]
pub mod hw;
pub mod midr;
pub mod page_size;
pub mod registers;
pub mod tlbi;
pub mod trust;

pub use attributes::{Attributes, MemoryType, Permissions, Regime, Shareability};
pub use descriptor::{Descriptor, Kind};
pub use features::{CpuFeatures, IdRegisters};
pub use geometry::{Geometry, GeometryError, Half, OutputFormat, PhysicalAddress, VirtualAddress};
pub use page_size::{Dispatch, Level, Page, Page4K, Page16K, Page64K, PageSize};
