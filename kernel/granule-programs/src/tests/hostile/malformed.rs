//! Programs that are damaged, run from EL0: of the archive's `/bad`, where the test puts them.
//!
//! Whatever one is, `execve` refuses it, or it runs and does what it likes to itself.

use super::{End, Victim, end_all_others, end_of};
use crate::check;
use crate::tests::page;
use crate::tests::processes::forked;
use granule_programs::calls::{call, say};
use granule_programs::start::Start;

const EXECVE: u64 = 221;
const OPENAT: u64 = 56;
const GETDENTS64: u64 = 61;
const HERE: u64 = -100_i64 as u64;

/// The exit code of a child whose `execve` came back.
const REFUSED: i32 = 77;
/// As above, but with another error than those there are for it.
const OTHER: i32 = 78;

/// Of each entry of a directory: its length, its name.
fn each_name(fd: i64, mut each: impl FnMut(&[u8])) {
    let mut bytes = [0_u8; 2048];
    loop {
        let at = bytes.as_mut_ptr() as u64;
        let used = call(GETDENTS64, [fd as u64, at, 2048, 0, 0, 0]);
        check!(used >= 0, "getdents64: {used}");
        let mut left = bytes.get(..used as usize).unwrap_or_default();
        if left.is_empty() {
            return;
        }
        while let Some(length) = left.get(16..18) {
            let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
            let name = left.get(19..length).unwrap_or_default();
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
            let name = name.get(..=end).unwrap_or_default();
            if !name.starts_with(b".") {
                each(name);
            }
            left = left.get(length..).unwrap_or_default();
        }
    }
}

pub(in crate::tests) fn malformed(start: Start) {
    let victim = Victim::new(page(start));
    let moved = call(49, [c"/bad".as_ptr() as u64, 0, 0, 0, 0, 0]);
    check!(moved == 0, "chdir: {moved}");
    let folder = call(OPENAT, [HERE, c".".as_ptr() as u64, 0o40000, 0, 0, 0]);
    check!(folder >= 0, "/bad: {folder}");
    let (mut refused, mut ran, mut ended, mut too_long) = (0, 0, 0, 0);
    each_name(folder, |name| {
        let pid = forked(|| {
            let arguments = [name.as_ptr() as u64, 0];
            let failed = call(
                EXECVE,
                [name.as_ptr() as u64, arguments.as_ptr() as u64, 0, 0, 0, 0],
            );
            // ENOEXEC, ENOMEM.
            if matches!(failed, -8 | -12) {
                REFUSED
            } else {
                OTHER
            }
        });
        const WAS_REFUSED: u32 = (REFUSED as u32) << 8;
        const WAS_OTHER: u32 = (OTHER as u32) << 8;
        match end_of(pid, 100) {
            End::Status(WAS_REFUSED) => refused += 1,
            End::Status(WAS_OTHER) => check!(false, "{}: another error", name.escape_ascii()),
            End::Status(status) if status & 0x7f == 0 => ran += 1,
            End::Status(_) => ended += 1,
            End::TooLong => too_long += 1,
        }
    });
    victim.end();
    end_all_others();
    say(format_args!(
        "programs: {refused} refused, {ran} ran, {ended} ended by a signal, {too_long} by others\n"
    ));
    say(format_args!("malformed\n"));
}
