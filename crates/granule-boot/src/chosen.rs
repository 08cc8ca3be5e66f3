//! Properties of `/chosen` that more than one part reads or writes: their names, and the place of the initial
//! ramdisk. Consoles and seeds are looked for in `peek`.

use super::tree::{Range, Tree};

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

impl Tree<'_> {
    /// The memory of the initial ramdisk, if `/chosen` names one of at least a byte.
    #[must_use]
    pub fn initial_ramdisk(&self) -> Option<Range> {
        let chosen = self.root()?.child(b"chosen")?;
        let start = chosen.number(INITRD_START)?;
        let bytes = chosen.number(INITRD_END)?.checked_sub(start)?;
        (bytes > 0).then_some(Range { start, bytes })
    }
}
