//! A program written without this kernel in mind: Rust's standard library on musl, static,
//! unmodified under every page size.

use granule_cli::PageSize::{K4, K16, K64};
use granule_cli::{Initramfs, Outcome};

use crate::user::machine::{ends, machine, machine_at, with_std};

fn archive() -> Initramfs {
    Initramfs::new()
        .directory("/bin")
        .program("/bin/prog", &with_std())
        .directory("/etc")
        .file("/etc/text", b"0123456789")
        .link("/etc/link", "text")
}

#[test]
fn a_program_with_a_standard_library_runs_on_every_page_size() {
    for (size, cpus, el) in [
        (K4, 1, 2),
        (K4, 4, 1),
        (K16, 2, 2),
        (K64, 1, 1),
        (K64, 4, 2),
    ] {
        let request = machine_at(size, cpus, el).append("rdinit=/bin/prog");
        let ran = ends(&request, archive(), Outcome::Ok);
        for line in ["std: /bin/prog, HOME=/", "std: all is well"] {
            ran.prints_line(line);
        }
        ran.frames_came_back();
        ran.has("user.exit_code", 0);
    }
}

#[test]
fn missing_system_calls_are_reported() {
    let request = machine(K16, 1).append("rdinit=/bin/prog");
    // Without what it reads.
    let archive = Initramfs::new()
        .directory("/bin")
        .program("/bin/prog", &with_std());
    let ran = ends(&request, archive, Outcome::GuestExit);
    ran.mentions("std: No such file or directory");
    ran.has("user.exit_code", 1);
}
