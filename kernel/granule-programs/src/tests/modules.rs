//! Modules: loaded, used and unloaded, once and often; files that are refused; and memory that runs out at every
//! allocation. The archive that the tests bring has `/ram-disk.o` and the node `/dev/ram0`.

use super::alloc_failure::{arm, free};
use super::disk::use_disk;
use super::files::close;
use super::processes::{forked, status_of};
use super::{number, page};
use crate::{check, check_eq};
use granule_programs::calls::{
    self, DELETE_MODULE, ENOENT, ENOMEM, FINIT_MODULE, HERE, INIT_MODULE, OPENAT, PRCTL, call, say,
};
use granule_programs::start::Start;

const FILE: &[u8] = b"/ram-disk.o\0";
const NAME: &[u8] = b"ram_disk\0";
const DISK: &[u8] = b"/dev/ram0\0";
const DISK_BYTES: u64 = 1 << 20;

const EAGAIN: i64 = -11;
const ENXIO: i64 = -6;
const EEXIST: i64 = -17;

/// The test image's numbers for the leaves of the kernel's tables, and for pages with two mappings: see its
/// `selftest::aliases`.
const LEAVES: u64 = 0x4752_4c56;
const ALIASES: u64 = 0x4752_414c;

pub(super) fn open(path: &[u8], flags: u64) -> i64 {
    call(OPENAT, [HERE, path.as_ptr() as u64, flags])
}

/// Uses the disk, which cannot be unloaded meanwhile.
fn use_ram_disk(round: u64) {
    use_disk(DISK, DISK_BYTES, round, || {
        check_eq!(unload(NAME), EAGAIN, "unload while it is open");
    });
}

/// Loads a file of the archive.
fn load(path: &[u8]) -> i64 {
    let fd = open(path, 0);
    check!(fd >= 0, "open: {fd}");
    let result = call(FINIT_MODULE, [fd as u64, c"".as_ptr() as u64]);
    close(fd);
    result
}

fn unload(name: &[u8]) -> i64 {
    call(DELETE_MODULE, [name.as_ptr() as u64])
}

/// The leaves of the kernel's tables, or an error where nobody counts them.
fn leaves() -> i64 {
    call(PRCTL, [LEAVES])
}

/// Checks the permissions of a loaded module's pages, through both mappings; `differ` if those of the linear map never
/// change.
fn permissions(differ: bool) {
    let counted = call(PRCTL, [ALIASES]);
    if counted >= 0 {
        let [differing, unsound, executable] = [0, 20, 40].map(|at| counted >> at & 0xf_ffff);
        check!(executable > 0, "no page is executable");
        check_eq!(differing > 0, differ, "{differing} pages differ");
        check_eq!(
            unsound > 0,
            differ,
            "{unsound} pages are writable and executable"
        );
    }
}

/// With an argument, for a map in which no page but the image's is ever read-only.
pub(super) fn modules(start: Start) {
    let before = leaves();
    check_eq!(open(DISK, 2), ENXIO, "no disk yet");
    check_eq!(unload(NAME), ENOENT, "not loaded yet");
    check_eq!(load(FILE), 0, "load");
    check_eq!(load(FILE), EEXIST, "load twice");
    check!(before < 0 || leaves() > before, "leaves while it is loaded");
    permissions(start.count() > 2);
    use_ram_disk(1);
    check_eq!(unload(NAME), 0, "unload");
    check_eq!(leaves(), before, "leaves after");
    check_eq!(open(DISK, 2), ENXIO, "no disk any more");
    from_memory();
    check_eq!(leaves(), before, "leaves after a load from memory");
    // Stays loaded: the kernel unloads it after the last program.
    check_eq!(load(FILE), 0, "load at the end");
    say(format_args!("loaded\n"));
}

