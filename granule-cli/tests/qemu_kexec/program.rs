//! The `kexec` program itself: its words, and what it says when something is wrong.

use granule_cli::{Initramfs, Outcome, PageSize};

use crate::machine::{bare, ends, machine, program};

/// What ends the program with 1, and the line it says.
#[test]
fn what_cannot_be_done_is_told_in_one_line() {
    for (size, lines, line) in [
        (PageSize::K4, "jump", "jump: no such command"),
        (PageSize::K16, "load", "load: no image is named"),
        (PageSize::K64, "load a b", "b: not understood"),
        (PageSize::K4, "load a --fast", "--fast: not understood"),
        (PageSize::K16, "unload a", "a: not understood"),
        (
            PageSize::K64,
            "load a --initrd",
            "--initrd: nothing behind it",
        ),
        (
            PageSize::K4,
            "# a comment\n\n  \nload /boot/none --append quiet",
            "/boot/none: ENOENT: there is no such file",
        ),
        (
            PageSize::K16,
            "load /init --initrd /none",
            "/none: ENOENT: there is no such file",
        ),
    ] {
        let ran = ends(&machine(size, 1), bare(lines), Outcome::GuestExit);
        let said: Vec<_> = ran
            .console
            .lines()
            .filter(|said| said.starts_with("kexec: "))
            .collect();
        assert!(
            matches!(said[..], [said] if said.contains(line)),
            "{lines:?}: {said:?}"
        );
        assert_eq!(ran.number("user.exit_code"), 1);
    }
}

#[test]
fn without_its_file_it_says_so() {
    let archive = Initramfs::new().program("/init", &program());
    let ran = ends(&machine(PageSize::K4, 1), archive, Outcome::GuestExit);
    assert!(
        ran.says("kexec: /etc/kexec: ENOENT: there is no such file"),
        "{}",
        ran.console
    );
    let nothing = ends(&machine(PageSize::K4, 1), bare("# none\n"), Outcome::Ok);
    assert_eq!(nothing.number("user.exit_code"), 0);
}
