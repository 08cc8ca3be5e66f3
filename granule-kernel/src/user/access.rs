//! Copies between the kernel and what a program points to: through the frames that are, or by this
//! become, the program's pages there, and the linear map.
//!
//! The kernel never uses a program's address itself, so a bad one is an error and no exception. The
//! space's lock is held for one page at a time: the frame stays the program's while it is copied.

use super::memory::{self, AddressSpace};
use crate::mm::live::pointer;
use core::ops::Range;
use granule::space::{Access, SpaceError};
use granule::table::TableError;
use granule_linux_abi::abi::Errno;
use zerocopy::{Immutable, IntoBytes};

/// What a program is told of an error of its address space, where it named an address.
fn fault(error: SpaceError) -> Errno {
    match error {
        SpaceError::OutOfFrames { .. }
        | SpaceError::AreasFull { .. }
        | SpaceError::Tables(TableError::OutOfTables { .. }) => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

/// The pieces, each inside a page, of `length` bytes from `address`, as addresses; a range that
/// leaves user space is an error before anything is copied.
fn pieces(address: u64, length: usize) -> Result<impl Iterator<Item = Range<u64>>, Errno> {
    let end = address
        .checked_add(length as u64)
        .filter(|end| *end <= memory::end())
        .ok_or(Errno::EFAULT)?;
    let page = memory::page_bytes();
    let mut at = address;
    Ok(core::iter::from_fn(move || {
        let start = at;
        at = end.min((start | (page - 1)) + 1);
        (start < end).then_some(start..at)
    }))
}

impl AddressSpace {
    // These two once: walking and locking are long, and nearly every system call copies.
    /// Copies from `address` on; the bytes may change while they are copied.
    #[inline(never)]
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let mut rest = into;
        for piece in pieces(address, rest.len())? {
            let count = (piece.end - piece.start) as usize;
            let (now, behind) = rest.split_at_mut_checked(count).ok_or(Errno::EFAULT)?;
            rest = behind;
            self.with_page(piece.start, Access::Read, |from| {
                // SAFETY: inside a page of the program, which the linear map shows; the program may
                // write it meanwhile, for which any byte will do.
                unsafe { from.copy_to(now.as_mut_ptr(), count) };
            })?;
        }
        Ok(())
    }

    /// Copies to `address` on. After an error some of it may have been written.
    #[inline(never)]
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let mut rest = from;
        for piece in pieces(address, rest.len())? {
            let count = (piece.end - piece.start) as usize;
            let (now, behind) = rest.split_at_checked(count).ok_or(Errno::EFAULT)?;
            rest = behind;
            self.with_page(piece.start, Access::Write, |to| {
                // SAFETY: as in `read`, and this space alone has the page: it was asked for writing.
                unsafe { to.copy_from(now.as_ptr(), count) };
            })?;
        }
        Ok(())
    }

    /// Sees to it that `bytes` bytes from `address` on can be written, without writing any.
    pub(crate) fn make_writable(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        for piece in pieces(address, bytes as usize)? {
            self.with_page(piece.start, Access::Write, |_| ())?;
        }
        Ok(())
    }

    /// Writes a value.
    pub(crate) fn write_value<T: IntoBytes + Immutable>(
        &self,
        address: u64,
        value: &T,
    ) -> Result<(), Errno> {
        self.write(address, value.as_bytes())
    }

    /// Calls `what` with where the kernel reaches `address`, for the rest of its page, under the
    /// lock.
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