/// `init_module`, of all and of a part of the bytes.
fn from_memory() {
    let bytes = 1 << 16;
    let Ok(at) = calls::map(bytes, calls::READ_WRITE) else {
        check!(false, "memory");
        return;
    };
    let fd = open(FILE, 0);
    let length = call(calls::READ, [fd as u64, at, bytes]);
    check!(length > 0 && length < bytes as i64, "read: {length}");
    close(fd);
    let empty = c"".as_ptr() as u64;
    let word = c"x=1".as_ptr() as u64;
    let load = |at, length, parameters| call(INIT_MODULE, [at, length, parameters]);
    check_eq!(load(at, 1000, empty), -8, "a part of a file");
    check_eq!(load(at, 0, empty), -8, "nothing");
    check_eq!(load(at, 1 << 40, empty), ENOMEM, "too much");
    check_eq!(load(16, 1000, empty), calls::EFAULT, "nowhere");
    check_eq!(
        load(at, length as u64, 16),
        calls::EFAULT,
        "parameters nowhere"
    );
    check_eq!(load(at, length as u64, word), calls::EINVAL, "parameters");
    check_eq!(load(at, length as u64, empty), 0, "from memory");
    use_ram_disk(2);
    check_eq!(unload(NAME), 0, "unload");
    check_eq!(
        call(FINIT_MODULE, [99, empty]),
        calls::EBADF,
        "no descriptor"
    );
    check_eq!(call(FINIT_MODULE, [99, empty, 4]), calls::EINVAL, "flags");
    check_eq!(call(DELETE_MODULE, [16]), calls::EFAULT, "a name nowhere");
}

/// Loads, uses and unloads so often; the argument is the number of rounds.
pub(super) fn thousand(start: Start) {
    let mut before = (0, 0);
    for round in 1..=number(start.argument(2)) {
        check_eq!(load(FILE), 0, "load {round}");
        use_ram_disk(round);
        check_eq!(unload(NAME), 0, "unload {round}");
        // This program's own pages are there after a round.
        let now = (leaves(), free());
        check!(
            round == 1 || now == before,
            "leaves and free memory: {now:?}, not {before:?}"
        );
        before = now;
    }
    say(format_args!("loaded and unloaded\n"));
}

/// Loads files that are refused, each with its error number.
pub(super) fn refused(start: Start) {
    let (before, memory) = (leaves(), free());
    for index in (2..start.count()).step_by(2) {
        let path = start.argument(index);
        let error = -(number(start.argument(index + 1)) as i64);
        check_eq!(load(path), error, "{}", path.escape_ascii());
    }
    check_eq!(leaves(), before, "leaves");
    check_eq!(free(), memory, "free memory");
    check_eq!(load(FILE), 0, "the sound file");
    check_eq!(unload(NAME), 0, "unload");
    say(format_args!("all refused\n"));
}

/// Loads with the n-th allocation failing, or every one from the n-th on, until none fails.
pub(super) fn alloc_failure(start: Start) {
    let page = page(start);
    for all in [0, 1] {
        let mut failed = 0;
        for first in 1.. {
            let (before, memory) = (leaves(), free());
            let pid = forked(|| {
                arm(first, all);
                let result = load(FILE);
                arm(0, 0);
                check!(
                    result == 0 || result == ENOMEM,
                    "load: {result}, {first} of {page}"
                );
                if result == 0 {
                    use_ram_disk(first);
                    check_eq!(unload(NAME), 0, "unload");
                    return 1;
                }
                check_eq!(unload(NAME), ENOENT, "nothing is loaded");
                0
            });
            let status = status_of(pid);
            check_eq!(leaves(), before, "leaves after {first}");
            check_eq!(free(), memory, "free memory after {first}");
            if status == 1 << 8 {
                break;
            }
            check_eq!(status, 0, "the child, {first}");
            failed = first;
        }
        check!(failed >= 3, "only {failed} allocations failed");
        say(format_args!("{failed} failures\n"));
    }
    say(format_args!("out of memory\n"));
}
