//! System calls that change registers, tasks or address spaces. All others are in
//! [`granule_linux_abi::syscall`]; [`dispatch`] maps numbers to functions.

mod dispatch;
mod memory;
mod tasks;

pub(crate) use dispatch::{enter, tell_unknown};

use granule_linux_abi::abi::Errno;

/// The result of a call that cannot be interrupted.
pub(crate) type Outcome = core::result::Result<u64, Errno>;

/// x0 to x5.
pub(crate) type Arguments = [u64; 6];
