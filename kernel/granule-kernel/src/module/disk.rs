//! The disk that a module may add, which programs read and write as `/dev/ram0`.
//!
//! The process table has the number of its bytes, and knows who has it open. The module's function is called with no
//! lock of the process table, by one CPU at a time.

#![allow(unsafe_code, reason = "calls a module's function")]

use crate::lock::{Lock, UnmaskedLock};
use crate::task::process_table;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::env::Transfer;
use granule_linux_abi::files::source::Source;
use granule_module::Disk;

/// The disk. Its holder may call its function.
static DISK: UnmaskedLock<Option<Disk>> = UnmaskedLock::new(None);

/// Whether a disk may be added now.
enum Adding {
    /// Nothing: no `module_init` runs.
    Closed,
    /// A disk.
    Open,
    /// A disk was added by the `module_init` that runs.
    Added,
}

static ADDING: Lock<Adding> = Lock::new(Adding::Closed);

/// Runs `init`, which may add a disk. Returns its result, and whether it added one.
pub(super) fn while_adding<R>(init: impl FnOnce() -> R) -> (R, bool) {
    ADDING.with(|adding| *adding = Adding::Open);
    let result = init();
    let before = ADDING.with(|adding| core::mem::replace(adding, Adding::Closed));
    (result, matches!(before, Adding::Added))
}

/// Adds a disk. Returns whether there was none, and `module_init` runs.
pub(super) fn add(disk: Disk) -> bool {
    DISK.with(|slot| {
        let may = ADDING.with(|adding| {
            let may = slot.is_none() && matches!(adding, Adding::Open);
            if may {
                *adding = Adding::Added;
            }
            may
        });
        if may {
            *slot = Some(disk);
        }
        may
    })
}

/// Shows the disk, if there is one, to programs.
pub(super) fn show() {
    if let Some(bytes) = DISK.with(|disk| disk.map(|disk| disk.bytes)) {
        // Never fails: the disk has no name of its own.
        let _ = process_table::with(|it| it.files.add_source(Source::RamDisk, bytes));
    }
}

/// Hides the disk from programs, unless one has it open. Returns whether it is hidden.
pub(super) fn close() -> bool {
    process_table::with(|processes| processes.files.remove_source(Source::RamDisk))
}

/// Removes the disk, which no program has open.
pub(super) fn remove() {
    DISK.with(|disk| *disk = None);
}

/// Moves bytes that lie in the disk.
pub(crate) fn transfer(at: u64, bytes: Transfer<'_>) -> Result<(), Errno> {
    DISK.with(|disk| {
        let disk = disk.ok_or(Errno::ENXIO)?;
        let (memory, count, writes) = match bytes {
            Transfer::Read(into) => (into.as_mut_ptr(), into.len(), 0),
            Transfer::Write(from) => (from.as_ptr().cast_mut(), from.len(), 1),
        };
        // SAFETY: the module is loaded while it has a disk, by the interface its function takes a range of the disk,
        // and memory that it reads where it must not write.
        unsafe { (disk.transfer)(at, memory, count, writes) };
        Ok(())
    })
}
