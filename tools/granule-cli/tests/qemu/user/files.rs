//! Files, pipes, programs run by others, signals, and the console's input, on machines of every kind.

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::user::machine::{Ran, ends, machine, program};

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

/// Runs one of the program's tests, which must end well and print its line, with every frame given
/// back.
fn well(request: &Request, words: &str, line: &str) -> Ran {
    let request = Request {
        append: Some(format!("-- {words}")),
        ..request.clone()
    };
    let ran = ends(&request, archive(), Outcome::Ok);
    assert!(ran.prints(line), "no {line:?} in:\n{}", ran.console);
    let frames = |when| ran.number(&format!("user.frames_{when}"));
    assert_eq!(frames("before"), frames("after"));
    ran
}

/// Every page size, on one CPU and on several, at either level.
fn everywhere(words: &str, line: &str) {
    for (size, cpus, el) in [
        (PageSize::K4, 1, 2),
        (PageSize::K4, 4, 1),
        (PageSize::K16, 1, 1),
        (PageSize::K16, 3, 2),
        (PageSize::K64, 2, 2),
        (PageSize::K64, 1, 1),
    ] {
        let request = Request {
            el,
            ..machine(size, cpus)
        };
        well(&request, words, line);
    }
}

#[test]
fn files_are_read_listed_and_piped() {
    everywhere("files", "filed");
}

#[test]
fn programs_run_others_in_their_place() {
    everywhere("execs", "executed");
}

#[test]
fn signals_are_handled_masked_and_end_calls() {
    everywhere("signals", "signalled");
}

#[test]
fn the_first_process_may_be_a_link_and_an_archive_may_be_bad() {
    let archive = Initramfs::new()
        .link("/init", "bin/prog")
        .program("/bin/prog", &program());
    let request = Request {
        append: Some("-- hello".into()),
        ..machine(PageSize::K4, 1)
    };
    let ran = ends(&request, archive, Outcome::Ok);
    assert!(ran.prints("hello from process 1"), "{}", ran.console);
    let twice = Initramfs::new().file("/a", b"").file("/a/b", b"");
    let ran = ends(&request, twice, Outcome::Ok);
    assert!(
        ran.console.contains(
            "what one entry has as a directory another has as something else: no user space"
        ),
        "{}",
        ran.console
    );
}
