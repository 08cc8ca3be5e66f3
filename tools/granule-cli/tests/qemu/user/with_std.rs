//! A program written without this kernel in mind: Rust's standard library on musl, static,
//! unmodified under every page size.

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::user::machine::{ends, machine, with_std};

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
        (PageSize::K4, 1, 2),
        (PageSize::K4, 4, 1),
        (PageSize::K16, 2, 2),
        (PageSize::K64, 1, 1),
        (PageSize::K64, 4, 2),
    ] {
        let request = Request {
            el,
            append: Some("rdinit=/bin/prog".into()),
            ..machine(size, cpus)
        };
        let ran = ends(&request, archive(), Outcome::Ok);
        for line in ["std: /bin/prog, HOME=/", "std: all is well"] {
            assert!(ran.prints(line), "no {line:?} in:\n{}", ran.console);
        }
        let frames = |when| ran.number(&format!("user.frames_{when}"));
        assert_eq!(frames("before"), frames("after"));
        assert_eq!(ran.number("user.exit_code"), 0);
    }
}

#[test]
fn missing_system_calls_are_reported() {
    let request = Request {
        append: Some("rdinit=/bin/prog".into()),
        ..machine(PageSize::K16, 1)
    };
    // Without what it reads.
    let archive = Initramfs::new()
        .directory("/bin")
        .program("/bin/prog", &with_std());
    let ran = ends(&request, archive, Outcome::GuestExit);
    assert!(
        ran.console.contains("std: No such file or directory"),
        "{}",
        ran.console
    );
    assert_eq!(ran.number("user.exit_code"), 1);
}
