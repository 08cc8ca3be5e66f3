//! The way to a table: from the root pointer (RSDP) to the list of tables (XSDT), and to the table with a
//! signature. Fields of tables do not belong here.

use super::super::bytes::{le32, le64, same};
use super::super::efi::Physical;
use thiserror::Error;

/// Bytes of the root pointer of revision 2.
const RSDP_BYTES: u64 = 36;
/// Its first bytes, which have a checksum of their own.
const RSDP_FIRST: usize = 20;
/// Bytes of the header of each table.
pub(super) const HEADER_BYTES: usize = 36;
/// The largest table that is read: that of a machine with thousands of CPUs is smaller.
const MOST_BYTES: u32 = 1 << 20;
/// The most tables that the list may name.
const MOST_TABLES: usize = 256;

/// A table that cannot be used, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("ACPI: the table {} {fault}", table.escape_ascii())]
pub struct AcpiError {
    /// The table's signature.
    pub table: [u8; 4],
    /// The fault that was found in it.
    pub fault: Fault,
}

/// A fault of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// There is none.
    #[error("is missing")]
    Missing,
    /// It does not lie in memory that firmware lists.
    #[error("does not lie in memory of the EFI memory map")]
    Unlisted,
    /// Its signature is another.
    #[error("has another signature")]
    Signature,
    /// Its length is too small for its fields, or far too large.
    #[error("is too short for its fields, or longer than 1 MiB")]
    Length,
    /// The sum of its bytes is not 0.
    #[error("has a wrong checksum: the sum of its bytes must be 0")]
    Checksum,
    /// Its revision is too old.
    #[error("has a revision before 2")]
    Revision,
    /// An entry has a length of 0, or one that reaches behind the table's end.
    #[error("has an entry that does not end inside it; what follows is left out")]
    Entry,
}

pub(super) const fn error(table: [u8; 4], fault: Fault) -> AcpiError {
    AcpiError { table, fault }
}

/// The list of tables.
#[derive(Debug)]
pub struct Tables<'p, P> {
    memory: &'p P,
    /// The addresses of tables, 8 bytes each.
    list: &'p [u8],
}

impl<'p, P: Physical> Tables<'p, P> {
    /// Reads the list of tables below the root pointer at this address.
    ///
    /// # Errors
    ///
    /// Fails if the pointer or the list is missing or malformed.
    pub fn new(memory: &'p P, rsdp: u64) -> Result<Self, AcpiError> {
        let wrong = |fault| error(*b"RSDP", fault);
        let pointer = memory.read(rsdp, RSDP_BYTES);
        let pointer = pointer.ok_or(wrong(Fault::Unlisted))?;
        if !pointer.get(..8).is_some_and(|it| same(it, b"RSD PTR ")) {
            return Err(wrong(Fault::Signature));
        }
        if pointer.get(15).is_none_or(|revision| *revision < 2) {
            return Err(wrong(Fault::Revision));
        }
        if le32(pointer, 20) != Some(RSDP_BYTES as u32) {
            return Err(wrong(Fault::Length));
        }
        let first = pointer.get(..RSDP_FIRST).unwrap_or_default();
        if sum(first) != 0 || sum(pointer) != 0 {
            return Err(wrong(Fault::Checksum));
        }
        let xsdt = table(memory, le64(pointer, 24).unwrap_or_default(), *b"XSDT")?;
        let list = xsdt.get(HEADER_BYTES..).unwrap_or_default();
        Ok(Self { memory, list })
    }

    /// The first table with this signature that has no fault.
    ///
    /// # Errors
    ///
    /// Fails with the fault of the first one, if all have one.
    pub fn find(&self, signature: [u8; 4]) -> Result<&'p [u8], AcpiError> {
        let mut fault = None;
        for entry in self.list.chunks_exact(8).take(MOST_TABLES) {
            let at = le64(entry, 0).unwrap_or_default();
            let found = table(self.memory, at, signature);
            match found {
                Ok(table) => return Ok(table),
                Err(error) if matches!(error.fault, Fault::Signature) => {}
                // A fault of this table, or of one whose signature cannot be read.
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        Err(fault.unwrap_or(error(signature, Fault::Missing)))
    }
}

/// The bytes of the table at an address, which must have this signature.
fn table<P: Physical>(memory: &P, at: u64, signature: [u8; 4]) -> Result<&[u8], AcpiError> {
    let wrong = |fault| error(signature, fault);
    let header = memory.read(at, HEADER_BYTES as u64);
    let header = header.ok_or(wrong(Fault::Unlisted))?;
    if !header.get(..4).is_some_and(|it| same(it, &signature)) {
        return Err(wrong(Fault::Signature));
    }
    let bytes = le32(header, 4).unwrap_or_default();
    if bytes < HEADER_BYTES as u32 || bytes > MOST_BYTES {
        return Err(wrong(Fault::Length));
    }
    let table = memory.read(at, bytes.into());
    let table = table.ok_or(wrong(Fault::Unlisted))?;
    if sum(table) == 0 {
        Ok(table)
    } else {
        Err(wrong(Fault::Checksum))
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}
