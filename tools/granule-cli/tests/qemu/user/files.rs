//! Files, pipes, programs run by others, signals, and the console's input, on machines of every kind.

use granule_cli::PageSize::{K4, K16, K64};
use granule_cli::{Initramfs, Outcome};
use test_case::test_case;

use crate::user::machine::{ends, machine, machine_at, program};

/// An archive with what the programs look for.
pub(super) fn archive() -> Initramfs {
    Initramfs::new()
        .program("/init", &program())
        .directory("/etc")
        .file("/etc/text", b"0123456789")
        .link("/etc/link", "text")
        .program("/script9", b"#!/init exit\n")
        .program("/text", b"no program\n")
        .program("/lost", b"#!/none\n")
}

/// Every page size, on one CPU and on several, at either level.
#[test_case("files", "filed"; "files are read, listed and piped")]
#[test_case("execs", "executed"; "programs run others in their place")]
#[test_case("signals", "signalled"; "signals are handled, masked and end calls")]
fn everywhere(words: &str, line: &str) {
    for (size, cpus, el) in [
        (K4, 1, 2),
        (K4, 4, 1),
        (K16, 1, 1),
        (K16, 3, 2),
        (K64, 2, 2),
        (K64, 1, 1),
    ] {
        let request = machine_at(size, cpus, el).append(format!("-- {words}"));
        let ran = ends(&request, archive(), Outcome::Ok);
        ran.prints_line(line);
        ran.frames_came_back();
    }
}

#[test]
fn the_first_process_may_be_a_link_and_an_archive_may_be_bad() {
    let archive = Initramfs::new()
        .link("/init", "bin/prog")
        .program("/bin/prog", &program());
    let request = machine(K4, 1).append("-- hello");
    let ran = ends(&request, archive, Outcome::Ok);
    ran.prints_line("hello from process 1");
    let twice = Initramfs::new().file("/a", b"").file("/a/b", b"");
    let ran = ends(&request, twice, Outcome::Ok);
    ran.mentions("what one entry has as a directory another has as something else: no user space");
}
