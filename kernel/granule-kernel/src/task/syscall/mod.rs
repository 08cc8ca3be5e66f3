//! System calls that change registers, tasks or address spaces. All others are in
//! [`granule_linux_abi::syscall`]; [`dispatch`] maps numbers to functions.

mod dispatch;
mod memory;
mod tasks;

pub(crate) use dispatch::{enter, report_unknown};

use super::next_kernel::{Arguments, CallResult};
