//! Boots a machine with programs on it: code that all rooms share.

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::booted::Booted;
pub(crate) use crate::hooked::ends_with as ends;
use crate::image::{built, image};

/// The program for tests.
pub(crate) fn program() -> Vec<u8> {
    std::fs::read(built("granule-user", "cargo xtask user")).unwrap()
}

/// The program with a standard library.
pub(crate) fn with_std() -> Vec<u8> {
    std::fs::read(built("granule-user-std", "cargo xtask user")).unwrap()
}

/// The benchmark of user memory.
pub(crate) fn bench() -> Vec<u8> {
    std::fs::read(built("granule-user-bench", "cargo xtask user")).unwrap()
}

/// The program that runs another with a page size of its own.
pub(crate) fn pagesize() -> Vec<u8> {
    std::fs::read(built("granule-pagesize", "cargo xtask user")).unwrap()
}

/// A machine of 256 MiB with so many CPUs and pages of that size.
pub(crate) fn machine(size: PageSize, cpus: u32) -> Request {
    Request::default()
        .image(image())
        .memory(256 << 20)
        .smp(cpus)
        .page_size(size)
}

/// The same, entered at that exception level.
pub(crate) fn machine_at(size: PageSize, cpus: u32, el: u8) -> Request {
    machine(size, cpus).el(el)
}

/// The first process is the program for tests, which does what these words name.
#[track_caller]
pub(crate) fn does(request: &Request, words: &str, outcome: Outcome) -> Booted {
    let append = request.append.clone().unwrap_or_default();
    let request = request.clone().append(format!("{append} -- {words}"));
    let archive = Initramfs::new().program("/init", &program());
    let ran = ends(&request, archive, outcome);
    // Whatever it did, every frame came back: else the outcome is another one, but then it must
    // have been counted.
    ran.frames_came_back();
    ran
}

/// As [`does`], all of which must be well and end with that line.
#[track_caller]
pub(crate) fn well(request: &Request, words: &str, line: &str) -> Booted {
    let ran = does(request, words, Outcome::Ok);
    ran.prints_line(line);
    ran.has("user.exit_code", 0);
    ran
}
