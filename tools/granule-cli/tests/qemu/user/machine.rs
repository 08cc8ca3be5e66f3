//! Boots a machine with programs on it: code that all rooms share.

use granule_cli::{Initramfs, Outcome, PageSize, Request};
use serde_json::Value;

use crate::hooked;
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
    Request {
        image: Some(image()),
        memory: 256 << 20,
        smp: cpus,
        page_size: Some(size),
        ..Request::default()
    }
}

/// A boot that has ended as it was to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) json: Value,
    pub(crate) console: String,
    pub(crate) reason: Option<String>,
}

impl Ran {
    /// A number of the record.
    #[track_caller]
    pub(crate) fn number(&self, path: &str) -> u64 {
        let value = path.split('.').fold(&self.json, |value, key| &value[key]);
        value
            .as_u64()
            .unwrap_or_else(|| panic!("{path} is not a number in {}", self.json))
    }

    /// Whether the console has this line.
    pub(crate) fn prints(&self, line: &str) -> bool {
        self.console
            .lines()
            .any(|printed| printed.trim_end() == line)
    }
}

/// Boots with this archive, which must end that way.
#[track_caller]
pub(crate) fn ends(request: &Request, archive: Initramfs, outcome: Outcome) -> Ran {
    let file = tempfile::NamedTempFile::new().unwrap();
    archive.write(file.path()).unwrap();
    let request = Request {
        initrd: Some(file.path().to_owned()),
        ..request.clone()
    };
    let boot = hooked::ends(&request, outcome);
    Ran {
        json: boot.json(),
        console: boot.console_text(),
        reason: boot.reason.clone(),
    }
}

/// The first process is the program for tests, which does what these words name.
#[track_caller]
pub(crate) fn does(request: &Request, words: &str, outcome: Outcome) -> Ran {
    let append = request.append.clone().unwrap_or_default();
    let request = Request {
        append: Some(format!("{append} -- {words}")),
        ..request.clone()
    };
    let archive = Initramfs::new().program("/init", &program());
    let ran = ends(&request, archive, outcome);
    // Whatever it did, every frame came back: else the outcome is another one, but then it must
    // have been counted.
    assert_eq!(
        ran.number("user.frames_before"),
        ran.number("user.frames_after")
    );
    ran
}

/// As [`does`], all of which must be well and end with that line.
#[track_caller]
pub(crate) fn well(request: &Request, words: &str, line: &str) -> Ran {
    let ran = does(request, words, Outcome::Ok);
    assert!(ran.prints(line), "no {line:?} in:\n{}", ran.console);
    assert_eq!(ran.number("user.exit_code"), 0);
    ran
}
