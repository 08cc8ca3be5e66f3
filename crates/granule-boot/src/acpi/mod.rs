//! ACPI's tables, as far as a kernel needs them to start: which table lies where, and the fields of a
//! few. There is no AML here, nor the meaning of a field for the kernel.
//!
//! Firmware's bytes are untrusted. Each table is read only where firmware lists memory, has a bounded
//! length and a checksum, and each list in it is walked once, from entry to entry.
//!
//! The readers are our own code. The crate `acpi` reaches memory through a callback that cannot refuse an
//! address, and logs formatted text; with the MMU off firmware's addresses must be checked first, and nothing
//! may format.

mod entries;
mod fadt;
mod gtdt;
mod madt;
mod root;
mod spcr;
mod srat;

pub use entries::Entries;
pub use fadt::Psci;
pub use gtdt::{Timer, timers};
pub use madt::{Cpu, Distributor, Madt};
pub use root::{AcpiError, Fault, Tables};
pub use spcr::{Console, ConsoleKind};
pub use srat::{Domains, NearCpu, NearMemory, Srat};
