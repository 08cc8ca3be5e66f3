//! Programs that are damaged, run from EL0: of the archive's `/bad`, where the test puts them.
//!
//! Whatever one is, `execve` refuses it, or it runs and does what it likes to itself.

use super::{End, Victim, end_of};
use crate::tests::files::{each_name, run};
use crate::tests::page;
use crate::tests::processes::forked;
use crate::{check, check_eq};
use granule_programs::calls::{HERE, OPENAT, call, say};
use granule_programs::start::Start;

/// The exit code of a child whose `execve` came back.
const REFUSED: i32 = 77;
/// As above, but with another error than those there are for it.
const OTHER: i32 = 78;

pub(in crate::tests) fn malformed(start: Start) {
    let victim = Victim::new(page(start));
    check_eq!(call(49, [c"/bad".as_ptr() as u64]), 0, "chdir");
    let folder = call(OPENAT, [HERE, c".".as_ptr() as u64, 0o40000]);
    check!(folder >= 0, "/bad: {folder}");
    let (mut refused, mut ran, mut ended, mut too_long) = (0, 0, 0, 0);
    each_name(folder, |name| {
        if name.starts_with(b".") {
            return;
        }
        let pid = forked(|| {
            // ENOEXEC, ENOMEM.
            if matches!(run(name, &[name]), -8 | -12) {
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
    say(format_args!(
        "programs: {refused} refused, {ran} ran, {ended} ended by a signal, {too_long} by others\n"
    ));
    say(format_args!("malformed\n"));
}
