//! Arm VMSAv8-64 as values.
//!
//! This module holds facts of the architecture: page sizes, levels, descriptors, attributes, values
//! of the translation registers, decoded ID registers, the changes that need break-before-make, the
//! CPUs that are trusted to need it less, and the operands of TLBIs. It touches no memory and
//! issues no instruction, so all of it runs and is tested on any host.
//!
//! Rule names such as RWHZWS are those of the Arm Architecture Reference Manual (DDI 0487),
//! chapter D8.

pub mod attributes;
pub mod bbm;
pub mod bbm_policy;
pub mod descriptor;
pub mod errata;
pub mod fault_status;
pub mod features;
pub mod geometry;
pub mod midr;
pub mod page_size;
pub mod regime;
pub mod registers;
pub mod stage2;
pub mod tlbi;
pub mod translation;

pub use attributes::{Attributes, MemoryType, Permissions, Shareability};
pub use descriptor::{Descriptor, Kind};
pub use fault_status::FaultStatus;
pub use features::{CpuFeatures, IdRegisters};
pub use geometry::{
    Geometry, GeometryError, OutputFormat, PhysicalAddress, VaRange, VirtualAddress,
};
pub use page_size::{Dispatch, Level, Page, Page4K, Page16K, Page64K, PageSize};
pub use regime::Regime;
pub use stage2::{IntermediateAddress, Stage2Attributes, Stage2Geometry, Stage2Permissions};
pub use translation::{Sctlr, Translation, TranslationError};
