//! System calls that change registers, tasks or address spaces. All others are
//! [`granule_linux_abi::syscall`]'s; [`dispatch`] tells which function a number has.

mod dispatch;
mod memory;
mod tasks;

pub(crate) use dispatch::{enter, tell_unknown};

use granule_linux_abi::abi::Errno;

/// What a call that cannot be interrupted gives.
pub(crate) type Outcome = core::result::Result<u64, Errno>;

/// x0 to x5.
pub(crate) type Arguments = [u64; 6];
