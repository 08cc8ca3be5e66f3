//! The `kexec` program itself: its words, and its lines for errors.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Initramfs, Outcome};

use crate::kexec::machine::{NEXT, archive, bare, ends, machine, program};

/// Inputs that end the program with 1, and the line that it prints.
#[test]
fn each_error_of_the_program_is_one_line() {
    for (size, lines, line) in [
        (K4, "jump", "jump: no such command"),
        (K16, "load", "load: no image is named"),
        (K64, "load a b", "b: not understood"),
        (K4, "load a --fast", "--fast: not understood"),
        (K16, "unload a", "a: not understood"),
        (K64, "load a --initrd", "--initrd: nothing behind it"),
        (
            K4,
            "# a comment\n\n  \nload /boot/none --append quiet",
            "/boot/none: ENOENT: there is no such file",
        ),
        (
            K16,
            "load /init --initrd /none",
            "/none: ENOENT: there is no such file",
        ),
    ] {
        let ran = ends(&machine(size, 1), bare(lines), Outcome::GuestExit);
        let printed: Vec<_> = ran
            .console
            .lines()
            .filter(|printed| printed.starts_with("kexec: "))
            .collect();
        assert!(
            matches!(printed[..], [printed] if printed.contains(line)),
            "{lines:?}: {printed:?}"
        );
        ran.has("user.exit_code", 1);
    }
}

#[test]
fn a_loaded_kernel_is_listed_and_unloaded() {
    let lines = format!(
        "status\nload {NEXT} --initrd /etc/kexec --append  quiet  \nstatus\n\
         load {NEXT} --copy\nunload\nstatus\n"
    );
    for size in PageSize::ALL {
        let ran = ends(&machine(size, 1), archive(&lines), Outcome::Ok);
        let listed: Vec<_> = ran
            .console
            .lines()
            .filter(|line| line.starts_with("loaded "))
            .collect();
        assert_eq!(listed, ["loaded 0", "loaded 1", "loaded 0"]);
        let (_, after) = ran.console.split_once("loaded 1").unwrap();
        for name in ["kernel 0x", "initrd 0x", "tree 0x", "entry 0x"] {
            assert!(after.contains(name), "{name}:\n{}", ran.console);
        }
    }
}

/// Its words may also come as arguments.
#[test]
fn arguments_are_a_command() {
    let with = |words: &str| machine(K16, 1).append(format!("-- {words}"));
    let nothing = "not a command";
    let ran = ends(&with("status"), bare(nothing), Outcome::Ok);
    ran.prints_line("loaded 0");
    let words = format!("load {NEXT} --append quiet --copy");
    ends(&with(&words), archive(nothing), Outcome::Ok);
    for (words, line) in [
        ("load /boot/Image --append", "--append: nothing behind it"),
        ("exec", "the next kernel was not entered: "),
        ("load /init", "/init was not loaded: ENOEXEC: "),
        ("load /boot", "/boot was not loaded: "),
    ] {
        let ran = ends(&with(words), archive(nothing), Outcome::GuestExit);
        let printed = ran
            .console
            .lines()
            .find(|printed| printed.starts_with("kexec: "));
        assert!(
            printed.is_some_and(|printed| printed.contains(line)),
            "{}",
            ran.console
        );
    }
}

#[test]
fn without_its_file_it_prints_a_line() {
    let archive = Initramfs::new().program("/init", &program());
    let ran = ends(&machine(K4, 1), archive, Outcome::GuestExit);
    ran.prints_line("kexec: /etc/kexec: ENOENT: there is no such file");
    let nothing = ends(&machine(K4, 1), bare("# none\n"), Outcome::Ok);
    nothing.has("user.exit_code", 0);
}
