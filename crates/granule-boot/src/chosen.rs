//! Properties of `/chosen` that more than one part reads or writes: their names, and the place of the initial
//! ramdisk. Consoles and seeds are looked for in `peek`.

use super::tree::{Node, Range, Tree};
use thiserror::Error;

/// The first address of the initial ramdisk.
pub const INITRD_START: &[u8] = b"linux,initrd-start";
/// The address behind the initial ramdisk.
pub const INITRD_END: &[u8] = b"linux,initrd-end";
/// The physical address of EFI's system table.
pub const UEFI_SYSTEM_TABLE: &[u8] = b"linux,uefi-system-table";
/// The physical address of EFI's memory map.
pub const UEFI_MAP_START: &[u8] = b"linux,uefi-mmap-start";
/// The bytes of EFI's memory map.
pub const UEFI_MAP_BYTES: &[u8] = b"linux,uefi-mmap-size";
/// The bytes of a descriptor of that map.
pub const UEFI_DESCRIPTOR_BYTES: &[u8] = b"linux,uefi-mmap-desc-size";
/// The version of the descriptors of that map.
pub const UEFI_DESCRIPTOR_VERSION: &[u8] = b"linux,uefi-mmap-desc-ver";
/// The memory that the previous kernel leaves to this one.
pub const USABLE_MEMORY_RANGE: &str = "linux,usable-memory-range";

/// Why the words for an initial ramdisk name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InitrdError {
    /// One of the two words is missing.
    #[error("has only one of linux,initrd-start and linux,initrd-end")]
    Alone,
    /// A word is not a number.
    #[error("has a linux,initrd-start or linux,initrd-end that is not one number of 32 or 64 bits")]
    NotANumber,
    /// The end is not above the start.
    #[error("has a linux,initrd-end that is not above linux,initrd-start")]
    Empty,
}

impl Tree<'_> {
    /// The memory of the initial ramdisk, if `/chosen` names one of at least a byte.
    #[must_use]
    pub fn initial_ramdisk(&self) -> Option<Range> {
        self.initrd_words().ok().flatten()
    }

    /// The memory of the initial ramdisk; `None` without words for it.
    ///
    /// # Errors
    ///
    /// Fails if the words contradict each other.
    pub fn initrd_words(&self) -> Result<Option<Range>, InitrdError> {
        let chosen = self.root().and_then(|root| root.child(b"chosen"));
        let word = |name| chosen.and_then(|chosen: Node<'_>| chosen.property(name));
        match (word(INITRD_START), word(INITRD_END)) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {}
            _ => return Err(InitrdError::Alone),
        }
        let number = |name| chosen.and_then(|chosen: Node<'_>| chosen.number(name));
        let numbers = number(INITRD_START).zip(number(INITRD_END));
        let (start, end) = numbers.ok_or(InitrdError::NotANumber)?;
        let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(InitrdError::Empty)?;
        Ok(Some(Range { start, bytes }))
    }
}
