//! Disks: read and written at any offset, to their end.

use super::files::{close, read, write};
use super::modules::open;
use super::number;
use crate::{check, check_eq};
use granule_programs::calls::{LSEEK, call};
use granule_programs::start::Start;

const ENOSPC: i64 = -28;

fn seek(fd: i64, to: i64, from: u64) -> i64 {
    call(LSEEK, [fd as u64, to as u64, from])
}

/// Writes and reads a disk of zeros, and calls `while_open`; each round, from 1 on, writes elsewhere.
pub(super) fn use_disk(path: &[u8], disk_bytes: u64, round: u64, while_open: impl FnOnce()) {
    let fd = open(path, 2);
    check!(fd >= 0, "open the disk: {fd}");
    let mut bytes = [0; 5000];
    check_eq!(read(fd, &mut bytes), 5000, "read");
    check!(bytes.iter().all(|byte| *byte == 0), "zeros");
    bytes.fill(round as u8 | 1);
    let at = (round * 4093 % (disk_bytes - 5000)) as i64;
    check_eq!(seek(fd, at, 0), at, "lseek");
    check_eq!(write(fd, &bytes), 5000, "write");
    // Within what was written, and over the end of a sector.
    bytes[1000..1100].fill(2);
    check_eq!(seek(fd, at + 1000, 0), at + 1000, "lseek into it");
    check_eq!(write(fd, &bytes[1000..1100]), 100, "write a little");
    check_eq!(seek(fd, at - 1, 0), at - 1, "lseek back");
    let mut around = [7; 5002];
    check_eq!(read(fd, &mut around), 5002, "read around");
    check!(around[0] == 0 && around[5001] == 0, "bytes beside");
    check!(around[1..5001] == bytes, "bytes");
    check_eq!(seek(fd, -1, 2), disk_bytes as i64 - 1, "lseek to the end");
    check_eq!(write(fd, &[9, 9]), 1, "write over the end");
    check_eq!(write(fd, &[9]), ENOSPC, "write at the end");
    check_eq!(read(fd, &mut bytes), 0, "read at the end");
    while_open();
    close(fd);
}

/// Uses the machine's disk, of as many bytes as the argument.
pub(super) fn disk(start: Start) {
    use_disk(b"/dev/vda\0", number(start.argument(2)), 1, || ());
}
