//! The properties of `/chosen` by which the EFI stub, or a kernel before this one, names firmware's tables.
//! They are those of Linux.

use super::super::chosen::{
    UEFI_DESCRIPTOR_BYTES, UEFI_DESCRIPTOR_VERSION, UEFI_MAP_BYTES, UEFI_MAP_START,
    UEFI_SYSTEM_TABLE,
};
use super::super::efi::Map;
use super::super::tree::{Range, Tree};
use super::ExpandError;

/// Where firmware's tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address of the system table.
    pub system_table: u64,
    /// The memory of the memory map.
    pub map: Range,
    /// The size of one of its descriptors.
    pub descriptor: u32,
    /// The version of its descriptors.
    pub version: u32,
}

impl Request {
    /// Reads the request from `tree`; `None` if the machine was not started by EFI firmware.
    ///
    /// # Errors
    ///
    /// Fails if only some of the properties are there, or sizes are out of range.
    pub fn of(tree: &Tree<'_>) -> Result<Option<Self>, ExpandError> {
        let chosen = tree.root().and_then(|root| root.child(b"chosen"));
        let number = |name: &[u8]| chosen.and_then(|chosen| chosen.number(name));
        let short = |name: &[u8]| number(name).and_then(|number| u32::try_from(number).ok());
        let all = [
            number(UEFI_SYSTEM_TABLE),
            number(UEFI_MAP_START),
            short(UEFI_MAP_BYTES).map(u64::from),
            short(UEFI_DESCRIPTOR_BYTES).map(u64::from),
            short(UEFI_DESCRIPTOR_VERSION).map(u64::from),
        ];
        if all.iter().all(Option::is_none) {
            return Ok(None);
        }
        let [
            Some(system_table),
            Some(start),
            Some(bytes),
            Some(descriptor),
            Some(version),
        ] = all
        else {
            return Err(ExpandError::Incomplete);
        };
        let (descriptor, version) = (descriptor as u32, version as u32);
        Map::check(bytes, descriptor, version)?;
        start.checked_add(bytes).ok_or(ExpandError::Incomplete)?;
        Ok(Some(Self {
            system_table,
            map: Range { start, bytes },
            descriptor,
            version,
        }))
    }
}
