//! Arm VMSAv8-64 as values.
//!
//! This module holds facts of the architecture: page sizes, levels, descriptors, attributes, values
//! of the translation registers, decoded ID registers, the changes that need break-before-make, the
//! CPUs that are trusted to need it less, and the operands of TLBIs. It touches no memory and
//! issues no instruction, so all of it runs and is tested on any host.
//!
//! Rule names such as RWHZWS are those of the Arm Architecture Reference Manual (DDI 0487),
//! chapter D8.

mod address;
pub(crate) mod attributes;
pub mod bbm;
pub mod bbm_policy;
pub(crate) mod descriptor;
pub mod errata;
pub(crate) mod fault_status;
pub(crate) mod features;
pub(crate) mod geometry;
mod geometry_error;
pub(crate) mod midr;
pub(crate) mod output_space;
pub(crate) mod page_size;
pub(crate) mod regime;
pub mod registers;
pub(crate) mod stage2;
pub mod tlbi;
pub(crate) mod translation;

pub use address::{IntermediateAddress, PhysicalAddress, VirtualAddress};
pub use attributes::{Attributes, MemoryType, Permissions, Shareability};
pub use descriptor::{Descriptor, Kind};
pub use fault_status::FaultStatus;
pub use features::{CpuFeatures, Support};
pub use geometry::{Geometry, LeafSize, OutputFormat, VaRange};
pub use geometry_error::GeometryError;
pub use midr::MidrRange;
pub use output_space::OutputSpace;
pub use page_size::{
    AnyPage, Dispatch, Level, Page, Page4K, Page16K, Page64K, PageChoice, PageSize,
};
pub use regime::Regime;
pub use stage2::{
    Execute, Stage2Attributes, Stage2Geometry, Stage2Memory, Stage2Permissions, Vtcr, Vttbr,
};
pub use translation::{Sctlr, Translation, TranslationError};
