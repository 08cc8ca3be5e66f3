//! Copies between the kernel and a program's memory, through the frames mapped there and the linear map.
//! A missing page is faulted in first.
//!
//! The kernel never dereferences a program's address, so a bad address gives an error and no exception.
//! The space's lock is held for one page at a time; meanwhile the frame cannot leave the program.

#![allow(unsafe_code, reason = "a program's pages through the linear map")]

use super::address_space::AddressSpace;
use super::platform;
use crate::mm::kernel_tables::pointer;
use core::ops::Range;
use granule::space::{Access, SpaceError};
use granule::table::TableError;
use granule_linux_abi::abi::Errno;
use zerocopy::{Immutable, IntoBytes};

/// The error number that a program gets when an address in its call fails.
fn fault(error: SpaceError) -> Errno {
    match error {
        SpaceError::OutOfFrames { .. }
        | SpaceError::OutOfVmaNodes { .. }
        | SpaceError::Tables(TableError::OutOfTables { .. }) => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

/// Splits `length` bytes from `address` into ranges that each lie in one page of `page` bytes. Fails before the first
/// copy if the range leaves user space.
fn pieces(
    page: u64,
    address: u64,
    length: usize,
) -> Result<impl Iterator<Item = Range<u64>>, Errno> {
    let end = address
        .checked_add(length as u64)
        .filter(|end| *end <= platform::end())
        .ok_or(Errno::EFAULT)?;
    let mut at = address;
    Ok(core::iter::from_fn(move || {
        let start = at;
        at = end.min((start | (page - 1)) + 1);
        (start < end).then_some(start..at)
    }))
}

impl AddressSpace {
    // `inline(never)`: the walk and the lock are long, and nearly every system call copies.
    /// Copies from `address` on. The program may change the bytes meanwhile.
    #[inline(never)]
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let mut rest = into;
        for piece in pieces(self.page_bytes(), address, rest.len())? {
            let count = (piece.end - piece.start) as usize;
            let (now, behind) = rest.split_at_mut_checked(count).ok_or(Errno::EFAULT)?;
            rest = behind;
            self.with_page(piece.start, Access::Read, |from| {
                // SAFETY: the piece lies inside a page of the program, which the linear map covers. The
                // program may write it meanwhile, and any byte is valid.
                unsafe { from.copy_to(now.as_mut_ptr(), count) };
            })?;
        }
        Ok(())
    }

    /// Copies to `address` on. After an error some bytes may have been written.
    #[inline(never)]
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let mut rest = from;
        for piece in pieces(self.page_bytes(), address, rest.len())? {
            let count = (piece.end - piece.start) as usize;
            let (now, behind) = rest.split_at_checked(count).ok_or(Errno::EFAULT)?;
            rest = behind;
            self.with_page(piece.start, Access::Write, |to| {
                // SAFETY: as in `read`; the page was requested for writing, so only this space maps it.
                unsafe { to.copy_from(now.as_ptr(), count) };
            })?;
        }
        Ok(())
    }

    /// Makes `bytes` bytes from `address` on writable without writing them.
    pub(crate) fn make_writable(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        for piece in pieces(self.page_bytes(), address, bytes as usize)? {
            self.with_page(piece.start, Access::Write, |_| ())?;
        }
        Ok(())
    }

    pub(crate) fn write_value<T: IntoBytes + Immutable>(
        &self,
        address: u64,
        value: &T,
    ) -> Result<(), Errno> {
        self.write(address, value.as_bytes())
    }

    /// Calls `what` with the linear address of `address`, for the rest of its page, under the lock.
    fn with_page(
        &self,
        address: u64,
        access: Access,
        what: impl FnOnce(*mut u8),
    ) -> Result<(), Errno> {
        self.with(|tables| {
            let physical = tables.frame_for(address, access).map_err(fault)?;
            what(pointer(physical).ok_or(Errno::EFAULT)?.as_ptr());
            Ok(())
        })
    }
}
