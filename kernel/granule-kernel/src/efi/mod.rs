//! Firmware's runtime services after the boot: EFI variables, and ResetSystem.
//!
//! [`begin()`] maps firmware's memory as `granule_kcore::efi::runtime` plans it, in a tree of its own that is in TTBR0
//! only during a call ([`tables`]). [`call`] makes one call at a time, [`services`] has the services by name.
//! This kernel never calls SetVirtualAddressMap: it can be called once, and a next kernel may want to. Where an
//! earlier kernel did, its addresses are used.
//!
//! Decisions about what is mapped do not belong here.

mod begin;
mod call;
mod services;
mod tables;

pub(crate) use begin::{Inputs, Off, begin};
#[cfg(feature = "test-image")]
pub(crate) use call::{Error, fault, has_begun, ruins, slow};
#[cfg(feature = "test-image")]
pub(crate) use services::{
    MOST_LETTERS, delete_variable, get_variable, name, next_variable, set_variable,
};
pub(crate) use services::{is_secure_boot, shut_down};
