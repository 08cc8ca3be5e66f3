//! `granule boot` under a real QEMU, from the library's side and from the
//! command's, with guests that are a few instructions long: the kernel has no
//! part in these tests, so that a failure here is one of the command.

mod command;
pub(crate) mod guests;
mod kexec;
#[cfg(target_os = "linux")]
mod live;
mod outcomes;
