//! System calls about memory: only anonymous, private memory.

use super::{Arguments, CallResult};
use crate::task::exec::LOWEST;
use crate::task::platform;
use crate::task::process::out_of_memory;
use crate::task::task_table::Current;
use granule::arch::VirtualAddress;
use granule::space::{Advice, Rights};
use granule_linux_abi::abi::Errno;

const PROT_READ: u64 = 1;
const PROT_WRITE: u64 = 2;
const PROT_EXEC: u64 = 4;
const MAP_PRIVATE: u64 = 2;
const MAP_TYPE: u64 = 0xf;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MADV_DONTNEED: u64 = 4;
const MADV_HUGEPAGE: u64 = 14;
const MADV_NOHUGEPAGE: u64 = 15;

pub(crate) fn rights(protection: u64) -> Result<Rights, Errno> {
    if protection & !(PROT_READ | PROT_WRITE | PROT_EXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Rights {
        read: protection & PROT_READ != 0,
        write: protection & PROT_WRITE != 0,
        execute: protection & PROT_EXEC != 0,
    })
}

/// The bytes of the whole pages of `page` bytes in `length` bytes from `start`, which must be page aligned.
fn whole_pages(page: u64, start: u64, length: u64) -> Result<u64, Errno> {
    if !start.is_multiple_of(page) || length == 0 {
        return Err(Errno::EINVAL);
    }
    let bytes = length.checked_next_multiple_of(page).ok_or(Errno::ENOMEM)?;
    let end = start.checked_add(bytes).ok_or(Errno::ENOMEM)?;
    if end > platform::end() {
        return Err(Errno::ENOMEM);
    }
    Ok(bytes)
}

pub(super) fn mmap(
    current: &mut Current<'_>,
    [wanted, length, protection, flags, _, _]: Arguments,
) -> CallResult {
    if flags & MAP_ANONYMOUS == 0 {
        return Err(Errno::ENODEV);
    }
    // Only private memory: MAP_SHARED and MAP_SHARED_VALIDATE, for sharing with later children, are not
    // supported.
    if flags & MAP_TYPE != MAP_PRIVATE {
        return Err(Errno::EINVAL);
    }
    let space = current.memory().ok_or(Errno::ENOMEM)?;
    let page = space.page_bytes();
    let rights = rights(protection)?;
    let fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
    let start = if fixed { wanted } else { 0 };
    let bytes = whole_pages(page, start, length)?;
    if fixed && start < LOWEST {
        return Err(Errno::EPERM);
    }
    space.with(|tables| {
        let mut start = start;
        if !fixed {
            // The hint is used if that range is free.
            let hint = wanted & !(page - 1);
            let end = hint.saturating_add(bytes);
            let fits = hint >= LOWEST && end <= platform::end();
            let (low, high) = (VirtualAddress(hint), VirtualAddress(end));
            if fits && tables.vmas().overlapping(low, high).next().is_none() {
                start = hint;
            } else {
                let top = VirtualAddress(crate::task::exec::mappings_end());
                // Alignment to the largest group makes larger ranges consist of whole contiguous groups.
                let align = if bytes >= GROUP { GROUP } else { page };
                let gap =
                    tables
                        .vmas()
                        .find_gap(bytes, align.max(page), VirtualAddress(LOWEST), top);
                start = gap.ok_or(Errno::ENOMEM)?.0;
            }
        }
        let done = if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED {
            tables.replace(start, bytes, Some((rights, LABEL)))
        } else {
            tables.map(start, bytes, rights, LABEL)
        };
        done.map_err(out_of_memory)?;
        Ok(start)
    })
}

/// The size of the largest contiguous group of last-level pages, over all page sizes.
const GROUP: u64 = 2 << 20;
/// The only label: areas of all kinds are treated alike.
const LABEL: u8 = 0;

pub(super) fn munmap(current: &mut Current<'_>, [start, length, ..]: Arguments) -> CallResult {
    let space = current.memory().ok_or(Errno::EINVAL)?;
    let bytes = whole_pages(space.page_bytes(), start, length).map_err(|_| Errno::EINVAL)?;
    space.change(|tables| tables.replace(start, bytes, None))?;
    Ok(0)
}

pub(super) fn mprotect(
    current: &mut Current<'_>,
    [start, length, protection, ..]: Arguments,
) -> CallResult {
    let rights = rights(protection)?;
    let space = current.memory().ok_or(Errno::ENOMEM)?;
    let page = space.page_bytes();
    if length == 0 && start.is_multiple_of(page) {
        return Ok(0);
    }
    let bytes = whole_pages(page, start, length)?;
    space.change(|tables| tables.protect(start, bytes, rights))?;
    Ok(0)
}

/// Accepts any advice; acts on advice that memory is not needed, and on that about the size of leaves.
pub(super) fn madvise(
    current: &mut Current<'_>,
    [start, length, advice, ..]: Arguments,
) -> CallResult {
    if length == 0 {
        return Ok(0);
    }
    let space = current.memory().ok_or(Errno::ENOMEM)?;
    let bytes = whole_pages(space.page_bytes(), start, length).map_err(|_| Errno::EINVAL)?;
    space.change(|tables| match advice {
        MADV_DONTNEED => tables.discard(start, bytes),
        MADV_HUGEPAGE => tables.advise(start, bytes, Advice::Large),
        MADV_NOHUGEPAGE => tables.advise(start, bytes, Advice::Pages),
        _ => Ok(()),
    })?;
    Ok(0)
}

/// Moves the end of the heap. Returns the end, unchanged if it cannot move.
pub(super) fn brk(current: &mut Current<'_>, [wanted, ..]: Arguments) -> CallResult {
    let heap = current.own.heap.clone();
    let space = current.memory().ok_or(Errno::ENOMEM)?;
    let page = space.page_bytes();
    if wanted < heap.start || wanted > platform::end() {
        return Ok(heap.end);
    }
    let (old, new) = (
        heap.end.next_multiple_of(page),
        wanted.next_multiple_of(page),
    );
    let moved = space.with(|tables| {
        if new > old {
            tables.map(old, new - old, Rights::READ_WRITE, LABEL)
        } else if new < old {
            tables.replace(new, old - new, None)
        } else {
            Ok(())
        }
    });
    if moved.is_err() {
        return Ok(heap.end);
    }
    current.own.heap.end = wanted;
    Ok(wanted)
}
