//! Reads the data that EFI firmware leaves in memory: its memory map, and the tables that its
//! system table names. All of it is untrusted: every read is bounded, and every walk ends. Calling
//! firmware does not belong here.

mod map;
mod system;

pub(crate) use map::EFI_PAGE;
pub use map::{Descriptor, Map, MapError, Role};
pub use system::{MemoryReservations, SystemError, Tables};

/// Physical memory that firmware wrote.
pub trait Physical {
    /// Returns the bytes from a physical address on; `None` unless firmware lists all of them as memory.
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]>;
}
