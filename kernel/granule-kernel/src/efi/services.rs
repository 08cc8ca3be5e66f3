//! The runtime services by name: variables, and the end.

#![allow(
    unsafe_code,
    reason = "calls of services with the arguments that they take"
)]

use super::call::{Error, call};
#[cfg(feature = "test-image")]
use uefi_raw::Status;
use uefi_raw::table::runtime::ResetType;
use uefi_raw::{Guid, guid};

/// The vendor of the specification's own variables.
const GLOBAL: Guid = guid!("8be4df61-93ca-11d2-aa0d-00e098032b8c");

/// The most letters of a variable's name that [`next_variable`] takes.
#[cfg(feature = "test-image")]
pub(crate) const MOST_LETTERS: usize = 512;

/// A name in UTF-16 with a NUL, of letters of ASCII.
pub(crate) const fn name<const LETTERS: usize>(text: &str) -> [u16; LETTERS] {
    assert!(text.len() < LETTERS, "no room for the NUL");
    let mut name = [0; LETTERS];
    let mut at = 0;
    while at < text.len() {
        name[at] = text.as_bytes()[at] as u16;
        at += 1;
    }
    name
}

/// Reads a variable, whose name ends with a NUL, into `into`. Returns its bytes and its attributes.
pub(crate) fn get_variable(
    name: &[u16],
    vendor: &Guid,
    into: &mut [u8],
) -> Result<(usize, u32), Error> {
    let (mut bytes, mut attributes) = (into.len(), 0_u32);
    let arguments = [
        name.as_ptr() as u64,
        &raw const *vendor as u64,
        &raw mut attributes as u64,
        &raw mut bytes as u64,
        into.as_mut_ptr() as u64,
    ];
    // SAFETY: GetVariable takes a name, a vendor, and places for attributes, size and data, as long as the size
    // says.
    unsafe { call("GetVariable", |services| services.get_variable, arguments)? };
    Ok((bytes.min(into.len()), attributes))
}

/// Sets a variable, whose name ends with a NUL.
#[cfg(feature = "test-image")]
pub(crate) fn set_variable(
    name: &[u16],
    vendor: &Guid,
    attributes: u32,
    data: &[u8],
) -> Result<(), Error> {
    let arguments = [
        name.as_ptr() as u64,
        &raw const *vendor as u64,
        u64::from(attributes),
        data.len() as u64,
        data.as_ptr() as u64,
    ];
    // SAFETY: SetVariable takes a name, a vendor, attributes, size and data.
    unsafe { call("SetVariable", |services| services.set_variable, arguments) }
}

/// Deletes a variable, whose name ends with a NUL.
#[cfg(feature = "test-image")]
pub(crate) fn delete_variable(name: &[u16], vendor: &Guid) -> Result<(), Error> {
    set_variable(name, vendor, 0, &[])
}

/// Goes to the next variable. A name that begins with a NUL is before the first. False behind the last.
#[cfg(feature = "test-image")]
pub(crate) fn next_variable(
    name: &mut [u16; MOST_LETTERS],
    vendor: &mut Guid,
) -> Result<bool, Error> {
    let mut bytes = size_of_val(name);
    let arguments = [
        &raw mut bytes as u64,
        name.as_mut_ptr() as u64,
        &raw mut *vendor as u64,
        0,
        0,
    ];
    // SAFETY: GetNextVariableName takes places for the size of the name, the name and the vendor.
    let done = unsafe {
        call(
            "GetNextVariableName",
            |services| services.next_variable,
            arguments,
        )
    };
    match done {
        Ok(()) => Ok(true),
        Err(Error::Status(Status::NOT_FOUND)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the firmware starts signed programs only; `None` if it does not say.
pub(crate) fn is_secure_boot() -> Option<bool> {
    const NAME: [u16; 11] = name("SecureBoot");
    let mut value = [0];
    let (bytes, _) = get_variable(&NAME, &GLOBAL, &mut value).ok()?;
    (bytes == 1).then_some(value == [1])
}

/// Turns the machine off by ResetSystem. Returns if that cannot be done.
pub(crate) fn shut_down() {
    let kind = u64::from(ResetType::SHUTDOWN.0);
    // SAFETY: ResetSystem takes a type, a status, and a size and a pointer of data, here none.
    let _ = unsafe {
        call(
            "ResetSystem",
            |services| services.reset_system,
            [kind, 0, 0, 0, 0],
        )
    };
}
